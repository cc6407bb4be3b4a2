"""What a program in a cell writes, read from a pipe as a bounded stream, on any event loop."""

from __future__ import annotations

import asyncio
import os
from typing import Final

_BUFFER: Final = 1 << 16
_PIECE_BYTES: Final = 1 << 16


class Output:
    """The daemon's end of a pipe that a program writes into. Made on the event loop's thread.

    It is the only owner of its descriptor. The loops' own pipe transports are not used: some close the number
    of a file that they were given, and then the file closes the same number once more, which by then may be
    another thread's.
    """

    def __init__(self, descriptor: int) -> None:
        """Takes over the descriptor."""
        os.set_blocking(descriptor, False)
        loop = asyncio.get_running_loop()
        self.reader = asyncio.StreamReader(limit=_BUFFER, loop=loop)
        self._pipe = _PipeEnd(descriptor, self.reader, loop)
        self.reader.set_transport(self._pipe)
        self._pipe.resume_reading()

    def close(self) -> None:
        """Drops what was not read; the descriptor is closed when this returns."""
        self._pipe.close()


class _PipeEnd(asyncio.ReadTransport):
    """Feeds a stream from a descriptor. The mutable state is the descriptor, None once it is closed."""

    def __init__(
        self, descriptor: int, reader: asyncio.StreamReader, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__()
        self._descriptor: int | None = descriptor
        self._reader = reader
        self._loop = loop
        self._reading = False

    def is_closing(self) -> bool:
        return self._descriptor is None

    def is_reading(self) -> bool:
        return self._reading

    def resume_reading(self) -> None:
        if self._descriptor is not None and not self._reading:
            self._reading = True
            self._loop.add_reader(self._descriptor, self._read)

    def pause_reading(self) -> None:
        if self._descriptor is not None and self._reading:
            self._reading = False
            self._loop.remove_reader(self._descriptor)

    def close(self) -> None:
        self.pause_reading()
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
            self._reader.feed_eof()

    def _read(self) -> None:
        # A callback that was due already when the descriptor was closed or reading was paused.
        if self._descriptor is None or not self._reading:
            return
        try:
            data = os.read(self._descriptor, _PIECE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self.close()
            self._reader.set_exception(error)
            return
        if data:
            self._reader.feed_data(data)
        else:
            self.close()
