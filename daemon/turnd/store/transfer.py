"""A session's log as JSON Lines: out of the store and in again without loss, and judged by the log's own rules
(LOG-17)."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from turnd.ports import MAX_EVENT_BYTES, Log
from turnd.rules.state import SessionState, Violation, apply
from turnd.v1 import event_pb2
from turnd.v1.jsonform import JsonFormError, event_from_json, event_to_json

PART_BYTES: Final = 2**20
"""No exported part has as many bytes, and none that is to be checked has more."""
YIELD_BYTES: Final = 32 * 2**10
"""After so much has been checked others get a turn: the interpreter has one lock for all threads."""
YIELD_LINES: Final = 50
YIELD_S: Final = 0.0005
MAX_SHOWN: Final = 500
"""Characters of a fault's message and session."""
MAX_LINE_BYTES: Final = 64 * 2**20
MAX_FAULTS: Final = 1000
"""Faults that are kept. The check of a file ends with the last of them."""
MAX_SESSION_ID: Final = 100
"""Characters."""
MAX_SESSIONS: Final = 10_000
"""Sessions that one file may hold; events of further ones are faults."""
_LARGEST_IMPORTED: Final = MAX_EVENT_BYTES - 1024
"""An event grows by the marks of an import."""
MAX_IMPORTED_EVENTS: Final = 100_000
MAX_IMPORTED_BYTES: Final = 64 * 2**20
"""Of the events as they are stored. An import is one transaction, which is in memory until it is committed."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with a log. `line` is from 1; 0 for a stored log. `seq` 0: it could not be read."""

    line: int
    session: str
    seq: int
    message: str


@dataclass(frozen=True, slots=True)
class Report:
    """What a log is found to be. `open`: it ends inside a Turn, which is lawful, and not finished."""

    events: int
    sessions: Sequence[str]
    faults: Sequence[Fault]
    faults_in_all: int
    open: bool

    @property
    def lawful(self) -> bool:
        """Every rule holds."""
        return self.faults_in_all == 0


async def export_lines(log: Log, session: str) -> AsyncIterator[bytes]:
    """All committed events of a session, oldest first, in parts of less than a MiB. Raises UnknownSession."""

    async def lines() -> AsyncIterator[bytes]:
        async for page in log.read(session):
            for event in page:
                yield event_to_json(event).encode() + b"\n"

    async for part in pieces(lines(), PART_BYTES - 1):
        yield part


async def pieces(parts: AsyncIterator[bytes], size: int = PART_BYTES) -> AsyncGenerator[bytes, None]:
    """The same bytes in pieces of this size, the last one shorter."""
    held = bytearray()
    async for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), size):
            held += view[start : start + size]
            while len(held) >= size:
                yield bytes(held[:size])
                del held[:size]
    if held:
        yield bytes(held)


def verify_lines(chunks: Iterable[bytes]) -> Report:
    """Checks a file of JSON Lines, given as its lines or as any other pieces of it."""
    verifier = Verifier()
    for chunk in chunks:
        verifier.feed(chunk)
    return verifier.finish()


async def verify_stored(log: Log, session: str) -> Report:
    """Checks a session's log as it is stored. Raises UnknownSession."""
    verifier = Verifier()
    async for page in log.read(session):
        for event in page:
            verifier.check(event)
    return verifier.finish()


class Lines:
    """Cuts a file that comes in pieces into its lines, and reads each as an event.

    `take` gets each line's number, from 1, with its event or with why it is none, and says whether it wants more.
    Between the lines other threads get a turn.
    """

    def __init__(self, take: Callable[[int, event_pb2.Event | NotAnEvent], bool]) -> None:
        self._take = take
        self._wanted = True
        self._lines_since = self._bytes_since = 0
        self._number = 0
        self._rest: list[bytes] = []
        self._rest_bytes = 0

    def feed(self, chunk: bytes) -> None:
        """Takes the next bytes of the file."""
        at = 0
        while self._wanted:
            if not self._rest_bytes and (blank := _BLANK_LINES.match(chunk, at)):
                self._number += chunk.count(b"\n", at, blank.end())
                at = blank.end()
            end = chunk.find(b"\n", at)
            if end < 0:
                break
            self._line(b"".join((*self._rest, chunk[at:end])))
            self._rest, self._rest_bytes = [], 0
            at = end + 1
        rest = chunk[at:]
        if rest and self._rest_bytes <= MAX_LINE_BYTES:
            self._rest.append(rest)
        self._rest_bytes += len(rest)

    def finish(self) -> None:
        """The file ends here."""
        if self._rest_bytes and self._wanted:
            self._line(b"".join(self._rest), cut=True)

    def _line(self, line: bytes, *, cut: bool = False) -> None:
        self._number += 1
        if line.strip():
            self._wanted = self._take(self._number, _event_of(line, cut=cut))
            self._let_others(len(line))

    def _let_others(self, size: int) -> None:
        self._lines_since += 1
        self._bytes_since += size
        if self._lines_since >= YIELD_LINES or self._bytes_since >= YIELD_BYTES:
            self._lines_since = self._bytes_since = 0
            time.sleep(YIELD_S)


_BLANK_LINES: Final = re.compile(rb"(?:[ \t\r\f\v]*+\n)++")


@dataclass(frozen=True, slots=True)
class NotAnEvent:
    """What is wrong with a line that is not the JSON form of an event."""

    problem: str


class Verifier:
    """Checks a log piece by piece, in memory that does not grow with it.

    After a fault it goes on with the next event, as if what is missing had been there, so that one fault hides
    no other, not even of the same event; some faults are consequences of an earlier one.
    """

    def __init__(self) -> None:
        self._lines = Lines(self._line)
        self._states: dict[str, SessionState] = {}
        self._faults: list[Fault] = []
        self._count = _Count()

    def feed(self, chunk: bytes) -> None:
        """Takes the next bytes of a file of JSON Lines."""
        self._lines.feed(chunk)

    def check(self, event: event_pb2.Event, line: int = 0) -> None:
        """Takes the next event."""
        self._count.events += 1
        session = event.session
        before = self._states.get(session)
        if before is None and len(self._states) == MAX_SESSIONS:
            self._fault(line, session, event.seq, f"more than {MAX_SESSIONS} sessions in one file")
            return
        before = before or SessionState()
        if event.seq != before.seq + 1:
            self._fault(line, session, event.seq, "seq gap")
            before = before._replace(seq=event.seq - 1)
        try:
            self._states[session] = apply(before, event)
        except Violation as violation:
            self._fault(line, session, event.seq, violation.text)
            self._states[session] = before._replace(seq=event.seq)

    def finish(self) -> Report:
        """What was found; the log ends here."""
        self._lines.finish()
        still_open = any(state.open_turn is not None for state in self._states.values())
        return Report(
            self._count.events, tuple(self._states), tuple(self._faults), self._count.faults, still_open
        )

    @property
    def full(self) -> bool:
        """As many faults as are kept: a file is not looked at any further."""
        return len(self._faults) >= MAX_FAULTS

    def _line(self, line: int, found: event_pb2.Event | NotAnEvent) -> bool:
        if isinstance(found, NotAnEvent):
            self._fault(line, "", 0, found.problem)
        elif len(found.session) > MAX_SESSION_ID:
            text = f"a session id of {len(found.session)} characters, where {MAX_SESSION_ID} are allowed"
            self._fault(line, found.session, found.seq, text)
        else:
            self.check(found, line)
        return not self.full

    def _fault(self, line: int, session: str, seq: int, message: str) -> None:
        self._count.faults += 1
        if not self.full:
            self._faults.append(Fault(line, session[:MAX_SHOWN], seq, message[:MAX_SHOWN]))


@dataclass(slots=True)
class _Count:
    events: int = 0
    faults: int = 0


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
        self._events: list[event_pb2.Event] = []
        self._bytes = 0

    def feed(self, chunk: bytes) -> None:
        """Takes the next bytes of the file. Raises NotImportable."""
        self._lines.feed(chunk)

    def finish(self) -> tuple[Sequence[event_pb2.Event], Report]:
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
        if size > _LARGEST_IMPORTED:
            raise NotImportable(
                f"line {line} is an event of {size} bytes as it is stored, where {_LARGEST_IMPORTED} are allowed"
            )
        self._bytes += size
        if len(self._events) == MAX_IMPORTED_EVENTS or self._bytes > MAX_IMPORTED_BYTES:
            raise NotImportable(
                f"line {line} is beyond what one import takes: {MAX_IMPORTED_EVENTS} events, "
                f"{MAX_IMPORTED_BYTES} bytes of them as they are stored"
            )
        self._verifier.check(found, line)
        self._events.append(found)
        return True


def _event_of(line: bytes, *, cut: bool) -> event_pb2.Event | NotAnEvent:
    if len(line) > MAX_LINE_BYTES:
        return NotAnEvent(f"line of more than {MAX_LINE_BYTES} bytes")
    try:
        return event_from_json(line.decode())
    except UnicodeDecodeError as error:
        return NotAnEvent(f"not UTF-8 at byte {error.start} of the line")
    except JsonFormError as error:
        where = "the file ends in the middle of this line: " if cut and not error.field else ""
        return NotAnEvent(f"{where}{error}")
