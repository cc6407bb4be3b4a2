"""The first tier of doom-loop detection: how many equal calls the model has made in a row (BOUND-09)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from turnd.v1 import common_pb2 as common

DEFAULT_THRESHOLD: Final = 3
MAX_POLLS: Final = 20
"""Equal calls in a row that a polling tool may make while each brings something new."""


@dataclass(frozen=True, slots=True)
class DoomLoop:
    """The row of equal calls at the end of what a model did since the last user message.

    Fed with every resource and data_source call in declaration order, whether it ran, was denied or was
    invalid.
    """

    call_hash: str = ""
    row: int = 0
    """Equal calls in a row, the last one included."""
    unmoved: int = 0
    """Those at the end of the row that brought nothing new: all of it, but for a tool that polls."""
    polling: bool = False
    last_result: bytes = b""
    """SHA-256 of the last result of a polling tool; empty without one."""

    def seen(self, call_hash: str, result: bytes | None, *, polling: bool = False) -> DoomLoop:
        """The row after one more call. `result` is None where the call has none: it was denied, invalid, cut
        off.

        `polling` says that the configuration names the tool as one whose changed result is progress.
        """
        known = hashlib.sha256(result).digest() if polling and result is not None else b""
        if call_hash != self.call_hash:
            return DoomLoop(call_hash, 1, 1, polling, known)
        moved = bool(known) and bool(self.last_result) and known != self.last_result
        unmoved = 1 if moved else self.unmoved + 1
        return DoomLoop(call_hash, self.row + 1, unmoved, polling, known or self.last_result)

    def restarted(self) -> DoomLoop:
        """The row after a user message: it starts anew."""
        return DoomLoop()

    def fired(self, threshold: int) -> common.LimitHit | None:
        """What the detector says at line 16: the limit that the row has reached, or None.

        A polling tool also fires at the first equal call after MAX_POLLS (or after the threshold, if that is
        more).
        """
        threshold = threshold or DEFAULT_THRESHOLD
        if self.unmoved >= threshold:
            return _hit(threshold, self.unmoved)
        polls = max(MAX_POLLS, threshold)
        if self.polling and self.row > polls:
            return _hit(polls, self.row)
        return None


def polls(config: common.DoomLoop, provider: str, tool: str) -> bool:
    """Whether the configuration names a tool as one that polls."""
    return f"{provider}.{tool}" in config.polling


def _hit(limit: int, value: int) -> common.LimitHit:
    return common.LimitHit(dimension=common.LIMIT_DIMENSION_DOOM_LOOP, limit=limit, value=value, unit="calls")
