"""One routine settles everything a Turn owns; repair writes what a killed daemon left open."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from google.protobuf.message import Message
from tests.unit.session_log import (
    SESSION,
    START_US,
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

from turnd.rules.closing import CRASH, Closing, cancelled, close_step, end_turn, repair
from turnd.rules.event import type_of
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

RESOURCE = common.TOOL_KIND_RESOURCE
ABORTED = common.TURN_END_REASON_ABORTED
INTERRUPTED = common.TURN_END_REASON_INTERRUPTED
CANCEL = cancelled("the task was cancelled", "cli")


def types(payloads: list[Message]) -> list[str]:
    return [type_of(payload) for payload in payloads]


def results(payloads: list[Message]) -> list[tuple[str, int, str]]:
    found = [p for p in payloads if isinstance(p, event_pb2.ToolResult)]
    assert all(p.is_error for p in found)
    return [(p.call_id, p.category, json.loads(p.content)) for p in found]


def repaired(log: SessionLog) -> list[event_pb2.Event]:
    """Repairs the log, checks that a second run changes nothing, and returns what was added."""
    before = len(log.events)
    log.add_drafts(repair(log.state, SESSION, START_US + log.state.seq))
    assert repair(log.state, SESSION, START_US + log.state.seq) == []
    return log.events[before:]


def crowded() -> SessionLog:
    """A Step with everything in it: five calls, of which c3 ran, c1 and c5 run, c2 is asked about, c4 asks."""
    log = SessionLog().turn().step()
    log.calls("c1", "c2", "c3", kind=RESOURCE)
    for index, (call_id, kind) in enumerate(
        [("c4", common.TOOL_KIND_INTERACTIVE), ("c5", common.TOOL_KIND_DATA_SOURCE)], start=3
    ):
        log.add(call(call_id, kind=kind, index=index))
    asked = planned("c2", common.POLICY_ACTION_ASK)
    log.add(event_pb2.PlanReady(items=[planned("c1"), asked, planned("c3")]))
    log.add(started("c3"), result("c3"), started("c5"), started("c1"))
    log.add(asks("r1", "c2"), questions("q1", "c4"))
    log.add(event_pb2.ChildStarted(call_id="c1", child="k1"))
    attention = event_pb2.ChildAttention(
        state=event_pb2.ATTENTION_STATE_OPEN, path=["k1"], request_id="r9", approval=asks("r9", "x1")
    )
    return log.add(attention, event_pb2.Usage(tokens=common.TokenCounts(input_tokens=7, output_tokens=2)))


@pytest.mark.req("LOOP-15", "LOG-06")
def test_a_cancel_settles_everything_in_lawful_order() -> None:
    log = crowded().stopping(ABORTED)
    payloads = close_step(log.state, how=CANCEL, active_ms=30, waited_ms=40)
    assert types(payloads) == [
        "interactive/answered",
        "approval/decided",
        "child/attention",
        "child/ended",
        "tool/result",
        "tool/result",
        "tool/result",
        "tool/result",
        "plan/applied",
        "step/end",
    ]
    log.add(*payloads).add(*end_turn(log.state, ABORTED))
    assert not log.state.calls
    assert not log.view.open_requests
    assert log.view.status == common.SESSION_STATUS_IDLE

    interrupted = "interrupted, may have had effects: check before repeating"
    assert results(payloads) == [
        ("c1", common.TOOL_ERROR_CATEGORY_INTERRUPTED, interrupted),
        ("c2", common.TOOL_ERROR_CATEGORY_NOT_STARTED, "not started"),
        ("c4", common.TOOL_ERROR_CATEGORY_NOT_STARTED, "not started"),
        ("c5", common.TOOL_ERROR_CATEGORY_INTERRUPTED, interrupted),
    ]
    end = payloads[-1]
    assert isinstance(end, event_pb2.StepEnd)
    assert (end.turn, end.step, end.active_ms, end.waited_ms) == (0, 1, 30, 40)
    assert end.tokens == common.TokenCounts(input_tokens=7, output_tokens=2)


@pytest.mark.req("GATE-08", "LOG-08")
def test_a_crash_does_not_hide_that_another_input_ran() -> None:
    log = SessionLog().turn().step().calls("c1", "c2", kind=RESOURCE)
    for number in ("1", "2"):
        approved = decided(f"r{number}")
        approved.corrected_input = b'{"path":"b"}'
        log.add(asks(f"r{number}", f"c{number}"), approved)
    log.add(event_pb2.ToolStarted(call_id="c1", attempt=1, input=b'{"path":"b"}'))
    results = [p for p in close_step(log.state, how=CRASH) if isinstance(p, event_pb2.ToolResult)]
    assert [(r.call_id, r.input_corrected) for r in results] == [("c1", True), ("c2", False)]


@pytest.mark.req("LOOP-15")
@pytest.mark.parametrize(
    ("how", "approval", "answer"),
    [
        (CANCEL, common.APPROVAL_OUTCOME_CANCELLED, common.ANSWER_OUTCOME_CANCELLED),
        (CRASH, common.APPROVAL_OUTCOME_EXPIRED, common.ANSWER_OUTCOME_EXPIRED),
    ],
)
def test_requests_are_settled_as_what_ended_them_says(
    how: Closing, approval: common.ApprovalOutcome.ValueType, answer: common.AnswerOutcome.ValueType
) -> None:
    payloads = close_step(crowded().state, how=how)
    own = [p for p in payloads if isinstance(p, event_pb2.ApprovalDecided)]
    asked = [p for p in payloads if isinstance(p, event_pb2.InteractiveAnswered)]
    told = [p for p in payloads if isinstance(p, event_pb2.ChildAttention)]
    assert [(p.request_id, p.call_id, p.outcome, p.client) for p in own] == [
        ("r1", "c2", approval, how.client)
    ]
    assert own[0].reason == how.reason
    assert [(p.request_id, p.call_id, p.outcome) for p in asked] == [("q1", "c4", answer)]
    assert [(p.state, list(p.path), p.decided.request_id, p.decided.outcome) for p in told] == [
        (event_pb2.ATTENTION_STATE_SETTLED, ["k1"], "r9", approval)
    ]


@pytest.mark.req("LOOP-15", "GATE-01")
def test_the_plan_says_what_became_of_each_item() -> None:
    applied = next(p for p in close_step(crowded().state, how=CANCEL) if isinstance(p, event_pb2.PlanApplied))
    assert [(i.call_id, i.outcome, i.decision) for i in applied.items] == [
        ("c1", common.ITEM_OUTCOME_INTERRUPTED, common.POLICY_ACTION_ALLOW),
        ("c2", common.ITEM_OUTCOME_NOT_STARTED, common.POLICY_ACTION_ASK),
        ("c3", common.ITEM_OUTCOME_APPLIED, common.POLICY_ACTION_ALLOW),
    ]
    assert {i.decided_by.name for i in applied.items} == {"r"}


@pytest.mark.req("LOOP-15", "GATE-01")
def test_an_item_that_someone_decided_names_the_client() -> None:
    log = SessionLog().turn().step().calls("c1", "c2", kind=RESOURCE)
    items = [planned(c, common.POLICY_ACTION_ASK) for c in ("c1", "c2")]
    log.add(event_pb2.PlanReady(items=items), asks("r1", "c1"), asks("r2", "c2"))
    log.add(decided("r1"), decided("r2", common.APPROVAL_OUTCOME_DENIED))
    refused = event_pb2.ToolResult(
        call_id="c2", is_error=True, category=common.TOOL_ERROR_CATEGORY_DENIED, content=b'"no"'
    )
    broken = event_pb2.ToolResult(
        call_id="c1", is_error=True, category=common.TOOL_ERROR_CATEGORY_EXECUTION_FAILED, content=b'"x"'
    )
    log.add(started("c1"), broken, refused)
    applied = next(p for p in close_step(log.state, how=CANCEL) if isinstance(p, event_pb2.PlanApplied))
    assert [(i.outcome, i.decision, i.decided_by.kind, i.decided_by.name) for i in applied.items] == [
        (
            common.ITEM_OUTCOME_FAILED,
            common.POLICY_ACTION_ALLOW,
            common.DECIDED_BY_KIND_CLIENT,
            "cli",
        ),
        (
            common.ITEM_OUTCOME_DENIED,
            common.POLICY_ACTION_DENY,
            common.DECIDED_BY_KIND_CLIENT,
            "cli",
        ),
    ]


@pytest.mark.req("LOOP-15")
def test_what_is_settled_already_is_left_alone() -> None:
    log = SessionLog().turn().step().calls("c1")
    log.add(started("c1"), result("c1"), event_pb2.PlanReady(), event_pb2.PlanApplied())
    assert types(close_step(log.state, how=CANCEL)) == ["step/end"]
    assert close_step(log.end_step().state, how=CANCEL) == []
    assert close_step(SessionLog().state, how=CANCEL) == []


@pytest.mark.req("LOOP-15", "LOG-21")
def test_an_attempt_that_was_given_up_without_effect_counts_as_not_started() -> None:
    log = SessionLog().turn().step().calls("c1").add(started("c1"))
    log.add(event_pb2.ToolRetry(call_id="c1", attempt=1))
    assert results(close_step(log.state, how=CRASH)) == [
        ("c1", common.TOOL_ERROR_CATEGORY_NOT_STARTED, "not started")
    ]


@pytest.mark.req("LOOP-15", "LOG-08")
def test_a_child_keeps_the_status_that_its_own_log_gives() -> None:
    log = SessionLog().turn().step().calls("c1", "c2")
    for call_id, child in (("c1", "k1"), ("c2", "k2")):
        log.add(started(call_id), event_pb2.ChildStarted(call_id=call_id, child=child))
    known = {"k1": event_pb2.ChildEnded(status=common.SESSION_STATUS_COMPLETED, total_cost_nano_usd=5)}
    payloads = close_step(log.state, how=CRASH, children=known)
    ends = [p for p in payloads if isinstance(p, event_pb2.ChildEnded)]
    assert [(e.child, e.call_id, e.status, e.total_cost_nano_usd) for e in ends] == [
        ("k1", "c1", common.SESSION_STATUS_COMPLETED, 5),
        ("k2", "c2", common.SESSION_STATUS_CANCELLED, 0),
    ]
    log.add(*payloads)


# --- repair -------------------------------------------------------------------------------------------------


def opened() -> SessionLog:
    return SessionLog().add(event_pb2.InboxQueued(message_id="m2")).turn()


SCENES: dict[str, Callable[[], SessionLog]] = {
    "before the first step": opened,
    "in an empty step": lambda: opened().step(),
    "between steps": lambda: opened().answer("so"),
    "in the third step of the second turn": lambda: (
        opened().answer("a").end_turn().turn().answer("b").answer("c").step()
    ),
    "with calls open": lambda: opened().step().calls("c1", "c2", "c3").add(started("c2")),
    "with one result of three": lambda: opened().step().calls("c1", "c2", "c3").add(result("c2")),
    "with all results and the step open": lambda: (
        opened().step().calls("c1", "c2").add(result("c2"), result("c1"))
    ),
    "with everything open": crowded,
    "with everything open and stopping": lambda: crowded().stopping(ABORTED),
    "while the text streams": lambda: (
        opened().step().add(event_pb2.AssistantChunk(deltas=[event_pb2.Delta(text="so fa")]))
    ),
}


@pytest.mark.req("LOG-08", "LOOP-15", "MODEL-06")
@pytest.mark.parametrize("name", SCENES)
def test_an_orphaned_turn_is_closed_with_the_right_numbers(name: str) -> None:
    log = SCENES[name]()
    turn, step, last = log.state.open_turn, log.state.open_step, log.events[-1].time
    added = repaired(log)
    assert turn is not None
    assert all(event.synthetic for event in added)
    assert all(event.time == last for event in added)
    end = next(event for event in added if event.HasField("turn_end"))
    assert end.turn_end.turn == turn
    ends = [event.step_end.step for event in added if event.HasField("step_end")]
    assert ends == ([] if step is None else [step])
    assert added[-1].session_status.status == common.SESSION_STATUS_IDLE
    assert log.state.open_turn is None
    assert not log.view.open_requests
    assert log.state.next_turn == turn + 1
    log.turn("go on").answer("yes").end_turn()


@pytest.mark.req("LOG-08")
def test_the_queue_stays() -> None:
    log = opened()
    repaired(log)
    assert [message.message_id for message in log.view.queue] == ["m2"]


@pytest.mark.req("LOG-08", "LOG-21")
def test_repair_tells_not_started_from_outcome_unknown() -> None:
    log = opened().step().calls("c1", "c2").add(started("c1"))
    added = repaired(log)
    found = [event.tool_result for event in added if event.HasField("tool_result")]
    assert [(r.call_id, r.category) for r in found] == [
        ("c1", common.TOOL_ERROR_CATEGORY_INTERRUPTED),
        ("c2", common.TOOL_ERROR_CATEGORY_NOT_STARTED),
    ]
    assert "outcome unknown, check before repeating" in json.loads(found[0].content)
    assert json.loads(found[1].content) == "not started"


@pytest.mark.req("LOG-08", "LOG-07")
@pytest.mark.parametrize("reason", [r for r in common.TurnEndReason.values() if r])
def test_the_reason_of_a_stopping_that_was_written_stands(reason: common.TurnEndReason.ValueType) -> None:
    assert [e.turn_end.reason for e in repaired(opened().stopping(reason)) if e.HasField("turn_end")] == [
        reason
    ]


@pytest.mark.req("LOG-08")
def test_without_a_stopping_the_turn_is_interrupted() -> None:
    assert [e.turn_end.reason for e in repaired(opened()) if e.HasField("turn_end")] == [INTERRUPTED]


@pytest.mark.req("LOG-08")
def test_nothing_is_added_where_nothing_is_open() -> None:
    for log in (SessionLog(), opened().answer("a").end_turn()):
        assert repair(log.state, SESSION, START_US) == []
    assert repair(type(SessionLog().state)(), SESSION, START_US) == []


@pytest.mark.req("LOG-08", "LOOP-14")
@pytest.mark.parametrize("turn_open", [True, False])
def test_a_sub_agent_is_ended_with_its_parent_gone(turn_open: bool) -> None:
    log = SessionLog(event_pb2.SessionCreated(parent="p", parent_call_id="c"))
    if turn_open:
        log.turn().step().calls("c1")
    repaired(log)
    assert log.state.ended
    assert log.view.status == common.SESSION_STATUS_CANCELLED
    assert repair(log.state, SESSION, START_US) == []


def limited(mode: common.LimitMode.ValueType, *, parent: str = "", unattended: bool = False) -> SessionLog:
    bounds = common.Bounds(max_turns=1, limit_mode=mode)
    profile = common.ProfileSnapshot(bounds=bounds)
    created = event_pb2.SessionCreated(profile=profile, parent=parent, unattended=unattended)
    log = SessionLog(created).turn().answer("a")
    hit = common.LimitHit(dimension=common.LIMIT_DIMENSION_MAX_TURNS, limit=1, value=1, unit="steps")
    return log.add(event_pb2.LimitReached(hits=[hit]))


@pytest.mark.req("LOG-08", "LOOP-14")
def test_the_status_of_a_bound_that_had_fired_stands() -> None:
    hard = limited(common.LIMIT_MODE_HARD).add(user("limit"), synthetic=True).step()
    repaired(hard)
    assert hard.view.status == common.SESSION_STATUS_ERROR_MAX_TURNS
    assert hard.state.ended

    soft = limited(common.LIMIT_MODE_SOFT)
    repaired(soft)
    assert soft.view.status == common.SESSION_STATUS_PAUSED
    assert not soft.state.ended

    for alone in (
        limited(common.LIMIT_MODE_SOFT, unattended=True),
        limited(common.LIMIT_MODE_SOFT, parent="p"),
    ):
        repaired(alone)
        assert alone.view.status == common.SESSION_STATUS_ERROR_MAX_TURNS


@pytest.mark.req("LOG-08", "LOOP-14")
def test_a_bound_of_an_earlier_turn_does_not_count() -> None:
    log = limited(common.LIMIT_MODE_SOFT).end_turn(INTERRUPTED)
    log.add(event_pb2.SessionChanged(allowance=common.Bounds(max_turns=9)))
    repaired(log.turn("go on"))
    assert log.view.status == common.SESSION_STATUS_IDLE


@pytest.mark.req("LOOP-15", "LOOP-14")
def test_a_turn_ends_together_with_its_session_where_that_ends_too() -> None:
    log = opened().stopping(common.TURN_END_REASON_COMPLETED)
    assert types(end_turn(log.state, common.TURN_END_REASON_COMPLETED)) == ["turn/end", "session/status"]
    closed = end_turn(log.state, common.TURN_END_REASON_ABORTED, common.SESSION_STATUS_CANCELLED)
    assert types(closed) == ["turn/end", "session/status", "session/ended"]
    log.add(*closed)
    assert log.view.status == common.SESSION_STATUS_CANCELLED


@pytest.mark.req("MODEL-06", "LOG-08")
def test_after_a_repair_an_answered_question_stays_answered() -> None:
    log = opened().step().calls("c1", kind=common.TOOL_KIND_INTERACTIVE)
    log.add(questions("q1", "c1"), answered("q1"))
    added = repaired(log)
    assert [e.WhichOneof("data") for e in added] == ["tool_result", "step_end", "turn_end", "session_status"]


@pytest.mark.req("LOG-08", "LOG-23")
def test_text_that_streamed_before_the_crash_stays_in_the_history() -> None:
    log = SCENES["while the text streams"]()
    repaired(log)
    assert log.said()[-1][0] == "so fa"


@pytest.mark.req("LOG-08")
def test_a_message_without_calls_needs_nothing_but_the_ends() -> None:
    log = opened().step().add(says(text("done")))
    assert [e.WhichOneof("data") for e in repaired(log)] == ["step_end", "turn_end", "session_status"]
