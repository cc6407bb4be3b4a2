"""The rules of the log: `apply(state, event)` is the only judge of what may be appended (LOG-01 to LOG-06).

The same function checks on append, on load and over an exported log. It is pure: a rejected event changes
nothing. The rules for sessions, Turns and Steps are in `state_turns`, those for what happens inside of a Step
in `state_calls`; each has its exact error text.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from google.protobuf.message import Message

from turnd.rules import state_calls as calls
from turnd.rules import state_history as history
from turnd.rules import state_turns as turns
from turnd.rules.event import event_type, payload_of
from turnd.rules.state_model import (
    OpenAttention,
    OpenCall,
    OpenChild,
    OpenRequest,
    PlannedItem,
    SessionState,
    Tokens,
    Violation,
)
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

__all__ = [
    "OpenAttention",
    "OpenCall",
    "OpenChild",
    "OpenRequest",
    "PlannedItem",
    "SessionState",
    "Tokens",
    "Violation",
    "apply",
    "is_commitment",
    "position",
    "remembered",
]


def apply(state: SessionState, event: event_pb2.Event) -> SessionState:
    """The state after `event`. Raises Violation, with the rule's text, where it is not lawful (LOG-03).

    Events of types that are not known here are accepted in every session that exists, and change nothing but
    the sequence number (LOG-18). Events of another log come before session/created and are exempt from every rule
    but the sequence (LOG-22).
    """
    if event.seq != state.seq + 1:
        raise Violation("seq gap")
    field = event.WhichOneof("data")
    if event.HasField("imported"):
        if state.created:
            raise Violation("imported event after session/created")
        return remembered(state, event)._replace(seq=event.seq)
    if not state.created and field != "session_created":
        raise Violation("first event is not session/created")
    if field is None:
        return state._replace(seq=event.seq)
    if state.ended and field != "session_reopened":
        raise Violation("session already ended")
    rule = _RULES.get(field, _no_rule)
    after = rule(state, event)
    _check_envelope(state, event)
    return after._replace(seq=event.seq)


def position(state: SessionState, payload: Message) -> tuple[int | None, int | None]:
    """Turn and Step that the envelope of an event with this payload carries, markers included."""
    match payload:
        case event_pb2.SessionCreated():
            return None, None
        case event_pb2.TurnStart():
            return payload.turn, None
        case event_pb2.StepStart():
            return state.open_turn, payload.step
        case _:
            return state.open_turn, state.open_step


def is_commitment(state: SessionState, event: event_pb2.Event) -> bool:
    """Must be synced to disk before anything acts on it (LOG-12). `state` is the one before the event."""
    match payload_of(event):
        case event_pb2.Usage() | event_pb2.ApprovalDecided() | event_pb2.TurnEnd():
            return True
        case event_pb2.ToolStarted(call_id=call_id):
            call = state.calls.get(call_id)
            return call is not None and call.kind == common.TOOL_KIND_RESOURCE
        case _:
            return False


def remembered(state: SessionState, event: event_pb2.Event) -> SessionState:
    """What an event leaves open that need not be lawful, as those of another log, and the numbers it has used."""
    field = event.WhichOneof("data") or ""
    if field in history.MARKERS:
        state = history.MARKERS[field](state, event)
    elif field in history.OPENS_OR_CLOSES:
        with suppress(Violation):
            state = _RULES[field](state, event)
    return history.numbered(state, event)


Rule = Callable[[SessionState, event_pb2.Event], SessionState]


def _no_rule(state: SessionState, event: event_pb2.Event) -> SessionState:
    return state


_RULES: Final[dict[str, Rule]] = {
    "session_created": turns.session_created,
    "session_ended": turns.session_ended,
    "session_reopened": turns.session_reopened,
    "session_changed": turns.session_changed,
    "turn_start": turns.turn_start,
    "turn_stopping": turns.turn_stopping,
    "turn_end": turns.turn_end,
    "step_start": turns.step_start,
    "step_end": turns.step_end,
    "user_message": turns.user_message,
    "limit_reached": turns.limit_reached,
    "agent_request": calls.agent_request,
    "agent_retry": calls.needs_step,
    "assistant_chunk": calls.needs_step,
    "assistant_message": calls.needs_step,
    "usage": calls.usage,
    "context_compacted": calls.context_compacted,
    "tool_call": calls.tool_call,
    "tool_started": calls.tool_started,
    "tool_retry": calls.tool_retry,
    "tool_progress": calls.tool_progress,
    "tool_result": calls.tool_result,
    "plan_ready": calls.plan_ready,
    "plan_applied": calls.plan_applied,
    "approval_request": calls.approval_request,
    "approval_decided": calls.approval_decided,
    "interactive_request": calls.interactive_request,
    "interactive_answered": calls.interactive_answered,
    "child_started": calls.child_started,
    "child_attention": calls.child_attention,
    "child_ended": calls.child_ended,
}
"""By field of Event.data; what is not here may stand anywhere in a session."""


def _check_envelope(state: SessionState, event: event_pb2.Event) -> None:
    payload = payload_of(event)
    assert payload is not None
    found = (
        event.turn if event.HasField("turn") else None,
        event.step if event.HasField("step") else None,
    )
    expected = position(state, payload)
    if found != expected:
        raise Violation(f"{event_type(event)} expected {_place(expected)}, got {_place(found)}")


def _place(at: tuple[int | None, int | None]) -> str:
    turn, step = at
    if turn is None:
        return "no turn" if step is None else f"step {step} without turn"
    return f"turn {turn}" if step is None else f"turn {turn} step {step}"
