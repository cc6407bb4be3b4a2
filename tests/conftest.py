"""What every test needs: the report on requirements, and an environment without anything of the user's."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.plugins.conformance", "pytester"]

# How long generating or running an example takes says something of the machine, nothing of the code.
settings.register_profile("turnd", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("turnd")

LONGEST = ("faults", "conformance")
"""Directories of tests that take longest: they begin first, so that no process is left alone with one at the end."""
KEPT_VARIABLES = ("LANG", "LC_ALL", "PATH", "TERM", "TMPDIR", "TZ", "VIRTUAL_ENV")
"""What tests see of the caller's environment. The rest may point at real files and keys."""


@pytest.fixture(scope="session", autouse=True)
def isolated_environment() -> Iterator[None]:
    """A home of its own, no keys, no XDG directories: nothing of the user's is found by accident."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="turnd-home-") as home:
        for name in set(os.environ) - set(KEPT_VARIABLES):
            if not name.startswith(("TURND_TEST_", "COVERAGE_", "PYTEST_")):
                patch.delenv(name)
        patch.setenv("HOME", home)
        yield


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A private directory with a short name: a socket's path has 107 bytes at most."""
    path = Path(tempfile.mkdtemp(prefix="turnd-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def turnd_home(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`TURND_HOME` for this test, and for the processes that it starts."""
    monkeypatch.setenv("TURND_HOME", str(short_path))
    return short_path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(
        key=lambda item: LONGEST.index(part) if (part := item.path.parent.name) in LONGEST else len(LONGEST)
    )
