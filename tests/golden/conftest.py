"""Every append of every scene is looked at for what has to stand in one transaction."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.sim.together import watched
from tests.sim.world import MemoryLog


@pytest.fixture(autouse=True)
def _together() -> Iterator[None]:
    with watched(MemoryLog):
        yield
