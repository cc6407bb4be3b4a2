"""How long work in Python goes on beside the loop: the interpreter has one lock for all threads."""

from __future__ import annotations

import threading
import time
from typing import Final

EVENTS: Final = 50
BYTES: Final = 32 * 2**10
"""After so many events, or so much of them, others get a turn: that is a few milliseconds."""
PAUSE_S: Final = 0.0005


class Stopped(Exception):
    """Nobody wants the outcome any more."""


class Pace:
    """Slows a worker's thread down, and stops it. The mutable state: what was done since the last pause."""

    def __init__(self) -> None:
        self._events = self._bytes = 0
        self._stopped = threading.Event()

    def passed(self, size: int) -> None:
        """One more event, of so many bytes, is done. Raises Stopped."""
        self._events += 1
        self._bytes += size
        if self._events >= EVENTS or self._bytes >= BYTES:
            self._events = self._bytes = 0
            if self._stopped.is_set():
                raise Stopped
            time.sleep(PAUSE_S)

    def stop(self) -> None:
        """Ends the work at its next pause; for another thread."""
        self._stopped.set()
