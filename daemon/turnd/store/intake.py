"""How an event gets in: checked against the accepted state, handed to the writer, settled (LOG-04, LOG-14).

The mutable state is the loaded sessions and the appends that the writer has, in its order, with the outcomes that are
not dealt with yet. `accept` and `admit` decide and change it at once; `settle` brings it together with what is on disk,
in slices. All run in the loop's thread.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from turnd.ports import AnsweredRequest, Clock, LogFailed
from turnd.rules.event import Draft
from turnd.rules.state import is_commitment
from turnd.store.admission import Admission
from turnd.store.batch import Batch, Change, Entry, Failed, Outcome, Request, Stored
from turnd.store.beginning import Beginning, encoded
from turnd.store.live import Folded, Live
from turnd.v1 import event_pb2

PUBLISHED_AT_ONCE: Final = 500
"""Events; then other tasks get a turn before the next ones are published."""


@dataclass(frozen=True, slots=True)
class Committed:
    """One committed event with its place among all sessions' events; the blob is the event, encoded once."""

    position: int
    event: event_pb2.Event
    blob: bytes


class SessionNotLoaded(LookupError):
    """State, view or append of a session that nobody has loaded."""


@dataclass(frozen=True, slots=True)
class _Part:
    """What an append makes of one session."""

    live: Live
    generation: int
    """Of the session when the append was accepted."""
    folded: Folded


@dataclass(frozen=True, slots=True)
class _Pending:
    """An append that the writer has."""

    batch: Batch
    done: asyncio.Future[list[event_pb2.Event]]
    parts: Sequence[_Part]


class Intake:
    """Accepts appends and settles them.

    `submit` takes each batch, `publish` what is committed; `next_key` is the first key that no session has.
    """

    def __init__(
        self,
        clock: Clock,
        admission: Admission,
        submit: Callable[[Batch], None],
        publish: Callable[[Sequence[Committed]], None],
        next_key: int,
    ) -> None:
        self._clock = clock
        self._admission = admission
        self._submit = submit
        self._publish = publish
        self._keys = itertools.count(next_key)
        self._live: dict[str, Live] = {}
        self._pending: deque[_Pending] = deque()
        self._outcomes: deque[Outcome] = deque()
        """Of the oldest appends, in the same order."""
        self._published = 0
        """Events of the oldest append, where its outcome is being dealt with."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = ""

    def get(self, session: str) -> Live | None:
        """A loaded session."""
        return self._live.get(session)

    def add(self, session: str, key: int, folded: Folded) -> None:
        """Takes a session in as it is on disk."""
        self._live[session] = Live(key, folded, folded)

    def remove(self, session: str) -> None:
        """Lets a session go, unless something of it is on its way to the disk."""
        live = self._live.get(session)
        if live is not None and not live.in_flight:
            del self._live[session]

    def accept(
        self, drafts: Sequence[Draft], answered: AnsweredRequest | None = None
    ) -> asyncio.Future[list[event_pb2.Event]]:
        """Checks all drafts, and only then changes anything; the future is done when they are committed.

        Raises Violation, SessionNotLoaded, EventTooLarge, LogFailed.
        """
        if self._closed:
            raise LogFailed(self._closed)
        now_us = self._clock.now_us()
        after: dict[str, Folded] = {}
        keys: dict[str, int] = {}
        entries = []
        commitment = False
        for draft in drafts:
            session = draft.session
            if session not in after:
                after[session], keys[session] = self._before(draft)
            before = after[session]
            event = before.event(draft, now_us)
            after[session] = before.after(event)
            commitment = commitment or is_commitment(before.state, event)
            entries.append(Entry(keys[session], event, encoded(event)))
        done: asyncio.Future[list[event_pb2.Event]] = asyncio.get_running_loop().create_future()
        request = None if answered is None else answer_of(answered, entries, now_us)
        if entries or request is not None:
            size = sum(len(entry.blob) for entry in entries)
            self._send(entries, after, keys, commitment, size, request, done)
        else:
            done.set_result([])
        return done

    def new_key(self) -> int:
        """For a session that is to be admitted; a key that is not used is gone."""
        return next(self._keys)

    def admit(
        self, beginning: Beginning, answered: AnsweredRequest | None
    ) -> asyncio.Future[list[event_pb2.Event]]:
        """Takes a new session that is whole already; the future is done when it is committed. Raises LogFailed.

        It is a commitment: where it came from may be gone the moment that it is here.
        """
        if self._closed:
            raise LogFailed(self._closed)
        done: asyncio.Future[list[event_pb2.Event]] = asyncio.get_running_loop().create_future()
        request = None if answered is None else answer_of(answered, (), beginning.now_us)
        after, keys = {beginning.session: beginning.folded}, {beginning.session: beginning.key}
        self._send(beginning.entries, after, keys, True, beginning.size, request, done)
        return done

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        """Takes the writer's answers to the oldest appends: publishes what is stored, then tells the callers.

        Where that is more than `PUBLISHED_AT_ONCE` events the rest follows in later turns of the loop, in order.
        """
        going = bool(self._outcomes)
        self._outcomes.extend(outcomes)
        if self._outcomes and not going:
            self._idle.clear()
            self._settle_some()

    async def settled(self) -> None:
        """Returns when everything that the writer has answered is settled, which takes a few turns of the loop."""
        await self._idle.wait()

    async def settle_session(self, live: Live) -> None:
        """Returns when all that is in flight of a session now is settled. Without a time-out, as the disk has none."""
        waiting = [pending.done for pending in self._of(live)]
        if waiting:
            await asyncio.wait(waiting)

    async def caught_up(self, live: Live, seq: int) -> None:
        """Returns when all that the file has of a session, which is up to this seq, is settled."""
        while (live.durable is None or live.durable.state.seq < seq) and (pending := self._of(live)):
            await asyncio.wait({pending[0].done})

    def _of(self, live: Live) -> list[_Pending]:
        if not live.in_flight:
            return []
        return [pending for pending in self._pending if any(part.live is live for part in pending.parts)]

    def _settle_some(self) -> None:
        settled: list[tuple[_Pending, Outcome]] = []
        committed: list[Committed] = []
        while self._outcomes and len(committed) < PUBLISHED_AT_ONCE:
            pending, outcome = self._pending[0], self._outcomes[0]
            match outcome:
                case Stored(first_position):
                    entries = pending.batch.entries
                    until = min(len(entries), self._published + PUBLISHED_AT_ONCE - len(committed))
                    for index in range(self._published, until):
                        entry = entries[index]
                        committed.append(Committed(first_position + index, entry.event, entry.blob))
                    self._published = until
                    if until < len(entries):
                        break
                    self._stored(pending)
                case Failed():
                    self._roll_back(pending)
            self._published = 0
            self._pending.popleft()
            self._outcomes.popleft()
            self._admission.leave(pending.batch.size)
            settled.append((pending, outcome))
        if committed:
            self._publish(committed)
        _tell(settled)
        if self._outcomes:
            asyncio.get_running_loop().call_soon(self._settle_some)
        else:
            self._idle.set()

    def close(self, why: str) -> None:
        """Takes no more; what the writer has is still settled."""
        self._closed = why

    def abandon(self) -> None:
        """The writer is gone: what it had is not stored, as far as anybody knows."""
        self.close("the log is closed; nothing of this append was stored")
        unanswered = len(self._pending) - len(self._outcomes)
        self.settle([Failed(RuntimeError("the writer has stopped"))] * unanswered)

    def _before(self, draft: Draft) -> tuple[Folded, int]:
        live = self._live.get(draft.session)
        if live is not None:
            return live.accepted, live.key
        # What a session goes on from comes before its session/created.
        if not isinstance(draft.payload, event_pb2.SessionCreated | event_pb2.Event):
            raise SessionNotLoaded(f"session {draft.session} must be loaded before it is appended to")
        return Folded(), self.new_key()

    def _send(
        self,
        entries: Sequence[Entry],
        after: Mapping[str, Folded],
        keys: Mapping[str, int],
        commitment: bool,
        size: int,
        request: Request | None,
        done: asyncio.Future[list[event_pb2.Event]],
    ) -> None:
        last = {entry.key: entry.event for entry in entries}
        changes = []
        parts = []
        for session, folded in after.items():
            key = keys[session]
            live = self._live.get(session)
            if live is None:
                live = self._live[session] = Live(key, Folded(), None)
            expected_seq = live.accepted.state.seq
            updated_us = last[key].time.ToMicroseconds()
            changes.append(Change(key, expected_seq, folded.view, folded.unsettled, updated_us))
            live.accepted = folded
            live.in_flight += 1
            parts.append(_Part(live, live.generation, folded))
        whole = size + (0 if request is None else len(request.answer))
        batch = Batch(entries, changes, request, commitment, whole)
        self._pending.append(_Pending(batch, done, parts))
        self._admission.enter(batch.size)
        self._submit(batch)

    def _stored(self, pending: _Pending) -> None:
        for part in pending.parts:
            part.live.durable = part.folded
            part.live.in_flight -= 1

    def _roll_back(self, pending: _Pending) -> None:
        """Every session of the append goes back to what is on disk, once for all that was built on it.

        What is in flight behind it fails in the writer, by its seq.
        """
        for part in pending.parts:
            live = part.live
            live.in_flight -= 1
            if live.generation != part.generation:
                continue
            live.generation += 1
            if live.durable is None:
                del self._live[part.folded.view.id]
            else:
                live.accepted = live.durable


def _tell(settled: Sequence[tuple[_Pending, Outcome]]) -> None:
    for pending, outcome in settled:
        if pending.done.done():
            continue
        match outcome:
            case Stored():
                pending.done.set_result([entry.event for entry in pending.batch.entries])
            case Failed():
                pending.done.set_exception(LogFailed(outcome.text))
                # A caller that was cancelled does not come for it.
                pending.done.exception()


def answer_of(answered: AnsweredRequest, entries: Sequence[Entry], now_us: int) -> Request:
    """The command with its answer, as it is stored."""
    answer = answered.answer([entry.event for entry in entries])
    return Request(answered.request_id, answered.method, answered.digest, answer, now_us)
