"""How many histories may be in memory at a time: the bound of what imports and forks take together (LOG-17)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

PLACES: Final = 2
"""Imports and forks that are under way; others wait in the order in which they came."""


class Place:
    """Room for one history. It is free again when nobody holds it any more: neither the call nor its command."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places = places
        self._holders = 0
        self._given_back = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """The history is in memory as long as somebody is inside."""
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
            if not self._holders and not self._given_back:
                self._given_back = True
                self._places.release()


class Places:
    """The mutable state is how many of the places are taken."""

    def __init__(self, places: int = PLACES) -> None:
        self._places = asyncio.Semaphore(places)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Place]:
        """Waits for a place and holds it inside.

        Without a time-out: each that has one ends, since what it reads has a bound and its client may not stall.
        """
        await self._places.acquire()
        place = Place(self._places)
        with place.held():
            yield place
