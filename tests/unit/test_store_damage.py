"""Damaged files: renamed, recovered as far as they can be read, and said so (LOG-16)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.unit.store_samples import fill, killed_copy, row_of, tables
from tests.unit.stored import created, database, note, opened, query, stored_events, turn

from turnd.ports import LogFailed
from turnd.store import damage
from turnd.store.damage import recover, suspicion
from turnd.store.log import EventLog
from turnd.store.pages import event_rows
from turnd.store.reading import UnreadableLog
from turnd.store.schema import PAGE_BYTES, open_for_writing
from turnd.store.transfer import verify_stored
from turnd.store.walfile import FRAME_HEADER_BYTES, HEADER_BYTES, read_wal
from turnd.v1 import event_pb2

GOES_ON = "goes on"
Rows = list[tuple[object, ...]]


def damaged_files(directory: Path) -> list[Path]:
    return [path for path in sorted(directory.glob("turnd.db.damaged-*")) if path.name.endswith("Z")]


def blobs(directory: Path) -> Rows:
    return query(directory, "SELECT position, event FROM events ORDER BY position")


def event_of(row: tuple[object, ...]) -> event_pb2.Event:
    assert isinstance(row[-1], bytes)
    return event_pb2.Event.FromString(row[-1])


def flip(path: Path, offset: int, bit: int = 3) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1 << bit
    path.write_bytes(content)


def destroy_header(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"\0" * 64)


async def settled(directory: Path, sessions: str = "AB") -> Rows:
    """A log with these sessions, stopped in order; its events."""
    async with opened(directory) as log:
        for session in sessions:
            await fill(log, session)
    return blobs(directory)


async def lawful_and_goes_on(log: EventLog, *sessions: str) -> None:
    for session in sessions:
        assert (await verify_stored(log, session)).lawful
        await log.load(session)
        await log.append(note(session, GOES_ON))


# --- reading without SQLite -----------------------------------------------------------------------------------


@pytest.mark.req("LOG-16")
async def test_the_pages_hold_what_sqlite_reads(tmp_path: Path) -> None:
    """Of a file with much in it, and with much more in its WAL: small rows, and some that take many pages."""
    async with opened(tmp_path) as log:
        for session in "AB":
            await fill(log, session, turns=3)
    async with opened(tmp_path) as log:
        await fill(log, "C", blob=70_000)
        await log.load("A")
        await log.append(
            *(note("A", "x" * size) for size in (0, 1, 4000, 4050, 4051, 4060, 4090, 4100, 12_300))
        )
        copy = killed_copy(tmp_path, tmp_path / "copy")
        expected = query(
            copy, "SELECT position, id, seq, event FROM events JOIN sessions ON events.session = key"
        )
        found = {(row.position, row.session, row.seq, row.blob) for row in event_rows(database(copy))}
        assert found == set(expected)
        assert read_wal(copy / "turnd.db-wal").frames
        assert not read_wal(copy / "turnd.db-wal").lost


@pytest.mark.req("LOG-16")
async def test_what_was_removed_on_purpose_does_not_come_back(tmp_path: Path) -> None:
    await settled(tmp_path)
    with closing(sqlite3.connect(database(tmp_path), isolation_level=None)) as other:
        other.execute("PRAGMA secure_delete = OFF")
        other.execute("DELETE FROM events WHERE session = 1")
    assert {row.session for row in event_rows(database(tmp_path))} == {"B"}


def test_text_that_looks_like_a_page_is_not_taken_for_rows(tmp_path: Path) -> None:
    """A model writes the bytes of a page of events into a long text."""
    forged = tmp_path / "forged"
    forged.mkdir()
    with closing(open_for_writing(database(forged))) as connection:
        event = event_pb2.Event(session="forged", seq=1).SerializeToString()
        connection.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?)", row_of(1, 1, 1, event))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    pages = database(forged).read_bytes()
    leaf = next(
        at for at in range(PAGE_BYTES, len(pages), PAGE_BYTES) if b"forged" in pages[at : at + PAGE_BYTES]
    )
    page = pages[leaf : leaf + PAGE_BYTES]
    with closing(open_for_writing(database(tmp_path))) as connection:
        for shift in range(8):
            text = b"x" * shift + page * 40
            row = row_of(shift + 1, 1, shift + 1, text)
            connection.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?)", row)
    assert list(event_rows(database(forged)))
    assert list(event_rows(database(tmp_path))) == []


# --- a damaged file -------------------------------------------------------------------------------------------


@pytest.mark.req("LOG-16")
async def test_a_flipped_bit_in_any_page_costs_at_most_what_stood_there(tmp_path: Path) -> None:
    """One bit in the head of each page in turn: every session opens, and is a lawful beginning of what it was."""
    before = await settled(tmp_path)
    content = database(tmp_path).read_bytes()
    at_once = later = 0
    for number in range(len(content) // PAGE_BYTES):
        directory = tmp_path / str(number)
        directory.mkdir()
        database(directory).write_bytes(content)
        flip(database(directory), number * PAGE_BYTES + (18 if number == 0 else 0))
        expected = database(directory).read_bytes()
        async with opened(directory) as log:
            if damaged_files(directory):
                at_once += 1
                (kept,) = damaged_files(directory)
                assert kept.read_bytes() == expected
                assert str(kept) in log.problems()[0]
            else:
                try:
                    await lawful_and_goes_on(log, "A", "B")
                except (UnreadableLog, LogFailed):
                    later += 1
                    assert log.problems()
                    assert suspicion(database(directory))
        async with opened(directory) as log:
            stored = [row for row in blobs(directory) if event_of(row).note.text != GOES_ON]
            assert {row for row in stored if not event_of(row).synthetic} <= set(before)
            ids = query(directory, "SELECT id FROM sessions")
            assert ids
            await lawful_and_goes_on(log, *[str(row[0]) for row in ids])
    assert at_once
    assert later


@pytest.mark.req("LOG-16")
async def test_a_header_that_cannot_be_read_costs_no_event(tmp_path: Path) -> None:
    before = await settled(tmp_path)
    live = tables(database(tmp_path))
    destroy_header(database(tmp_path))
    damaged = database(tmp_path).read_bytes()
    async with opened(tmp_path) as log:
        (kept,) = damaged_files(tmp_path)
        assert kept.read_bytes() == damaged
        assert kept.stat().st_mode & 0o077 == 0
        assert database(tmp_path).stat().st_mode & 0o077 == 0
        (problem,) = log.problems()
        for part in (str(kept), f"{len(before)} events of 2 sessions", "no session is cut short"):
            assert part in problem
        assert tables(database(tmp_path)) == live
        await lawful_and_goes_on(log, "A", "B")
    async with opened(tmp_path) as log:
        assert log.problems() == []


@pytest.mark.req("LOG-16")
async def test_a_session_is_cut_at_its_first_hole_and_what_is_lost_is_said(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await fill(log, "A")
        await log.append(created("B"), turn("B"), note("B"))
        copy = killed_copy(tmp_path, tmp_path / "copy")
    with closing(sqlite3.connect(database(copy), isolation_level=None)) as other:
        other.execute("INSERT INTO requests VALUES ('r', 'SendMessage', X'01', X'02', 3)")
        other.execute("UPDATE events SET event = X'FFFF' WHERE session = 2 AND seq = 2")
    async with opened(copy) as log:
        (problem,) = log.problems()
        assert "B: 1 of at least 3 events kept, 1 more are readable behind the hole" in problem
        assert "A:" not in problem
        created_event, told = await stored_events(log, "B")
        assert created_event.HasField("session_created")
        assert "those from 2 to at least 3 were lost; the damaged log is kept as" in told.note.text
        assert query(copy, "SELECT request_id, answer FROM requests") == [("r", b"\2")]
        await lawful_and_goes_on(log, "A", "B")
    (kept,) = damaged_files(copy)
    with closing(sqlite3.connect(kept)) as damaged:
        assert damaged.execute("SELECT count(*) FROM events WHERE session = 2").fetchone() == (3,)


@pytest.mark.req("LOG-16", "LOG-08")
async def test_a_cut_session_is_repaired_like_after_a_crash(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("A"), turn("A"), note("A", "kept"), note("A", "lost"), note("A", "behind"))
        copy = killed_copy(tmp_path, tmp_path / "copy")
    with closing(sqlite3.connect(database(copy), isolation_level=None)) as other:
        other.execute("DELETE FROM events WHERE seq = 4")
    async with opened(copy) as log:
        events = await stored_events(log, "A")
        assert [event.synthetic for event in events] == [False] * 3 + [True] * (len(events) - 3)
        assert [event.WhichOneof("data") for event in events[-3:]] == ["turn_end", "session_status", "note"]
        await lawful_and_goes_on(log, "A")


# --- the WAL --------------------------------------------------------------------------------------------------


async def killed_with_wal(tmp_path: Path) -> tuple[Path, Rows]:
    """A log whose last events are in the WAL alone."""
    await settled(tmp_path, "A")
    async with opened(tmp_path) as log:
        await fill(log, "B")
        await log.append(created("C"))
        copy = killed_copy(tmp_path, tmp_path / "copy")
        return copy, blobs(tmp_path)


@pytest.mark.req("LOG-16")
async def test_a_wal_that_is_cut_opens_as_of_its_last_whole_transaction(tmp_path: Path) -> None:
    copy, before = await killed_with_wal(tmp_path)
    wal = copy / "turnd.db-wal"
    whole = wal.read_bytes()
    for part in (0, 1, 17, HEADER_BYTES, len(whole) // 3, len(whole) // 2, len(whole) - 1):
        directory = tmp_path / f"cut-{part}"
        directory.mkdir()
        database(directory).write_bytes(database(copy).read_bytes())
        (directory / "turnd.db-wal").write_bytes(whole[:part])
        async with opened(directory) as log:
            await log.wait_checked()
            assert log.problems() == []
            stored = [row for row in blobs(directory) if not event_of(row).synthetic]
            assert stored == before[: len(stored)]
            await lawful_and_goes_on(
                log, *[str(row[0]) for row in query(directory, "SELECT id FROM sessions")]
            )


@pytest.mark.req("LOG-16")
async def test_a_flipped_bit_in_the_wal_does_not_cost_what_is_behind_it(tmp_path: Path) -> None:
    """SQLite would take nothing behind it, and say nothing."""
    copy, before = await killed_with_wal(tmp_path)
    wal = copy / "turnd.db-wal"
    whole = wal.read_bytes()
    frames = (len(whole) - HEADER_BYTES) // (FRAME_HEADER_BYTES + PAGE_BYTES)
    kept_all = 0
    for frame, inside in [(0, 9), (1, 18), (frames // 4, 100), (frames // 2, 2000), (3 * frames // 4, 30)]:
        directory = tmp_path / f"flip-{frame}"
        directory.mkdir()
        database(directory).write_bytes(database(copy).read_bytes())
        (directory / "turnd.db-wal").write_bytes(whole)
        flip(directory / "turnd.db-wal", HEADER_BYTES + frame * (FRAME_HEADER_BYTES + PAGE_BYTES) + inside)
        async with opened(directory) as log:
            (kept,) = damaged_files(directory)
            assert kept.with_name(f"{kept.name}-wal").stat().st_size == len(whole)
            assert "the WAL is garbled" in log.problems()[0]
            found = dict(blobs(directory))
            assert all(dict(before)[position] == event for position, event in found.items())
            ids = [str(row[0]) for row in query(directory, "SELECT id FROM sessions")]
            assert {"A", "C"} <= set(ids), "C was committed last"
            kept_all += found.keys() == dict(before).keys()
            await lawful_and_goes_on(log, *ids)
    assert kept_all, "most pages are written again and again"


@pytest.mark.req("LOG-14", "LOG-16")
async def test_what_failed_at_its_commit_does_not_come_back_as_committed(tmp_path: Path) -> None:
    """A sync failed, so that nobody was told of a transaction whose frames lie in the WAL; another one followed."""
    copy, _ = await killed_with_wal(tmp_path)
    wal = copy / "turnd.db-wal"
    whole = wal.read_bytes()
    size = FRAME_HEADER_BYTES + PAGE_BYTES
    ends = [
        at + size
        for at in range(HEADER_BYTES, len(whole) - size + 1, size)
        if int.from_bytes(whole[at + 4 : at + 8], "big")
    ]
    wal.write_bytes(whole[: ends[-8]])
    kept = killed_copy(copy, tmp_path / "kept")
    with closing(sqlite3.connect(database(copy), isolation_level=None)) as other:
        last, key, seq = other.execute(
            "SELECT position, session, seq FROM events ORDER BY 1 DESC LIMIT 1"
        ).fetchone()
        event = event_pb2.Event(session="B", seq=seq + 1, note=event_pb2.Note(text="followed"))
        other.execute("PRAGMA wal_autocheckpoint = 0")
        other.execute("BEGIN")
        row = row_of(last + 1, key, seq + 1, event.SerializeToString())
        other.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?)", row)
        other.execute("UPDATE sessions SET last_seq = ? WHERE key = ?", (seq + 1, key))
        other.execute("COMMIT")
        expected = other.execute("SELECT position, event FROM events ORDER BY position").fetchall()
        followed = wal.read_bytes()
        assert followed[: ends[-8]] == whole[: ends[-8]]
        (kept / "turnd.db-wal").write_bytes(followed + whole[len(followed) :])
    assert read_wal(kept / "turnd.db-wal").behind
    async with opened(kept):
        stored = [row for row in blobs(kept) if not event_of(row).synthetic]
        assert stored == expected


@pytest.mark.req("LOG-16")
@pytest.mark.parametrize("shm", [None, b"", b"stale" * 10_000])
async def test_the_shm_file_means_nothing(tmp_path: Path, shm: bytes | None) -> None:
    copy, before = await killed_with_wal(tmp_path)
    if shm is not None:
        (copy / "turnd.db-shm").write_bytes(shm)
    async with opened(copy) as log:
        assert blobs(copy) == before
        await log.wait_checked()
        assert log.problems() == []


# --- tables that can be derived ---------------------------------------------------------------------------------


@pytest.mark.req("LOG-16", "LOG-19")
@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE sessions",
        "DELETE FROM sessions",
        "DROP TABLE usage_ledger",
        "DROP TABLE plan_items",
        "DROP TABLE producers",
        "DROP INDEX sessions_unsettled",
        "UPDATE sessions SET last_seq = last_seq - 1",
        "DROP TABLE requests",
    ],
)
async def test_tables_that_were_deleted_are_derived_again(tmp_path: Path, statement: str) -> None:
    await settled(tmp_path)
    live = tables(database(tmp_path))
    with closing(sqlite3.connect(database(tmp_path), isolation_level=None)) as other:
        other.execute(statement)
    async with opened(tmp_path) as log:
        assert tables(database(tmp_path)) == live
        assert not damaged_files(tmp_path)
        found = "".join(log.problems())
        if "requests" in statement:
            assert "table requests was missing" in found
            assert "carried out twice" in found
        else:
            assert "derived anew" in found
        assert query(tmp_path, "SELECT count(*) FROM requests") == [(0,)]
        await lawful_and_goes_on(log, "A", "B")


# --- found while the daemon serves -------------------------------------------------------------------------------


@pytest.mark.req("LOG-16")
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET event = X'FFFF' WHERE session = 1 AND seq = 9",
        "DELETE FROM events WHERE session = 1 AND seq = 9",
    ],
)
async def test_damage_that_is_found_later_stops_one_session_only(tmp_path: Path, statement: str) -> None:
    await settled(tmp_path)
    with closing(sqlite3.connect(database(tmp_path), isolation_level=None)) as other:
        other.execute(statement)
    async with opened(tmp_path) as log:
        assert log.problems() == []
        with pytest.raises(
            UnreadableLog, match=r"the log of A is damaged at event 9: .*Restart turnd"
        ) as caught:
            await log.load("A")
        assert (caught.value.session, caught.value.seq) == ("A", 9)
        assert log.problems() == [str(caught.value)]
        await lawful_and_goes_on(log, "B")
    assert suspicion(database(tmp_path))
    async with opened(tmp_path) as log:
        (problem,) = log.problems()
        assert "A: 8 of at least" in problem
        assert damaged_files(tmp_path)
        assert not suspicion(database(tmp_path))
        await lawful_and_goes_on(log, "A", "B")


@pytest.mark.req("LOG-16")
async def test_a_page_that_sqlite_refuses_later_stops_one_session_only(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await fill(log, "A", turns=1, blob=400_000)
        await fill(log, "B")
    content = database(tmp_path).read_bytes()
    first = content.index("ü".encode() * 1000) // PAGE_BYTES
    inside = [number for number in range(first, first + 90) if content[number * PAGE_BYTES] == 0][2]
    with database(tmp_path).open("r+b") as file:
        file.seek(inside * PAGE_BYTES)
        file.write(b"\xff\xff\xff\xff")
    async with opened(tmp_path) as log:
        with pytest.raises(UnreadableLog, match="malformed"):
            await log.load("A")
        await lawful_and_goes_on(log, "B")


# --- a recovery that is cut short itself ------------------------------------------------------------------------


@pytest.mark.req("LOG-16")
async def test_a_recovery_that_has_no_room_leaves_the_file_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await settled(tmp_path)
    destroy_header(database(tmp_path))
    content = database(tmp_path).read_bytes()

    def full(path: Path) -> None:
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(damage, "_sync", full)
        with pytest.raises(OSError, match="No space left"):
            async with opened(tmp_path):
                pass
    assert database(tmp_path).read_bytes() == content
    async with opened(tmp_path) as log:
        assert not (tmp_path / "turnd.db.recovering").exists()
        await lawful_and_goes_on(log, "A", "B")


@pytest.mark.req("LOG-16")
@pytest.mark.parametrize("renames", range(4))
async def test_a_recovery_that_was_killed_between_its_renames_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    copy, before = await killed_with_wal(tmp_path)
    (copy / "turnd.db-shm").write_bytes(b"")
    rename = Path.rename
    left = iter(range(1 + renames))

    def killed(path: Path, target: Path) -> Path:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            recover(database(copy), "a test says so", 1_700_000_000_000_000, lambda done, total: None)
    async with opened(copy) as log:
        assert blobs(copy) == before
        assert "has been finished" in log.problems()[0]
        (kept,) = damaged_files(copy)
        assert kept.with_name(f"{kept.name}-wal").stat().st_size > 0
        await lawful_and_goes_on(log, "A", "B", "C")
    assert not list(copy.glob("turnd.db.recover*"))


async def test_a_second_damaged_file_of_the_same_second_gets_another_name(tmp_path: Path) -> None:
    await settled(tmp_path, "A")
    for _ in range(3):
        recover(database(tmp_path), "again", 1_700_000_000_000_000, lambda done, total: None)
    names = sorted(path.name for path in tmp_path.glob("turnd.db.damaged-*"))
    stamp = "turnd.db.damaged-20231114T221320Z"
    assert [name for name in names if not name.endswith(("-shm", "-wal"))] == [
        stamp,
        f"{stamp}-2",
        f"{stamp}-3",
    ]
