"""The loop state of one session: what the rules of the log need to know, and nothing else.

Every value here is immutable; the maps are persistent, so that a state can be kept, compared and gone back
to. Protobuf messages that a state refers to are never changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import immutables

from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2


class Violation(Exception):
    """An event breaks a rule of the log and is not accepted; nothing has changed (LOG-03)."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
        """The rule's exact error text."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The five token counts, which do not overlap."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0

    def plus(self, counts: common.TokenCounts) -> Tokens:
        """The sum."""
        return Tokens(
            self.input + counts.input_tokens,
            self.output + counts.output_tokens,
            self.cache_read + counts.cache_read_tokens,
            self.cache_write + counts.cache_write_tokens,
            self.reasoning + counts.reasoning_tokens,
        )

    def counts(self) -> common.TokenCounts:
        """The same as a message."""
        return common.TokenCounts(
            input_tokens=self.input,
            output_tokens=self.output,
            cache_read_tokens=self.cache_read,
            cache_write_tokens=self.cache_write,
            reasoning_tokens=self.reasoning,
        )


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call of the open Step that has no result yet."""

    call_id: str
    provider: str
    tool: str
    kind: common.ToolKind.ValueType
    risk: common.Risk.ValueType
    input: bytes
    """As the model wrote it."""
    index: int
    """Place in its message, from 0: the declaration order."""
    step: int
    attempt: int = 0
    """Number of the last attempt that was started; 0: none ever was."""
    attempt_open: bool = False
    allowed: bool = False
    """Policy allows it, also for a further attempt whose preconditions are new."""
    corrected: bytes = b""
    """What a person put in the place of the input; empty: nobody did (GATE-08)."""
    approved: bool = False
    """It may start now: allowed, or approved by someone for the state it was shown with."""


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A request that waits for a person. `interactive`: a question, else an approval."""

    request_id: str
    call_id: str
    interactive: bool


@dataclass(frozen=True, slots=True)
class OpenChild:
    """A sub-agent's session that has not ended, and the call that spawned it."""

    child: str
    call_id: str


@dataclass(frozen=True, slots=True)
class OpenAttention:
    """A descendant's open request, as the root was told of it."""

    request_id: str
    call_id: str
    path: tuple[str, ...]
    """Session ids from the root's child down to the asking session."""
    interactive: bool


@dataclass(frozen=True, slots=True)
class PlannedItem:
    """An item of the plan that is being applied, with what has become of it."""

    call_id: str
    decision: common.PolicyAction.ValueType
    decided_by_kind: common.DecidedByKind.ValueType
    decided_by_name: str
    outcome: common.ItemOutcome.ValueType = common.ITEM_OUTCOME_UNSPECIFIED
    """Unspecified while the call has no result."""

    def applied(self) -> common.AppliedItem:
        """The item as plan/applied tells it; one without a result was not started."""
        return common.AppliedItem(
            call_id=self.call_id,
            outcome=self.outcome or common.ITEM_OUTCOME_NOT_STARTED,
            decision=self.decision,
            decided_by=common.DecidedBy(kind=self.decided_by_kind, name=self.decided_by_name),
        )


class SessionState(NamedTuple):
    """What is open in a session and which numbers come next (LOG-05).

    `SessionState()` is that of an empty log. Every event makes a new one, so it is a NamedTuple: `_replace` copies
    all fields in one call, which for a dataclass was a third of what an append cost (see bench/).
    """

    seq: int = 0
    """Of the last event."""
    created: bool = False
    ended: bool = False
    parent: str = ""
    """The session that this one is a sub-agent of; empty: it is a root."""
    unattended: bool = False
    limit_mode: common.LimitMode.ValueType = common.LIMIT_MODE_UNSPECIFIED
    """Of the bounds in force; see `soft_limits`."""

    next_turn: int = 0
    next_step: int = 1
    """Within the open Turn; the first Step of a Turn is 1."""
    open_turn: int | None = None
    open_step: int | None = None
    stopping: event_pb2.TurnStopping | None = None
    """Why the open Turn is about to end."""
    limit: common.LimitDimension.ValueType | None = None
    """The bound that fired in the open Turn and gives the session its status."""

    calls: immutables.Map[str, OpenCall] = immutables.Map()
    """Open calls of the open Step by call id."""
    used_call_ids: immutables.Map[str, int] = immutables.Map()
    """The seq of tool/call of each call id of the session."""
    requests: immutables.Map[str, OpenRequest] = immutables.Map()
    """By request id."""
    children: immutables.Map[str, OpenChild] = immutables.Map()
    """By the child's session id."""
    attentions: immutables.Map[str, OpenAttention] = immutables.Map()
    """Requests of descendants, by request id; in a root only."""
    plan: tuple[PlannedItem, ...] | None = None
    """The plan of the open Step between plan/ready and plan/applied."""
    step_tokens: Tokens = Tokens()
    """Of the open Step, from its usage events."""

    @property
    def soft_limits(self) -> bool:
        """A bound that fires pauses the session; never for sub-agents and unattended sessions."""
        return self.limit_mode == common.LIMIT_MODE_SOFT and not self.unattended and not self.parent

    @property
    def stepped(self) -> bool:
        """The open Turn has had a Step."""
        return self.open_turn is not None and self.next_step > 1
