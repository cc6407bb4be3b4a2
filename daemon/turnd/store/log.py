"""The event log: the one way in, and everything that is committed (LOG-04, LOG-09, LOG-11, LOG-14)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from turnd.ports import Clock
from turnd.rules.event import Draft
from turnd.rules.state import SessionState, Violation
from turnd.rules.status import SessionView
from turnd.store.admission import Admission
from turnd.store.batch import Outcome
from turnd.store.catalogue import Catalogue
from turnd.store.filesystem import require_local
from turnd.store.hold import Hold
from turnd.store.intake import Committed, Intake, SessionNotLoaded
from turnd.store.live import BrokenLog, Folded, Live
from turnd.store.reader import Reader, Row
from turnd.store.recover import Repaired, repair
from turnd.store.writer import Writer
from turnd.v1 import event_pb2

log = structlog.get_logger(__name__)

T = TypeVar("T")
Subscriber = Callable[[Sequence[Committed]], None]


class LogNotOpen(RuntimeError):
    """The log was not started, or is closed."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """What there is between start and close."""

    writer: Writer
    reader: Reader
    catalogue: Catalogue
    intake: Intake


class EventLog:
    """Implements `ports.Log` over the file that is held. All methods are for the thread of the loop.

    `accept_network_file_system`: the configuration says that a file system where WAL is unsafe is good enough.
    """

    def __init__(
        self,
        hold: Hold,
        clock: Clock,
        *,
        accept_network_file_system: bool = False,
        admission: Admission | None = None,
    ) -> None:
        self._hold = hold
        self._clock = clock
        self._accept_network_file_system = accept_network_file_system
        self._admission = Admission() if admission is None else admission
        self._parts: _Parts | None = None
        self._position = 0
        self._subscribers: list[Subscriber] = []
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self) -> Sequence[Repaired]:
        """Opens the file and repairs what a killed daemon left open (LOG-08); gives what was repaired.

        Raises NetworkFileSystem, SchemaTooNew, NotALog, sqlite3.Error; LogFailed where a repair cannot be
        stored. `close` is right after any of them.
        """
        if not self._accept_network_file_system:
            require_local(self._hold.database.parent)
        loop = asyncio.get_running_loop()

        def report(outcomes: Sequence[Outcome]) -> None:
            loop.call_soon_threadsafe(intake.settle, outcomes)

        writer = Writer(self._hold.database, report)
        self._position = await asyncio.wrap_future(writer.start())
        try:
            reader = await Reader.open(self._hold.database)
        except BaseException:
            await asyncio.wrap_future(writer.stop())
            raise
        next_key = await reader.last_key() + 1
        intake = Intake(self._clock, self._admission, writer.submit, self._publish, next_key)
        writer.ended.add_done_callback(lambda _: loop.call_soon_threadsafe(intake.abandon))
        self._parts = _Parts(writer, reader, Catalogue(reader), intake)
        return await repair(self, self._parts.catalogue, self.unload)

    async def close(self) -> None:
        """Commits what was accepted, then lets the file go. Appends after it raise LogFailed."""
        parts = self._parts
        if parts is None:
            return
        while self._tasks:
            await asyncio.wait(self._tasks)
        parts.intake.close("the log is closed; nothing of this append was stored")
        await parts.reader.close()
        await asyncio.wrap_future(parts.writer.stop())
        parts.writer.join()

    async def load(self, session: str) -> None:
        """Folds the stored log of a session, unless it is in memory. Raises UnknownSession, BrokenLog."""
        if self._open.intake.get(session) is not None:
            return
        loading = self._loading.get(session)
        if loading is None:
            loading = self._loading[session] = self._own(self._load(session))
            loading.add_done_callback(lambda _: self._loading.pop(session))
        await asyncio.shield(loading)

    def unload(self, session: str) -> None:
        """Lets a session go from memory, unless something of it is on its way to the disk."""
        self._open.intake.remove(session)

    def state(self, session: str) -> SessionState:
        """As of the last accepted event. Raises SessionNotLoaded."""
        return self._loaded(session).accepted.state

    def view(self, session: str) -> SessionView:
        """As of the last accepted event. Raises SessionNotLoaded."""
        return self._loaded(session).accepted.view

    async def append(self, *drafts: Draft) -> list[event_pb2.Event]:
        """Checks, numbers and commits the drafts in one transaction, then publishes them.

        The check happens at once, before anything else runs; only where more is in flight than `Admission`
        allows does the append wait its turn first. Cancelling the caller cancels neither. Raises Violation,
        SessionNotLoaded, LogFailed; then none of the drafts is stored.
        """
        if self._admission.open:
            done = self._open.intake.accept(drafts)
        else:
            done = await asyncio.shield(self._own(self._accept_later(drafts)))
        return await asyncio.shield(done)

    async def read(self, session: str, after_seq: int = 0) -> AsyncIterator[Sequence[event_pb2.Event]]:
        """Pages of committed events after the cursor, up to what is committed when the first is asked for.

        Raises UnknownSession.
        """
        through = await self.head(session)
        while after_seq < through:
            rows = await self.blobs(session, after_seq, through)
            yield [event_pb2.Event.FromString(row.blob) for row in rows]
            after_seq = rows[-1].seq

    @property
    def catalogue(self) -> Catalogue:
        """Which sessions there are, as committed."""
        return self._open.catalogue

    async def resolve(self, prefix: str) -> str:
        """The id of the one session that has it or begins so. Raises UnknownSession, AmbiguousSession."""
        return await self._open.catalogue.resolve(prefix)

    @property
    def position(self) -> int:
        """Of the last event that was published."""
        return self._position

    def subscribe(self, subscriber: Subscriber) -> None:
        """Calls back in the loop's thread with what was committed, in commit order (LOG-11)."""
        self._subscribers.append(subscriber)

    async def head(self, session: str) -> int:
        """The seq of the session's last committed event. Raises UnknownSession."""
        live = self._open.intake.get(session)
        if live is not None and live.durable is not None:
            return live.durable.state.seq
        return (await self._open.catalogue.row(session)).last_seq

    async def blobs(self, session: str, after_seq: int, through_seq: int) -> Sequence[Row]:
        """One page of a session's committed events, encoded. Raises UnknownSession."""
        live = self._open.intake.get(session)
        key = live.key if live is not None else (await self._open.catalogue.row(session)).key
        return await self._open.reader.page(key, after_seq, through_seq)

    async def blobs_of_all(self, after_position: int, through_position: int) -> Sequence[Row]:
        """One page of all sessions' committed events, encoded."""
        return await self._open.reader.page_of_all(after_position, through_position)

    @property
    def _open(self) -> _Parts:
        if self._parts is None:
            raise LogNotOpen("the log must be started first")
        return self._parts

    def _loaded(self, session: str) -> Live:
        live = self._open.intake.get(session)
        if live is None:
            raise SessionNotLoaded(f"session {session} must be loaded first")
        return live

    async def _load(self, session: str) -> None:
        row = await self._open.catalogue.row(session)
        folded = Folded()
        async for page in self.read(session):
            for event in page:
                try:
                    folded = folded.after(event)
                except Violation as violation:
                    raise BrokenLog(session, event.seq, violation.text) from violation
        self._open.intake.add(session, row.key, folded)

    async def _accept_later(self, drafts: Sequence[Draft]) -> asyncio.Future[list[event_pb2.Event]]:
        await self._admission.wait()
        try:
            return self._open.intake.accept(drafts)
        finally:
            self._admission.pass_on()

    def _own(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task of the log's own, which its caller's cancellation does not reach; `close` waits for it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # Where the caller was cancelled nobody else asks for the outcome.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    def _publish(self, committed: Sequence[Committed]) -> None:
        self._position = committed[-1].position
        for subscriber in self._subscribers:
            try:
                subscriber(committed)
            except Exception:
                # What is committed is committed: neither its caller nor the next subscriber is to suffer.
                log.exception("log_subscriber_failed", position=self._position)
