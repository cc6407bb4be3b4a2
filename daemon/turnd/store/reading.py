"""One session's committed events, page by page; a damaged one makes its session unreadable, and no other (LOG-16)."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence

from google.protobuf.message import DecodeError

from turnd.store.catalogue import Catalogue
from turnd.store.intake import Intake
from turnd.store.live import BrokenLog
from turnd.store.reader import GarbledRow, Reader, Row
from turnd.v1 import event_pb2


class UnreadableLog(BrokenLog):
    """A stored event cannot be read, is not as it was stored, or is missing; the session cannot be used until a
    restart has recovered it.

    `seq` is the event's; `last` that of the last one that is missing with it.
    """

    def __init__(self, session: str, seq: int, problem: str, last: int = 0) -> None:
        super().__init__(session, seq, problem)
        self.last = last or seq
        self.args = (
            f"the log of {session} is damaged at event {seq}: {problem}; the session cannot be used. Restart turnd: "
            "it keeps the damaged file and recovers the events before this one; what is readable behind it too can "
            "be exported before",
        )


class Reading:
    """Reads what is committed. `damaged` is told of each damage that is met."""

    def __init__(
        self, reader: Reader, catalogue: Catalogue, intake: Intake, damaged: Callable[[str], None]
    ) -> None:
        self._reader = reader
        self._catalogue = catalogue
        self._intake = intake
        self._damaged = damaged

    async def head(self, session: str) -> int:
        """The seq of the session's last committed event. Raises UnknownSession."""
        live = self._intake.get(session)
        if live is not None and live.durable is not None:
            return live.durable.state.seq
        return (await self._catalogue.row(session)).last_seq

    async def blobs(self, session: str, after_seq: int, through_seq: int) -> Sequence[Row]:
        """One page of a session's committed events, encoded; never empty. Raises UnknownSession, UnreadableLog."""
        try:
            return await self._whole(session, after_seq, through_seq)
        except UnreadableLog as damage:
            raise await self._met(damage) from damage.__cause__

    async def blobs_of_all(self, after_position: int, through_position: int) -> Sequence[Row]:
        """One page of all sessions' committed events, encoded. Raises UnreadableLog."""
        try:
            return await self._reader.page_of_all(after_position, through_position)
        except GarbledRow as garbled:
            session, seq = await self._reader.owner(garbled.position)
            damage = UnreadableLog(session or "a session", seq or garbled.seq, str(garbled))
            self._damaged(str(damage))
            raise damage from garbled

    async def pages(self, session: str, after_seq: int) -> AsyncIterator[Sequence[event_pb2.Event]]:
        """Pages of committed events after the cursor, up to what is committed when the first is asked for.

        Raises UnknownSession, UnreadableLog.
        """
        async for part in self.readable(session, after_seq):
            if isinstance(part, UnreadableLog):
                raise part
            yield part

    async def readable(
        self, session: str, after_seq: int = 0
    ) -> AsyncIterator[Sequence[event_pb2.Event] | UnreadableLog]:
        """The same, and in the place of events that cannot be read the error that names them. Raises UnknownSession."""
        head = await self.head(session)
        through = head
        while after_seq < head:
            try:
                rows = await self._whole(session, after_seq, through)
                events, unread = _decoded(session, rows)
            except UnreadableLog as damage:
                if isinstance(damage.__cause__, sqlite3.DatabaseError) and through > after_seq + 1:
                    # SQLite does not say which row it was.
                    through = after_seq + (through - after_seq) // 2
                    continue
                rows, events, unread = [], [], damage
            if events:
                yield events
                after_seq = rows[len(events) - 1].seq
            if unread is not None:
                yield await self._met(unread)
                after_seq = unread.last
            through = head

    async def _whole(self, session: str, after_seq: int, through_seq: int) -> Sequence[Row]:
        """Some of the next events, without a gap. Raises UnknownSession, UnreadableLog."""
        live = self._intake.get(session)
        key = live.key if live is not None else (await self._catalogue.row(session)).key
        expected = after_seq + 1
        try:
            rows = await self._reader.page(key, after_seq, through_seq)
        except GarbledRow as garbled:
            if garbled.seq != expected:
                raise UnreadableLog(session, expected, "it is missing", garbled.seq - 1) from None
            raise UnreadableLog(session, expected, str(garbled)) from garbled
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            raise UnreadableLog(session, expected, str(error)) from error
        if not rows or rows[0].seq != expected:
            last = rows[0].seq - 1 if rows else through_seq
            raise UnreadableLog(session, expected, "it is missing", last)
        return [row for number, row in enumerate(rows, expected) if row.seq == number]

    async def _met(self, damage: UnreadableLog) -> UnreadableLog:
        """Says it. Raises UnknownSession: one that was removed meanwhile is not damaged."""
        await self._catalogue.row(damage.session)
        self._damaged(str(damage))
        return damage


def _decoded(session: str, rows: Sequence[Row]) -> tuple[Sequence[event_pb2.Event], UnreadableLog | None]:
    """The events up to the first that cannot be read, and why not."""
    events = []
    for row in rows:
        try:
            events.append(event_pb2.Event.FromString(row.blob))
        except DecodeError as error:
            return events, UnreadableLog(session, row.seq, str(error))
    return events, None
