"""The clock and the ids of this machine: adapters behind the ports Clock and Ids."""

from __future__ import annotations

import asyncio
import time

from ulid import ULID


class SystemClock:
    """The machine's own time. CLOCK_MONOTONIC does not count suspend on Linux."""

    def now_us(self) -> int:
        """Microseconds since the epoch, UTC."""
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        """Seconds."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        await asyncio.sleep(seconds)


class UlidIds:
    """ULIDs for sessions; the same with a prefix for everything else, so that an id says what it is of."""

    def session(self) -> str:
        """A ULID."""
        return str(ULID())

    def call(self) -> str:
        """`c_` and a ULID."""
        return f"c_{ULID()}"

    def request(self) -> str:
        """`r_` and a ULID."""
        return f"r_{ULID()}"

    def message(self) -> str:
        """`m_` and a ULID."""
        return f"m_{ULID()}"
