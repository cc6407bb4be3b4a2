"""A session that shares the beginning of another one's log, and goes its own way from there."""

from __future__ import annotations

from collections.abc import Sequence

from turnd.ports import Ids, Log
from turnd.rules.status import SessionView, advance
from turnd.sessions.importing import as_made, go_on
from turnd.sessions.refusal import Code, CommandRefused
from turnd.sessions.requests import Answering
from turnd.sessions.surroundings import Surroundings
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2, sessions_pb2


class Forking:
    """Makes sessions out of stored ones."""

    def __init__(self, log: Log, ids: Ids, surroundings: Surroundings) -> None:
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
        last = self._log.state(source).seq
        seq = request.seq or last
        if seq > last:
            text = f"seq: expected from 1 to {last}, which is the last event, found {seq}; 0 is the last one"
            raise CommandRefused(Code.OUT_OF_RANGE, text, "seq")
        history, view = await self._as_of(source, seq)

        def answer(events: Sequence[event_pb2.Event]) -> sessions_pb2.ForkResponse:
            return sessions_pb2.ForkResponse(session=as_made(events))

        created = self._created(view, request.client, seq)
        events = await go_on(self._log, self._ids.session(), history, created, answering.by(answer))
        return answer(events)

    async def _as_of(self, source: str, seq: int) -> tuple[list[event_pb2.Event], SessionView]:
        """The events up to one, and what the session was then, or became when that one was history already."""
        history: list[event_pb2.Event] = []
        view = SessionView()
        async for page in self._log.read(source):
            for event in page:
                if event.seq <= seq:
                    history.append(event)
                elif view.id:
                    return history, view
                view = advance(view, event)
        return history, view

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
