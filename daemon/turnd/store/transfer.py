"""A session's log as JSON Lines: out of the store and in again without loss, and judged by the log's own rules
(LOG-17)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from turnd.ports import Log
from turnd.rules.state import SessionState, Violation, apply
from turnd.v1 import event_pb2
from turnd.v1.jsonform import JsonFormError, event_from_json, event_to_json

CHUNK_BYTES: Final = 2**20
"""An exported chunk ends with the line that passes this size."""
MAX_LINE_BYTES: Final = 64 * 2**20
MAX_FAULTS: Final = 1000
"""Faults that are kept; the others are counted."""
MAX_SESSIONS: Final = 10_000
"""Sessions that one file may hold; events of further ones are faults."""
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
    """All committed events of a session, oldest first, as chunks of whole lines. Raises UnknownSession."""
    chunk: list[bytes] = []
    size = 0
    async for page in log.read(session):
        for event in page:
            line = event_to_json(event).encode() + b"\n"
            chunk.append(line)
            size += len(line)
            if size > CHUNK_BYTES:
                yield b"".join(chunk)
                chunk, size = [], 0
    if chunk:
        yield b"".join(chunk)


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

    `take` gets each line's number, from 1, with its event or with why it is none.
    """

    def __init__(self, take: Callable[[int, event_pb2.Event | NotAnEvent], None]) -> None:
        self._take = take
        self._number = 0
        self._rest: list[bytes] = []
        self._rest_bytes = 0

    def feed(self, chunk: bytes) -> None:
        """Takes the next bytes of the file."""
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            self._line(b"".join((*self._rest, line)))
            self._rest, self._rest_bytes = [], 0
        if self._rest_bytes <= MAX_LINE_BYTES:
            self._rest.append(rest)
        self._rest_bytes += len(rest)

    def finish(self) -> None:
        """The file ends here."""
        if self._rest_bytes:
            self._line(b"".join(self._rest), cut=True)

    def _line(self, line: bytes, *, cut: bool = False) -> None:
        self._number += 1
        if line.strip():
            self._take(self._number, _event_of(line, cut=cut))


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

    def _line(self, line: int, found: event_pb2.Event | NotAnEvent) -> None:
        if isinstance(found, NotAnEvent):
            self._fault(line, "", 0, found.problem)
        else:
            self.check(found, line)

    def _fault(self, line: int, session: str, seq: int, message: str) -> None:
        self._count.faults += 1
        if len(self._faults) < MAX_FAULTS:
            self._faults.append(Fault(line, session, seq, message))


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

    def _line(self, line: int, found: event_pb2.Event | NotAnEvent) -> None:
        if isinstance(found, NotAnEvent):
            raise NotImportable(f"line {line} is no event of a log: {found.problem}")
        if self._events and found.session != self._events[0].session:
            raise NotImportable(
                f"line {line} is of another session, {found.session!r}, than those before, "
                f"{self._events[0].session!r}: put the lines of each session into a file of its own"
            )
        self._bytes += found.ByteSize()
        if len(self._events) == MAX_IMPORTED_EVENTS or self._bytes > MAX_IMPORTED_BYTES:
            raise NotImportable(
                f"line {line} is beyond what one import takes: {MAX_IMPORTED_EVENTS} events, "
                f"{MAX_IMPORTED_BYTES} bytes of them as they are stored"
            )
        self._verifier.check(found, line)
        self._events.append(found)


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
