"""Requests that are settled: how, by whom and when, for whoever comes late (GATE-07)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from turnd.ports import Log
from turnd.sessions.refusal import CommandRefused, not_found, not_now
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2
from turnd.v1.jsonform import enum_text

MAX_KNOWN = 1000
"""Settlements that are known without a look into the log, which may be long: the late ones come mostly at once."""

Settlement = event_pb2.ApprovalDecided | event_pb2.InteractiveAnswered


@dataclass(frozen=True, slots=True)
class _How:
    """What a refusal says."""

    outcome: str
    who: str
    at: str


class Settled:
    """The mutable state: how the last requests were settled, by session and request id."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._known: OrderedDict[tuple[str, str], _How] = OrderedDict()

    def committed(self, event: event_pb2.Event) -> None:
        """Takes note of what a committed event settles."""
        settled = settlement_in(event)
        if settled is None or event.HasField("imported"):
            return
        self._known[event.session, settled.request_id] = _how(settled, event)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    async def find(self, session: str, request_id: str) -> tuple[Settlement, event_pb2.Event] | None:
        """The settlement in the log of the session, and its event; None where there is none."""
        async for page in self._log.read(session):
            for event in page:
                settled = settlement_in(event)
                if settled is not None and settled.request_id == request_id:
                    return settled, event
        return None

    async def refusal(self, session: str, request_id: str, kind: str) -> CommandRefused:
        """The refusal of a late decision: who settled the request, how and when."""
        how = self._known.get((session, request_id))
        if how is None:
            found = await self.find(session, request_id)
            if found is None:
                return not_found(kind, request_id, f"session {session} has no {kind} {request_id}")
            how = _how(*found)
        return not_now(
            f"{kind} {request_id} was settled before: {how.outcome} by {how.who} at {how.at}",
            outcome=how.outcome,
            decided_by=how.who,
            decided_at=how.at,
        )


def settlement_in(event: event_pb2.Event) -> Settlement | None:
    """What an event settles: of its own session, or of a descendant as the root is told of it."""
    match event.WhichOneof("data"):
        case "approval_decided":
            return event.approval_decided
        case "interactive_answered":
            return event.interactive_answered
        case "child_attention" if event.child_attention.HasField("decided"):
            return event.child_attention.decided
        case "child_attention" if event.child_attention.HasField("answered"):
            return event.child_attention.answered
        case _:
            return None


def _how(settled: Settlement, event: event_pb2.Event) -> _How:
    if isinstance(settled, event_pb2.ApprovalDecided):
        outcome = enum_text(common.ApprovalOutcome, settled.outcome)
    else:
        outcome = enum_text(common.AnswerOutcome, settled.outcome)
    who = settled.client or ("the time-out" if outcome == "expired" else "the daemon")
    return _How(outcome, who, event.time.ToJsonString())
