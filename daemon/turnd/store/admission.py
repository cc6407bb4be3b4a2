"""How much may be on its way to the disk: the bound of the writer's queue."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

MAX_BATCHES: Final = 4096
MAX_BYTES: Final = 64 * 2**20


class Admission:
    """Counts what is in flight; whoever finds it full waits in order of arrival."""

    def __init__(self, max_batches: int = MAX_BATCHES, max_bytes: int = MAX_BYTES) -> None:
        self._max_batches = max_batches
        self._max_bytes = max_bytes
        self._batches = 0
        self._bytes = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def open(self) -> bool:
        """There is room, and nobody waits for it."""
        return not self._waiting and self._room

    async def wait(self) -> None:
        """Returns when it is one's turn. Without a time-out: what is in flight is settled, stored or not."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._wake()
        await turn

    def enter(self, size: int) -> None:
        """Counts a batch in."""
        self._batches += 1
        self._bytes += size

    def leave(self, size: int) -> None:
        """Counts a batch out."""
        self._batches -= 1
        self._bytes -= size
        self._wake()

    def pass_on(self) -> None:
        """Whoever waited and had its turn calls this, entered or not: there may be room for the next."""
        self._wake()

    @property
    def _room(self) -> bool:
        return self._batches < self._max_batches and self._bytes < self._max_bytes

    def _wake(self) -> None:
        # One at a time: only after it has entered is it known whether there is room for the next.
        while self._waiting and self._room:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
