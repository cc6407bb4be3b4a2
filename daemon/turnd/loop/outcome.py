"""How a Step ended, as far as the Turn must know; how a Turn ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from turnd.loop.breakers import Tripped
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

MAX_TEXT_CHARACTERS: Final = 16 * 1024
"""Of why a Turn failed."""


@dataclass(frozen=True, slots=True)
class NextStep:
    """The model asked for tools and has their results now."""


@dataclass(frozen=True, slots=True)
class Limited:
    """A bound or the doom loop fired; the first hit gives the session its status."""

    reached: tuple[common.LimitHit, ...]


@dataclass(frozen=True, slots=True)
class Ending:
    """The Turn ends, for this reason."""

    reason: common.TurnEndReason.ValueType
    limit: common.LimitHit | None = None
    error: event_pb2.ErrorStop | None = field(default=None)


COMPLETED = Ending(common.TURN_END_REASON_COMPLETED)

StepOutcome = NextStep | Limited | Tripped | Ending


def failed(stop: event_pb2.ErrorStop) -> Ending:
    """The ending of a Turn whose Step failed; a sandbox that cannot be made is a safety gate.

    Its text, which may be a hook's or a vendor's, is cut to a length that a person reads.
    """
    stop.message = stop.message[:MAX_TEXT_CHARACTERS]
    blocked = stop.source in ("sandbox", "denials", "crashes")
    reason = common.TURN_END_REASON_BLOCKED if blocked else common.TURN_END_REASON_ERROR
    return Ending(reason, error=stop)
