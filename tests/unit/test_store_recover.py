"""What a start closes after a daemon was killed, from real files (LOG-08, LOG-21)."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.unit.slow_disk import Disk, disk_below
from tests.unit.store_samples import forge
from tests.unit.stored import (
    TickingClock,
    call,
    created,
    database,
    draft,
    ended,
    note,
    opened,
    payloads,
    query,
    result,
    started,
    status,
    step,
    stored_events,
    turn,
    usage,
)

from turnd.rules.event import Draft
from turnd.store.hold import Hold
from turnd.store.intake import SessionNotLoaded
from turnd.store.live import BrokenLog
from turnd.store.log import EventLog
from turnd.store.transfer import verify_stored
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

RESOURCE = common.TOOL_KIND_RESOURCE
ALLOWED = [common.PlanItem(call_id="open", decision=common.POLICY_ACTION_ALLOW)]


@asynccontextmanager
async def restarted(directory: Path) -> AsyncIterator[tuple[EventLog, list[str]]]:
    """The log after a start, and the sessions that it repaired."""
    hold = Hold.take(database(directory), version="0", socket="")
    log = EventLog(hold, TickingClock())
    try:
        repaired = await log.start()
        for one in repaired:
            assert one.events == sum(event.synthetic for event in await stored_events(log, one.session))
        yield log, [one.session for one in repaired]
    finally:
        await log.close()
        hold.release()


@pytest.mark.req("LOG-08", "LOG-21")
async def test_an_open_turn_is_closed_with_the_right_numbers_and_words(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        queued = event_pb2.InboxQueued(message_id="m")
        await log.append(created("A"), draft("A", queued), turn("A"))
        await log.append(step("A"), draft("A", event_pb2.StepEnd(turn=0, step=1)), step("A", 0, 2))
        await log.append(*(call("A", name, RESOURCE) for name in ("ended", "open", "unstarted")))
        await log.append(draft("A", event_pb2.PlanReady(items=ALLOWED)))
        await log.append(started("A", "open"), result("A", "ended"))
        ask = event_pb2.ApprovalRequest(request_id="q", item=common.PlanItem(call_id="unstarted"))
        last = (await log.append(draft("A", ask)))[0]
    async with restarted(tmp_path) as (log, repaired):
        events = (await stored_events(log, "A"))[last.seq :]
        assert repaired == ["A"]
        assert payloads(events) == [
            "approval_decided",
            "tool_result",
            "tool_result",
            "plan_applied",
            "step_end",
            "turn_end",
            "session_status",
        ]
        assert all(event.synthetic and event.time == last.time for event in events)
        results = {
            event.tool_result.call_id: event.tool_result for event in events if event.HasField("tool_result")
        }
        assert results["open"].category == common.TOOL_ERROR_CATEGORY_INTERRUPTED
        assert "outcome unknown, check before repeating" in json.loads(results["open"].content)
        assert results["unstarted"].category == common.TOOL_ERROR_CATEGORY_NOT_STARTED
        assert (events[4].step_end.turn, events[4].step_end.step) == (0, 2)
        assert events[5].turn_end == event_pb2.TurnEnd(turn=0, reason=common.TURN_END_REASON_INTERRUPTED)
        assert (await verify_stored(log, "A")).lawful
        await log.load("A")
        assert [message.message_id for message in log.view("A").queue] == ["m"], "the queue stays"
        assert (await log.append(turn("A", 1)))[0].turn == 1


@pytest.mark.req("LOG-08")
async def test_a_second_run_changes_nothing_and_other_sessions_are_not_read(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("idle"), created("open"), turn("open"))
    before = query(tmp_path, "SELECT count(*) FROM events")
    async with restarted(tmp_path) as (log, repaired):
        assert repaired == ["open"]
    after = query(tmp_path, "SELECT count(*) FROM events")
    assert after > before
    async with restarted(tmp_path) as (log, repaired):
        assert repaired == []
        assert query(tmp_path, "SELECT count(*) FROM events") == after
        plan = query(
            tmp_path, "EXPLAIN QUERY PLAN SELECT id FROM sessions WHERE unsettled ORDER BY depth DESC, key"
        )
        assert "sessions_unsettled" in str(plan)


def spawning(parent: str, child: str, depth: int) -> list[Draft]:
    """A parent in a Turn that runs one sub-agent, and that one's session."""
    return [
        turn(parent),
        step(parent),
        call(parent, f"spawn-{child}", RESOURCE),
        draft(
            parent,
            event_pb2.PlanReady(
                items=[common.PlanItem(call_id=f"spawn-{child}", decision=common.POLICY_ACTION_ALLOW)]
            ),
        ),
        started(parent, f"spawn-{child}"),
        created(child, parent=parent, depth=depth),
        draft(parent, event_pb2.ChildStarted(call_id=f"spawn-{child}", child=child)),
    ]


@pytest.mark.req("LOG-08", "SUB-06")
async def test_a_parent_is_told_what_became_of_its_children(tmp_path: Path) -> None:
    """One child had ended by itself, another had not even begun its Turn."""
    async with opened(tmp_path) as log:
        await log.append(created("A"), *spawning("A", "B", 1), created("Z"), *spawning("Z", "Y", 1))
        done = common.SESSION_STATUS_COMPLETED
        await log.append(turn("B"), step("B"), usage("B", 7, tokens=5))
        stop = event_pb2.TurnStopping(reason=common.TURN_END_REASON_COMPLETED)
        end = event_pb2.TurnEnd(turn=0, reason=common.TURN_END_REASON_COMPLETED)
        await log.append(draft("B", event_pb2.StepEnd(turn=0, step=1)), draft("B", stop))
        await log.append(draft("B", end), status("B", done), ended("B", done))
    async with restarted(tmp_path) as (log, repaired):
        assert repaired == ["Y", "A", "Z"]
        ends = {}
        for session in "AZ":
            for event in await stored_events(log, session):
                if event.HasField("child_ended"):
                    ends[session] = event.child_ended
            assert (await verify_stored(log, session)).lawful
        assert ends["A"] == event_pb2.ChildEnded(
            call_id="spawn-B",
            child="B",
            status=done,
            total_cost_nano_usd=7,
            total_input_tokens=5,
            total_output_tokens=10,
        )
        assert (ends["Z"].child, ends["Z"].status) == ("Y", common.SESSION_STATUS_CANCELLED)
        await log.load("Y")
        assert log.state("Y").ended


@pytest.mark.req("LOG-08")
async def test_grandchildren_are_closed_before_their_parents(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("A"), *spawning("A", "B", 1), *spawning("B", "C", 2), turn("C"))
    async with restarted(tmp_path) as (log, repaired):
        assert repaired == ["C", "B", "A"]
        for session in "ABC":
            assert (await verify_stored(log, session)).lawful
            await log.load(session)
            assert log.state(session).open_turn is None


@pytest.mark.req("LOG-08", "LOG-20")
async def test_a_session_is_closed_in_one_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill in the middle of the repair leaves each session as it was, or closed."""
    async with opened(tmp_path) as log:
        await log.append(created("A"), *spawning("A", "B", 1), *spawning("B", "C", 2), turn("C"))
    before = query(tmp_path, "SELECT max(position) FROM events")
    commits: list[set[str]] = []

    class Looking(Disk):
        position = before[0][0]

        def committing(self, connection: sqlite3.Connection) -> None:
            rows = connection.execute(
                "SELECT id, position FROM events JOIN sessions ON key = events.session WHERE position > ?",
                (self.position,),
            ).fetchall()
            if rows:
                commits.append({session for session, _ in rows})
                self.position = max(position for _, position in rows)

    disk_below(monkeypatch, Looking())
    async with restarted(tmp_path) as (_, repaired):
        assert repaired == ["C", "B", "A"]
        assert commits == [{"C"}, {"B"}, {"A"}]


@pytest.mark.req("LOG-08")
async def test_what_was_repaired_does_not_stay_in_memory(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("open"), turn("open"))
    async with restarted(tmp_path) as (log, repaired):
        assert repaired == ["open"]
        with pytest.raises(SessionNotLoaded):
            log.state("open")


async def test_a_log_that_cannot_go_on_does_not_keep_the_others_from_starting(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("broken"), note("broken"), turn("broken"), created("open"), turn("open"))
    unlawful = event_pb2.Event(session="broken", seq=2, turn_end=event_pb2.TurnEnd()).SerializeToString()
    forge(database(tmp_path), 1, 2, unlawful)
    async with restarted(tmp_path) as (log, repaired):
        assert repaired == ["open"]
        with pytest.raises(BrokenLog) as caught:
            await log.load("broken")
        found = (caught.value.session, caught.value.seq, caught.value.text)
        assert found == ("broken", 2, "turn/end without open turn/start")
        stored = await stored_events(log, "broken")
        assert payloads(stored) == ["session_created", "turn_end", "turn_start"]
