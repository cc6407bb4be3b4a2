"""Doom-loop detection: equal calls in a row, and behind it a second tier that looks for cycles (BOUND-09, BOUND-11).

The second tier is off unless a profile turns it on: it sees calls that repeat with a period of 2 to 4, and one tool
that gives the same error again and again while its input varies.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from turnd.v1 import common_pb2 as common

DEFAULT_THRESHOLD: Final = 3
MAX_POLLS: Final = 20
"""Equal calls in a row that a polling tool may make while each brings something new."""


PERIODS: Final = (2, 3, 4)
"""Of the cycles that the second tier sees, in calls."""
ERRORS_PER_THRESHOLD: Final = 2
"""The same error is suspect after so many times the threshold: other input is an attempt at least."""
_VARIES: Final = re.compile(rb"""\d+|"[^"]*"|'[^']*'|`[^`]*`""")
MAX_WINDOW: Final = 100
"""Calls that are kept for the second tier, whatever the window."""


@dataclass(frozen=True, slots=True)
class RecentCall:
    """A call as the second tier remembers it."""

    call_hash: str
    tool: str
    error: bytes = b""
    """SHA-256 of what it failed with, numbers and quoted words left out; empty where it did not fail."""
    shown: str = ""
    """The call and its result in words, for whoever is asked about it."""


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
    recent: tuple[RecentCall, ...] = ()
    """The last calls since the last user message, for the second tier."""
    convicted: common.LimitHit | None = None
    """What the second tier found, where nobody saw anything move."""

    def seen(
        self,
        call_hash: str,
        result: bytes | None,
        *,
        polling: bool = False,
        tool: str = "",
        failed: bool = False,
        shown: str = "",
    ) -> DoomLoop:
        """The row after one more call. `result` is None where the call has none: it was denied, invalid, cut
        off.

        `polling` says that the configuration names the tool as one whose changed result is progress.
        """
        error = hashlib.sha256(_VARIES.sub(b"_", result or b"")).digest() if failed else b""
        recent = (*self.recent, RecentCall(call_hash, tool, error, shown))[-MAX_WINDOW:]
        known = hashlib.sha256(result).digest() if polling and result is not None else b""
        if call_hash != self.call_hash:
            return DoomLoop(call_hash, 1, 1, polling, known, recent)
        moved = bool(known) and bool(self.last_result) and known != self.last_result
        unmoved = 1 if moved else self.unmoved + 1
        return DoomLoop(call_hash, self.row + 1, unmoved, polling, known or self.last_result, recent)

    def cleared(self) -> DoomLoop:
        """The row after somebody found that things move: the second tier begins anew."""
        return replace(self, recent=())

    def convict(self, hit: common.LimitHit) -> DoomLoop:
        """The row where nothing moves, as the second tier says."""
        return replace(self, convicted=hit)

    def restarted(self) -> DoomLoop:
        """The row after a user message: it starts anew."""
        return DoomLoop()

    def fired(self, threshold: int) -> common.LimitHit | None:
        """What the detector says at line 16: the limit that the row has reached, or None.

        A polling tool also fires at the first equal call after MAX_POLLS (or after the threshold, if that is
        more).
        """
        threshold = threshold or DEFAULT_THRESHOLD
        if self.convicted is not None:
            return self.convicted
        if self.unmoved >= threshold:
            return _hit(threshold, self.unmoved)
        polls = max(MAX_POLLS, threshold)
        if self.polling and self.row > polls:
            return _hit(polls, self.row)
        return None

    def suspected(self, config: common.DoomLoop) -> Suspicion | None:
        """What the second tier says of the last calls; None where it is off, or sees nothing (BOUND-11)."""
        if not config.second_tier:
            return None
        threshold = config.threshold or DEFAULT_THRESHOLD
        window = self.recent[-max(config.window_size, threshold) :]
        return _cycle(window, threshold, config.window_size) or _same_error(
            window, threshold, config.window_size
        )


@dataclass(frozen=True, slots=True)
class Suspicion:
    """The second tier thinks that nothing moves: why, and the limit that this would be."""

    why: str
    hit: common.LimitHit
    calls: tuple[RecentCall, ...]
    """The last calls, which it is about."""


def _cycle(window: Sequence[RecentCall], threshold: int, size: int) -> Suspicion | None:
    """The same calls again and again, with a period: as often as the threshold says, or as the window holds."""
    hashes = [call.call_hash for call in window]
    for period in PERIODS:
        rounds = min(threshold, max(size, threshold) // period)
        length = rounds * period
        last = hashes[-length:]
        if rounds < 2 or len(last) < length or len(set(last[:period])) == 1:
            continue
        if all(last[at] == last[at - period] for at in range(period, length)):
            why = f"the same {period} calls were made {rounds} times one after the other"
            return Suspicion(why, _hit(rounds, rounds), tuple(window[-length:]))
    return None


def _same_error(window: Sequence[RecentCall], threshold: int, size: int) -> Suspicion | None:
    """One tool that fails with the same words however it is called."""
    count = min(threshold * ERRORS_PER_THRESHOLD, max(size, threshold))
    last = window[-count:]
    if len(last) < count or not last[0].error:
        return None
    if any((call.tool, call.error) != (last[0].tool, last[0].error) for call in last):
        return None
    why = f"{last[0].tool} failed {count} times in a row with the same error, whatever it was called with"
    return Suspicion(why, _hit(count, count), tuple(last))


def polls(config: common.DoomLoop, provider: str, tool: str) -> bool:
    """Whether the configuration names a tool as one that polls."""
    return f"{provider}.{tool}" in config.polling


def _hit(limit: int, value: int) -> common.LimitHit:
    return common.LimitHit(dimension=common.LIMIT_DIMENSION_DOOM_LOOP, limit=limit, value=value, unit="calls")
