"""A session's log as JSON Lines: out of the store without loss, and judged by the log's own rules (LOG-17)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace
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


class Verifier:
    """Checks a log piece by piece, in memory that does not grow with it.

    After a fault it goes on with the next event, as if what is missing had been there, so that one fault hides
    no other; some faults are consequences of an earlier one.
    """

    def __init__(self) -> None:
        self._states: dict[str, SessionState] = {}
        self._faults: list[Fault] = []
        self._count = _Count()
        self._rest: list[bytes] = []
        self._rest_bytes = 0

    def feed(self, chunk: bytes) -> None:
        """Takes the next bytes of a file of JSON Lines."""
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            self._line(b"".join((*self._rest, line)))
            self._rest, self._rest_bytes = [], 0
        if self._rest_bytes <= MAX_LINE_BYTES:
            self._rest.append(rest)
        self._rest_bytes += len(rest)

    def check(self, event: event_pb2.Event, line: int = 0) -> None:
        """Takes the next event."""
        self._count.events += 1
        session = event.session
        before = self._states.get(session)
        if before is None and len(self._states) == MAX_SESSIONS:
            self._fault(line, session, event.seq, f"more than {MAX_SESSIONS} sessions in one file")
            return
        before = before or SessionState()
        try:
            self._states[session] = apply(before, event)
        except Violation as violation:
            self._fault(line, session, event.seq, violation.text)
            self._states[session] = _past(before, event)

    def finish(self) -> Report:
        """What was found; the log ends here."""
        if self._rest_bytes:
            self._line(b"".join(self._rest), cut=True)
        still_open = any(state.open_turn is not None for state in self._states.values())
        return Report(
            self._count.events, tuple(self._states), tuple(self._faults), self._count.faults, still_open
        )

    def _line(self, line: bytes, *, cut: bool = False) -> None:
        self._count.lines += 1
        number = self._count.lines
        if not line.strip():
            return
        if len(line) > MAX_LINE_BYTES:
            self._fault(number, "", 0, f"line of more than {MAX_LINE_BYTES} bytes")
            return
        try:
            event = event_from_json(line.decode())
        except UnicodeDecodeError as error:
            self._fault(number, "", 0, f"not UTF-8 at byte {error.start} of the line")
        except JsonFormError as error:
            where = "the file ends in the middle of this line: " if cut and not error.field else ""
            self._fault(number, "", 0, f"{where}{error}")
        else:
            self.check(event, number)

    def _fault(self, line: int, session: str, seq: int, message: str) -> None:
        self._count.faults += 1
        if len(self._faults) < MAX_FAULTS:
            self._faults.append(Fault(line, session, seq, message))


@dataclass(slots=True)
class _Count:
    lines: int = 0
    events: int = 0
    faults: int = 0


def _past(before: SessionState, event: event_pb2.Event) -> SessionState:
    """The state to go on with after a fault: with the event where only its number was wrong, else without it."""
    if event.seq <= before.seq:
        return before
    try:
        return apply(replace(before, seq=event.seq - 1), event)
    except Violation:
        return replace(before, seq=event.seq)
