"""A connection that cannot even roll back is given up, and the file opened again when the disk is well (LOG-14)."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.stored import created, database, note, opened, query, stored_events

from turnd.ports import LogFailed
from turnd.store import connection as connection_module
from turnd.store.log import EventLog
from turnd.store.schema import open_for_writing

pytestmark = [pytest.mark.req("LOG-14"), pytest.mark.timeout(60)]


class Disk:
    """Whether the disk takes anything, and how often the file was opened while it did not.

    Each of those tries takes until `answers` is set.
    """

    def __init__(self) -> None:
        self.ill = False
        self.tried = 0
        self.answers = threading.Event()
        self.answers.set()

    def check(self) -> None:
        if self.ill:
            raise sqlite3.OperationalError("disk I/O error")


class Connection(sqlite3.Connection):
    """A real connection, on a disk that can be ill."""

    disk: Disk

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        self.disk.check()
        return super().execute(sql, *values)

    def executemany(self, sql: str, values: Iterable[Any]) -> sqlite3.Cursor:
        if sql.startswith("INSERT INTO events"):
            self.disk.check()
        return super().executemany(sql, values)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()

    def open_(path: Path) -> sqlite3.Connection:
        if disk.ill:
            disk.answers.wait()
            disk.tried += 1
        disk.check()
        open_for_writing(path).close()
        connection = sqlite3.connect(path, isolation_level=None, factory=Connection)
        connection.disk = disk
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        return connection

    monkeypatch.setattr(connection_module, "open_for_writing", open_)
    return disk


async def fall_ill_in_a_transaction(log: EventLog, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk goes when the rows are written, and takes no ROLLBACK either."""
    insert = Connection.executemany

    def gone(self: Connection, sql: str, values: Iterable[Any]) -> sqlite3.Cursor:
        disk.ill = True
        return insert(self, sql, values)

    with monkeypatch.context() as patch:
        patch.setattr(Connection, "executemany", gone)
        with pytest.raises(LogFailed, match="disk I/O error"):
            await log.append(note("A", "lost"))
    assert disk.tried > 0


async def test_the_log_goes_on_by_itself_when_the_disk_is_well_again(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("A"))
        await fall_ill_in_a_transaction(log, disk, monkeypatch)
        for _ in range(3):
            with pytest.raises(LogFailed, match="disk I/O error"):
                await log.append(note("A", "lost"))
        assert log.state("A").seq == 1
        disk.ill = False
        assert (await log.append(note("A", "stored")))[0].seq == 2
        assert [event.note.text for event in (await stored_events(log, "A"))[1:]] == ["stored"]
    assert query(tmp_path, "SELECT position, seq FROM events ORDER BY 1") == [(1, 1), (2, 2)]


async def test_what_is_queued_together_does_not_open_the_file_once_for_each(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("A"))
        await fall_ill_in_a_transaction(log, disk, monkeypatch)
        disk.tried = 0
        disk.answers.clear()
        waiting = [asyncio.ensure_future(log.append(created(f"B{number}"))) for number in range(200)]
        await asyncio.sleep(0)
        disk.answers.set()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(outcome, LogFailed) for outcome in outcomes)
        assert disk.tried <= 4, "the first one may be alone in its transaction, with the others behind it"
        disk.ill = False
        await log.append(created("B0"))
    assert query(tmp_path, "SELECT id FROM sessions ORDER BY key") == [("A",), ("B0",)]


async def test_no_new_file_is_made_where_the_old_one_is_gone_for_a_while(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("A"))
        await fall_ill_in_a_transaction(log, disk, monkeypatch)
        disk.ill = False
        unmounted = [(path, path.with_name(f"away-{path.name}")) for path in tmp_path.glob("turnd.db*")]
        for path, away in unmounted:
            path.rename(away)
        with pytest.raises(LogFailed):
            await log.append(note("A"))
        assert not database(tmp_path).exists()
        for path, away in unmounted:
            away.rename(path)
        assert (await log.append(note("A")))[0].seq == 2


async def test_another_file_at_its_place_is_not_written_into(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("A"))
        await fall_ill_in_a_transaction(log, disk, monkeypatch)
        disk.ill = False
        for path in list(tmp_path.glob("turnd.db*")):
            path.rename(path.with_name(f"away-{path.name}"))
        open_for_writing(database(tmp_path)).close()
        with pytest.raises(LogFailed, match="it is another file"):
            await log.append(note("A"))
        assert query(tmp_path, "SELECT count(*) FROM events") == [(0,)]
