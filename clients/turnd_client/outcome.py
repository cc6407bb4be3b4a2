"""What became of one Turn: the result line and the exit code of `turn run`, from its events alone."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import IntEnum

from turnd.v1 import common_pb2, event_pb2, sessions_pb2
from turnd_client.shapes import Json, limit_text, reason_text, status_text
from turnd_client.units import usd


class ExitCode(IntEnum):
    """Of `turn run`; the first that applies in the order of `exit_code`."""

    COMPLETED = 0
    ERROR = 1
    USAGE = 2
    BLOCKED = 3
    LIMIT = 4
    CANCELLED = 130


_LIMITED = frozenset(
    {
        common_pb2.SESSION_STATUS_PAUSED,
        common_pb2.SESSION_STATUS_ERROR_MAX_TURNS,
        common_pb2.SESSION_STATUS_ERROR_MAX_BUDGET_USD,
        common_pb2.SESSION_STATUS_ERROR_MAX_WALL_CLOCK,
        common_pb2.SESSION_STATUS_ERROR_DOOM_LOOP,
    }
)

_REPORT = ("core", "report_result")


@dataclass(slots=True)
class Outcome:
    """Follows the events of a session for the Turn that takes one message."""

    message_id: str = ""
    """Empty until the message was sent."""
    turn: int | None = None
    ended: bool = False
    reason: common_pb2.TurnEndReason.ValueType = common_pb2.TURN_END_REASON_UNSPECIFIED
    status: common_pb2.SessionStatus.ValueType = common_pb2.SESSION_STATUS_UNSPECIFIED
    session_ended: bool = False
    stopping: event_pb2.TurnStopping | None = None
    unattended: bool = False
    text: str = ""
    denied: dict[str, Json] = field(default_factory=dict)
    _calls: dict[str, event_pb2.ToolCall] = field(default_factory=dict)
    _reasons: dict[str, str] = field(default_factory=dict)

    def advance(self, event: event_pb2.Event) -> None:
        """Takes the next event of the session."""
        match event.WhichOneof("data"):
            case "session_created":
                self.unattended = event.session_created.unattended
            case "session_status":
                self.status = event.session_status.status
            case "session_ended":
                self.status = event.session_ended.status
                self.session_ended = True
            case "session_reopened":
                self.session_ended = False
            case "user_message" if self.message_id and event.user_message.message_id == self.message_id:
                self.turn = event.turn
            case _ if self.turn is not None and event.HasField("turn") and event.turn == self.turn:
                self._advance_turn(event)
            case _:
                pass

    def _advance_turn(self, event: event_pb2.Event) -> None:
        match event.WhichOneof("data"):
            case "assistant_message":
                blocks = event.assistant_message.blocks
                self.text = "".join(block.text.text for block in blocks if block.HasField("text"))
            case "tool_call":
                self._calls[event.tool_call.call_id] = event.tool_call
            case "plan_ready":
                for item in event.plan_ready.items:
                    self._reasons[item.call_id] = item.reason
                    if item.decision == common_pb2.POLICY_ACTION_DENY:
                        self._note_denial(item.call_id, item.decided_by)
            case "plan_applied":
                for applied in event.plan_applied.items:
                    if applied.outcome == common_pb2.ITEM_OUTCOME_DENIED:
                        self._note_denial(applied.call_id, applied.decided_by)
            case "tool_result":
                self._note_unanswered(event.tool_result)
                self._note_report(event.tool_result)
            case "turn_stopping":
                self.stopping = event.turn_stopping
            case "turn_end":
                self.reason = event.turn_end.reason
                self.ended = True
            case _:
                pass

    def _note_denial(self, call_id: str, decided_by: common_pb2.DecidedBy) -> None:
        if decided_by.kind == common_pb2.DECIDED_BY_KIND_UNATTENDED:
            self._deny(call_id, self._reasons.get(call_id, ""))

    def _note_unanswered(self, result: event_pb2.ToolResult) -> None:
        call = self._calls.get(result.call_id)
        if (
            self.unattended
            and call is not None
            and call.kind == common_pb2.TOOL_KIND_INTERACTIVE
            and result.category == common_pb2.TOOL_ERROR_CATEGORY_DENIED
        ):
            self._deny(result.call_id, "nobody was there to answer the question")

    def _note_report(self, result: event_pb2.ToolResult) -> None:
        """What `report_result` was told is the answer, whatever was said beside it."""
        call = self._calls.get(result.call_id)
        if call is not None and (call.provider, call.tool) == _REPORT and not result.is_error:
            self.text = str(json.loads(call.input)["summary"])

    def _deny(self, call_id: str, reason: str) -> None:
        call = self._calls.get(call_id, event_pb2.ToolCall())
        self.denied[call_id] = {
            "call_id": call_id,
            "provider": call.provider,
            "tool": call.tool,
            "reason": reason,
        }

    @property
    def cause(self) -> str | None:
        """Why the Turn ended other than by itself: who cancelled, which limit, what failed."""
        stopping = self.stopping
        if stopping is None:
            return None
        if stopping.HasField("cancel"):
            return common_pb2.CancelCause.Name(stopping.cancel.cause).removeprefix("CANCEL_CAUSE_").lower()
        if stopping.HasField("limit"):
            name = common_pb2.LimitDimension.Name(stopping.limit.dimension)
            return name.removeprefix("LIMIT_DIMENSION_").lower()
        if stopping.HasField("error"):
            error = stopping.error
            return ": ".join(part for part in (error.source, error.category, error.message) if part)
        return None

    @property
    def why(self) -> str | None:
        """The cause for people: a limit with its value."""
        if self.stopping is not None and self.stopping.HasField("limit"):
            return limit_text(self.stopping.limit)
        return self.cause

    @property
    def is_paused(self) -> bool:
        """A soft limit: the session waits for a new allowance."""
        return self.status == common_pb2.SESSION_STATUS_PAUSED

    @property
    def is_limited(self) -> bool:
        """A bound, a doom loop or the output limit ended it."""
        return (
            self.status in _LIMITED
            or self.reason == common_pb2.TURN_END_REASON_MAX_TOKENS
            or (self.stopping is not None and self.stopping.HasField("limit"))
        )

    def exit_code(self) -> ExitCode:
        """The first that applies: cancelled, limit, blocked or denied, error or interrupted, completed."""
        if self.reason == common_pb2.TURN_END_REASON_ABORTED:
            return ExitCode.CANCELLED
        if self.is_limited:
            return ExitCode.LIMIT
        if self.reason == common_pb2.TURN_END_REASON_BLOCKED or self.denied:
            return ExitCode.BLOCKED
        if self.reason == common_pb2.TURN_END_REASON_COMPLETED:
            return ExitCode.COMPLETED
        return ExitCode.ERROR

    def result(self, session: sessions_pb2.Session) -> Json:
        """The last line of `turn run --json`; the session is as after closing, sums with its descendants."""
        return {
            "type": "result",
            "session": session.id,
            "status": status_text(session.status),
            "turn": self.turn,
            "reason": reason_text(self.reason) if self.ended else None,
            "cause": self.cause,
            "steps": session.steps,
            "cost_usd": usd(session.cost_nano_usd),
            "estimated": session.estimated,
            "unpriced": session.unpriced,
            "weighted_tokens": session.weighted_tokens,
            "denied": list(self.denied.values()),
            "text": self.text,
        }
