"""A session's log as JSON Lines: out of the store and in again without loss, and judged by the log's own rules
(LOG-17)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from turnd.ports import Log, UnreadableSession
from turnd.rules.state import SessionState, Violation, apply
from turnd.store.lines import Lines, NotAnEvent
from turnd.store.log import EventLog
from turnd.store.reading import UnreadableLog
from turnd.v1 import event_pb2
from turnd.v1.jsonform import event_to_json

PART_BYTES: Final = 2**20
"""No exported part has as many bytes, and none that is to be checked has more."""
MAX_SHOWN: Final = 500
"""Characters of a fault's message and session."""
MAX_FAULTS: Final = 1000
"""Faults that are kept. The check of a file ends with the last of them."""
MAX_SESSION_ID: Final = 100
"""Characters."""
MAX_SESSIONS: Final = 10_000
"""Sessions that one file may hold; events of further ones are faults."""
_MAX_GAPS: Final = 20
"""Places of an export where events are missing that are named."""


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


class IncompleteExport(UnreadableSession):
    """Everything of the session that can be read has been exported, and that is not all."""

    def __init__(self, session: str, gaps: Gaps) -> None:
        super().__init__(
            f"the export of {session} is not complete: {gaps}; every other event is in it. Keep it, and restart "
            "turnd: it keeps the damaged file, and goes on with the events before the first of these"
        )


class Gaps:
    """Which events of a session cannot be read; the first ones by their numbers and the reason."""

    def __init__(self) -> None:
        self._named: list[str] = []
        self._events = 0

    def __bool__(self) -> bool:
        return self._events > 0

    def __str__(self) -> str:
        return f"{self._events} events cannot be read ({'; '.join(self._named)})"

    def add(self, damage: UnreadableLog) -> None:
        """Takes the next one."""
        self._events += damage.last - damage.seq + 1
        if len(self._named) < _MAX_GAPS:
            through = f" to {damage.last}" if damage.last > damage.seq else ""
            self._named.append(f"seq {damage.seq}{through}: {damage.text}")
        elif len(self._named) == _MAX_GAPS:
            self._named.append("and more")


async def export_lines(log: EventLog, session: str) -> AsyncIterator[bytes]:
    """All committed events of a session, oldest first, in parts of less than a MiB.

    What cannot be read is left out, and said at the end. Raises UnknownSession; IncompleteExport after the last part.
    """
    gaps = Gaps()

    async def lines() -> AsyncIterator[bytes]:
        async for page in log.readable(session):
            if isinstance(page, UnreadableLog):
                gaps.add(page)
                continue
            for event in page:
                yield event_to_json(event).encode() + b"\n"

    async for part in pieces(lines(), PART_BYTES - 1):
        yield part
    if gaps:
        raise IncompleteExport(session, gaps)


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
