"""Exit codes and the result line, from events alone."""

from __future__ import annotations

import pytest

from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2, sessions_pb2
from turnd_client.outcome import ExitCode, Outcome

MESSAGE = "m1"
DIMENSIONS = [n for n in common.LimitDimension.values() if n != common.LIMIT_DIMENSION_UNSPECIFIED]


def event(payload: object, *, turn: int | None = 0, step: int | None = None) -> event_pb2.Event:
    made = event_pb2.Event(session="s", turn=turn, step=step)
    for field in event_pb2.Event.DESCRIPTOR.oneofs_by_name["data"].fields:
        if field.message_type is type(payload).DESCRIPTOR:  # type: ignore[attr-defined]
            getattr(made, field.name).CopyFrom(payload)
            return made
    raise AssertionError(f"no event has {payload}")


def outcome_of(*events: event_pb2.Event, unattended: bool = False) -> Outcome:
    outcome = Outcome(MESSAGE)
    outcome.advance(event(event_pb2.SessionCreated(unattended=unattended), turn=None))
    outcome.advance(event(event_pb2.UserMessage(message_id=MESSAGE)))
    for one in events:
        outcome.advance(one)
    return outcome


def ended(reason: common.TurnEndReason.ValueType) -> event_pb2.Event:
    return event(event_pb2.TurnEnd(reason=reason))


def status(status: common.SessionStatus.ValueType) -> event_pb2.Event:
    return event(event_pb2.SessionStatusChanged(status=status), turn=None)


DENIED = event(
    event_pb2.PlanReady(
        items=[
            common.PlanItem(
                call_id="c1",
                decision=common.POLICY_ACTION_DENY,
                decided_by=common.DecidedBy(kind=common.DECIDED_BY_KIND_UNATTENDED),
                reason="nobody is there",
            ),
            common.PlanItem(
                call_id="c2",
                decision=common.POLICY_ACTION_DENY,
                decided_by=common.DecidedBy(kind=common.DECIDED_BY_KIND_RULE),
            ),
        ]
    )
)
LIMIT_STOP = event(
    event_pb2.TurnStopping(limit=common.LimitHit(dimension=common.LIMIT_DIMENSION_MAX_WALL_CLOCK_S))
)


@pytest.mark.parametrize(
    ("events", "code"),
    [
        ([ended(common.TURN_END_REASON_COMPLETED)], ExitCode.COMPLETED),
        ([ended(common.TURN_END_REASON_ERROR)], ExitCode.ERROR),
        ([ended(common.TURN_END_REASON_INTERRUPTED)], ExitCode.ERROR),
        ([ended(common.TURN_END_REASON_BLOCKED)], ExitCode.BLOCKED),
        ([DENIED, ended(common.TURN_END_REASON_COMPLETED)], ExitCode.BLOCKED),
        ([DENIED, ended(common.TURN_END_REASON_ERROR)], ExitCode.BLOCKED),
        ([ended(common.TURN_END_REASON_MAX_TOKENS)], ExitCode.LIMIT),
        ([LIMIT_STOP, ended(common.TURN_END_REASON_INTERRUPTED)], ExitCode.LIMIT),
        *(
            ([DENIED, ended(common.TURN_END_REASON_COMPLETED), status(limited)], ExitCode.LIMIT)
            for limited in (
                common.SESSION_STATUS_PAUSED,
                common.SESSION_STATUS_ERROR_MAX_TURNS,
                common.SESSION_STATUS_ERROR_MAX_BUDGET_USD,
                common.SESSION_STATUS_ERROR_MAX_WALL_CLOCK,
                common.SESSION_STATUS_ERROR_DOOM_LOOP,
            )
        ),
        (
            [ended(common.TURN_END_REASON_ABORTED), status(common.SESSION_STATUS_ERROR_MAX_TURNS)],
            ExitCode.CANCELLED,
        ),
    ],
)
def test_the_first_exit_code_that_applies(events: list[event_pb2.Event], code: ExitCode) -> None:
    assert outcome_of(*events).exit_code() is code


@pytest.mark.req("GATE-15")
def test_what_was_denied_for_want_of_an_answer_and_nothing_else() -> None:
    call = event_pb2.ToolCall(call_id="c1", provider="workspace", tool="write_file")
    question = event_pb2.ToolCall(
        call_id="c3", provider="core", tool="ask_user", kind=common.TOOL_KIND_INTERACTIVE
    )
    refused = event_pb2.ToolResult(call_id="c3", is_error=True, category=common.TOOL_ERROR_CATEGORY_DENIED)
    outcome = outcome_of(event(call), event(question), event(refused), DENIED, unattended=True)
    assert [denied["call_id"] for denied in outcome.denied.values()] == ["c3", "c1"]
    assert outcome.denied["c1"] == {
        "call_id": "c1",
        "provider": "workspace",
        "tool": "write_file",
        "reason": "nobody is there",
    }
    attended = outcome_of(event(question), event(refused))
    assert not attended.denied


@pytest.mark.parametrize(
    ("stopping", "cause"),
    [
        (event_pb2.TurnStopping(reason=common.TURN_END_REASON_COMPLETED), None),
        (event_pb2.TurnStopping(cancel=event_pb2.CancelStop(cause=common.CANCEL_CAUSE_USER)), "user"),
        (LIMIT_STOP.turn_stopping, "max_wall_clock_s"),
        (
            event_pb2.TurnStopping(
                error=event_pb2.ErrorStop(source="model", category="auth_error", message="no key")
            ),
            "model: auth_error: no key",
        ),
    ],
)
def test_the_cause(stopping: event_pb2.TurnStopping, cause: str | None) -> None:
    assert outcome_of(event(stopping)).cause == cause


@pytest.mark.req("M07")
@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_a_limit_is_told_to_people_with_its_value(dimension: common.LimitDimension.ValueType) -> None:
    """Whatever the dimension: it, the limit and the value; the result line has the dimension alone as its cause."""
    hit = common.LimitHit(dimension=dimension, limit=7, value=8, unit="units")
    outcome = outcome_of(event(event_pb2.TurnStopping(limit=hit)))
    name = common.LimitDimension.Name(dimension).removeprefix("LIMIT_DIMENSION_").lower()
    assert outcome.cause == name
    assert outcome.why == f"{name} is 7 units, used 8 units"


def test_only_the_turn_of_the_message_counts() -> None:
    outcome = Outcome(MESSAGE)
    outcome.advance(event(event_pb2.UserMessage(message_id="other"), turn=0))
    outcome.advance(event(event_pb2.TurnEnd(reason=common.TURN_END_REASON_ABORTED), turn=0))
    assert not outcome.ended
    outcome.advance(event(event_pb2.UserMessage(message_id=MESSAGE), turn=1))
    text = common.ContentBlock(text=common.TextBlock(text="the answer"))
    outcome.advance(event(event_pb2.AssistantMessage(blocks=[text]), turn=1, step=1))
    outcome.advance(event(event_pb2.TurnEnd(turn=1, reason=common.TURN_END_REASON_COMPLETED), turn=1))
    session = sessions_pb2.Session(
        id="s",
        status=common.SESSION_STATUS_COMPLETED,
        steps=4,
        cost_nano_usd=1_500_000,
        unpriced=True,
        weighted_tokens=700,
    )
    assert outcome.result(session) == {
        "type": "result",
        "session": "s",
        "status": "completed",
        "turn": 1,
        "reason": "completed",
        "cause": None,
        "steps": 4,
        "cost_usd": 0.0015,
        "estimated": False,
        "unpriced": True,
        "weighted_tokens": 700,
        "denied": [],
        "text": "the answer",
    }
