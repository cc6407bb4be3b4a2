"""The event log: the one way in, and everything that is committed (LOG-04, LOG-09, LOG-11, LOG-14)."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial

import structlog
from google.protobuf.message import DecodeError

from turnd.ports import (
    AnsweredRequest,
    Clock,
    LogFailed,
    RememberedRule,
    StoredAnswer,
    Subtree,
    UnknownSession,
)
from turnd.rules.attention import with_attention
from turnd.rules.event import Draft
from turnd.rules.state import SessionState
from turnd.rules.status import SessionView
from turnd.store.admission import Admission
from turnd.store.answers import amend_request
from turnd.store.batch import Outcome
from turnd.store.beginning import begin
from turnd.store.catalogue import Catalogue
from turnd.store.filesystem import require_local
from turnd.store.gc import EndedTree, removal
from turnd.store.health import LARGE_WAL_BYTES, Health
from turnd.store.hold import Hold
from turnd.store.intake import Committed, Intake, SessionNotLoaded, answer_of
from turnd.store.live import Live
from turnd.store.pace import Pace
from turnd.store.reader import Reader, Row
from turnd.store.reading import Reading, UnreadableLog
from turnd.store.recover import Repaired, repair, tell_losses
from turnd.store.remembered import removal as removal_of_rule
from turnd.store.residents import Residents
from turnd.store.writer import Writer
from turnd.v1 import event_pb2

log = structlog.get_logger(__name__)

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
    reading: Reading
    residents: Residents


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

    async def start(self) -> Sequence[Repaired]:
        """Opens the file and repairs what a killed daemon left open (LOG-08); gives what was repaired.

        An older file is migrated, a damaged one recovered (LOG-15, LOG-16); after an unclean stop it is checked
        behind. Raises NetworkFileSystem, SchemaTooNew, NotALog, MigrationFailed, OSError, sqlite3.Error; LogFailed
        where a repair cannot be stored. `close` is right after any of them.
        """
        if not self._accept_network_file_system:
            require_local(self._hold.database.parent)
        losses = await self._health.open(used_before=self._hold.used_before)
        loop = asyncio.get_running_loop()

        def report(outcomes: Sequence[Outcome]) -> None:
            loop.call_soon_threadsafe(intake.settle, outcomes)
            loop.call_soon_threadsafe(self._health.committed, outcomes)

        writer = Writer(self._hold.database, report, self._health.wal, self._health.taking)
        self._position = await asyncio.wrap_future(writer.start())
        try:
            reader = await Reader.open(self._hold.database)
        except BaseException:
            await asyncio.wrap_future(writer.stop())
            raise
        next_key = await reader.last_key() + 1
        intake = Intake(self._clock, self._admission, writer.submit, self._publish, next_key)
        writer.ended.add_done_callback(lambda _: loop.call_soon_threadsafe(intake.abandon))
        catalogue = Catalogue(reader)
        reading = Reading(reader, catalogue, intake, self._health.damaged)
        residents = Residents(intake, catalogue, reading, self._health.damaged)
        self._parts = _Parts(writer, reader, catalogue, intake, reading, residents)
        repaired = await repair(self, catalogue, self.unload)
        await tell_losses(self, losses, self.unload)
        self._health.check_behind()
        return repaired

    async def close(self) -> None:
        """Commits what was accepted, then lets the file go. Appends after it raise LogFailed."""
        parts = self._parts
        if parts is None:
            return
        await self._health.close()
        await parts.residents.close()
        closed = partial(parts.intake.close, "the log is closed; nothing of this append was stored")
        await asyncio.shield(self._admission.in_turn(closed))
        await parts.reader.close()
        await asyncio.wrap_future(parts.writer.stop())
        parts.writer.join()
        await parts.intake.settled()

    async def load(self, session: str) -> None:
        """Folds the stored log of a session, unless it is in memory. Raises UnknownSession, BrokenLog.

        An event that is damaged makes this session unusable, and no other one (LOG-16).
        """
        await self._open.residents.load(session)

    def unload(self, session: str) -> None:
        """Lets a session go from memory, unless something of it is on its way to the disk."""
        self._open.intake.remove(session)

    async def remove(self, tree: EndedTree, answered: AnsweredRequest | None = None) -> None:
        """Removes sessions that have ended from memory and file, in one transaction.

        What the client's command has answered so far is stored in the same transaction (RPC-04). Raises
        SessionChanged where one was used since it was looked at, sqlite3.Error, OSError; then all are there.
        """
        async with self._open.residents.leaving(tree):
            request = None if answered is None else answer_of(answered, (), self._clock.now_us())
            await self._do(removal(tree, request))
        log.info("log_sessions_removed", session=tree.id, sessions=len(tree.members))

    async def amend(self, answered: AnsweredRequest) -> None:
        """Stores what a command has answered so far in the place of what it had answered. Raises LogFailed."""
        request = answer_of(answered, (), self._clock.now_us())
        try:
            await self._do(partial(amend_request, request=request))
        except (sqlite3.Error, OSError) as error:
            raise LogFailed(f"the log could not be written: {error}; the answer was not stored") from error

    def state(self, session: str) -> SessionState:
        """As of the last accepted event. Raises SessionNotLoaded."""
        return self._loaded(session).accepted.state

    def view(self, session: str) -> SessionView:
        """As of the last accepted event. Raises SessionNotLoaded."""
        return self._loaded(session).accepted.view

    async def committed(self, session: str) -> tuple[SessionState, SessionView]:
        """State and view as of the last committed event, and not before what a read of the file can have seen.

        Raises UnknownSession, SessionNotLoaded.
        """
        row = await self._open.catalogue.row(session)
        live = self._loaded(session)
        await self._open.intake.caught_up(live, row.last_seq)
        if live.durable is None:
            raise UnknownSession(f"no session has the id {session!r}")
        return live.durable.state, live.durable.view

    def in_flight(self, session: str) -> bool:
        """Something of the session is accepted and not settled. Raises SessionNotLoaded."""
        return self._loaded(session).in_flight > 0

    def failures(self, session: str) -> int:
        """How often the session has gone back to what is on disk. Raises SessionNotLoaded."""
        return self._loaded(session).generation

    async def settle(self, session: str) -> None:
        """Returns when all that is in flight of the session now is stored or has failed. Raises SessionNotLoaded."""
        await self._open.intake.settle_session(self._loaded(session))

    async def append(self, *drafts: Draft, answered: AnsweredRequest | None = None) -> list[event_pb2.Event]:
        """Checks, numbers and commits the drafts in one transaction, then publishes them.

        The client's command that they carry out is stored with its answer in the same transaction, also where
        there are no drafts (RPC-04).

        Appends are accepted in the order in which they are called. The check happens at once, before anything else
        runs; only where more is in flight than `Admission` allows does the append wait its turn, and is checked then,
        against what was accepted before it. Raises Violation, SessionNotLoaded, EventTooLarge, LogFailed; then none
        of the drafts is stored.

        Cancelling the caller cancels nothing: an append that still waits keeps its place, and is checked and stored
        when its turn comes, as one that is on its way to the disk is.
        """
        intake = self._open.intake

        def accept() -> asyncio.Future[list[event_pb2.Event]]:
            return intake.accept(with_attention(drafts, self._view_if_loaded), answered)

        done = await asyncio.shield(self._admission.in_turn(accept))
        return await asyncio.shield(done)

    async def begin(
        self,
        session: str,
        history: deque[event_pb2.Event],
        created: event_pb2.SessionCreated,
        answered: Callable[[SessionView], AnsweredRequest | None],
    ) -> SessionView:
        """Makes a new session that goes on from a history, which is used up; what it is in the end.

        It is committed and published as by one append, and made ready for that beside the loop: other sessions go on
        meanwhile. `answered` gives the client's command that is carried out. Raises EventTooLarge, LogFailed; then
        there is no such session. A caller that is cancelled before the session is ready stops it.
        """
        intake = self._open.intake
        pace = Pace()
        work = partial(begin, session, intake.new_key(), history, created, self._clock, pace)
        try:
            beginning = await asyncio.to_thread(work)
        except asyncio.CancelledError:
            pace.stop()
            raise
        request = answered(beginning.folded.view)
        done = await asyncio.shield(self._admission.in_turn(lambda: intake.admit(beginning, request)))
        await asyncio.shield(done)
        return beginning.folded.view

    async def read(self, session: str, after_seq: int = 0) -> AsyncIterator[Sequence[event_pb2.Event]]:
        """Pages of committed events after the cursor, up to what is committed when the first is asked for.

        Raises UnknownSession, UnreadableLog.
        """
        async for events in self._open.reading.pages(session, after_seq):
            yield events

    async def readable(self, session: str) -> AsyncIterator[Sequence[event_pb2.Event] | UnreadableLog]:
        """Pages of committed events, and in the place of damaged ones the error that names them.

        Raises UnknownSession.
        """
        async for part in self._open.reading.readable(session):
            yield part

    async def answer_to(self, request_id: str) -> StoredAnswer | None:
        """What a client's command was answered, as far back as answers are kept (RPC-04)."""
        return await self._open.reader.answer(request_id)

    async def remembered_rules(self) -> Sequence[RememberedRule]:
        """What decisions for always stored, oldest first, as committed (GATE-09). Raises LogFailed."""
        try:
            return await self._open.reader.remembered_rules()
        except (sqlite3.Error, DecodeError) as error:
            raise LogFailed(f"the rules that decisions have stored could not be read: {error}") from error

    async def forget_rule(self, name: str, answered: AnsweredRequest | None = None) -> None:
        """Removes such a rule, with the command that asks for it, in one transaction.

        Raises KeyError where there is none of this name, and LogFailed.
        """
        request = None if answered is None else answer_of(answered, (), self._clock.now_us())
        try:
            await self._do(removal_of_rule(name, request))
        except (sqlite3.Error, OSError) as error:
            raise LogFailed(f"the log could not be written: {error}; the rule is still there") from error

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

    def refusal(self) -> str:
        """Why the log takes nothing just now, in words for people; empty where it does (LOG-14)."""
        return self._health.taking.problem

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
        return await self._open.reading.head(session)

    async def blobs(self, session: str, after_seq: int, through_seq: int) -> Sequence[Row]:
        """One page of a session's committed events, encoded. Raises UnknownSession, UnreadableLog."""
        return await self._open.reading.blobs(session, after_seq, through_seq)

    async def blobs_of_all(self, after_position: int, through_position: int) -> Sequence[Row]:
        """One page of all sessions' committed events, encoded. Raises UnreadableLog."""
        return await self._open.reading.blobs_of_all(after_position, through_position)

    @property
    def _open(self) -> _Parts:
        if self._parts is None:
            raise LogNotOpen("the log must be started first")
        return self._parts

    async def subtree(self, session: str) -> Subtree:
        """What a session and all its descendants have spent, as committed. Raises UnknownSession."""
        found = await self._open.catalogue.totals([session])
        if session not in found:
            raise UnknownSession(f"no session has the id {session!r}")
        return found[session]

    def _view_if_loaded(self, session: str) -> SessionView | None:
        live = self._open.intake.get(session)
        return None if live is None else live.accepted.view

    def _loaded(self, session: str) -> Live:
        live = self._open.intake.get(session)
        if live is None:
            raise SessionNotLoaded(f"session {session} must be loaded first")
        return live

    async def _do(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """Behind what was accepted, in a transaction of its own; done also for a caller that was cancelled."""
        await asyncio.shield(asyncio.wrap_future(self._open.writer.run(work)))

    def _publish(self, committed: Sequence[Committed]) -> None:
        self._position = committed[-1].position
        for subscriber in self._subscribers:
            try:
                subscriber(committed)
            except Exception:
                # What is committed is committed: neither its caller nor the next subscriber is to suffer.
                log.exception("log_subscriber_failed", position=self._position)
