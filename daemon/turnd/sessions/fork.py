"""A session that shares the beginning of another one's log, and goes its own way from there."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from turnd.ports import MAX_HISTORY_BYTES, MAX_HISTORY_EVENTS, Ids
from turnd.rules.status import SessionView, advance
from turnd.sessions.importing import HistoryLog, as_made
from turnd.sessions.refusal import Code, CommandRefused
from turnd.sessions.requests import Answering
from turnd.sessions.surroundings import Surroundings
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2, sessions_pb2


class Forking:
    """Makes sessions out of stored ones."""

    def __init__(self, log: HistoryLog, ids: Ids, surroundings: Surroundings) -> None:
        self._log = log
        self._ids = ids
        self._surroundings = surroundings

    async def run(
        self, source: str, request: sessions_pb2.ForkRequest, answering: Answering[sessions_pb2.ForkResponse]
    ) -> sessions_pb2.ForkResponse:
        """A new, idle root session with the events of a loaded one up to a seq. Raises CommandRefused, LogFailed.

        It works in the same directory, under profile, bounds, environment and modes as they were then. What was
        granted, spent, queued and asked is the other session's: the copied events are history (LOG-22).
        """
        state, _ = await self._log.committed(source)
        last = state.seq
        seq = request.seq or last
        if seq > last:
            text = (
                f"seq: expected from 1 to {last}, the last event, found {seq}; leave it out for the last one"
            )
            raise CommandRefused(Code.OUT_OF_RANGE, text, "seq")
        past = await self._as_of(source, seq)

        def answer(view: SessionView) -> sessions_pb2.ForkResponse:
            return sessions_pb2.ForkResponse(session=as_made(view))

        created = self._created(past.view, request.client, seq)
        made = await self._log.begin(
            self._ids.session(), past.history, created, lambda view: answering.by(lambda _: answer(view))
        )
        return answer(made)

    async def _as_of(self, source: str, seq: int) -> _Past:
        past = _Past(seq)
        async for page in self._log.read(source):
            # Beside the loop: a page can be a thousand events.
            if await asyncio.to_thread(past.take, page):
                break
        return past

    def _created(self, view: SessionView, client: str, seq: int) -> event_pb2.SessionCreated:
        cwd = self._surroundings.directory(view.cwd)
        sandbox, unenforced = self._surroundings.sandbox()
        profile = common.ProfileSnapshot()
        profile.CopyFrom(view.profile)
        profile.bounds.CopyFrom(view.bounds)
        return event_pb2.SessionCreated(
            cwd=cwd,
            workspace=view.workspace,
            title=view.title,
            profile=profile,
            environment=dict(view.environment),
            unattended=view.unattended,
            plan_mode=view.plan_mode,
            client=client,
            sandbox=sandbox,
            unenforced=unenforced,
            forked_from=event_pb2.Origin(session=view.id, seq=seq),
        )


class _Past:
    """The events up to one, and what the session was then, or became when that one was history already."""

    def __init__(self, seq: int) -> None:
        self._seq = seq
        self._bytes = 0
        self.history: deque[event_pb2.Event] = deque()
        self.view = SessionView()

    def take(self, page: Sequence[event_pb2.Event]) -> bool:
        """Takes the next events; True where no more are wanted. Raises CommandRefused."""
        for event in page:
            if event.seq <= self._seq:
                self._bytes += event.ByteSize()
                if len(self.history) == MAX_HISTORY_EVENTS or self._bytes > MAX_HISTORY_BYTES:
                    raise CommandRefused(
                        Code.RESOURCE_EXHAUSTED,
                        f"seq: expected a history of at most {MAX_HISTORY_EVENTS} events and {MAX_HISTORY_BYTES} bytes "
                        f"of them, found more; the last event that can be forked at is {event.seq - 1}",
                        "seq",
                    )
                self.history.append(event)
            elif self.view.id:
                return True
            self.view = advance(self.view, event)
        return False
