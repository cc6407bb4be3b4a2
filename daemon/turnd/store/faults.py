"""The faults of a log, as many as are kept, each with those that only follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

MAX_SHOWN: Final = 500
"""Characters of a fault's message and session."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with a log. `line` is from 1; 0 for a stored log. `seq` 0: it could not be read."""

    line: int
    session: str
    seq: int
    message: str
    history: bool = False
    """Of an event that is history; session and seq are those that it had."""
    follows_from: int = 0
    """The place in the list, from 1, of the fault without which it would be none; 0: it is one by itself."""
    followers: int = 0
    """How many follow from it, those that are not kept included."""


class Faults:
    """Collects at most so many faults; the ones that follow from others take no more than half of that."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: list[Fault] = []
        self._followers: dict[int, int] = {}
        self._kept_followers = 0
        self.in_all = 0
        self.causes = 0

    @property
    def full(self) -> bool:
        """As many as are kept."""
        return len(self._kept) >= self._most

    @property
    def kept(self) -> Sequence[Fault]:
        """In the order in which they were found."""
        return tuple(
            replace(fault, followers=self._followers.get(place, 0))
            for place, fault in enumerate(self._kept, 1)
        )

    def add(self, fault: Fault, *, follows: bool = False) -> int:
        """Takes a fault; gives the place of the one that others can follow from, 0 where that is not kept.

        With `follows` it follows from the one that it names, also where that is not kept.
        """
        self.in_all += 1
        cause = fault.follows_from
        if follows:
            self._followers[cause] = self._followers.get(cause, 0) + 1
            if self.full or not cause or self._kept_followers >= self._most // 2:
                return cause
            self._kept_followers += 1
        else:
            self.causes += 1
            if self.full:
                return 0
        shown = replace(fault, session=fault.session[:MAX_SHOWN], message=fault.message[:MAX_SHOWN])
        self._kept.append(shown)
        return cause if follows else len(self._kept)
