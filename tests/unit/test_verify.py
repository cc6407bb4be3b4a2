"""Every rule of the log, broken alone in a lawful export, is told with its line and its text (LOG-17, LOG-03)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from google.protobuf.message import Message
from tests.unit.going_on import file_of
from tests.unit.session_log import (
    SESSION,
    SessionLog,
    answered,
    asks,
    call,
    decided,
    planned,
    questions,
    result,
    says,
    started,
    text,
    user,
)

from turnd.rules.event import Draft, make_event
from turnd.store.transfer import verify_lines
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

pytestmark = pytest.mark.req("LOG-17", "LOG-03")

RESOURCE, INTERACTIVE = common.TOOL_KIND_RESOURCE, common.TOOL_KIND_INTERACTIVE
HISTORY_MARK = event_pb2.Origin(session="other", seq=1)


def lawful() -> tuple[list[event_pb2.Event], dict[str, int]]:
    """A session with a Turn that has everything in it, and the index of each event that a test is about."""
    log = SessionLog()
    at: dict[str, int] = {}

    def mark(name: str) -> None:
        at[name] = len(log.events)

    mark("before the first turn")
    log.turn()
    mark("in the turn")
    log.step().add(event_pb2.AgentRequest(purpose=common.REQUEST_PURPOSE_STEP), event_pb2.Usage())
    log.calls("c1", "c2", kind=RESOURCE).add(call("c3", kind=INTERACTIVE, index=2), call("c4", index=3))
    mark("called")
    log.add(started("c4"))
    mark("c4 runs")
    log.add(event_pb2.ToolProgress(call_id="c4", attempt=1), event_pb2.ChildStarted(call_id="c4", child="k1"))
    mark("k1 runs")
    log.add(event_pb2.ChildEnded(call_id="c4", child="k1"))
    mark("k1 ended")
    log.add(result("c4"))
    mark("c4 ended")
    log.add(questions("q1", "c3"))
    mark("q1 asked")
    log.add(answered("q1"))
    mark("q1 answered")
    log.add(result("c3"))
    items = [planned("c1"), planned("c2", common.POLICY_ACTION_ASK)]
    log.add(event_pb2.PlanReady(items=items), asks("r1", "c2"))
    mark("r1 asked")
    log.add(decided("r1"))
    mark("r1 decided")
    log.add(started("c1"))
    mark("c1 runs")
    log.add(event_pb2.ToolRetry(call_id="c1", attempt=1), started("c1", 2), result("c1"))
    log.add(started("c2"))
    mark("c2 runs")
    log.add(result("c2"), event_pb2.PlanApplied())
    mark("end of step 1")
    log.end_step()
    mark("between steps")
    log.answer("done")
    mark("after the steps")
    log.stopping(common.TURN_END_REASON_COMPLETED)
    mark("stopping")
    log.end_turn()
    mark("between turns")
    log.turn("again").step()
    mark("step 1 of turn 1")
    log.add(says(text("yes"))).end_step().stopping(common.TURN_END_REASON_COMPLETED)
    mark("end of turn 1")
    log.end_turn().add(event_pb2.SessionEnded(status=common.SESSION_STATUS_COMPLETED))
    mark("ended")
    return log.events, at


EVENTS, AT = lawful()


def renumbered(events: Sequence[event_pb2.Event]) -> list[event_pb2.Event]:
    numbered = []
    for seq, event in enumerate(events, 1):
        copy = event_pb2.Event()
        copy.CopyFrom(event)
        copy.seq = seq
        numbered.append(copy)
    return numbered


def faults(events: Sequence[event_pb2.Event]) -> list[tuple[int, str]]:
    report = verify_lines([file_of(events)])
    return [(fault.line, fault.message) for fault in report.faults]


def event(payload: Message, turn: int | None = None, step: int | None = None) -> event_pb2.Event:
    return make_event(Draft(SESSION, payload), seq=0, time_us=0, turn=turn, step=step)


def test_the_log_that_is_broken_here_is_lawful() -> None:
    assert faults(EVENTS) == []


T0, T1 = (0, None), (1, None)
S1, S2 = (0, 1), (0, 2)
NOWHERE = (None, None)
Place = tuple[int | None, int | None]

STOPPING = event_pb2.TurnStopping(reason=common.TURN_END_REASON_COMPLETED)

ADDED: list[tuple[str, str, Message, Place]] = [
    ("in the turn", "turn/start while turn already open", event_pb2.TurnStart(turn=1), (1, None)),
    ("between turns", "turn/start expected turn 1, got 0", event_pb2.TurnStart(turn=0), T0),
    ("between turns", "turn/end without open turn/start", event_pb2.TurnEnd(turn=0), T0),
    ("end of turn 1", "turn/end expected turn 1, got 0", event_pb2.TurnEnd(turn=0), T1),
    ("called", "turn/end while step still open", event_pb2.TurnEnd(turn=0), S1),
    ("between steps", "turn/end without turn/stopping", event_pb2.TurnEnd(turn=0), T0),
    ("between turns", "step/start without open turn", event_pb2.StepStart(turn=1, step=1), (None, 1)),
    ("in the turn", "step/start in turn 5 but open turn is 0", event_pb2.StepStart(turn=5, step=1), S1),
    ("called", "step/start while step already open", event_pb2.StepStart(turn=0, step=2), S2),
    ("between steps", "step/start expected step 2, got 1", event_pb2.StepStart(turn=0, step=1), S1),
    ("stopping", "step/start after turn/stopping", event_pb2.StepStart(turn=0, step=3), (0, 3)),
    ("between steps", "step/end without open step/start", event_pb2.StepEnd(turn=0, step=1), T0),
    ("end of step 1", "step/end in turn 5 but open turn is 0", event_pb2.StepEnd(turn=5, step=1), S1),
    ("end of step 1", "step/end expected step 1, got 2", event_pb2.StepEnd(turn=0, step=2), S1),
    ("q1 answered", "step/end while tool/call still open", event_pb2.StepEnd(turn=0, step=1), S1),
    ("between turns", "user/message without open turn", user("x"), NOWHERE),
    ("called", "user/message while step open", user("x"), S1),
    ("between steps", "user/message after step/end neither synthetic nor steering", user("x"), T0),
    ("between steps", "agent/request without open step", event_pb2.AgentRequest(), T0),
    ("stopping", "agent/request after turn/stopping", event_pb2.AgentRequest(purpose=2), T0),
    ("between steps", "agent/retry without open step", event_pb2.AgentRetry(), T0),
    ("between steps", "assistant/chunk without open step", event_pb2.AssistantChunk(), T0),
    ("between steps", "assistant/message without open step", event_pb2.AssistantMessage(), T0),
    ("between steps", "usage without open step", event_pb2.Usage(), T0),
    ("between steps", "plan/ready without open step", event_pb2.PlanReady(), T0),
    ("between steps", "plan/applied without open step", event_pb2.PlanApplied(), T0),
    ("between steps", "tool/call without open step", call("c9"), T0),
    ("called", "tool/call id already used", call("c1"), S1),
    ("step 1 of turn 1", "tool/call id already used", call("c1"), (1, 1)),
    ("called", "tool/started without open tool/call", started("c9"), S1),
    ("c4 runs", "tool/started twice", started("c4", 2), S1),
    ("called", "tool/started without approval", started("c1"), S1),
    ("r1 asked", "tool/started without approval", started("c2"), S1),
    ("r1 decided", "tool/started expected attempt 1, got 2", started("c1", 2), S1),
    ("called", "tool/retry without open attempt", event_pb2.ToolRetry(call_id="c4", attempt=1), S1),
    ("c1 runs", "tool/retry without open attempt", event_pb2.ToolRetry(call_id="c1", attempt=2), S1),
    ("called", "tool/progress without open attempt", event_pb2.ToolProgress(call_id="c4", attempt=1), S1),
    ("called", "tool/result without open tool/call", result("c9"), S1),
    ("c4 ended", "tool/result without open tool/call", result("c4"), S1),
    ("between steps", "tool/result without open tool/call", result("c9"), T0),
    ("between steps", "approval/request without open step", asks("r9", "c1"), T0),
    ("r1 asked", "approval/request id already open", asks("r1", "c2"), S1),
    ("called", "approval/decided without open approval/request", decided("r1"), S1),
    ("r1 decided", "approval/decided without open approval/request", decided("r1"), S1),
    ("between steps", "interactive/request without open step", questions("q9", "c3"), T0),
    ("q1 asked", "interactive/request id already open", questions("q1", "c3"), S1),
    ("called", "interactive/answered without open interactive/request", answered("q1"), S1),
    ("q1 answered", "interactive/answered without open interactive/request", answered("q1"), S1),
    (
        "called",
        "child/started without open tool/call",
        event_pb2.ChildStarted(call_id="c4", child="k2"),
        S1,
    ),
    ("k1 runs", "child/started twice", event_pb2.ChildStarted(call_id="c4", child="k1"), S1),
    ("called", "child/ended without open child/started", event_pb2.ChildEnded(child="k1"), S1),
    ("k1 ended", "child/ended without open child/started", event_pb2.ChildEnded(child="k1"), S1),
    ("between turns", "turn/stopping without open turn", STOPPING, NOWHERE),
    ("stopping", "turn/stopping twice", STOPPING, T0),
    ("called", "session/ended while turn still open", event_pb2.SessionEnded(), S1),
    ("between turns", "session/created twice", event_pb2.SessionCreated(), NOWHERE),
    ("between turns", "session/reopened without session/ended", event_pb2.SessionReopened(), NOWHERE),
    ("ended", "session already ended", event_pb2.Note(), NOWHERE),
    ("ended", "session already ended", event_pb2.TurnStart(turn=2), (2, None)),
    ("in the turn", "note expected turn 0, got no turn", event_pb2.Note(), NOWHERE),
    ("called", "note expected turn 0 step 1, got turn 0", event_pb2.Note(), T0),
]


@pytest.mark.parametrize(
    ("where", "message", "payload", "place"),
    ADDED,
    ids=[f"{message}: {where}" for where, message, _, _ in ADDED],
)
def test_an_event_too_many_is_told_and_nothing_else(
    where: str, message: str, payload: Message, place: Place
) -> None:
    index = AT[where]
    broken = renumbered([*EVENTS[:index], event(payload, *place), *EVENTS[index:]])
    assert faults(broken) == [(index + 1, message)]


AFTER_STOPPING: list[tuple[str, str, Message]] = [
    ("called", "agent/request after turn/stopping", event_pb2.AgentRequest(purpose=1)),
    ("called", "tool/call after turn/stopping", call("c9")),
    ("called", "tool/started after turn/stopping", started("c4")),
    ("called", "approval/request after turn/stopping", asks("r9", "c1")),
    ("called", "interactive/request after turn/stopping", questions("q9", "c3")),
    ("c4 runs", "child/started after turn/stopping", event_pb2.ChildStarted(call_id="c4", child="k2")),
]


@pytest.mark.parametrize(
    ("where", "message", "payload"), AFTER_STOPPING, ids=[message for _, message, _ in AFTER_STOPPING]
)
def test_nothing_new_begins_in_a_step_after_stopping(where: str, message: str, payload: Message) -> None:
    index = AT[where]
    broken = renumbered([*EVENTS[:index], event(STOPPING, 0, 1), event(payload, 0, 1)])
    assert faults(broken) == [(index + 2, message)]


@pytest.mark.parametrize(
    ("last_open", "call_ids", "message"),
    [
        ("k1 runs", ["c4"], "step/end while child/started still open"),
        ("q1 asked", ["c3"], "step/end while interactive/request still open"),
        ("r1 asked", ["c2"], "step/end while approval/request still open"),
    ],
)
def test_a_step_cannot_end_while_something_of_it_is_open(
    last_open: str, call_ids: list[str], message: str
) -> None:
    """Every call has its result, so that it is this rule alone."""
    head = EVENTS[: AT[last_open]]
    done = {e.tool_result.call_id for e in head if e.HasField("tool_result")}
    results = [event(result(c), 0, 1) for c in ("c1", "c2", "c3", "c4") if c not in done]
    assert set(call_ids) <= {e.tool_result.call_id for e in results}
    broken = renumbered([*head, *results, event(event_pb2.StepEnd(turn=0, step=1), 0, 1)])
    assert faults(broken) == [(len(broken), message)]


@pytest.mark.parametrize("left_out", range(1, len(EVENTS) - 1))
def test_an_event_that_is_missing_is_a_gap(left_out: int) -> None:
    broken = [*EVENTS[:left_out], *EVENTS[left_out + 1 :]]
    assert faults(broken)[0] == (left_out + 1, "seq gap")


def test_a_log_begins_with_its_session_or_with_history() -> None:
    assert faults(renumbered(EVENTS[1:]))[0] == (1, "first event is not session/created")
    remembered = event(event_pb2.ToolResult(call_id="x"))
    remembered.imported.CopyFrom(HISTORY_MARK)
    assert faults(renumbered([remembered, *EVENTS])) == []
    assert faults(renumbered([EVENTS[0], remembered, *EVENTS[1:]])) == [
        (2, "imported event after session/created")
    ]


def test_a_wrong_number_and_a_wrong_event_in_one_line_are_both_told() -> None:
    index = AT["called"]
    wrong = event(result("c9"), 0, 1)
    wrong.seq = 99
    broken = [*renumbered(EVENTS[:index]), wrong]
    assert faults(broken) == [(index + 1, "seq gap"), (index + 1, "tool/result without open tool/call")]
