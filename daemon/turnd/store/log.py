"""The event log: the one way in, and everything that is committed (LOG-04, LOG-09, LOG-11, LOG-14)."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from turnd.ports import AnsweredRequest, Clock, StoredAnswer, UnknownSession
from turnd.rules.event import Draft
from turnd.rules.state import SessionState, Violation
from turnd.rules.status import SessionView
from turnd.store.admission import Admission
from turnd.store.batch import Outcome
from turnd.store.catalogue import Catalogue
from turnd.store.damage import UnreadableLog, decoded
from turnd.store.filesystem import require_local
from turnd.store.gc import EndedTree, SessionChanged, removal
from turnd.store.health import LARGE_WAL_BYTES, Health
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
        large_wal_bytes: int = LARGE_WAL_BYTES,
    ) -> None:
        self._hold = hold
        self._clock = clock
        self._accept_network_file_system = accept_network_file_system
        self._admission = Admission() if admission is None else admission
        self._health = Health(hold.database, clock, large_wal_bytes)
        self._parts: _Parts | None = None
        self._position = 0
        self._subscribers: list[Subscriber] = []
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._removing: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self) -> Sequence[Repaired]:
        """Opens the file and repairs what a killed daemon left open (LOG-08); gives what was repaired.

        An older file is migrated, a damaged one recovered (LOG-15, LOG-16); after an unclean stop it is checked
        behind. Raises NetworkFileSystem, SchemaTooNew, NotALog, MigrationFailed, OSError, sqlite3.Error; LogFailed
        where a repair cannot be stored. `close` is right after any of them.
        """
        if not self._accept_network_file_system:
            require_local(self._hold.database.parent)
        await self._health.open()
        loop = asyncio.get_running_loop()

        def report(outcomes: Sequence[Outcome]) -> None:
            loop.call_soon_threadsafe(intake.settle, outcomes)
            loop.call_soon_threadsafe(self._health.committed, outcomes)

        writer = Writer(self._hold.database, report, self._health.wal)
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
        repaired = await repair(self, self._parts.catalogue, self.unload)
        self._health.check_behind()
        return repaired

    async def close(self) -> None:
        """Commits what was accepted, then lets the file go. Appends after it raise LogFailed."""
        parts = self._parts
        if parts is None:
            return
        await self._health.close()
        while self._tasks:
            await asyncio.wait(self._tasks)
        parts.intake.close("the log is closed; nothing of this append was stored")
        await parts.reader.close()
        await asyncio.wrap_future(parts.writer.stop())
        parts.writer.join()

    async def load(self, session: str) -> None:
        """Folds the stored log of a session, unless it is in memory. Raises UnknownSession, BrokenLog.

        An event that is damaged makes this session unusable, and no other one (LOG-16).
        """
        if self._open.intake.get(session) is not None:
            return
        if session in self._removing:
            raise UnknownSession(f"session {session} is being removed")
        loading = self._loading.get(session)
        if loading is None:
            loading = self._loading[session] = self._own(self._load(session))
            loading.add_done_callback(lambda _: self._loading.pop(session))
        await asyncio.shield(loading)

    def unload(self, session: str) -> None:
        """Lets a session go from memory, unless something of it is on its way to the disk."""
        self._open.intake.remove(session)

    async def remove(self, tree: EndedTree) -> None:
        """Removes sessions that have ended from memory and file, in one transaction.

        Raises SessionChanged where one was used since it was looked at, and sqlite3.Error; then all are there.
        """
        members = [member.id for member in tree.members]
        self._removing.update(members)
        try:
            loading = {self._loading[session] for session in members if session in self._loading}
            if loading:
                await asyncio.wait(loading)
            for member in tree.members:
                live = self._open.intake.get(member.id)
                if live is not None and (live.in_flight or live.accepted.state.seq != member.last_seq):
                    raise SessionChanged(member.id)
            for session in members:
                self.unload(session)
            await asyncio.shield(asyncio.wrap_future(self._open.writer.run(removal(tree))))
        finally:
            self._removing.difference_update(members)

    def state(self, session: str) -> SessionState:
        """As of the last accepted event. Raises SessionNotLoaded."""
        return self._loaded(session).accepted.state

    def view(self, session: str) -> SessionView:
        """As of the last accepted event. Raises SessionNotLoaded."""
        return self._loaded(session).accepted.view

    async def append(self, *drafts: Draft, answered: AnsweredRequest | None = None) -> list[event_pb2.Event]:
        """Checks, numbers and commits the drafts in one transaction, then publishes them.

        The client's command that they carry out is stored with its answer in the same transaction, also where
        there are no drafts (RPC-04).

        The check happens at once, before anything else runs; only where more is in flight than `Admission`
        allows does the append wait its turn first. Cancelling the caller cancels neither. Raises Violation,
        SessionNotLoaded, EventTooLarge, LogFailed; then none of the drafts is stored.
        """
        if self._admission.open:
            done = self._open.intake.accept(drafts, answered)
        else:
            done = await asyncio.shield(self._own(self._accept_later(drafts, answered)))
        return await asyncio.shield(done)

    async def read(self, session: str, after_seq: int = 0) -> AsyncIterator[Sequence[event_pb2.Event]]:
        """Pages of committed events after the cursor, up to what is committed when the first is asked for.

        Raises UnknownSession, UnreadableLog.
        """
        through = await self.head(session)
        while after_seq < through:
            try:
                rows = await self.blobs(session, after_seq, through)
                events = decoded(session, after_seq, rows)
            except UnreadableLog as damage:
                # One that was removed meanwhile is unknown, not damaged.
                await self._open.catalogue.row(session)
                self._health.damaged(str(damage))
                raise
            yield events
            after_seq = rows[-1].seq

    async def answer_to(self, request_id: str) -> StoredAnswer | None:
        """What a client's command was answered, as far back as answers are kept (RPC-04)."""
        return await self._open.reader.answer(request_id)

    @property
    def catalogue(self) -> Catalogue:
        """Which sessions there are, as committed."""
        return self._open.catalogue

    async def resolve(self, prefix: str) -> str:
        """The id of the one session that has it or begins so. Raises UnknownSession, AmbiguousSession."""
        return await self._open.catalogue.resolve(prefix)

    def problems(self) -> Sequence[str]:
        """What is wrong with the file and does not stop the daemon, in words for people."""
        return self._health.problems

    async def wait_checked(self) -> None:
        """Returns when the check behind is done, or where there is none."""
        await self._health.wait_checked()

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
        """One page of a session's committed events, encoded. Raises UnknownSession, UnreadableLog."""
        live = self._open.intake.get(session)
        key = live.key if live is not None else (await self._open.catalogue.row(session)).key
        try:
            return await self._open.reader.page(key, after_seq, through_seq)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            raise UnreadableLog(session, after_seq + 1, str(error)) from error

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
                    if event.seq == folded.state.seq + 1:
                        raise BrokenLog(session, event.seq, violation.text) from violation
                    missing = UnreadableLog(session, folded.state.seq + 1, "it is missing")
                    self._health.damaged(str(missing))
                    raise missing from violation
        self._open.intake.add(session, row.key, folded)

    async def _accept_later(
        self, drafts: Sequence[Draft], answered: AnsweredRequest | None
    ) -> asyncio.Future[list[event_pb2.Event]]:
        await self._admission.wait()
        try:
            return self._open.intake.accept(drafts, answered)
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
