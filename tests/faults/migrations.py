"""A start on a log of an older version; jobs of the forge."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.faults.preload import Kind, Shim
from tests.unit.stored import database

from turnd.store.migrate import migrate

ORDER: Final = "order"
"""The file with the order of calls into the kernel."""
EVERYTHING: Final = Kind.WRITE | Kind.SYNC | Kind.TRUNCATE


def migrated(directory: Path, version: int, first: int, action: int) -> None:
    """Migrates, with something happening to one call into the kernel."""
    shim = Shim()
    shim.arm(EVERYTHING, first, action)
    _migrate(directory, version)


def in_order(directory: Path, version: int) -> None:
    """Migrates, and writes down what was written, synced and renamed in which order."""
    Shim().trace(directory / ORDER)
    _migrate(directory, version)


def _migrate(directory: Path, version: int) -> None:
    migrate(database(directory), version, 0, lambda done, total: None)
