"""A real log on a disk that can be made to stall, and to fail."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any, TypeVar

import pytest

from turnd.store import connection as connection_module
from turnd.store.schema import open_for_writing

STALL_S = 30.0


class Disk:
    """What the writer's transactions meet: they wait while it stalls, and fail while it is ill."""

    def __init__(self) -> None:
        self.ill = False
        self._failing = 0
        self._moves = threading.Event()
        self._moves.set()

    def stall(self) -> None:
        self._moves.clear()

    def move(self, *, failing: int = 0) -> None:
        """Lets go what waits; the next so many transactions fail."""
        self._failing = failing
        self._moves.set()

    def begin(self) -> None:
        assert self._moves.wait(STALL_S), "the disk was never let go"
        if self._failing:
            self._failing -= 1
            raise sqlite3.OperationalError("disk I/O error")
        if self.ill:
            raise sqlite3.OperationalError("database or disk is full")

    def committing(self, connection: sqlite3.Connection) -> None:
        """All that the transaction does is done, and none of it is stored; what this raises fails the commit."""


class _Connection(sqlite3.Connection):
    disk: Disk

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if sql == "BEGIN IMMEDIATE":
            self.disk.begin()
        if sql == "COMMIT":
            self.disk.committing(self)
        return super().execute(sql, *values)


DiskType = TypeVar("DiskType", bound=Disk)


def disk_below(monkeypatch: pytest.MonkeyPatch, disk: DiskType) -> DiskType:
    """Makes it the disk of every log that is opened from now on."""

    def open_(path: Path) -> sqlite3.Connection:
        open_for_writing(path).close()
        connection = sqlite3.connect(path, isolation_level=None, factory=_Connection)
        connection.disk = disk
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        return connection

    monkeypatch.setattr(connection_module, "open_for_writing", open_)
    return disk
