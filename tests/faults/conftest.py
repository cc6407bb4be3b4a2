"""What the tests of faults share."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults import preload

MEMORY = Path("/dev/shm")


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """A directory in memory where there is one: what a kill leaves is the same there, and syncing costs nothing."""
    parent = MEMORY if os.access(MEMORY, os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix="turnd-faults-", dir=parent))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shim, compiled."""
    return preload.build(tmp_path_factory.mktemp("shim"))
