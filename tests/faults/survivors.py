"""What must be true of the files that a killed daemon leaves."""

from __future__ import annotations

import asyncio
import zlib
from pathlib import Path

from tests.faults.rich_session import LINES, SAID, World
from tests.faults.stored_sim import started
from tests.sim.world import transcript
from tests.unit.session_log import check_vendor_accepts
from tests.unit.stored import query, stored_events

from turnd.rules.history import History
from turnd.store.log import EventLog
from turnd.store.transfer import verify_stored
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2


def said_lines(directory: Path) -> list[str]:
    """What was published, one event in a line: session, seq, check sum."""
    file = directory / SAID
    # The last line may be cut: that one was not said.
    return file.read_text().split("\n")[:-1] if file.exists() else []


async def check_survived(directory: Path) -> None:
    """Nothing that was published is missing, every log is lawful and closed, a second start changes nothing."""
    said = said_lines(directory)
    async with started(directory) as (log, _):
        sessions = _sessions(directory)
        stored = {session: await stored_events(log, session) for session in sessions}
        on_disk = {
            f"{session} {event.seq} {zlib.crc32(event.SerializeToString())}"
            for session, events in stored.items()
            for event in events
        }
        missing = [line for line in said if line not in on_disk]
        assert not missing, f"published, and lost: {missing}"
        for session, events in stored.items():
            await _check_lawful(log, session)
            _check_repair(events)
    rows = query(directory, "SELECT * FROM events ORDER BY position")
    async with started(directory) as (log, repaired):
        assert not repaired, "a second run of the repair finds nothing"
        assert query(directory, "SELECT * FROM events ORDER BY position") == rows
        for session in sessions:
            await _check_goes_on(log, session, directory)


def _sessions(directory: Path) -> list[str]:
    return [str(row[0]) for row in query(directory, "SELECT id FROM sessions ORDER BY key")]


async def _check_lawful(log: EventLog, session: str) -> None:
    report = await verify_stored(log, session)
    assert (report.faults, report.open) == ((), False)


def _check_repair(events: list[event_pb2.Event]) -> None:
    """What the repair wrote is at the end, has the time of the last real event, and ends the Turn `interrupted`.

    Or with the reason of the turn/stopping that the killed daemon had written.
    """
    first = next((n for n, event in enumerate(events) if _is_repair(event)), None)
    if first is None:
        return
    added = events[first:]
    assert all(_is_repair(event) for event in added)
    assert {event.time.ToMicroseconds() for event in added} == {events[first - 1].time.ToMicroseconds()}
    ends = [event.turn_end for event in added if event.HasField("turn_end")]
    if not ends:
        # A sub-agent that had not begun its Turn: only its session is ended.
        assert [event.WhichOneof("data") for event in added] == ["session_status", "session_ended"]
        return
    (end,) = ends
    stopping = events[first - 1].turn_stopping if events[first - 1].HasField("turn_stopping") else None
    assert end.reason == (stopping.reason if stopping else common.TURN_END_REASON_INTERRUPTED)
    started_calls: dict[str, bool] = {}
    for event in events[:first]:
        match event.WhichOneof("data"):
            case "tool_started":
                started_calls[event.tool_started.call_id] = True
            case "tool_retry":
                started_calls[event.tool_retry.call_id] = False
            case _:
                pass
    for result in (event.tool_result for event in added if event.HasField("tool_result")):
        had_begun = started_calls.get(result.call_id, False)
        expected = (
            common.TOOL_ERROR_CATEGORY_INTERRUPTED if had_begun else common.TOOL_ERROR_CATEGORY_NOT_STARTED
        )
        assert result.category == expected


def _is_repair(event: event_pb2.Event) -> bool:
    # The instruction of a bound is synthetic as well, and is the loop's.
    return event.synthetic and not event.HasField("user_message")


async def _check_ended_with_its_parent(log: EventLog, session: str) -> None:
    """A sub-agent is over, and its parent's log says so with its status."""
    view = log.view(session)
    assert log.state(session).ended
    told = [e.child_ended for e in await stored_events(log, view.parent) if e.HasField("child_ended")]
    assert [ended.status for ended in told if ended.child == session] == [view.status]


async def _check_goes_on(log: EventLog, session: str, directory: Path) -> None:
    # What the model would have said next does not matter any more.
    for model in directory.rglob("model.jsonl"):
        transcript(model.parent, LINES[0], LINES[-1])
    world = World(log)
    await log.load(session)
    if log.view(session).parent:
        await _check_ended_with_its_parent(log, session)
        return
    live = world.live = await world.sim.resumed(session)
    queued = len(log.view(session).queue)
    turns = log.view(session).turns
    await world.sim.turn(live, "go on")
    await world.quiet()
    await asyncio.wait_for(live.idle(), 20)
    view = log.view(session)
    assert view.last_reason == common.TURN_END_REASON_COMPLETED
    if not log.state(session).ended:
        assert not view.queue
        assert view.turns >= turns + queued + 1, "what was queued has had its Turn, and so has the new prompt"
    await live.stop()
    await _check_lawful(log, session)
    history = History()
    for event in await stored_events(log, session):
        history.advance(event)
    check_vendor_accepts(history.messages())
