"""Turns of a session that are being opened: whoever wants to end one waits until it can be ended."""

from __future__ import annotations

import asyncio


class Openings:
    """The mutable state: those that are under way. A command and the runner may both be at one."""

    def __init__(self) -> None:
        self._under_way: set[Opening] = set()
        self._none = asyncio.Event()
        self._none.set()

    def begin(self) -> Opening:
        """Before the Turn is in the log. Whoever begins it says when it is over, also where nothing was opened."""
        opening = Opening(self)
        self._under_way.add(opening)
        self._none.clear()
        return opening

    async def over(self) -> None:
        """Waits until none is under way; opening takes one commit, and the runner to come to it."""
        await self._none.wait()

    def ended(self, opening: Opening) -> None:
        """Said by the opening itself; twice is as good as once."""
        self._under_way.discard(opening)
        if not self._under_way:
            self._none.set()


class Opening:
    """One of them."""

    def __init__(self, openings: Openings) -> None:
        self._openings = openings

    def over(self) -> None:
        """The Turn has a task that can be stopped, or there is none."""
        self._openings.ended(self)
