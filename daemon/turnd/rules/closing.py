"""Settles everything that a Turn owns, by one routine, for cancel, drain, crash repair and import alike (LOOP-15).

What a call may have done is said by its attempts: without an open one it had no effect, with one it may have
had any.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import Message

from turnd.rules.event import Draft
from turnd.rules.lifecycle import is_ended, status_after_turn
from turnd.rules.state_model import OpenAttention, OpenCall, OpenRequest, PlannedItem, SessionState
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2


@dataclass(frozen=True, slots=True)
class CallEnd:
    """What the model is told of a call that ended without a result of its own."""

    category: common.ToolErrorCategory.ValueType
    text: str


@dataclass(frozen=True, slots=True)
class Closing:
    """How what is still open is settled."""

    approval: common.ApprovalOutcome.ValueType
    answer: common.AnswerOutcome.ValueType
    reason: str
    """Why, for whoever was asked."""
    running: CallEnd
    """For calls whose attempt is open."""
    waiting: CallEnd
    """For calls without an open attempt."""
    client: str = ""
    """Who caused it, by what the client says of itself; empty for the daemon."""


INTERRUPTED: Final = CallEnd(
    common.TOOL_ERROR_CATEGORY_INTERRUPTED, "interrupted, may have had effects: check before repeating"
)
UNKNOWN: Final = CallEnd(
    common.TOOL_ERROR_CATEGORY_INTERRUPTED, "outcome unknown, check before repeating: the daemon stopped"
)
NOT_STARTED: Final = CallEnd(common.TOOL_ERROR_CATEGORY_NOT_STARTED, "not started")

CRASH: Final = Closing(
    approval=common.APPROVAL_OUTCOME_EXPIRED,
    answer=common.ANSWER_OUTCOME_EXPIRED,
    reason="the daemon stopped before it was answered",
    running=UNKNOWN,
    waiting=NOT_STARTED,
)
"""Repair after the daemon was killed: nobody can say what happened."""

LOG_ENDS: Final = Closing(
    approval=common.APPROVAL_OUTCOME_EXPIRED,
    answer=common.ANSWER_OUTCOME_EXPIRED,
    reason="the log that this session goes on from ends before it was answered",
    running=CallEnd(
        common.TOOL_ERROR_CATEGORY_INTERRUPTED,
        "outcome unknown, check before repeating: the log that this session goes on from ends here",
    ),
    waiting=NOT_STARTED,
)
"""For a session that goes on from another log, which may end anywhere."""


def cancelled(reason: str, client: str = "") -> Closing:
    """For cancel, drain, and a Step that failed: the daemon itself stopped what was running."""
    return Closing(
        approval=common.APPROVAL_OUTCOME_CANCELLED,
        answer=common.ANSWER_OUTCOME_CANCELLED,
        reason=reason,
        running=INTERRUPTED,
        waiting=NOT_STARTED,
        client=client,
    )


Children = Mapping[str, event_pb2.ChildEnded]
"""What became of children whose own logs have ended, by session id; any other child is `cancelled`."""


def close_step(
    state: SessionState,
    *,
    how: Closing,
    children: Children | None = None,
    active_ms: int = 0,
    waited_ms: int = 0,
) -> list[Message]:
    """The payloads, in lawful order, that settle what the open Step owns and end it.

    Requests first, then the descendants' requests that a root shows, sub-agents, calls in declaration order,
    the plan, and step/end with the tokens of the Step. `active_ms` and `waited_ms` are what was measured.
    Where no Step is open only the descendants' requests can be left; mostly the answer is empty.
    """
    if state.open_turn is None or state.open_step is None:
        return _settlements(state, how)
    calls = sorted(state.calls.values(), key=lambda call: call.index)
    results = [_result(call, how) for call in calls]
    step_end = event_pb2.StepEnd(
        turn=state.open_turn,
        step=state.open_step,
        tokens=state.step_tokens.counts(),
        active_ms=active_ms,
        waited_ms=waited_ms,
    )
    return [
        *_settlements(state, how),
        *_child_ends(state, children or {}),
        *results,
        *_plan_end(state, how),
        step_end,
    ]


def end_turn(
    state: SessionState,
    reason: common.TurnEndReason.ValueType,
    status: common.SessionStatus.ValueType | None = None,
) -> list[Message]:
    """What ends the open Turn, for one transaction: turn/end, session/status, session/ended where it ends.

    Without `status` the session gets the one that goes with the reason and the bound that fired, if one did.
    Needs an open Turn and no open Step.
    """
    assert state.open_turn is not None, "only an open Turn can end"
    if status is None:
        mode = common.LIMIT_MODE_SOFT if state.soft_limits else common.LIMIT_MODE_HARD
        status = status_after_turn(reason, state.limit, mode, bool(state.parent))
    return [event_pb2.TurnEnd(turn=state.open_turn, reason=reason), *_new_status(status)]


def repair(
    state: SessionState, session: str, last_time_us: int, children: Children | None = None
) -> list[Draft]:
    """The synthetic events that close what a killed daemon left open; empty where nothing is (LOG-08).

    They carry the time of the last real event. The reason of a turn/stopping that was written stands, else
    the Turn is `interrupted`; the status of a bound that had fired stands, also where the final Step had not
    ended. The queue stays. A sub-agent's session is ended, also outside of a Turn: its parent's Turn is gone.
    The times of the Step that was cut are not known and count as 0. What had streamed needs no event: the
    history takes it from the chunks. Running it again gives nothing.
    """
    if not state.created or state.ended:
        return []
    payloads = close_step(state, how=CRASH, children=children)
    if state.open_turn is not None:
        written = common.TURN_END_REASON_UNSPECIFIED if state.stopping is None else state.stopping.reason
        payloads += end_turn(state, written or common.TURN_END_REASON_INTERRUPTED)
    elif state.parent:
        payloads += _new_status(common.SESSION_STATUS_CANCELLED)
    return [Draft(session, payload, synthetic=True, time_us=last_time_us) for payload in payloads]


def after_history(state: SessionState, session: str) -> list[Draft]:
    """The synthetic events that close what another log left open, and make the session idle (LOG-22).

    They follow session/created. The reason of a turn/stopping that was written stands, a bound that had fired
    does not: it was another session's.
    """
    payloads = close_step(state, how=LOG_ENDS)
    idle = common.SESSION_STATUS_IDLE
    if state.open_turn is None:
        payloads += _new_status(idle)
    else:
        written = common.TURN_END_REASON_UNSPECIFIED if state.stopping is None else state.stopping.reason
        payloads += end_turn(state, written or common.TURN_END_REASON_INTERRUPTED, idle)
    return [Draft(session, payload, synthetic=True) for payload in payloads]


def error_result(call_id: str, end: CallEnd) -> event_pb2.ToolResult:
    """The error result that tells the model how a call ended."""
    content = json.dumps(end.text, ensure_ascii=False).encode()
    return event_pb2.ToolResult(call_id=call_id, is_error=True, category=end.category, content=content)


def _settlements(state: SessionState, how: Closing) -> list[Message]:
    own = sorted(state.requests.values(), key=lambda request: request.request_id)
    told = sorted(state.attentions.values(), key=lambda attention: attention.request_id)
    return [*(_settled(r, how) for r in own), *(_attention_settled(a, how) for a in told)]


def _settled(request: OpenRequest | OpenAttention, how: Closing) -> Message:
    if request.interactive:
        return event_pb2.InteractiveAnswered(
            request_id=request.request_id, call_id=request.call_id, outcome=how.answer, client=how.client
        )
    return event_pb2.ApprovalDecided(
        request_id=request.request_id,
        call_id=request.call_id,
        outcome=how.approval,
        client=how.client,
        reason=how.reason,
    )


def _attention_settled(attention: OpenAttention, how: Closing) -> Message:
    settlement = _settled(attention, how)
    settled = event_pb2.ChildAttention(
        state=event_pb2.ATTENTION_STATE_SETTLED, path=attention.path, request_id=attention.request_id
    )
    if isinstance(settlement, event_pb2.InteractiveAnswered):
        settled.answered.CopyFrom(settlement)
    elif isinstance(settlement, event_pb2.ApprovalDecided):
        settled.decided.CopyFrom(settlement)
    return settled


def _child_ends(state: SessionState, children: Children) -> list[Message]:
    ends: list[Message] = []
    for open_child in sorted(state.children.values(), key=lambda child: child.child):
        end = event_pb2.ChildEnded(status=common.SESSION_STATUS_CANCELLED)
        if open_child.child in children:
            end.CopyFrom(children[open_child.child])
        end.call_id, end.child = open_child.call_id, open_child.child
        ends.append(end)
    return ends


def _result(call: OpenCall, how: Closing) -> Message:
    result = error_result(call.call_id, how.running if call.attempt_open else how.waiting)
    result.input_corrected = call.attempt_open and bool(call.corrected)
    return result


def _plan_end(state: SessionState, how: Closing) -> list[Message]:
    if state.plan is None:
        return []
    return [event_pb2.PlanApplied(items=[_applied(item, state, how) for item in state.plan])]


def _applied(item: PlannedItem, state: SessionState, how: Closing) -> common.AppliedItem:
    applied = item.applied()
    call = state.calls.get(item.call_id)
    if call is not None and call.attempt_open:
        applied.outcome = common.ITEM_OUTCOME_INTERRUPTED
    return applied


def _new_status(status: common.SessionStatus.ValueType) -> list[Message]:
    changed = event_pb2.SessionStatusChanged(status=status)
    return [changed, event_pb2.SessionEnded(status=status)] if is_ended(status) else [changed]
