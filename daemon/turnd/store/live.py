"""Sessions in memory: what has been accepted, and what is on disk to go back to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from turnd.ports import UnreadableSession
from turnd.rules.event import Draft, make_event
from turnd.rules.state import SessionState, apply, position
from turnd.rules.status import SessionView, advance
from turnd.v1 import event_pb2


class BrokenLog(UnreadableSession):
    """A stored log breaks a rule, so that no numbers can be derived from it."""

    def __init__(self, session: str, seq: int, text: str) -> None:
        super().__init__(
            f"the log of {session} breaks a rule at event {seq}: {text}; it can be read and exported"
        )
        self.session = session
        self.seq = seq
        self.text = text


@dataclass(frozen=True, slots=True)
class Folded:
    """A session's log, folded up to one event. `Folded()` is the empty log."""

    state: SessionState = field(default_factory=SessionState)
    view: SessionView = field(default_factory=SessionView)

    def event(self, draft: Draft, now_us: int) -> event_pb2.Event:
        """The next event, with the numbers that follow from the state; not checked yet."""
        turn, step = position(self.state, draft.payload)
        time_us = now_us if draft.time_us is None else draft.time_us
        return make_event(draft, seq=self.state.seq + 1, time_us=time_us, turn=turn, step=step)

    def after(self, event: event_pb2.Event) -> Self:
        """Folded one event further. Raises Violation."""
        return type(self)(apply(self.state, event), advance(self.view, event))

    @property
    def unsettled(self) -> bool:
        """A start after a crash has something to repair here (LOG-08)."""
        state = self.state
        orphan = state.created and bool(state.parent) and not state.ended
        return orphan or state.open_turn is not None or bool(state.requests) or bool(state.attentions)


@dataclass(slots=True)
class Live:
    """One loaded session. `accepted` runs ahead of `durable` while commits are on their way."""

    key: int
    accepted: Folded
    durable: Folded | None
    """None: its session/created is not committed yet."""
    generation: int = 0
    """Changes with each failed commit, so that what was accepted on top of it is told from what came after."""
    in_flight: int = 0
    """Batches that are not settled."""
