"""A session's log as JSON Lines: out of the store and in again without loss, and judged by the log's own rules
(LOG-17)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from turnd.ports import Log, UnreadableSession
from turnd.rules.cascade import Presumed
from turnd.rules.state import SessionState, Violation, apply
from turnd.store.faults import Fault, Faults
from turnd.store.lines import Lines, NotAnEvent
from turnd.store.log import EventLog
from turnd.store.reading import UnreadableLog
from turnd.v1 import event_pb2
from turnd.v1.jsonform import event_to_json

PART_BYTES: Final = 2**20
"""No exported part has as many bytes, and none that is to be checked has more."""
MAX_FAULTS: Final = 1000
"""Faults that are kept. The check of a file ends with the last of them."""
MAX_SESSION_ID: Final = 100
"""Characters."""
MAX_SESSIONS: Final = 10_000
"""Sessions that one file may hold; events of further ones are faults."""
_MAX_GAPS: Final = 20
"""Places of an export where events are missing that are named."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a log is found to be. `open`: it ends inside a Turn, which is lawful, and not finished."""

    events: int
    history: int
    """Of the events those that are history, which is exempt from the rules."""
    sessions: Sequence[str]
    faults: Sequence[Fault]
    faults_in_all: int
    causes: int
    """Of all faults those that do not follow from another one."""
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


def verify_lines(chunks: Iterable[bytes], *, judge_history: bool = False) -> Report:
    """Checks a file of JSON Lines, given as its lines or as any other pieces of it."""
    verifier = Verifier(judge_history=judge_history)
    for chunk in chunks:
        verifier.feed(chunk)
    return verifier.finish()


async def verify_stored(log: Log, session: str, *, judge_history: bool = False) -> Report:
    """Checks a session's log as it is stored. Raises UnknownSession."""
    verifier = Verifier(judge_history=judge_history)
    async for page in log.read(session):
        for event in page:
            verifier.check(event)
    return verifier.finish()


class Verifier:
    """Checks a log piece by piece, in memory that does not grow with it.

    After a fault it goes on with the next event, as if what is missing had been there, so that one fault hides
    no other, not even of the same event; those that are consequences of an earlier one are told apart. With
    `judge_history` events that are history are also judged, as the log that they were.
    """

    def __init__(self, *, judge_history: bool = False) -> None:
        self._judge_history = judge_history
        self._lines = Lines(self._line)
        self._read: dict[str, _Reading] = {}
        self._remembered: dict[tuple[str, str], _Reading] = {}
        """By the session in the log and the one that its history was."""
        self._faults = Faults(MAX_FAULTS)
        self._count = _Count()

    def feed(self, chunk: bytes) -> None:
        """Takes the next bytes of a file of JSON Lines."""
        self._lines.feed(chunk)

    def check(self, event: event_pb2.Event, line: int = 0) -> None:
        """Takes the next event."""
        self._count.events += 1
        reading = self._read.get(event.session)
        if reading is None:
            if len(self._read) == MAX_SESSIONS:
                text = f"more than {MAX_SESSIONS} sessions in one file"
                self._faults.add(Fault(line, event.session, event.seq, text))
                return
            reading = self._read[event.session] = _Reading(SessionState())
        if event.HasField("imported"):
            self._count.history += 1
            if self._judge_history:
                self._remember(event, line, reading.state)
        self._judge(reading, event, line)

    def finish(self) -> Report:
        """What was found; the log ends here."""
        self._lines.finish()
        return Report(
            events=self._count.events,
            history=self._count.history,
            sessions=tuple(self._read),
            faults=self._faults.kept,
            faults_in_all=self._faults.in_all,
            causes=self._faults.causes,
            open=any(reading.state.open_turn is not None for reading in self._read.values()),
        )

    @property
    def full(self) -> bool:
        """As many faults as are kept: a file is not looked at any further."""
        return self._faults.full

    def _line(self, line: int, found: event_pb2.Event | NotAnEvent) -> bool:
        if isinstance(found, NotAnEvent):
            self._count.last_unread = self._faults.add(Fault(line, "", 0, found.problem))
            self._count.unread += found.alone
            return not self.full and not found.hopeless
        if len(found.session) > MAX_SESSION_ID:
            text = f"a session id of {len(found.session)} characters, where {MAX_SESSION_ID} are allowed"
            self._faults.add(Fault(line, found.session, found.seq, text))
        else:
            self.check(found, line)
        return not self.full

    def _remember(self, event: event_pb2.Event, line: int, state: SessionState) -> None:
        """Judges an event as that of the log in which it was no history; `state` is what was remembered before it."""
        key = event.session, event.imported.session
        reading = self._remembered.get(key)
        if reading is None:
            if len(self._remembered) == MAX_SESSIONS:
                return
            reading = self._remembered[key] = _Reading(state)
        past = event_pb2.Event()
        past.CopyFrom(event)
        past.session, past.seq = event.imported.session, event.imported.seq
        past.ClearField("imported")
        self._judge(reading, past, line, history=True)

    def _judge(self, reading: _Reading, event: event_pb2.Event, line: int, *, history: bool = False) -> None:
        before = reading.state
        missing = event.seq - before.seq - 1
        unread = (
            0
            < missing
            <= min(self._count.unread - reading.unread, self._count.unread - self._count.explained)
        )
        reading.unread = self._count.unread
        broken = ""
        try:
            after = apply(before._replace(seq=event.seq - 1), event)
        except Violation as violation:
            broken, after = violation.text, before._replace(seq=event.seq)
        reading.state = after
        if unread:
            self._count.explained += missing
            reading.cause = self._count.last_unread
        if reading.presumed is None:
            if not missing and not broken:
                return
            reading.presumed = Presumed(before)
        judged = reading.presumed.take(event, unread=unread)
        if judged.violation and not broken:
            reading.presumed.agree(after)
        if missing and not unread:
            self._tell(reading, Fault(line, event.session, event.seq, "seq gap", history), judged.gap)
        if broken:
            self._tell(reading, Fault(line, event.session, event.seq, broken, history), judged.violation)

    def _tell(self, reading: _Reading, fault: Fault, by_itself: bool) -> None:
        if by_itself:
            reading.cause = self._faults.add(fault)
        else:
            self._faults.add(replace(fault, follows_from=reading.cause), follows=True)


@dataclass(slots=True)
class _Reading:
    """How far one session's log is read."""

    state: SessionState
    presumed: Presumed | None = None
    """From the first fault on."""
    cause: int = 0
    """The place of the last fault that was one by itself."""
    unread: int = 0
    """Lines of the file that could not be read, up to this session's last event."""


@dataclass(slots=True)
class _Count:
    events: int = 0
    history: int = 0
    unread: int = 0
    """Lines that could not be read."""
    explained: int = 0
    """Of those, how many took the place of an event that is missing."""
    last_unread: int = 0
    """The place of the last one's fault."""
