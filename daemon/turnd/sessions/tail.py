"""Following the log: a subscriber is a cursor, never a queue (RPC-01, RPC-02).

The newest events are kept in memory, encoded, up to a number of bytes; a cursor below them reads from disk. A
cursor that follows one session sees and is woken by that session's events only.

The mutable state is one feed for each session that has events in memory or a follower, and one feed of all sessions.
It changes when events are committed, and when followers come and go; always in the thread of the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from turnd.v1 import event_pb2

TAIL_BYTES: Final = 16 * 2**20
"""Of events that are kept in memory for all followers together."""
BATCH_BYTES: Final = 2**20
"""A batch fits in one message of the transport: it is no larger, or it is one event."""
BATCH_EVENTS: Final = 1000
_OVERHEAD_BYTES: Final = 256
"""About what an event in memory takes beside its blob."""


class CommittedEvent(Protocol):
    """An event as the log publishes it."""

    @property
    def position(self) -> int:
        """Its place among all sessions' events."""

    @property
    def event(self) -> event_pb2.Event:
        """The event."""

    @property
    def blob(self) -> bytes:
        """The event, encoded."""


class StoredEvent(Protocol):
    """An event as it is on disk."""

    @property
    def position(self) -> int:
        """Its place among all sessions' events."""

    @property
    def seq(self) -> int:
        """Its place in its session."""

    @property
    def blob(self) -> bytes:
        """The event, encoded."""


class TailSource(Protocol):
    """The log, as far as followers need it. What it publishes it can read back."""

    @property
    def position(self) -> int:
        """Of the last event that was published."""

    def subscribe(self, subscriber: Callable[[Sequence[CommittedEvent]], None], /) -> None:
        """Calls back with what was committed, in commit order."""

    async def head(self, session: str) -> int:
        """The seq of the session's last committed event. Raises UnknownSession."""

    async def blobs(self, session: str, after_seq: int, through_seq: int) -> Sequence[StoredEvent]:
        """The next page of a session's events after one seq, up to another."""

    async def blobs_of_all(self, after_position: int, through_position: int) -> Sequence[StoredEvent]:
        """The next page of all events after one position, up to another."""


class CursorOutOfRange(Exception):
    """A cursor that no event of the log can have given: below 0, or past the end."""

    def __init__(self, after: int, head: int) -> None:
        super().__init__(f"the cursor must be from 0 to {head}, which is the last event; found {after}")
        self.after = after
        self.head = head


@dataclass(frozen=True, slots=True)
class Batch:
    """What a follower gets at once: encoded events in order, and its cursor after them."""

    blobs: tuple[bytes, ...]
    last_seq: int
    """0 where all sessions are followed."""
    last_position: int
    """0 as long as no event was sent to someone who follows one session."""
    caught_up: bool = False
    """Everything that was there when the following began has been sent; said exactly once."""


class Tail:
    """The shared end of the log in memory. `max_bytes` bounds the encoded events that are kept.

    It may be made before the log is started; following needs the log.
    """

    def __init__(self, source: TailSource, max_bytes: int = TAIL_BYTES) -> None:
        self._source = source
        self._max_bytes = max_bytes
        self._bytes = 0
        self._all = _Feed()
        self._feeds: dict[str, _Feed] = {}
        source.subscribe(self._published)

    async def follow(self, session: str | None, after: int) -> AsyncGenerator[Batch, None]:
        """Every event after the cursor, then each one as it is committed, without gap and duplicate (RPC-01).

        `session` None follows all sessions; then the cursor is a position, else a seq. Never ends by itself,
        and waits without a time-out where nothing happens: whoever follows decides how long is too long.
        Raises UnknownSession, and CursorOutOfRange at once for a cursor below 0 or past the end (C02).
        """
        woken = asyncio.Event()
        with self._following(session, woken) as feed:
            there = self._source.position if session is None else await self._source.head(session)
            feed.head = max(there, feed.head)
            if not 0 <= after <= feed.head:
                raise CursorOutOfRange(after, feed.head)
            there_at_first, caught_up = feed.head, False
            cursor, position = after, after if session is None else 0
            while True:
                woken.clear()
                through = feed.head if caught_up else there_at_first
                if cursor < through:
                    page = feed.after(cursor, through) or await self._read(session, cursor, through)
                    if not page:
                        # What was there has been removed since, with the sessions that it was of.
                        cursor = position = through
                        continue
                    for part in _parts(page):
                        cursor = part[-1].position if session is None else part[-1].seq
                        position = part[-1].position
                        now = not caught_up and cursor == there_at_first
                        caught_up = caught_up or now
                        blobs = tuple(event.blob for event in part)
                        yield Batch(blobs, 0 if session is None else cursor, position, now)
                    continue
                if caught_up:
                    await woken.wait()
                    continue
                caught_up = True
                yield Batch((), 0 if session is None else cursor, position, True)

    @property
    def remembered(self) -> tuple[int, int]:
        """Sessions with a feed, and bytes of events in memory."""
        return len(self._feeds), self._bytes

    async def _read(self, session: str | None, after: int, through: int) -> Sequence[StoredEvent]:
        if session is None:
            return await self._source.blobs_of_all(after, through)
        page = await self._source.blobs(session, after, through)
        if not page:
            # Removed meanwhile: this raises UnknownSession.
            await self._source.head(session)
        assert page, f"events from {after + 1} to {through} were committed and are not on disk"
        return page

    @contextmanager
    def _following(self, session: str | None, woken: asyncio.Event) -> Iterator[_Feed]:
        feed = self._all if session is None else self._feeds.setdefault(session, _Feed())
        feed.followers.add(woken)
        try:
            yield feed
        finally:
            feed.followers.discard(woken)
            if session is not None:
                self._drop_if_idle(session, feed)

    def _published(self, committed: Sequence[CommittedEvent]) -> None:
        for one in committed:
            kept = _Kept(one.position, one.event.seq, one.event.session, one.blob)
            self._all.add(kept.position, kept)
            self._feeds.setdefault(kept.session, _Feed()).add(kept.seq, kept)
            self._bytes += kept.size
        while self._bytes > self._max_bytes:
            oldest = self._all.drop_oldest()
            self._bytes -= oldest.size
            feed = self._feeds[oldest.session]
            feed.drop_oldest()
            self._drop_if_idle(oldest.session, feed)

    def _drop_if_idle(self, session: str, feed: _Feed) -> None:
        if not feed.kept and not feed.followers:
            del self._feeds[session]


@dataclass(frozen=True, slots=True)
class _Kept:
    position: int
    seq: int
    session: str
    blob: bytes

    @property
    def size(self) -> int:
        return len(self.blob) + _OVERHEAD_BYTES


class _Feed:
    """The newest events under one kind of cursor, and who waits for the next one.

    Cursors are contiguous: the seq of one session, or the position among all.
    """

    def __init__(self) -> None:
        self.head = 0
        """The cursor of the last event, in memory or not; 0 where that is not known yet."""
        self.kept: deque[_Kept] = deque()
        self.followers: set[asyncio.Event] = set()

    def add(self, cursor: int, kept: _Kept) -> None:
        assert not self.kept or cursor == self.head + 1, "events are published in order and without gaps"
        self.head = cursor
        self.kept.append(kept)
        for follower in self.followers:
            follower.set()

    def drop_oldest(self) -> _Kept:
        return self.kept.popleft()

    def after(self, cursor: int, through: int) -> Sequence[StoredEvent]:
        """Events after the cursor up to another, at most a batch full; empty where they are on disk only."""
        behind = self.head - cursor
        start = len(self.kept) - behind
        if start < 0:
            return ()
        # Indexing is from the nearer end: what a follower wants is at the newer one as a rule.
        end = min(len(self.kept) - max(self.head - through, 0), start + BATCH_EVENTS)
        return [self.kept[index] for index in range(start, end)]


def _parts(page: Sequence[StoredEvent]) -> Iterator[Sequence[StoredEvent]]:
    """The page in pieces of a batch each."""
    part: list[StoredEvent] = []
    size = 0
    for event in page:
        if part and size + len(event.blob) > BATCH_BYTES:
            yield part
            part, size = [], 0
        part.append(event)
        size += len(event.blob)
    yield part
