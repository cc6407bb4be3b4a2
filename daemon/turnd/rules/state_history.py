"""What is left open by events that are history: those of another log, which may break any rule (LOG-22).

Nothing here refuses anything. What is open at the end is closed by the same routine as after a crash, and new
events go on from the highest numbers that were used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import immutables

from turnd.rules.state_model import SessionState, Tokens
from turnd.v1 import event_pb2

HIGHEST_NUMBER: Final = 2**53
"""No log comes to a Turn or a Step of a higher number; what claims to have is not gone on from."""

OPENS_OR_CLOSES: Final = frozenset(
    {
        "turn_stopping",
        "tool_call",
        "tool_started",
        "tool_retry",
        "tool_result",
        "plan_ready",
        "plan_applied",
        "approval_request",
        "approval_decided",
        "interactive_request",
        "interactive_answered",
        "child_started",
        "child_attention",
        "child_ended",
    }
)
"""By field of Event.data: taken by the ordinary rule where that holds, and passed over where it does not."""


def numbered(state: SessionState, event: event_pb2.Event) -> SessionState:
    """The state that knows the numbers and the call id of an event, whatever else is wrong with it."""
    turns = [event.turn] if event.HasField("turn") else []
    if event.HasField("turn_start"):
        turns.append(event.turn_start.turn)
    lawful = [turn for turn in turns if turn < HIGHEST_NUMBER]
    if lawful and max(lawful) >= state.next_turn:
        state = state._replace(next_turn=max(lawful) + 1)
    if event.HasField("tool_call") and event.tool_call.call_id not in state.used_call_ids:
        used = state.used_call_ids.set(event.tool_call.call_id, event.seq)
        state = state._replace(used_call_ids=used)
    return state


def without_step(state: SessionState) -> SessionState:
    """What a Step owned and did not close is passed over: the history makes up for results that are missing."""
    return state._replace(
        open_step=None,
        calls=immutables.Map(),
        requests=immutables.Map(),
        children=immutables.Map(),
        plan=None,
        step_tokens=Tokens(),
    )


def _turn_start(state: SessionState, event: event_pb2.Event) -> SessionState:
    turn = event.turn_start.turn
    if turn >= HIGHEST_NUMBER:
        return state
    return without_step(state)._replace(open_turn=turn, next_step=1, stopping=None)


def _turn_end(state: SessionState, event: event_pb2.Event) -> SessionState:
    return without_step(state)._replace(open_turn=None, stopping=None)


def _step_start(state: SessionState, event: event_pb2.Event) -> SessionState:
    step = event.step_start.step
    if state.open_turn is None or step >= HIGHEST_NUMBER:
        return state
    return without_step(state)._replace(open_step=step, next_step=max(state.next_step, step + 1))


def _step_end(state: SessionState, event: event_pb2.Event) -> SessionState:
    return without_step(state)


MARKERS: Final[dict[str, Callable[[SessionState, event_pb2.Event], SessionState]]] = {
    "turn_start": _turn_start,
    "turn_end": _turn_end,
    "step_start": _step_start,
    "step_end": _step_end,
}
"""By field of Event.data: these open and close whatever their numbers are."""
