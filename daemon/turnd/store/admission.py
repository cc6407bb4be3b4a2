"""How much may be on its way to the disk: the bound of the writer's queue, and whose turn it is."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

MAX_BATCHES: Final = 4096
MAX_BYTES: Final = 64 * 2**20

T = TypeVar("T")


class Admission:
    """Counts what is in flight; what finds it full is done later, in the order in which it came.

    The mutable state is what is in flight, and what waits. Nothing passes by what waits, so that the events of a
    session are in the order in which their appends were called, and no session waits longer than another.
    """

    def __init__(self, max_batches: int = MAX_BATCHES, max_bytes: int = MAX_BYTES) -> None:
        self._max_batches = max_batches
        self._max_bytes = max_bytes
        self._batches = 0
        self._bytes = 0
        self._waiting: deque[Callable[[], None]] = deque()
        self._woken = False

    def in_turn(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Does it at once where there is room and nobody waits, else when it is its turn; gives its outcome.

        It is done in its turn whatever becomes of whoever waits for the outcome: the future must be shielded. Without
        a time-out: what is in flight is settled, stored or not.
        """
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def do() -> None:
            try:
                outcome.set_result(work())
            except Exception as error:  # noqa: BLE001 - it goes to whoever asked for the work
                outcome.set_exception(error)
                # A caller that was cancelled does not come for it.
                outcome.exception()

        if self._waiting or not self._room:
            self._waiting.append(do)
        else:
            do()
        return outcome

    def enter(self, size: int) -> None:
        """Counts a batch in."""
        self._batches += 1
        self._bytes += size

    def leave(self, size: int) -> None:
        """Counts a batch out."""
        self._batches -= 1
        self._bytes -= size
        # Not at once: whoever counts out is in the middle of settling, and what waits is checked against its outcome.
        if self._waiting and not self._woken:
            self._woken = True
            asyncio.get_running_loop().call_soon(self._go_on)

    @property
    def _room(self) -> bool:
        return self._batches < self._max_batches and self._bytes < self._max_bytes

    def _go_on(self) -> None:
        self._woken = False
        while self._waiting and self._room:
            self._waiting.popleft()()
