"""No garbled event passes for a true one: each row has a checksum, and whoever reads rows looks at it (LOG-16)."""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import aclosing, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.store_samples import fill, killed_copy
from tests.unit.stored import created, database, note, opened, query, stored_events

from turnd.sessions.tail import Tail
from turnd.store.check import integrity_check, quick_check
from turnd.store.checksum import row_checksum
from turnd.store.damage import suspicion
from turnd.store.examine import examine, examine_all
from turnd.store.log import EventLog
from turnd.store.opening import rebuild_file
from turnd.store.pages import FoundRow, GarbledRow, event_rows
from turnd.store.reading import UnreadableLog
from turnd.store.transfer import IncompleteExport, export_lines, verify_stored
from turnd.v1 import event_pb2
from turnd.v1.jsonform import event_from_json

SESSIONS: Final = "ABC"
SMALL: Final = 3000
"""Blobs below it are whole on the page of their row."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the file the columns of a row are; without those whose value is in the head of the row."""

    session: str
    seq: int
    columns: dict[str, tuple[int, ...]]


def never() -> threading.Event:
    return threading.Event()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three settled sessions, with small events and with some that take several pages; nothing is in the WAL."""
    directory = tmp_path_factory.mktemp("sound")
    asyncio.run(make(directory))
    return directory


async def make(directory: Path) -> None:
    texts = random.Random(5)
    async with opened(directory) as log:
        for session in SESSIONS:
            await fill(log, session, turns=1, blob=400)
            await log.append(*(note(session, texts.randbytes(size).hex()) for size in (5, 700, 5000, 5)))
        # The newest event is looked at by each start: it is of a session that is not touched.
        await log.append(created("Z"))


@pytest.fixture(scope="module")
def places(sound: Path) -> list[Place]:
    """Of all rows of A, B and C whose columns can be told from their surroundings."""
    content = database(sound).read_bytes()
    found = []
    rows = query(
        sound,
        "SELECT id, events.session, seq, event, checksum FROM events JOIN sessions ON key = events.session",
    )
    for session, key, seq, blob, checksum in rows:
        assert isinstance(blob, bytes)
        assert isinstance(checksum, int)
        assert isinstance(seq, int)
        if session == "Z" or content.count(blob[:400]) != 1:
            continue
        start = content.index(blob[:400])
        columns = {"blob": tuple(_of_blob(content, blob))}
        # The numbers 0 and 1 are in the head of a row.
        at_seq = start - (seq > 1)
        columns["seq"] = tuple(range(at_seq, start))
        columns["session"] = tuple(range(at_seq - (key != 1), at_seq))
        if len(blob) < SMALL:
            size = 4 if checksum < 2**31 else 6
            end = start + len(blob)
            assert int.from_bytes(content[end : end + size], "big") == checksum
            columns["checksum"] = tuple(range(end, end + size))
        found.append(Place(str(session), seq, {name: at for name, at in columns.items() if at}))
    assert len(found) > 40
    assert {name for place in found for name in place.columns} == {"blob", "seq", "session", "checksum"}
    return found


def _of_blob(content: bytes, blob: bytes) -> Iterator[int]:
    """Where each 32nd part of a large blob is, or all of a small one."""
    if len(blob) < SMALL:
        start = content.index(blob)
        yield from range(start, start + len(blob))
        return
    for at in range(400, len(blob) - 32, 160):
        part = blob[at : at + 32]
        if content.count(part) == 1:
            yield from range(content.index(part), content.index(part) + 32)


def flipped(directory: Path, copy: Path, offset: int, bit: int) -> bytes:
    content = bytearray(database(directory).read_bytes())
    content[offset] ^= 1 << bit
    copy.mkdir(exist_ok=True)
    database(copy).write_bytes(content)
    return bytes(content)


def garble(directory: Path, session: str, seq: int) -> None:
    """One bit of one blob, as SQL; the event can be decoded as before."""
    with closing(sqlite3.connect(database(directory), isolation_level=None)) as other:
        (key,) = other.execute("SELECT key FROM sessions WHERE id = ?", (session,)).fetchone()
        place = (key, seq)
        (blob,) = other.execute("SELECT event FROM events WHERE session = ? AND seq = ?", place).fetchone()
        event = event_pb2.Event.FromString(blob)
        event.time.nanos ^= 1024
        other.execute(
            "UPDATE events SET event = ? WHERE session = ? AND seq = ?", (event.SerializeToString(), *place)
        )


async def lawful_and_goes_on(log: EventLog, *sessions: str) -> None:
    for session in sessions:
        assert (await verify_stored(log, session)).lawful
        await log.load(session)
        await log.append(note(session, "goes on"))


async def follow(log: EventLog, session: str | None, into: list[bytes]) -> None:
    """What an attach sends."""
    async with aclosing(Tail(log).follow(session, 0)) as batches:
        async for batch in batches:
            into.extend(batch.blobs)


async def exported(log: EventLog, session: str) -> tuple[list[int], str]:
    """The seqs of what is exported, and what is said of the rest."""
    lines = b""
    try:
        async for part in export_lines(log, session):
            lines += part
    except IncompleteExport as incomplete:
        return [event_from_json(line.decode()).seq for line in lines.splitlines()], str(incomplete)
    return [event_from_json(line.decode()).seq for line in lines.splitlines()], ""


# --- flipped bits ---------------------------------------------------------------------------------------------------


@pytest.mark.req("LOG-16")
def test_every_bit_of_a_row_counts(sound: Path, places: list[Place], tmp_path: Path) -> None:
    """All columns of one row, one bit after the other: neither the check behind nor a recovery takes it for sound."""
    candidates = [place for place in places if place.session == "B" and len(place.columns) == 4]
    row = min(candidates, key=lambda place: len(place.columns["blob"]))
    whole = {found.position for found in event_rows(database(sound)) if isinstance(found, FoundRow)}
    position = query(
        sound,
        "SELECT position FROM events JOIN sessions ON key = events.session WHERE id = ? AND seq = ?",
        "B",
        row.seq,
    )[0][0]
    copy = tmp_path / "copy"
    for column, offsets in row.columns.items():
        for offset in offsets:
            for bit in range(8):
                flipped(sound, copy, offset, bit)
                (fault,) = quick_check(database(copy), never())
                assert fault == f"event {row.seq} of B, at position {position} does not fit its checksum", (
                    column
                )
                rows = list(event_rows(database(copy)))
                assert {found.position for found in rows if isinstance(found, FoundRow)} == whole - {position}
                assert [found.position for found in rows if isinstance(found, GarbledRow)] == [position]


@pytest.mark.req("LOG-16")
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_no_flipped_bit_passes_and_the_other_sessions_go_on(
    sound: Path, places: list[Place], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    row = data.draw(st.sampled_from(places))
    column = data.draw(st.sampled_from(sorted(row.columns)))
    offset, bit = data.draw(st.sampled_from(row.columns[column])), data.draw(st.integers(0, 7))
    copy = tmp_path_factory.mktemp("flipped")
    before = {
        session: query(
            sound, f"SELECT event FROM events JOIN sessions ON key = events.session WHERE id = '{session}'"
        )
        for session in SESSIONS
    }
    damaged = flipped(sound, copy, offset, bit)
    seqs = list(range(1, len(before[row.session]) + 1))
    # A reader leaves a WAL behind, and the log is to be opened as after an orderly stop.
    checked = copy / "checked"
    flipped(sound, checked, offset, bit)
    (fault,) = quick_check(database(checked), never())
    assert fault.startswith(f"event {row.seq} of {row.session}, at position ")
    assert integrity_check(database(checked), never())
    async with opened(copy) as log:
        assert log.problems() == []
        with pytest.raises(UnreadableLog, match=r"does not fit its checksum.*Restart turnd") as caught:
            await log.load(row.session)
        assert (caught.value.session, caught.value.seq) == (row.session, row.seq)
        assert log.problems() == [str(caught.value)]
        with pytest.raises(UnreadableLog):
            await verify_stored(log, row.session)
        followed: list[bytes] = []
        with pytest.raises(UnreadableLog):
            await follow(log, row.session, followed)
        assert followed == [blob for (blob,) in before[row.session][: row.seq - 1]]
        with pytest.raises(UnreadableLog) as of_all:
            await follow(log, None, [])
        assert (of_all.value.session, of_all.value.seq) == (row.session, row.seq)
        there, missing = await exported(log, row.session)
        assert there == [seq for seq in seqs if seq != row.seq]
        assert f"1 events cannot be read (seq {row.seq}: it does not fit its checksum)" in missing
        others = [session for session in SESSIONS if session != row.session]
        await lawful_and_goes_on(log, *others)
    assert database(copy).read_bytes()[offset] == damaged[offset]
    async with opened(copy) as log:
        (problem,) = log.problems()
        assert (
            f"not taken over, because it does not fit its checksum: event {row.seq} of {row.session}, "
            in problem
        )
        kept = query(
            copy, "SELECT event FROM events JOIN sessions ON key = events.session WHERE id = ?", row.session
        )
        assert [blob for blob in kept if not event_pb2.Event.FromString(blob[0]).synthetic] == before[
            row.session
        ][: row.seq - 1]
        await lawful_and_goes_on(log, *others, *([row.session] if row.seq > 1 else []))
    assert quick_check(database(copy), never()) == []


@pytest.mark.req("LOG-16")
async def test_a_row_in_the_place_of_another_is_found(sound: Path, tmp_path: Path) -> None:
    shutil.copyfile(database(sound), database(tmp_path))
    with closing(sqlite3.connect(database(tmp_path), isolation_level=None)) as other:
        other.execute(
            "UPDATE events SET (event, checksum) = (SELECT event, checksum FROM events WHERE session = 2 AND seq = 3) "
            "WHERE session = 2 AND seq = 4"
        )
    async with opened(tmp_path) as log:
        with pytest.raises(UnreadableLog, match="damaged at event 4"):
            await log.load("B")
        await lawful_and_goes_on(log, "A", "C")


# --- who notices ----------------------------------------------------------------------------------------------------


@pytest.mark.req("LOG-16")
async def test_what_a_start_relies_on_is_looked_at_before_it_is_used(tmp_path: Path) -> None:
    """The newest event of the log; and any event of a session that a repair is about to append to."""
    async with opened(tmp_path) as log:
        await fill(log, "A")
        await fill(log, "B")
    garble(tmp_path, "B", query(tmp_path, "SELECT last_seq FROM sessions WHERE id = 'B'")[0][0])  # type: ignore[arg-type]
    async with opened(tmp_path) as log:
        (problem,) = log.problems()
        assert "the last event, at position " in problem
        await log.load("B")
        await log.append(note("B"))
        copy = killed_copy(tmp_path, tmp_path / "copy")
    with closing(sqlite3.connect(database(copy), isolation_level=None)) as other:
        other.execute("UPDATE sessions SET unsettled = 1 WHERE id = 'A'")
    garble(copy, "A", 5)
    async with opened(copy) as log:
        (problem,) = log.problems()
        assert "event 5 of the session with key 1 does not fit its checksum" in problem
        await lawful_and_goes_on(log, "A", "B")


@pytest.mark.req("LOG-16")
async def test_the_check_behind_finds_it_while_the_daemon_serves(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await fill(log, "A")
        await fill(log, "B")
        copy = killed_copy(tmp_path, tmp_path / "copy")
    garble(copy, "A", 7)
    with closing(sqlite3.connect(f"file:{database(copy)}?mode=ro", uri=True)) as reader:
        # Keeps the WAL there, as a kill does.
        reader.execute("SELECT 1 FROM events LIMIT 1").fetchone()
        (copy / "turnd.db-wal").touch()
        async with opened(copy) as log:
            await lawful_and_goes_on(log, "B")
            await log.wait_checked()
            (problem,) = log.problems()
            assert "found the log damaged: event 7 of A, at position 7 does not fit its checksum" in problem
            damage = next(check for check in examine(database(copy)) if check.name == "damage")
            assert (damage.ok, damage.finding) == (False, problem)
            assert damage.advice
    assert suspicion(database(copy)) == problem


@pytest.mark.req("LOG-16", "LOG-19")
async def test_doctor_and_rebuild_name_it(sound: Path, tmp_path: Path) -> None:
    shutil.copyfile(database(sound), database(tmp_path))
    assert examine_all(database(tmp_path), never()).ok
    garble(tmp_path, "B", 7)
    found = examine_all(database(tmp_path), never())
    assert not found.ok
    assert "event 7 of B, at position " in found.finding
    notes, rebuilt = rebuild_file(database(tmp_path), lambda: 0, lambda done, total: None)
    assert (notes, list(rebuilt.damaged)) == ([], ["B from event 7 on: the event does not fit its checksum"])
    assert rebuilt.broken == rebuilt.damaged
    assert suspicion(database(tmp_path)) == rebuilt.damaged[0]
    async with opened(tmp_path) as log:
        (problem,) = log.problems()
        assert "event 7 of B" in problem
        await lawful_and_goes_on(log, *SESSIONS)


@pytest.mark.req("LOG-16")
async def test_tables_are_not_derived_from_a_garbled_event(sound: Path, tmp_path: Path) -> None:
    """A start that finds them missing recovers the file instead."""
    shutil.copyfile(database(sound), database(tmp_path))
    garble(tmp_path, "B", 7)
    with closing(sqlite3.connect(database(tmp_path), isolation_level=None)) as other:
        other.execute("DROP TABLE usage_ledger")
    async with opened(tmp_path) as log:
        assert any("event 7 of B" in problem for problem in log.problems())
        events = await stored_events(log, "B")
        assert [event.seq for event in events if not event.synthetic] == list(range(1, 7))
        await lawful_and_goes_on(log, *SESSIONS)
    assert quick_check(database(tmp_path), never()) == []


# --- exports around it -----------------------------------------------------------------------------------------------


@pytest.mark.req("LOG-16", "LOG-17")
async def test_an_export_leaves_out_what_cannot_be_read_and_says_so(tmp_path: Path) -> None:
    """Rows that are garbled, rows that are missing, and pages that SQLite refuses, in one session."""
    texts = random.Random(7)
    async with opened(tmp_path) as log:
        await log.append(created("A"), *(note("A", texts.randbytes(6000).hex()) for _ in range(40)))
        await log.append(created("Z"))
        assert await exported(log, "A") == (list(range(1, 42)), "")
    garble(tmp_path, "A", 3)
    with closing(sqlite3.connect(database(tmp_path), isolation_level=None)) as other:
        other.execute("DELETE FROM events WHERE session = 1 AND seq BETWEEN 10 AND 14")
        (blob,) = other.execute("SELECT event FROM events WHERE session = 1 AND seq = 30").fetchone()
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(database(tmp_path).read_bytes())
    page = content.index(blob[4500:4600]) // 4096 * 4096
    content[page : page + 4] = b"\xff" * 4
    database(tmp_path).write_bytes(content)
    async with opened(tmp_path) as log:
        there, missing = await exported(log, "A")
        assert set(range(1, 42)) - set(there) == {3, *range(10, 15), 30}
        assert (
            "7 events cannot be read (seq 3: it does not fit its checksum; seq 10 to 14: it is missing; "
            "seq 30: database disk image is malformed)" in missing
        )
        assert "Keep it, and restart turnd" in missing


def test_the_checksum_is_the_one_that_files_have() -> None:
    """A change of it would make every stored event a damaged one."""
    assert row_checksum(1, 2, 3, b"event") == 3436284939
