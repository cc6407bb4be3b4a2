"""A file that is to be imported: collected, and checked by the log's rules (LOG-17, LOG-22)."""

from __future__ import annotations

import hashlib
from collections import deque
from typing import Final

from turnd.ports import MAX_EVENT_BYTES, MAX_HISTORY_BYTES, MAX_HISTORY_EVENTS
from turnd.store.lines import Lines, NotAnEvent
from turnd.store.transfer import Report, Verifier
from turnd.v1 import event_pb2

LARGEST_IMPORTED: Final = MAX_EVENT_BYTES - 1024
"""An event grows by the marks of an import."""


class NotImportable(Exception):
    """The file is not the log of one session; nothing of it was imported."""


class Arrival:
    """Collects the events of a file that is to be imported, and what is wrong with them.

    A rule that is broken is a fault, and its event history all the same. A line that is no event, a second
    session, and more than a session can be imported with are refused (NotImportable).
    """

    def __init__(self) -> None:
        self._lines = Lines(self._line)
        self._verifier = Verifier()
        self._events: deque[event_pb2.Event] = deque()
        self._bytes = 0
        self._digest = hashlib.sha256()

    def feed(self, chunk: bytes) -> None:
        """Takes the next bytes of the file. Raises NotImportable."""
        self._digest.update(chunk)
        self._lines.feed(chunk)

    @property
    def digest(self) -> bytes:
        """Of all bytes of the file so far."""
        return self._digest.digest()

    def finish(self) -> tuple[deque[event_pb2.Event], Report]:
        """All events in the order of the file, and what a check of them found. Raises NotImportable."""
        self._lines.finish()
        if not self._events:
            raise NotImportable("the file has no events in it")
        return self._events, self._verifier.finish()

    def _line(self, line: int, found: event_pb2.Event | NotAnEvent) -> bool:
        if isinstance(found, NotAnEvent):
            raise NotImportable(f"line {line} is no event of a log: {found.problem}")
        if self._events and found.session != self._events[0].session:
            raise NotImportable(
                f"line {line} is of another session, {found.session!r}, than those before, "
                f"{self._events[0].session!r}: put the lines of each session into a file of its own"
            )
        size = found.ByteSize()
        if size > LARGEST_IMPORTED:
            raise NotImportable(
                f"line {line} is an event of {size} bytes as it is stored, where {LARGEST_IMPORTED} are allowed"
            )
        self._bytes += size
        if len(self._events) == MAX_HISTORY_EVENTS or self._bytes > MAX_HISTORY_BYTES:
            raise NotImportable(
                f"line {line} is beyond what one import takes: {MAX_HISTORY_EVENTS} events, "
                f"{MAX_HISTORY_BYTES} bytes of them as they are stored"
            )
        self._verifier.check(found, line)
        self._events.append(found)
        return True
