"""Checks behind a daemon that serves, and on demand; and how large the WAL may grow (LOG-10, LOG-16)."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from tests.unit.store_samples import fill, killed_copy
from tests.unit.stored import TickingClock, created, database, note, opened, query

from turnd.store.check import BackgroundCheck, CheckStopped, integrity_check, quick_check
from turnd.store.checksum import define
from turnd.store.damage import suspicion
from turnd.store.health import WalWatch
from turnd.store.hold import Hold
from turnd.store.log import EventLog
from turnd.store.schema import PAGE_BYTES


def never() -> threading.Event:
    return threading.Event()


async def killed(tmp_path: Path) -> Path:
    """A log as a kill leaves it, much of it in the file and some in the WAL."""
    async with opened(tmp_path) as log:
        await fill(log, "A")
        await fill(log, "B")
    async with opened(tmp_path) as log:
        await log.append(created("C"))
        return killed_copy(tmp_path, tmp_path / "copy")


def unchecked(directory: Path) -> bool:
    return (directory / "turnd.db.unchecked").exists()


@pytest.mark.req("LOG-16")
async def test_a_sound_log_is_checked_after_a_kill_only(tmp_path: Path) -> None:
    copy = await killed(tmp_path)
    assert not unchecked(tmp_path)
    async with opened(copy) as log:
        assert unchecked(copy)
        await log.append(created("D"))
        await log.wait_checked()
        assert log.problems() == []
        assert not unchecked(copy)
    assert sorted(path.name for path in copy.iterdir()) == ["turnd.db", "turnd.lock"]


@pytest.mark.req("LOG-16")
async def test_a_check_that_did_not_end_is_due_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = await killed(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(BackgroundCheck, "start", lambda check: check.done.set_exception(CheckStopped()))
        patch.setattr(BackgroundCheck, "join", lambda check: None)
        async with opened(copy) as log:
            await log.wait_checked()
            assert log.problems() == []
    assert unchecked(copy)
    async with opened(copy) as log:
        await log.wait_checked()
    assert not unchecked(copy)


@pytest.mark.req("LOG-16")
async def test_what_the_check_finds_is_said_while_the_daemon_serves_and_recovered_at_the_next_start(
    tmp_path: Path,
) -> None:
    """A page of an index is garbled that no start has a reason to look at."""
    copy = await killed(tmp_path)
    (root,) = query(copy, "SELECT rootpage FROM sqlite_schema WHERE name = 'usage_of_session'")[0]
    assert isinstance(root, int)
    with database(copy).open("r+b") as file:
        file.seek((root - 1) * PAGE_BYTES)
        file.write(b"\x07" * 100)
    async with opened(copy) as log:
        await log.load("A")
        await log.append(note("A"))
        await log.wait_checked()
        (problem,) = log.problems()
        assert "the check after an unclean stop found the log damaged: " in problem
        assert "restart turnd" in problem
        events = query(copy, "SELECT position, event FROM events")
    assert problem == suspicion(database(copy))
    async with opened(copy) as log:
        assert list(copy.glob("turnd.db.damaged-*"))
        assert query(copy, "SELECT position, event FROM events") == events
        assert quick_check(database(copy), never()) == []


@pytest.mark.req("LOG-16")
@pytest.mark.parametrize(
    ("statement", "fault", "quick"),
    [
        ("DELETE FROM events WHERE session = 1 AND seq = 4", "A: ", True),
        ("DELETE FROM events WHERE session = 2", "B: none of its ", True),
        ("UPDATE sessions SET last_seq = 2 WHERE key = 1", "A: the table of sessions ends at seq 2", True),
        ("DROP TABLE usage_ledger", "the table usage_ledger is missing", True),
        (
            "UPDATE events SET event = X'FFFF' WHERE position = 5",
            "event 5 of A, at position 5 does not fit its checksum",
            True,
        ),
        (
            "UPDATE events SET event = X'FFFF', checksum = row_checksum(5, 1, 5, X'FFFF') WHERE position = 5",
            "event 5 of A, at position 5 cannot be read: ",
            False,
        ),
        (
            "UPDATE events SET event = X'', checksum = row_checksum(5, 1, 5, X'') WHERE position = 5",
            "event 5 of A, at position 5 says that it is 0",
            False,
        ),
    ],
)
async def test_what_is_missing_or_unreadable_is_found(
    tmp_path: Path, statement: str, fault: str, quick: bool
) -> None:
    async with opened(tmp_path) as log:
        await fill(log, "A")
        await fill(log, "B")
    assert quick_check(database(tmp_path), never()) == []
    assert integrity_check(database(tmp_path), never()) == []
    with closing(sqlite3.connect(database(tmp_path), isolation_level=None)) as other:
        define(other)
        other.execute(statement)
    (found,) = integrity_check(database(tmp_path), never())
    assert found.startswith(fault)
    assert quick_check(database(tmp_path), never()) == ([found] if quick else [])


async def test_a_check_ends_when_it_is_told(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        for session in "ABCDEFGH":
            await fill(log, session)
    stop = threading.Event()
    stop.set()
    with pytest.raises(CheckStopped):
        integrity_check(database(tmp_path), stop)
    check = BackgroundCheck(database(tmp_path))
    check.stop()
    check.start()
    with pytest.raises(CheckStopped):
        check.done.result(timeout=60)
    check.join()


# --- the WAL ------------------------------------------------------------------------------------------------


@pytest.mark.req("LOG-10")
async def test_a_wal_that_a_reader_keeps_is_said_until_it_is_over(tmp_path: Path) -> None:
    hold = Hold.take(database(tmp_path), version="0", socket="")
    log = EventLog(hold, TickingClock(), large_wal_bytes=2**20)
    await log.start()
    try:
        await log.append(created("A"))
        with closing(sqlite3.connect(f"file:{database(tmp_path)}?mode=ro", uri=True)) as reader:
            reader.isolation_level = None
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM events").fetchone()
            while not log.problems():
                await log.append(note("A", "x" * 500_000))
            (problem,) = log.problems()
            assert "a process that reads turnd.db keeps a transaction open" in problem
        while log.problems():
            await log.append(note("A"))
    finally:
        await log.close()
        hold.release()


@pytest.mark.req("LOG-10")
def test_a_large_wal_is_logged_once_and_not_in_a_loop(capsys: pytest.CaptureFixture[str]) -> None:
    watch = WalWatch(1000)
    for size, whole in [(900, False), (5000, True), (1001, False), (2000, False), (3000, False)]:
        watch.checkpointed(size, whole=whole)
    assert watch.problem
    watch.checkpointed(500, whole=False)
    assert watch.problem, "it was not emptied yet"
    watch.checkpointed(0, whole=True)
    assert watch.problem == ""
    said = capsys.readouterr()
    assert (said.out + said.err).count("log_wal_large") == 1
    assert (said.out + said.err).count("log_wal_emptied") == 1
