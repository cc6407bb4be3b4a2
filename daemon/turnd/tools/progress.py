"""tool/progress of one call: output and messages as they come, coalesced, and bounded in all."""

from __future__ import annotations

import asyncio
from typing import Final

from turnd.ports import Emit, LogFailed
from turnd.rules.state import Violation
from turnd.tools.harmless import HarmlessStream, visible
from turnd.v1 import event_pb2

EVERY_S: Final = 0.25
"""Output that comes within this time is one event."""
MAX_EVENT_CHARACTERS: Final = 4096
MAX_CALL_CHARACTERS: Final = 64 * 1024
"""Live output of one call in the log; the result and the spool have what there is more."""
MAX_MESSAGES: Final = 200


class Progress:
    """Writes what a call does while it runs. The mutable state is the text that waits, and what is left to
    spend.

    Output that comes faster than it is written is cut in the middle: a flood costs neither memory nor log.
    """

    def __init__(self, emit: Emit, call_id: str, attempt: int) -> None:
        self._emit = emit
        self._call_id = call_id
        self._attempt = attempt
        self._stream = HarmlessStream()
        self._waiting = ""
        self._skipped = 0
        self._characters_left = MAX_CALL_CHARACTERS
        self._messages_left = MAX_MESSAGES
        self._writer: asyncio.Task[None] | None = None

    def output(self, data: bytes) -> None:
        """Takes a piece of output; it is written soon, by a task that `close` ends."""
        if self._characters_left <= 0:
            return
        text = self._stream.feed(data)
        room = min(MAX_EVENT_CHARACTERS, self._characters_left) - len(self._waiting)
        self._waiting += text[:room]
        self._skipped += max(0, len(text) - max(0, room))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_soon())

    async def say(self, message: str, fraction: float | None) -> None:
        """Writes a message of the provider's."""
        if self._messages_left <= 0:
            return
        self._messages_left -= 1
        text = visible(message[:MAX_EVENT_CHARACTERS])
        await self._write(event_pb2.ToolProgress(message=text, fraction=fraction))

    def skip(self) -> None:
        """What waits is told in another way: in the result of the command that said it."""
        self._waiting, self._skipped = "", 0

    async def finish(self) -> None:
        """The call has ended by itself: writes what waits, before its result is written."""
        await self.abandon()
        await self._write_output()

    async def abandon(self) -> None:
        """The call was given up: nothing more is written."""
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)
            self._writer = None

    async def _write_soon(self) -> None:
        while self._waiting:
            await asyncio.sleep(EVERY_S)
            await self._write_output()

    async def _write_output(self) -> None:
        text, skipped = self._waiting, self._skipped
        self._waiting, self._skipped = "", 0
        if not text:
            return
        self._characters_left -= len(text)
        if skipped or self._characters_left <= 0:
            text += "\n[... more output than is shown live ...]\n"
        await self._write(event_pb2.ToolProgress(output=text))

    async def _write(self, payload: event_pb2.ToolProgress) -> None:
        payload.call_id, payload.attempt = self._call_id, self._attempt
        try:
            await self._emit(payload)
        except (Violation, LogFailed):
            # The Step is being closed, or the disk is full: live output is the first to go.
            self._characters_left = self._messages_left = 0
