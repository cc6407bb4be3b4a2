"""Appending: checked, numbered, committed, published; and what happens when a commit fails."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.stored import (
    START_US,
    TickingClock,
    call,
    chunk,
    created,
    database,
    note,
    opened,
    payloads,
    query,
    result,
    started,
    step,
    stored_events,
    turn,
    usage,
)

from turnd.ports import MAX_EVENT_BYTES, EventTooLarge, Log, LogFailed, UnknownSession
from turnd.rules.event import Draft
from turnd.rules.state import Violation
from turnd.rules.status import SessionView
from turnd.store import connection as connection_module
from turnd.store import writer as writer_module
from turnd.store.admission import Admission
from turnd.store.intake import Committed, SessionNotLoaded
from turnd.store.log import EventLog, LogNotOpen
from turnd.store.schema import open_for_writing
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2


@contextmanager
def nobody_writes(directory: Path) -> Iterator[None]:
    """Holds the file's write lock, so that what is appended inside queues up behind the first of it."""
    with closing(sqlite3.connect(database(directory), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            other.execute("ROLLBACK")


async def refused_id(log: EventLog) -> str:
    """The id of a session that is on disk and not in memory: creating it again fails in the writer alone."""
    await log.append(created("TAKEN"))
    log.unload("TAKEN")
    return "TAKEN"


# --- the one way in -----------------------------------------------------------------------------------------


@pytest.mark.req("LOG-04", "LOG-09")
async def test_events_are_numbered_by_the_log_and_stored_as_they_are(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        port: Log = log
        first = await port.append(created("A"))
        rest = await port.append(turn("A"), step("A"), chunk("A"))
        assert [event.seq for event in first + rest] == [1, 2, 3, 4]
        assert [(e.HasField("turn"), e.step) for e in first + rest] == [
            (False, 0),
            (True, 0),
            (True, 1),
            (True, 1),
        ]
        assert await stored_events(log, "A") == first + rest
        rows = query(tmp_path, "SELECT position, seq, event FROM events ORDER BY position")
        assert rows == [(e.seq, e.seq, e.SerializeToString()) for e in first + rest]


@pytest.mark.req("LOG-04", "LOG-01", "LOG-02")
async def test_a_draft_that_breaks_a_rule_changes_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("A"), turn("A"))
        before = log.state("A")
        with pytest.raises(Violation, match="turn/start while turn already open"):
            await log.append(step("A"), turn("A", 1))
        assert log.state("A") is before
        assert len(await stored_events(log, "A")) == 2
        assert (await log.append(step("A")))[0].seq == 3


@pytest.mark.req("LOG-04")
async def test_nothing_is_appended_to_a_session_that_was_not_created(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        with pytest.raises(SessionNotLoaded):
            await log.append(note("A"))
        with pytest.raises(SessionNotLoaded):
            log.state("A")
        with pytest.raises(UnknownSession):
            await log.load("A")
        with pytest.raises(UnknownSession):
            await stored_events(log, "A")
        assert query(tmp_path, "SELECT count(*) FROM sessions") == [(0,)]


@pytest.mark.req("LOG-04")
async def test_the_state_runs_ahead_so_that_appends_can_be_pipelined(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("A"))
        with nobody_writes(tmp_path):
            waiting = [asyncio.ensure_future(log.append(d)) for d in (turn("A"), step("A"), chunk("A"))]
            await asyncio.sleep(0)
            assert (log.state("A").open_turn, log.state("A").open_step, log.state("A").seq) == (0, 1, 4)
            assert await log.head("A") == 1
        done = await asyncio.gather(*waiting)
        assert [events[0].seq for events in done] == [2, 3, 4]


async def test_an_append_of_nothing_is_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        assert await log.append() == []
        assert query(tmp_path, "SELECT count(*) FROM events") == [(0,)]


@pytest.mark.req("LOG-09")
async def test_a_clock_that_jumps_back_changes_no_order(tmp_path: Path) -> None:
    clock = TickingClock()
    async with opened(tmp_path, clock) as log:
        await log.append(created("A"))
        clock.step_us = -3_600_000_000
        for text in "abc":
            await log.append(note("A", text))
    async with opened(tmp_path) as log:
        events = await stored_events(log, "A")
        assert [event.seq for event in events] == [1, 2, 3, 4]
        assert [event.note.text for event in events[1:]] == ["a", "b", "c"]
        times = [event.time.ToMicroseconds() for event in events]
        assert times == sorted(times, reverse=True)


async def test_repair_says_the_time_itself(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        draft = Draft("A", created("A").payload, synthetic=True, time_us=START_US - 5)
        (event,) = await log.append(draft)
        assert (event.time.ToMicroseconds(), event.synthetic) == (START_US - 5, True)


# --- transactions -------------------------------------------------------------------------------------------


@pytest.mark.req("LOG-04")
async def test_drafts_of_several_sessions_are_one_transaction(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        taken = await refused_id(log)
        await log.append(created("A"))
        with pytest.raises(LogFailed):
            await log.append(note("A"), created("B"), created(taken))
        assert log.state("A").seq == 1
        with pytest.raises(SessionNotLoaded):
            log.state("B")
        assert query(tmp_path, "SELECT id FROM sessions ORDER BY id") == [("A",), ("TAKEN",)]
        events = await log.append(note("A"), created("B"), note("B"))
        assert [(event.session, event.seq) for event in events] == [("A", 2), ("B", 1), ("B", 2)]


@pytest.mark.req("LOG-14")
async def test_one_bad_batch_fails_alone(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        taken = await refused_id(log)
        with nobody_writes(tmp_path):
            appends = [created("A"), created(taken), created("B"), note("A")]
            waiting = [asyncio.ensure_future(log.append(draft)) for draft in appends]
            await asyncio.sleep(0)
        done = await asyncio.gather(*waiting, return_exceptions=True)
        assert [isinstance(outcome, LogFailed) for outcome in done] == [False, True, False, False]
        assert query(tmp_path, "SELECT id, last_seq FROM sessions ORDER BY id") == [
            ("A", 2),
            ("B", 1),
            ("TAKEN", 1),
        ]
        positions = [
            position for (position,) in query(tmp_path, "SELECT position FROM events ORDER BY position")
        ]
        assert positions == [1, 2, 3, 4]


@pytest.mark.req("LOG-14")
async def test_what_was_accepted_on_top_of_a_failed_append_fails_too(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        taken = await refused_id(log)
        await log.append(created("A"), turn("A"))
        published: list[Committed] = []
        log.subscribe(published.extend)
        with nobody_writes(tmp_path):
            drafts = [(step("A"), created(taken)), (chunk("A"),), (note("B"), chunk("A")), (note("B"),)]
            waiting = [asyncio.ensure_future(log.append(created("B")))]
            waiting += [asyncio.ensure_future(log.append(*batch)) for batch in drafts]
            await asyncio.sleep(0)
            assert log.state("A").seq == 5
        done = await asyncio.gather(*waiting, return_exceptions=True)
        assert [isinstance(outcome, LogFailed) for outcome in done] == [False, True, True, True, True]
        assert (log.state("A").seq, log.state("A").open_step) == (2, None)
        assert (log.state("B").seq, log.view("B").last_seq) == (1, 1)
        assert [(one.event.session, one.event.seq) for one in published] == [("B", 1)]
        assert [event.seq for event in await log.append(step("A"), note("B"))] == [3, 2]


@pytest.mark.req("LOG-14")
async def test_a_session_whose_creation_failed_can_be_created_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        taken = await refused_id(log)
        with nobody_writes(tmp_path):
            failing = asyncio.ensure_future(log.append(created("A"), created(taken)))
            behind = asyncio.ensure_future(log.append(note("A")))
            await asyncio.sleep(0)
        for append in (failing, behind):
            with pytest.raises(LogFailed):
                await append
        assert (await log.append(created("A")))[0].seq == 1
        assert (await log.append(note("A")))[0].seq == 2
    async with opened(tmp_path) as log:
        assert payloads(await stored_events(log, "A")) == ["session_created", "note"]


@pytest.mark.req("LOG-12")
async def test_a_transaction_has_the_highest_grade_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[str] = []

    def traced(path: Path) -> sqlite3.Connection:
        connection = open_for_writing(path)
        connection.set_trace_callback(statements.append)
        return connection

    monkeypatch.setattr(connection_module, "open_for_writing", traced)

    async def grade_of(*drafts: Draft) -> str:
        await log.append(*drafts)
        marks = [s for s in statements if s.startswith(("PRAGMA synchronous", "BEGIN", "COMMIT"))]
        assert [mark.split()[0] for mark in marks[-2:]] == ["BEGIN", "COMMIT"]
        return [mark for mark in marks if mark.startswith("PRAGMA")][-1].split()[-1]

    async with opened(tmp_path) as log:
        resource = common.TOOL_KIND_RESOURCE
        allowed = common.PlanItem(call_id="w", decision=common.POLICY_ACTION_ALLOW)
        assert await grade_of(created("A"), turn("A"), step("A")) == "NORMAL"
        assert await grade_of(usage("A")) == "FULL"
        assert await grade_of(chunk("A")) == "NORMAL"
        assert await grade_of(call("A", "r"), call("A", "w", resource)) == "NORMAL"
        assert await grade_of(Draft("A", event_pb2.PlanReady(items=[allowed]))) == "NORMAL"
        assert await grade_of(started("A", "r")) == "NORMAL"
        assert await grade_of(started("A", "w")) == "FULL"
        assert await grade_of(result("A", "r"), result("A", "w")) == "NORMAL"
        assert await grade_of(chunk("A"), usage("A"), chunk("A")) == "FULL"


# --- publishing ---------------------------------------------------------------------------------------------


@pytest.mark.req("LOG-11")
async def test_events_are_published_after_the_commit_in_commit_order_and_before_the_caller_goes_on(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as log:
        seen: list[tuple[int, str, int]] = []
        on_disk: list[bool] = []

        def take(committed: Sequence[Committed]) -> None:
            for one in committed:
                rows = query(tmp_path, "SELECT event FROM events WHERE position = ?", one.position)
                on_disk.append(rows == [(one.blob,)])
                assert event_pb2.Event.FromString(one.blob) == one.event
                seen.append((one.position, one.event.session, one.event.seq))

        log.subscribe(take)
        await log.append(created("A"))
        assert seen == [(1, "A", 1)]
        await asyncio.gather(*(log.append(created(name)) for name in "BCD"), log.append(note("A"), note("A")))
        assert seen[1:] == [(2, "B", 1), (3, "C", 1), (4, "D", 1), (5, "A", 2), (6, "A", 3)]
        assert all(on_disk)
        assert log.position == 6


@pytest.mark.req("LOG-11")
async def test_a_subscriber_that_fails_harms_neither_callers_nor_others(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        seen: list[Committed] = []

        def fail(_: Sequence[Committed]) -> None:
            raise RuntimeError("no")

        log.subscribe(fail)
        log.subscribe(seen.extend)
        await log.append(created("A"))
        assert len(seen) == 1


# --- callers that leave, bounds, the end --------------------------------------------------------------------


@pytest.mark.req("LOG-04")
async def test_a_cancelled_caller_does_not_cancel_its_append(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        taken = await refused_id(log)
        await log.append(created("A"))
        with nobody_writes(tmp_path):
            stored = asyncio.ensure_future(log.append(note("A")))
            failing = asyncio.ensure_future(log.append(created(taken)))
            await asyncio.sleep(0)
            stored.cancel()
            failing.cancel()
            for append in (stored, failing):
                with pytest.raises(asyncio.CancelledError):
                    await append
        assert (await log.append(note("A")))[0].seq == 3
        assert len(await stored_events(log, "A")) == 3


@pytest.mark.req("LOG-04")
async def test_an_append_waits_where_too_much_is_in_flight_also_for_a_caller_that_left(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, admission=Admission(max_batches=2)) as log:
        await log.append(created("A"))
        with nobody_writes(tmp_path):
            waiting = [asyncio.ensure_future(log.append(note("A", str(n)))) for n in range(6)]
            wrong = asyncio.ensure_future(log.append(turn("A", 7)))
            last = asyncio.ensure_future(log.append(note("A", "last")))
            for _ in range(3):
                await asyncio.sleep(0)
            assert log.state("A").seq == 3, "two are in flight, the others wait"
            waiting[3].cancel()
        done = await asyncio.gather(*waiting, return_exceptions=True)
        assert [isinstance(outcome, asyncio.CancelledError) for outcome in done] == [n == 3 for n in range(6)]
        with pytest.raises(Violation):
            await wrong
        await last
        texts = [event.note.text for event in (await stored_events(log, "A"))[1:]]
        assert texts == ["0", "1", "2", "3", "4", "5", "last"]


@pytest.mark.timeout(30)
@pytest.mark.req("LOG-04", "LOG-14")
async def test_what_a_caller_that_left_had_waited_for_is_done_once_and_holds_up_nobody(
    tmp_path: Path,
) -> None:
    """Also where it is refused, so that no commit of it wakes those that wait behind it."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    async with opened(tmp_path, admission=Admission(max_batches=1)) as log:
        await log.append(created("A"))
        waits = asyncio.Event()

        def nothing_to_answer(_: SessionView) -> None:
            waits.set()

        with nobody_writes(tmp_path):
            first = asyncio.ensure_future(log.append(note("A", "first")))
            await asyncio.sleep(0)
            begun = asyncio.ensure_future(
                log.begin("B", deque(), event_pb2.SessionCreated(cwd="/w"), nothing_to_answer)
            )
            await waits.wait()
            refused = asyncio.ensure_future(log.append(turn("A", 7)))
            left = asyncio.ensure_future(log.append(note("A", "left")))
            last = asyncio.ensure_future(log.append(note("A", "last")))
            await asyncio.sleep(0)
            for leaving in (begun, refused, left):
                leaving.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await leaving
        await asyncio.gather(first, last)
        assert [event.note.text for event in (await stored_events(log, "A"))[1:]] == ["first", "left", "last"]
        assert payloads(await stored_events(log, "B"))[0] == "session_created"
        assert query(tmp_path, "SELECT count(*) FROM sessions") == [(2,)]
        assert (await log.append(turn("A")))[0].seq == 5, "there is room again"
    assert complaints == []


@pytest.mark.req("LOG-04")
async def test_bytes_in_flight_are_bounded_too(tmp_path: Path) -> None:
    async with opened(tmp_path, admission=Admission(max_bytes=1000)) as log:
        await log.append(created("A"))
        with nobody_writes(tmp_path):
            waiting = [asyncio.ensure_future(log.append(note("A", "x" * 600))) for _ in range(4)]
            for _ in range(3):
                await asyncio.sleep(0)
            assert log.state("A").seq == 3
        await asyncio.gather(*waiting)
        assert log.state("A").seq == 5


@pytest.mark.req("LOG-04")
async def test_no_append_overtakes_one_that_waits(tmp_path: Path) -> None:
    """Whoever is told of a commit appends at once, before what waits for room has had its turn in the loop."""
    async with opened(tmp_path, admission=Admission(max_batches=1)) as log:
        await log.append(created("A"), created("B"))
        for number in range(20):
            with nobody_writes(tmp_path):
                first = asyncio.ensure_future(log.append(note("A", "first")))
                await asyncio.sleep(0)
                waiting = [asyncio.ensure_future(log.append(note(s, f"{number} waited"))) for s in "AB"]
                await asyncio.sleep(0)
                gone = asyncio.ensure_future(log.append(note("A", f"{number} gone")))
                await asyncio.sleep(0)
                gone.cancel()

            async def next_(first: asyncio.Future[Any]) -> None:
                await first
                await log.append(note("A", "later"))

            await asyncio.gather(next_(first), *waiting)
            notes = [event.note.text for event in (await stored_events(log, "A"))[1:]]
            assert notes[-4:] == ["first", f"{number} waited", f"{number} gone", "later"]


@pytest.mark.req("LOG-04")
async def test_an_append_that_waits_stands_before_those_of_the_same_moment(tmp_path: Path) -> None:
    """Room that comes before the loop goes on is not for whoever asks then."""
    admission = Admission(max_batches=1)
    done: list[str] = []
    admission.enter(1)
    waited = admission.in_turn(lambda: done.append("waited"))
    admission.leave(1)
    later = admission.in_turn(lambda: done.append("later"))
    assert done == []
    await asyncio.gather(waited, later)
    assert done == ["waited", "later"]


async def test_closing_commits_what_was_accepted_and_then_takes_no_more(tmp_path: Path) -> None:
    async with opened(tmp_path, admission=Admission(max_batches=1)) as log:
        await log.append(created("A"))
        waiting = [asyncio.ensure_future(log.append(note("A", str(n)))) for n in range(3)]
        await asyncio.sleep(0)
        await log.close()
        assert [len(events) for events in await asyncio.gather(*waiting)] == [1, 1, 1]
        with pytest.raises(LogFailed):
            await log.append(note("A"))
    assert not database(tmp_path).with_name("turnd.db-wal").exists()
    assert query(tmp_path, "SELECT last_seq FROM sessions") == [(4,)]


async def test_a_log_that_was_not_started_says_so(tmp_path: Path) -> None:
    from turnd.store.hold import Hold

    hold = Hold.take(database(tmp_path), version="0", socket="")
    log = EventLog(hold, TickingClock())
    with pytest.raises(LogNotOpen):
        await log.append(created("A"))
    await log.close()
    hold.release()
    assert not database(tmp_path).exists()


@pytest.mark.req("LOG-14")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_writer_that_dies_leaves_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("A"))

        def die(*_: Any) -> None:
            raise SystemExit

        monkeypatch.setattr(writer_module.Writer, "_commit", die)
        with pytest.raises(LogFailed):
            await log.append(note("A"))
        with pytest.raises(LogFailed):
            await log.append(note("A"))
        assert log.state("A").seq == 1


# --- loading and reading ------------------------------------------------------------------------------------


@pytest.mark.req("LOG-13", "LOG-05")
async def test_a_loaded_session_is_as_it_was(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("A"), note("A"))
        for number in range(3):
            end = event_pb2.TurnEnd(turn=number, reason=common.TURN_END_REASON_COMPLETED)
            stop = event_pb2.TurnStopping(reason=common.TURN_END_REASON_COMPLETED)
            await log.append(turn("A", number), Draft("A", stop), Draft("A", end))
        state, view = log.state("A"), log.view("A")
    async with opened(tmp_path) as log:
        await asyncio.gather(*(log.load("A") for _ in range(3)))
        assert log.state("A") == state
        assert log.view("A") == view
        log.unload("A")
        with pytest.raises(SessionNotLoaded):
            log.view("A")
        await log.load("A")
        assert log.state("A") == state


async def test_a_session_with_appends_in_flight_is_not_let_go(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("A"))
        append = asyncio.ensure_future(log.append(note("A")))
        await asyncio.sleep(0)
        log.unload("A")
        assert log.state("A").seq == 2
        await append
        log.unload("A")
        log.unload("A")
        with pytest.raises(SessionNotLoaded):
            log.state("A")


@pytest.mark.req("LOG-10")
async def test_reading_pages_and_ends_at_what_was_committed_when_it_began(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("A"), *(note("A", str(n)) for n in range(2499)))
        await log.append(created("B"))
        pages = []
        async for page in log.read("A", 10):
            pages.append(page)
            await log.append(note("A", "late"))
        assert [len(page) for page in pages] == [1000, 1000, 490]
        assert [event.seq for page in pages for event in page] == list(range(11, 2501))
        assert [page async for page in log.read("A", 2503)] == []


@pytest.mark.req("LOG-10")
async def test_a_page_is_bounded_in_bytes(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("A"))
        for _ in range(5):
            await log.append(note("A", "x" * 3_000_000))
        assert [len(page) async for page in log.read("A")] == [3, 2, 1]


@pytest.mark.req("RPC-01")
async def test_an_event_that_could_not_be_sent_is_not_accepted(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("A"))
        for text, taken in (("x" * (MAX_EVENT_BYTES - 1000), True), ("x" * MAX_EVENT_BYTES, False)):
            before = log.state("A")
            if taken:
                await log.append(Draft("A", event_pb2.Note(text=text)))
                continue
            with pytest.raises(EventTooLarge, match="at most 8388608 bytes, found note of 83886"):
                await log.append(Draft("A", event_pb2.Note(text="y")), Draft("A", event_pb2.Note(text=text)))
            assert log.state("A") == before
