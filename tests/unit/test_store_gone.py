"""A log whose file is missing or empty, or whose header lies (LOG-16): what there is left is kept, and it is said."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.unit.store_samples import fill, killed_copy
from tests.unit.stored import created, database, note, opened, query

from turnd.store import opening
from turnd.store.hold import LOCK_NAME
from turnd.store.opening import open_file
from turnd.store.pages import FoundRow, event_rows
from turnd.store.schema import PAGE_BYTES, NotALog, SchemaTooNew
from turnd.store.transfer import verify_stored

VERSION = range(60, 64)
OURS = range(68, 72)
HEADER = 100


def events_of(directory: Path) -> list[tuple[object, ...]]:
    return query(directory, "SELECT position, event FROM events ORDER BY position")


async def wal_alone(directory: Path, *, empty: bool) -> list[tuple[object, ...]]:
    """A log that was never checkpointed, without its file."""
    live = directory / "live"
    live.mkdir()
    async with opened(live) as log:
        for session in "AB":
            await fill(log, session)
        killed_copy(live, directory / "killed")
        events = events_of(live)
    for left in (directory / "killed").iterdir():
        left.rename(directory / left.name)
    database(directory).unlink()
    if empty:
        database(directory).touch()
    return events


@pytest.mark.req("LOG-16")
@pytest.mark.parametrize("empty", [False, True])
async def test_committed_events_in_a_wal_without_its_file_are_kept(tmp_path: Path, empty: bool) -> None:
    events = await wal_alone(tmp_path, empty=empty)
    wal = Path(f"{database(tmp_path)}-wal").read_bytes()
    async with opened(tmp_path) as log:
        assert events_of(tmp_path) == events
        (problem,) = log.problems()
        assert f"was {'empty' if empty else 'missing'}, and its WAL holds committed events" in problem
        for session in "AB":
            assert (await verify_stored(log, session)).lawful
    kept = [path.read_bytes() for path in tmp_path.glob("turnd.db.damaged-*-wal")]
    assert kept == [wal]
    async with opened(tmp_path) as log:
        assert log.problems() == []


@pytest.mark.req("LOG-16")
@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("killed_at", ["put_stand_in", "recover"])
async def test_a_kill_while_a_wal_without_its_file_is_recovered_costs_nothing(
    tmp_path: Path, empty: bool, killed_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    events = await wal_alone(tmp_path, empty=empty)
    with monkeypatch.context() as patch:
        patch.setattr(opening, killed_at, kill)
        with pytest.raises(Killed):
            open_file(database(tmp_path), lambda: 0)
    async with opened(tmp_path) as log:
        assert events_of(tmp_path) == events
        assert len(log.problems()) == 1


@pytest.mark.req("LOG-16")
async def test_a_file_that_was_there_before_does_not_go_without_a_word(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        assert log.problems() == []
        await log.append(created("A"))
    database(tmp_path).unlink()
    async with opened(tmp_path) as log:
        (problem,) = log.problems()
        assert "was missing, and a new one was made" in problem
    database(tmp_path).write_bytes(b"")
    async with opened(tmp_path) as log:
        (problem,) = log.problems()
        assert "was empty, and a new one was made" in problem
    async with opened(tmp_path) as log:
        assert log.problems() == []


@pytest.mark.req("LOG-16")
@pytest.mark.parametrize("settled", [True, False])
async def test_a_garbled_byte_of_the_header_costs_no_event(tmp_path: Path, settled: bool) -> None:
    """Each of them: the file opens as it is, or is recovered whole, or is refused and not touched."""
    live = tmp_path / "live"
    live.mkdir()
    async with opened(live) as log:
        for session in "AB":
            await fill(log, session, blob=9_000)
        # A free page, the list of which is in the header.
        await log.append(created("C"), note("C", "x" * 20_000))
    async with opened(live) as log:
        await log.load("A")
        await log.append(note("A", "late"))
        killed = killed_copy(live, tmp_path / "killed")
        events = events_of(killed)
    source = live if settled else killed
    for at in range(HEADER):
        copy = tmp_path / f"copy{at}"
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns(LOCK_NAME))
        content = bytearray(database(copy).read_bytes())
        content[at] ^= 0xFF
        database(copy).write_bytes(content)
        try:
            async with opened(copy):
                assert events_of(copy) == events, at
        except (NotALog, SchemaTooNew):
            assert at in (*VERSION, *OURS), at
            assert database(copy).read_bytes() == content
        shutil.rmtree(copy)


@pytest.mark.req("LOG-16")
async def test_a_session_that_is_lost_whole_is_named_although_sqlite_reads_nothing(tmp_path: Path) -> None:
    """The header is gone, and every page with an event of B."""
    async with opened(tmp_path) as log:
        await fill(log, "A")
        await fill(log, "B")
    last = query(tmp_path, "SELECT last_seq FROM sessions WHERE id = 'B'")[0][0]
    kept = {
        row.position
        for row in event_rows(database(tmp_path))
        if isinstance(row, FoundRow) and row.session == "A"
    }
    content = bytearray(database(tmp_path).read_bytes())
    content[:64] = bytes(64)
    for at in range(PAGE_BYTES, len(content), PAGE_BYTES):
        page = bytes(content[at : at + PAGE_BYTES])
        alone = tmp_path / "alone"
        alone.write_bytes(bytes(PAGE_BYTES) + page)
        if any(isinstance(row, FoundRow) and row.session == "B" for row in event_rows(alone)):
            content[at : at + PAGE_BYTES] = bytes(PAGE_BYTES)
    database(tmp_path).write_bytes(content)
    async with opened(tmp_path) as log:
        (problem,) = log.problems()
        assert f"B: 0 of at least {last} events kept" in problem
        assert {position for (position,) in query(tmp_path, "SELECT position FROM events")} <= kept


@pytest.mark.req("LOG-16")
async def test_what_is_no_file_is_refused_with_its_name(tmp_path: Path) -> None:
    database(tmp_path).mkdir()
    with pytest.raises(NotALog, match=rf"{database(tmp_path)} is not turnd's log: it is no ordinary file"):
        async with opened(tmp_path):
            pass
    assert database(tmp_path).is_dir()
