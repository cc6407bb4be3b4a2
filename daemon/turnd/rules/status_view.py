"""What is known of a session as of one event of its log; how it comes about is in `status`."""

from __future__ import annotations

from typing import Final, NamedTuple

import immutables

from turnd.rules.state_model import Tokens
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2, sessions_pb2

DEFAULT_DEPTH: Final = 2
"""Levels of sub-agents below a root whose profile says nothing."""


class SessionView(NamedTuple):
    """A session as of its event `last_seq`. Protobuf messages in it are never changed.

    `SessionView()` is that of an empty log. Every event makes a new one: why it is a NamedTuple is in `SessionState`.
    """

    id: str = ""
    status: common.SessionStatus.ValueType = common.SESSION_STATUS_UNSPECIFIED
    title: str = ""
    cwd: str = ""
    workspace: str = ""
    profile: common.ProfileSnapshot = common.ProfileSnapshot()
    parent: str = ""
    ancestors: tuple[str, ...] = ()
    """From the root of the tree down to the parent; empty for a root."""
    parent_call_id: str = ""
    """The call of the parent's that spawned it."""
    depth: int = 0
    environment: immutables.Map[str, str] = immutables.Map()
    sandbox: str = ""
    unenforced: tuple[str, ...] = ()
    created_us: int = 0
    """Microseconds since the epoch, UTC."""
    last_seq: int = 0
    history: int = 0
    """Events at its beginning that are another log's (LOG-22)."""
    forked_from: event_pb2.Origin | None = None

    turns: int = 0
    """Turns started."""
    steps: int = 0
    """Steps started, in all Turns; what max_turns counts."""
    steps_of_turn: int = 0
    """Steps started in the open Turn, or else in the last one."""
    begun: bool = False
    """A Step was started, or kept from it by a bound, since session/created or the last session/reopened (LOOP-06)."""
    cost_nano_usd: int = 0
    """Its own, without its descendants'."""
    tokens: Tokens = Tokens()
    weighted_tokens: int = 0
    """By the weights that were in force when the counts arrived (BOUND-12)."""
    active_ms: int = 0
    """What counts for the wall clock bound, from step/end; milliseconds."""
    requests_made: immutables.Map[common.RequestPurpose.ValueType, int] = immutables.Map()
    """Model requests by purpose, retries included."""
    retries: int = 0
    """Of model requests, in the whole session."""
    requesting: common.RequestPurpose.ValueType = common.REQUEST_PURPOSE_STEP
    """Purpose of the latest request that agent/retry can be about."""

    bounds: common.Bounds = common.Bounds()
    """In force: the profile's, and what an allowance put in their place."""
    unattended: bool = False
    plan_mode: bool = False
    """Of the session."""
    turn_plan_mode: bool = False
    """A message of the open Turn asked for it; holds until that Turn ends."""

    open_requests: immutables.Map[str, sessions_pb2.OpenRequest] = immutables.Map()
    """By request id; in a root its descendants' too."""
    queue: tuple[sessions_pb2.QueuedMessage, ...] = ()
    """In the order in which they came."""
    queued_plan_mode: frozenset[str] = frozenset()
    """Ids of the queued messages that ask for plan mode."""
    grants: tuple[common.GrantRule, ...] = ()
    """Remembered for the session, until it ends."""

    last_reason: common.TurnEndReason.ValueType = common.TURN_END_REASON_UNSPECIFIED
    """How the last Turn ended."""
    last_cause: common.CancelCause.ValueType = common.CANCEL_CAUSE_UNSPECIFIED
    """Who cancelled the open or the last Turn."""
    final_text: str = ""
    """The text of the last message of the model."""

    @property
    def is_child(self) -> bool:
        """It is a sub-agent's session."""
        return bool(self.parent)

    @property
    def root(self) -> str:
        """The root of the session's tree; itself where it is no sub-agent."""
        return self.ancestors[0] if self.ancestors else self.id

    @property
    def depth_left(self) -> int:
        """Levels of sub-agents that may still be below it; a child's own is set when it is made (BOUND-07)."""
        return self.profile.max_depth if self.profile.HasField("max_depth") else DEFAULT_DEPTH

    @property
    def limit_mode(self) -> common.LimitMode.ValueType:
        """Soft where the bounds say so and someone is there; sub-agents and the unattended are hard."""
        soft = self.bounds.limit_mode == common.LIMIT_MODE_SOFT and not self.unattended and not self.parent
        return common.LIMIT_MODE_SOFT if soft else common.LIMIT_MODE_HARD

    @property
    def planning(self) -> bool:
        """Resource tools are not offered: plan mode of the session, or of a message of the open Turn."""
        return self.plan_mode or self.turn_plan_mode
