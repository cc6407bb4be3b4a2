"""Which faults of a log are faults by themselves, and which only follow from an earlier one (LOG-17).

The log is read a second time beside the strict reading, as if what is missing had been there and what is wrong had been
right. What breaks a rule in this reading too is a fault by itself. Where it is not clear, it is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from turnd.rules.state import SessionState, Violation, apply, remembered
from turnd.rules.state_history import without_step
from turnd.v1 import event_pb2

_OPENING: Final = ("already used", "already open", "twice")
_STILL_OPEN: Final = "still open"
_MIXED: Final = "imported event after session/created"
_NUMBERED: Final = ("step/start expected step ", "turn/start expected turn ")
_NAMES: Final = ("call_id", "request_id", "child")
"""Fields of events that say what an event is about."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Which faults of one event are faults by themselves."""

    gap: bool
    violation: bool


class Presumed:
    """One session's log from its first fault on; `state` is the one before it."""

    def __init__(self, state: SessionState) -> None:
        self._state = state
        self._highest = state.seq
        self._missing: list[tuple[int, int]] = []
        """Seqs that may still come, first and last of each gap."""
        self._doubtful: set[str] = set()
        """Calls, requests and children of which something is wrong or missing."""
        self._heard: set[str] = set()
        """Requests and children that events were about since something is missing."""
        self._misnumbered = 0
        """The seq that comes next where it was the last event's own that is wrong, and nothing is missing."""
        self._lost = False
        """Events of the open Turn are missing, which may have been any."""
        self._mixed = False

    def take(self, event: event_pb2.Event, *, unread: bool) -> Judged:
        """Takes the next event. `unread`: what is missing before it was there, in a line that could not be read."""
        if self._misnumbered and event.seq == self._misnumbered:
            self._missing.pop()
            self._highest = event.seq - 1
        late = self._comes_late(event.seq)
        again = not late and event.seq <= self._highest
        gap = not late and event.seq != self._highest + 1
        state = self._state._replace(seq=event.seq - 1)
        self._misnumbered = self._highest + 2 if gap and not again else 0
        if gap and not again:
            self._missing.append((self._highest + 1, event.seq - 1))
            self._lose(state)
            state = _placed(state, event)
        try:
            after, violation = apply(state, event), False
        except Violation as broken:
            # What is there twice, or in another place, breaks whatever it breaks by that.
            violation = not (late or again) and not self._follows(state, event, broken.text)
            self._doubt(state, event)
            after = state if late or again else _accepted(state, event)
        if late:
            # It says where the session was, not where it is.
            after = after._replace(ended=state.ended, open_turn=state.open_turn, open_step=state.open_step)
        if again:
            # Its number may be wrong, or it may be there twice: the next one is expected with either number.
            self._highest += 1
            self._missing.append((self._highest, self._highest))
        self._highest = max(self._highest, event.seq)
        self._state = after
        self._heard |= {name for name in _about(event) if not name.startswith("call_id")}
        if event.WhichOneof("data") in ("turn_start", "turn_end") and not gap and not violation:
            # What is missing in a Turn is no concern of the next one.
            self._doubtful, self._heard, self._lost = set(), set(), False
        return Judged(gap and not unread, violation)

    def agree(self, state: SessionState) -> None:
        """The strict reading found nothing wrong with the last event: what was presumed before it was wrong."""
        self._state = state

    def _comes_late(self, seq: int) -> bool:
        for index, (first, last) in enumerate(self._missing):
            if first <= seq <= last:
                left = [(first, seq - 1), (seq + 1, last)]
                self._missing[index : index + 1] = [(a, b) for a, b in left if a <= b]
                return True
        return False

    def _lose(self, state: SessionState) -> None:
        self._lost = True
        self._doubtful |= _open(state)

    def _follows(self, state: SessionState, event: event_pb2.Event, text: str) -> bool:
        if text == _MIXED:
            known, self._mixed = self._mixed, True
            return known
        if text.endswith(_OPENING) and not event.HasField("tool_started"):
            return False
        if text.endswith(_STILL_OPEN):
            return _open(state) <= self._doubtful
        if self._lost and ("turn/stopping" in text or text.startswith(_NUMBERED)):
            return True
        about = _about(event)
        if about & self._doubtful:
            return True
        new = {name for name in about - self._heard if not _is_known(state, name)}
        return self._lost and bool(new)

    def _doubt(self, state: SessionState, event: event_pb2.Event) -> None:
        about = _about(event)
        if event.HasField("tool_result") and all(_is_known(state, name) for name in about):
            # One result too many says nothing about what comes after it.
            return
        self._doubtful |= about


def _accepted(state: SessionState, event: event_pb2.Event) -> SessionState:
    """The state after an event that is not lawful, as near to what it says as there is one."""
    state = _placed(state, event)
    try:
        return apply(state, event)
    except Violation:
        if event.HasField("imported"):
            return state._replace(seq=event.seq)
        return remembered(state, event)._replace(seq=event.seq)


def _placed(state: SessionState, event: event_pb2.Event) -> SessionState:
    """The state in which the event could stand, by what it says of its Turn and Step."""
    field = event.WhichOneof("data")
    if event.HasField("imported") or field == "session_created":
        return state
    state = state._replace(created=True, ended=field == "session_reopened")
    turn = event.turn if event.HasField("turn") else None
    step = event.step if event.HasField("step") else None
    match field:
        case "turn_start":
            closed = without_step(state)
            return closed._replace(open_turn=None, stopping=None, next_turn=event.turn_start.turn)
        case "turn_end":
            turn, step = event.turn_end.turn, None
        case "step_start":
            turn, step = event.step_start.turn, None
        case "step_end":
            turn, step = event.step_end.turn, event.step_end.step
        case _:
            pass
    state = _in_step(_in_turn(state, turn), None if turn is None else step)
    return state._replace(next_step=event.step_start.step) if field == "step_start" else state


def _in_turn(state: SessionState, turn: int | None) -> SessionState:
    if turn == state.open_turn:
        return state
    following = state.next_turn if state.open_turn is None else max(state.next_turn, state.open_turn + 1)
    return without_step(state)._replace(
        open_turn=turn, stopping=None, next_step=1, next_turn=following if turn is None else turn
    )


def _in_step(state: SessionState, step: int | None) -> SessionState:
    if step == state.open_step:
        return state
    following = state.next_step if step is None else max(state.next_step, step + 1)
    return without_step(state)._replace(open_step=step, next_step=following)


def _about(event: event_pb2.Event) -> set[str]:
    field = event.WhichOneof("data")
    if field is None:
        return set()
    payload = getattr(event, field)
    known = payload.DESCRIPTOR.fields_by_name
    about = {
        f"{name} {getattr(payload, name)}" for name in _NAMES if name in known and getattr(payload, name)
    }
    if field == "approval_request" and event.approval_request.item.call_id:
        about.add(f"call_id {event.approval_request.item.call_id}")
    return about


def _open(state: SessionState) -> set[str]:
    return {
        f"{name} {key}"
        for name, things in (
            ("call_id", state.calls),
            ("request_id", state.requests),
            ("child", state.children),
            ("request_id", state.attentions),
        )
        for key in things
    }


def _is_known(state: SessionState, name: str) -> bool:
    kind, _, key = name.partition(" ")
    return (kind == "call_id" and key in state.used_call_ids) or name in _open(state)
