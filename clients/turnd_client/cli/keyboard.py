"""Lines from a terminal, in the event loop: waiting for one can be given up."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from types import TracebackType
from typing import Self

_READ_BYTES = 4096
_MAX_LINES = 100


class Keyboard:
    """Reads whole lines from a terminal's descriptor. Used by one task at a time, in its loop."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._partial = b""
        # What is typed ahead beyond the bound is dropped, oldest first: nobody asked for it.
        self._lines: deque[str] = deque(maxlen=_MAX_LINES)
        self._closed = False
        self._arrived = asyncio.Event()

    async def __aenter__(self) -> Self:
        asyncio.get_running_loop().add_reader(self._descriptor, self._read)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)

    def discard(self) -> None:
        """Forgets what was typed before: an answer must not have been given before its question."""
        self._lines.clear()
        self._partial = b""

    async def line(self) -> str | None:
        """The next line; None when the terminal is gone. Waits without a time-out: a person may take hours."""
        while not self._lines:
            if self._closed:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        return self._lines.popleft()

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            # The terminal was hung up.
            data = b""
        if not data:
            self._closed = True
            asyncio.get_running_loop().remove_reader(self._descriptor)
        *lines, self._partial = (self._partial + data).split(b"\n")
        self._lines.extend(line.decode("utf-8", "replace").rstrip("\r") for line in lines)
        self._arrived.set()
