"""Each rule of the log rejects its violation with its exact text, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from google.protobuf.message import Message
from tests.unit.session_log import (
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
    user,
)

from turnd.rules.state import SessionState, Violation, apply, is_commitment, position
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

RESOURCE = common.TOOL_KIND_RESOURCE
COMPLETED = common.TURN_END_REASON_COMPLETED
ABORTED = common.TURN_END_REASON_ABORTED

Scene = Callable[[], SessionLog]


def idle() -> SessionLog:
    return SessionLog()


def turn() -> SessionLog:
    return idle().turn()


def step() -> SessionLog:
    return turn().step()


def between() -> SessionLog:
    return step().end_step()


def second_turn() -> SessionLog:
    return between().end_turn().turn()


def reading() -> SessionLog:
    return step().calls("c1", "c2")


def mutating() -> SessionLog:
    return step().calls("c1", kind=RESOURCE)


def running() -> SessionLog:
    return reading().add(started("c1"))


def corrected() -> event_pb2.ApprovalDecided:
    approved = decided("r1")
    approved.corrected_input = b'{"path":"b"}'
    return approved


def asking() -> SessionLog:
    return mutating().add(asks("r1", "c1"))


def questioning() -> SessionLog:
    return step().calls("c1", kind=common.TOOL_KIND_INTERACTIVE).add(questions("q1", "c1"))


def spawning() -> SessionLog:
    return running().add(event_pb2.ChildStarted(call_id="c1", child="k1"))


def ended() -> SessionLog:
    return idle().add(event_pb2.SessionEnded(status=common.SESSION_STATUS_COMPLETED))


def stopping_in(scene: Scene) -> Scene:
    return lambda: scene().stopping(ABORTED)


def turn_start(number: int) -> Message:
    return event_pb2.TurnStart(turn=number)


def turn_end(number: int) -> Message:
    return event_pb2.TurnEnd(turn=number, reason=COMPLETED)


def step_start(turn_number: int, number: int) -> Message:
    return event_pb2.StepStart(turn=turn_number, step=number)


def step_end(turn_number: int, number: int) -> Message:
    return event_pb2.StepEnd(turn=turn_number, step=number)


def request() -> Message:
    return event_pb2.AgentRequest(purpose=common.REQUEST_PURPOSE_STEP)


def retry(call_id: str, attempt: int) -> Message:
    return event_pb2.ToolRetry(call_id=call_id, attempt=attempt)


def child_started(call_id: str, child: str = "k1") -> Message:
    return event_pb2.ChildStarted(call_id=call_id, child=child)


def child_ended(child: str) -> Message:
    return event_pb2.ChildEnded(call_id="c1", child=child)


def stopping() -> Message:
    return event_pb2.TurnStopping(reason=COMPLETED)


def progress(call_id: str) -> Message:
    return event_pb2.ToolProgress(call_id=call_id, attempt=1)


TURNS = [
    (turn, turn_start(1), "turn/start while turn already open"),
    (between, turn_start(0), "turn/start while turn already open"),
    (idle, turn_start(1), "turn/start expected turn 0, got 1"),
    (lambda: between().end_turn(), turn_start(0), "turn/start expected turn 1, got 0"),
    (lambda: between().end_turn(), turn_start(2), "turn/start expected turn 1, got 2"),
    (idle, turn_end(0), "turn/end without open turn/start"),
    (lambda: between().end_turn(), turn_end(0), "turn/end without open turn/start"),
    (stopping_in(second_turn), turn_end(0), "turn/end expected turn 1, got 0"),
    (stopping_in(step), turn_end(0), "turn/end while step still open"),
    (turn, turn_end(0), "turn/end without turn/stopping"),
    (idle, stopping(), "turn/stopping without open turn"),
    (stopping_in(turn), stopping(), "turn/stopping twice"),
    (turn, event_pb2.SessionEnded(), "session/ended while turn still open"),
]

STEPS = [
    (idle, step_start(0, 1), "step/start without open turn"),
    (turn, step_start(5, 1), "step/start in turn 5 but open turn is 0"),
    (step, step_start(0, 2), "step/start while step already open"),
    (turn, step_start(0, 0), "step/start expected step 1, got 0"),
    (between, step_start(0, 1), "step/start expected step 2, got 1"),
    (between, step_start(0, 3), "step/start expected step 2, got 3"),
    (second_turn, step_start(1, 2), "step/start expected step 1, got 2"),
    (turn, step_end(0, 1), "step/end without open step/start"),
    (between, step_end(0, 1), "step/end without open step/start"),
    (step, step_end(5, 1), "step/end in turn 5 but open turn is 0"),
    (step, step_end(0, 2), "step/end expected step 1, got 2"),
    (reading, step_end(0, 1), "step/end while tool/call still open"),
    (lambda: asking().add(result("c1")), step_end(0, 1), "step/end while approval/request still open"),
    (
        lambda: questioning().add(result("c1")),
        step_end(0, 1),
        "step/end while interactive/request still open",
    ),
    (
        lambda: spawning().add(result("c1"), result("c2")),
        step_end(0, 1),
        "step/end while child/started still open",
    ),
]

MESSAGES = [
    (idle, user("x"), "user/message without open turn"),
    (step, user("x"), "user/message while step open"),
    (step, user("x", steering=True), "user/message while step open"),
    (between, user("x"), "user/message after step/end neither synthetic nor steering"),
]

IN_A_STEP = [
    (turn, request(), "agent/request without open step"),
    (turn, event_pb2.AgentRequest(), "agent/request without open step"),
    (idle, event_pb2.AgentRetry(), "agent/retry without open step"),
    (turn, event_pb2.AssistantChunk(), "assistant/chunk without open step"),
    (turn, says(), "assistant/message without open step"),
    (turn, event_pb2.Usage(purpose=common.REQUEST_PURPOSE_STEP), "usage without open step"),
    (turn, event_pb2.PlanReady(), "plan/ready without open step"),
    (turn, event_pb2.PlanApplied(), "plan/applied without open step"),
    (turn, asks("r1", "c1"), "approval/request without open step"),
    (turn, questions("q1", "c1"), "interactive/request without open step"),
]

COMPACTION = [
    (idle, event_pb2.ContextCompacted(), "context/compacted without open turn"),
    (reading, event_pb2.ContextCompacted(), "context/compacted while tool/call still open"),
    (
        lambda: turn().stopping(common.TURN_END_REASON_ABORTED),
        event_pb2.ContextCompacted(),
        "context/compacted after turn/stopping",
    ),
    (
        idle,
        event_pb2.AgentRequest(purpose=common.REQUEST_PURPOSE_COMPACTION),
        "agent/request without open turn",
    ),
]

CALLS = [
    (turn, call("c1"), "tool/call without open step"),
    (reading, call("c1"), "tool/call id already used"),
    (lambda: reading().add(result("c1")), call("c1"), "tool/call id already used"),
    (
        lambda: reading().add(result("c1"), result("c2")).end_step().end_turn().turn().step(),
        call("c2"),
        "tool/call id already used",
    ),
    (step, started("c1"), "tool/started without open tool/call"),
    (lambda: reading().add(result("c1")), started("c1"), "tool/started without open tool/call"),
    (running, started("c1", 2), "tool/started twice"),
    (running, started("c1", 1), "tool/started twice"),
    (mutating, started("c1"), "tool/started without approval"),
    (
        lambda: mutating().add(event_pb2.PlanReady(items=[planned("c1", common.POLICY_ACTION_ASK)])),
        started("c1"),
        "tool/started without approval",
    ),
    (
        lambda: mutating().add(event_pb2.PlanReady(items=[planned("c1", common.POLICY_ACTION_DENY)])),
        started("c1"),
        "tool/started without approval",
    ),
    (asking, started("c1"), "tool/started without approval"),
    (
        lambda: asking().add(decided("r1", common.APPROVAL_OUTCOME_DENIED)),
        started("c1"),
        "tool/started without approval",
    ),
    (
        lambda: asking().add(decided("r1", common.APPROVAL_OUTCOME_EXPIRED)),
        started("c1"),
        "tool/started without approval",
    ),
    (
        lambda: mutating().add(event_pb2.PlanReady(items=[planned("c1")])),
        event_pb2.ToolStarted(call_id="c1", attempt=1, input=b'{"path":"b"}'),
        "tool/started with another input than the approved one",
    ),
    (
        lambda: asking().add(corrected()),
        started("c1"),
        "tool/started with another input than the approved one",
    ),
    (reading, started("c1", 2), "tool/started expected attempt 1, got 2"),
    (lambda: running().add(retry("c1", 1)), started("c1", 1), "tool/started expected attempt 2, got 1"),
    (reading, retry("c1", 1), "tool/retry without open attempt"),
    (running, retry("c1", 2), "tool/retry without open attempt"),
    (lambda: running().add(retry("c1", 1)), retry("c1", 1), "tool/retry without open attempt"),
    (reading, progress("c1"), "tool/progress without open attempt"),
    (lambda: running().add(retry("c1", 1)), progress("c1"), "tool/progress without open attempt"),
    (step, result("c1"), "tool/result without open tool/call"),
    (lambda: reading().add(result("c1")), result("c1"), "tool/result without open tool/call"),
    (idle, result("c1"), "tool/result without open tool/call"),
]

REQUESTS = [
    (asking, asks("r1", "c1"), "approval/request id already open"),
    (questioning, questions("q1", "c1"), "interactive/request id already open"),
    (mutating, decided("r1"), "approval/decided without open approval/request"),
    (lambda: asking().add(decided("r1")), decided("r1"), "approval/decided without open approval/request"),
    (questioning, decided("q1"), "approval/decided without open approval/request"),
    (step, answered("q1"), "interactive/answered without open interactive/request"),
    (asking, answered("r1"), "interactive/answered without open interactive/request"),
    (
        lambda: questioning().add(answered("q1")),
        answered("q1"),
        "interactive/answered without open interactive/request",
    ),
    (reading, child_started("c1"), "child/started without open tool/call"),
    (running, child_started("c9"), "child/started without open tool/call"),
    (turn, child_started("c1"), "child/started without open tool/call"),
    (spawning, child_started("c1"), "child/started twice"),
    (running, child_ended("k1"), "child/ended without open child/started"),
    (lambda: spawning().add(child_ended("k1")), child_ended("k1"), "child/ended without open child/started"),
]

AFTER_STOPPING = [
    (stopping_in(turn), step_start(0, 1), "step/start after turn/stopping"),
    (stopping_in(step), request(), "agent/request after turn/stopping"),
    (stopping_in(step), call("c1"), "tool/call after turn/stopping"),
    (stopping_in(reading), started("c1"), "tool/started after turn/stopping"),
    (stopping_in(mutating), asks("r1", "c1"), "approval/request after turn/stopping"),
    (stopping_in(reading), questions("q1", "c1"), "interactive/request after turn/stopping"),
    (stopping_in(running), child_started("c1"), "child/started after turn/stopping"),
    (
        stopping_in(turn),
        event_pb2.AgentRequest(purpose=common.REQUEST_PURPOSE_COMPACTION),
        "agent/request after turn/stopping",
    ),
]

SESSIONS = [
    (idle, event_pb2.SessionCreated(), "session/created twice"),
    (idle, event_pb2.SessionReopened(), "session/reopened without session/ended"),
    (ended, turn_start(0), "session already ended"),
    (ended, event_pb2.InboxQueued(message_id="m"), "session already ended"),
    (ended, event_pb2.SessionStatusChanged(), "session already ended"),
    (ended, event_pb2.SessionEnded(), "session already ended"),
    (ended, event_pb2.Note(), "session already ended"),
]

VIOLATIONS = [
    *TURNS,
    *STEPS,
    *MESSAGES,
    *IN_A_STEP,
    *COMPACTION,
    *CALLS,
    *REQUESTS,
    *AFTER_STOPPING,
    *SESSIONS,
]


@pytest.mark.req("LOG-01", "LOG-02", "LOG-03", "LOG-06")
@pytest.mark.parametrize(("scene", "payload", "text"), VIOLATIONS, ids=[text for _, _, text in VIOLATIONS])
def test_a_violation_is_rejected_with_the_text_of_its_rule(scene: Scene, payload: Message, text: str) -> None:
    log = scene()
    before = log.state
    assert log.refused(payload) == text
    assert log.state is before


@pytest.mark.req("LOG-03")
@pytest.mark.parametrize("payload", [turn_start(0), event_pb2.Note(), user("x"), None])
def test_a_log_begins_with_session_created(payload: Message | None) -> None:
    event = event_pb2.Event(seq=1) if payload is None else idle().event(payload)
    event.seq = 1
    with pytest.raises(Violation) as caught:
        apply(SessionState(), event)
    assert caught.value.text == "first event is not session/created"


@pytest.mark.req("LOG-09")
@pytest.mark.parametrize("wrong", [0, 1, 3, 7])
def test_the_sequence_has_no_gaps_and_no_repeats(wrong: int) -> None:
    log = idle()
    event = log.event(event_pb2.Note())
    assert event.seq == 2
    event.seq = wrong
    assert log.refused(event) == "seq gap"


@pytest.mark.req("LOG-09")
def test_a_clock_that_jumps_back_changes_no_order() -> None:
    log = turn()
    early = log.event(step_start(0, 1))
    early.time.FromMicroseconds(1)
    log.take(early)
    assert [event.seq for event in log.events] == [1, 2, 3, 4]
    assert log.state.open_step == 1


@pytest.mark.req("LOG-03")
@pytest.mark.parametrize(
    ("turn_number", "step_number", "got"),
    [
        (None, None, "no turn"),
        (0, None, "turn 0"),
        (0, 2, "turn 0 step 2"),
        (1, 1, "turn 1 step 1"),
        (None, 1, "step 1 without turn"),
    ],
)
def test_the_envelope_agrees_with_the_state(
    turn_number: int | None, step_number: int | None, got: str
) -> None:
    log = step()
    event = log.event(call("c1"))
    event.ClearField("turn")
    event.ClearField("step")
    if turn_number is not None:
        event.turn = turn_number
    if step_number is not None:
        event.step = step_number
    assert log.refused(event) == f"tool/call expected turn 0 step 1, got {got}"


@pytest.mark.req("LOG-03")
def test_an_event_outside_of_turns_carries_no_numbers() -> None:
    log = idle()
    event = log.event(event_pb2.Note())
    event.turn = 0
    assert log.refused(event) == "note expected no turn, got turn 0"


@pytest.mark.req("LOG-05")
def test_the_numbers_can_be_asked_and_no_turn_differs_from_turn_0() -> None:
    log = idle()
    numbers = []
    for act in (log.turn, log.step, log.end_step, log.step, log.end_step, log.end_turn, log.turn):
        act()
        state = log.state
        numbers.append((state.next_turn, state.open_turn, state.next_step, state.open_step))
    assert numbers == [
        (0, 0, 1, None),
        (0, 0, 2, 1),
        (0, 0, 2, None),
        (0, 0, 3, 2),
        (0, 0, 3, None),
        (1, None, 3, None),
        (1, 1, 1, None),
    ]
    assert idle().state.open_turn is None
    assert turn().state.open_turn == 0


@pytest.mark.req("LOG-01", "LOG-02")
def test_position_gives_markers_their_own_numbers() -> None:
    assert position(idle().state, turn_start(0)) == (0, None)
    assert position(turn().state, step_start(0, 1)) == (0, 1)
    assert position(step().state, step_end(0, 1)) == (0, 1)
    assert position(between().state, turn_end(0)) == (0, None)
    assert position(step().state, call("c1")) == (0, 1)
    assert position(idle().state, event_pb2.Note()) == (None, None)


@pytest.mark.req("LOG-06")
def test_a_call_belongs_to_its_step_and_has_one_result() -> None:
    log = reading()
    assert set(log.state.calls) == {"c1", "c2"}
    assert log.state.calls["c2"].index == 1
    log.add(started("c1"), result("c1"), result("c2"))
    assert not log.state.calls
    log.end_step()
    assert set(log.state.used_call_ids) == {"c1", "c2"}


@pytest.mark.req("LOG-07")
@pytest.mark.parametrize("reason", [r for r in common.TurnEndReason.values() if r])
def test_a_turn_ends_for_each_of_the_six_reasons(reason: common.TurnEndReason.ValueType) -> None:
    log = between().end_turn(reason)
    assert log.view.last_reason == reason
    assert log.state.open_turn is None
    assert len(common.TurnEndReason.values()) == 7


@pytest.mark.req("LOG-03")
def test_a_synthetic_turn_end_needs_no_stopping() -> None:
    log = between().add(turn_end(0), synthetic=True)
    assert log.state.next_turn == 1


@pytest.mark.req("LOG-03")
def test_after_a_step_synthetic_and_steering_messages_are_lawful() -> None:
    between().add(user("x", steering=True)).step()
    between().add(user("x"), synthetic=True).step()


@pytest.mark.req("LOG-03", "GATE-07")
@pytest.mark.parametrize(
    "allow",
    [
        [event_pb2.PlanReady(items=[planned("c1")])],
        [asks("r1", "c1"), decided("r1")],
        [
            event_pb2.PlanReady(items=[planned("c1", common.POLICY_ACTION_ASK)]),
            asks("r1", "c1"),
            decided("r1"),
        ],
    ],
)
def test_a_resource_call_starts_with_an_allow_or_an_approval(allow: list[Message]) -> None:
    log = mutating().add(*allow, started("c1"))
    assert log.state.calls["c1"].attempt_open


@pytest.mark.req("LOG-03", "GATE-16")
def test_an_approval_ends_with_the_state_it_was_given_for() -> None:
    stale = event_pb2.ToolRetry(
        call_id="c1", attempt=1, category=common.TOOL_ERROR_CATEGORY_PRECONDITION_FAILED
    )
    once = asking().add(decided("r1"), started("c1"), stale)
    assert once.refused(started("c1", 2)) == "tool/started without approval"
    once.add(asks("r2", "c1"), decided("r2"), started("c1", 2))

    remembered = asking().add(decided("r1", scope=common.APPROVAL_SCOPE_SESSION), started("c1"), stale)
    remembered.add(started("c1", 2))

    allowed = mutating().add(event_pb2.PlanReady(items=[planned("c1")]), started("c1"), stale)
    allowed.add(started("c1", 2))

    conflict = event_pb2.ToolRetry(
        call_id="c1", attempt=1, category=common.TOOL_ERROR_CATEGORY_CONCURRENCY_CONFLICT
    )
    asking().add(decided("r1"), started("c1"), conflict, started("c1", 2))


@pytest.mark.req("LOG-03")
def test_asking_again_takes_an_earlier_allow_back() -> None:
    log = mutating().add(event_pb2.PlanReady(items=[planned("c1")]), asks("r1", "c1"))
    assert log.refused(started("c1")) == "tool/started without approval"
    log.add(event_pb2.ApprovalDecided(request_id="r1", outcome=common.APPROVAL_OUTCOME_DENIED))
    assert log.refused(started("c1")) == "tool/started without approval"


@pytest.mark.req("LOG-03")
def test_what_may_still_come_after_stopping() -> None:
    log = running().add(event_pb2.ChildStarted(call_id="c1", child="k1")).stopping(ABORTED)
    log.add(
        event_pb2.AssistantChunk(),
        event_pb2.Usage(purpose=common.REQUEST_PURPOSE_STEP),
        says(),
        event_pb2.AgentRequest(purpose=common.REQUEST_PURPOSE_TITLE),
        progress("c1"),
        child_ended("k1"),
        result("c1"),
        result("c2"),
    )
    log.end_step().end_turn(ABORTED)
    assert log.state.next_turn == 1


@pytest.mark.req("LOG-03")
def test_model_requests_that_are_of_no_step_need_none() -> None:
    for purpose in (common.REQUEST_PURPOSE_TITLE, common.REQUEST_PURPOSE_COMPACTION):
        turn().add(event_pb2.AgentRequest(purpose=purpose), event_pb2.Usage(purpose=purpose))
    title = common.REQUEST_PURPOSE_TITLE
    idle().add(event_pb2.AgentRequest(purpose=title), event_pb2.Usage(purpose=title))
    between().add(event_pb2.ContextCompacted())
    step().add(event_pb2.ContextCompacted())


@pytest.mark.req("LOG-03")
def test_an_ended_session_takes_a_reopen_and_goes_on_from_its_numbers() -> None:
    log = between().end_turn().add(event_pb2.SessionEnded()).add(event_pb2.SessionReopened())
    log.turn()
    assert log.state.open_turn == 1


@pytest.mark.req("LOG-18")
@pytest.mark.parametrize("scene", [idle, turn, step, running, asking, ended, stopping_in(step)])
def test_an_event_of_an_unknown_type_is_accepted_anywhere(scene: Scene) -> None:
    log = scene()
    before, shown = log.state, log.history.messages()
    unknown = event_pb2.Event.FromString(
        event_pb2.Event(session="s", seq=before.seq + 1).SerializeToString() + b"\xc2\x3e\x02hi"
    )
    assert unknown.WhichOneof("data") is None
    log.take(unknown)
    assert log.state.seq == before.seq + 1
    assert log.view.last_seq == before.seq + 1
    assert (log.state.calls, log.state.open_step) == (before.calls, before.open_step)
    assert log.history.messages() == shown


@pytest.mark.req("LOG-12")
def test_commitments_are_what_must_not_be_lost() -> None:
    log = mutating().add(event_pb2.PlanReady(items=[planned("c1")]))

    def committed(payload: Message) -> bool:
        return is_commitment(log.state, log.event(payload))

    assert committed(started("c1"))
    assert committed(event_pb2.Usage(purpose=common.REQUEST_PURPOSE_STEP))
    assert committed(decided("r1"))
    assert committed(turn_end(0))
    assert not committed(result("c1"))
    assert not committed(started("c9"))
    assert not committed(event_pb2.AssistantChunk())
    reads = reading()
    assert not is_commitment(reads.state, reads.event(started("c1")))
