"""Real cells for every test here; without bubblewrap there is nothing to try to get out of."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.security.fort import Fort

from turnd.cells import Bubblewrap


@pytest.fixture
def fort(tmp_path: Path) -> Fort:
    """A session's directories, below /tmp as often as not: a workspace must work there too."""
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    built = Fort(Bubblewrap.find(), tmp_path.resolve())
    built.build()
    return built
