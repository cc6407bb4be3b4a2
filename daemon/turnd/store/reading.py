"""One session's committed events, page by page; a damaged one makes its session unreadable, and no other (LOG-16)."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence

from google.protobuf.message import DecodeError

from turnd.store.catalogue import Catalogue
from turnd.store.intake import Intake
from turnd.store.live import BrokenLog
from turnd.store.reader import Reader, Row
from turnd.v1 import event_pb2


class UnreadableLog(BrokenLog):
    """A stored event cannot be read, or is missing; the session cannot be used until a restart has recovered it."""

    def __init__(self, session: str, seq: int, problem: str) -> None:
        super().__init__(session, seq, problem)
        self.args = (
            f"the log of {session} is damaged at event {seq}: {problem}; the session cannot be used. "
            "Restart turnd: it keeps the damaged file and recovers the events before this one",
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
        """One page of a session's committed events, encoded. Raises UnknownSession, UnreadableLog."""
        live = self._intake.get(session)
        key = live.key if live is not None else (await self._catalogue.row(session)).key
        try:
            return await self._reader.page(key, after_seq, through_seq)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            raise UnreadableLog(session, after_seq + 1, str(error)) from error

    async def pages(self, session: str, after_seq: int) -> AsyncIterator[Sequence[event_pb2.Event]]:
        """Pages of committed events after the cursor, up to what is committed when the first is asked for.

        Raises UnknownSession, UnreadableLog.
        """
        through = await self.head(session)
        while after_seq < through:
            try:
                rows = await self.blobs(session, after_seq, through)
                events = _decoded(session, after_seq, rows)
            except UnreadableLog as damage:
                # One that was removed meanwhile is unknown, not damaged.
                await self._catalogue.row(session)
                self._damaged(str(damage))
                raise
            yield events
            after_seq = rows[-1].seq


def _decoded(session: str, after_seq: int, rows: Sequence[Row]) -> list[event_pb2.Event]:
    if not rows:
        raise UnreadableLog(session, after_seq + 1, "it is missing")
    events = []
    for row in rows:
        try:
            events.append(event_pb2.Event.FromString(row.blob))
        except (DecodeError, TypeError) as error:
            raise UnreadableLog(session, row.seq, str(error)) from error
    return events
