"""Why a test may be skipped on a machine: each reason once."""

from __future__ import annotations

import shutil

import pytest

NEEDS_CELLS = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="bubblewrap is not installed: apt-get install bubblewrap"
)
