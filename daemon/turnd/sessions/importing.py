"""A session that goes on from a log: one in a file, or another session's (LOG-17, LOG-22).

Its log begins with that log's events, whose numbers stay, then its own session/created, then what closes whatever
was left open. All of it is one transaction: after a crash the session is there whole, or not at all.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from turnd.ports import AnsweredRequest, Ids, Log, Models
from turnd.rules.closing import after_history
from turnd.rules.event import Draft, make_event
from turnd.rules.shown import alone
from turnd.rules.state import SessionState, apply
from turnd.rules.status import SessionView, advance, to_session
from turnd.sessions.refusal import invalid
from turnd.sessions.requests import Answering
from turnd.sessions.surroundings import Surroundings
from turnd.v1 import event_pb2, sessions_pb2

MAX_TITLE = 200
"""Characters; what is more is cut off."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """The log of one session out of a file, and the rules that it breaks."""

    events: Sequence[event_pb2.Event]
    faults: Sequence[sessions_pb2.LogFault]
    faults_in_all: int


class Importing:
    """Makes sessions out of files."""

    def __init__(self, log: Log, ids: Ids, models: Models, surroundings: Surroundings) -> None:
        self._log = log
        self._ids = ids
        self._models = models
        self._surroundings = surroundings

    async def run(
        self,
        start: sessions_pb2.ImportStart,
        arrived: Arrived,
        answering: Answering[sessions_pb2.ImportResponse],
    ) -> sessions_pb2.ImportResponse:
        """A new, idle session with the file's history. Raises CommandRefused, LogFailed.

        Directory, profile and environment are the client's, never the file's; the title is the file's.
        """
        created = self._created(start)
        created.title = _title(arrived.events)

        def answer(events: Sequence[event_pb2.Event]) -> sessions_pb2.ImportResponse:
            return sessions_pb2.ImportResponse(
                session=as_made(events),
                faults=arrived.faults,
                events=len(arrived.events),
                faults_in_all=arrived.faults_in_all,
            )

        events = await go_on(self._log, self._ids.session(), arrived.events, created, answering.by(answer))
        return answer(events)

    def _created(self, start: sessions_pb2.ImportStart) -> event_pb2.SessionCreated:
        around = self._surroundings
        cwd = around.directory(start.cwd)
        sandbox, unenforced = around.sandbox()
        return event_pb2.SessionCreated(
            cwd=cwd,
            workspace=cwd,
            profile=around.profile(self._models, start.profile, start.model),
            environment=around.environment(start.environment),
            client=start.client,
            sandbox=sandbox,
            unenforced=unenforced,
        )


async def parts_of(
    requests: AsyncIterator[sessions_pb2.ImportRequest],
) -> tuple[sessions_pb2.ImportStart, AsyncIterator[bytes]]:
    """What the session is to work under, and the file in pieces. Raises CommandRefused, also from the pieces.

    A transport can end a stream that its client left as if that had been all of it, hence the last part.
    """
    first = await anext(requests, sessions_pb2.ImportRequest())
    if not first.HasField("start"):
        raise invalid("start", "the first part of an import says where the session is to work")
    return first.start, _lines(requests)


async def go_on(
    log: Log,
    session: str,
    history: Sequence[event_pb2.Event],
    created: event_pb2.SessionCreated,
    answered: AnsweredRequest | None,
) -> Sequence[event_pb2.Event]:
    """Makes a session that goes on from a history, in one transaction; gives its log. Raises LogFailed."""
    drafts = await asyncio.to_thread(_drafts, session, history, created)
    return await log.append(*drafts, answered=answered)


def as_made(events: Sequence[event_pb2.Event]) -> sessions_pb2.Session:
    """The session as these events, the first ones of its log, have made it."""
    return alone(to_session(functools.reduce(advance, events, SessionView())))


def _drafts(
    session: str, history: Sequence[event_pb2.Event], created: event_pb2.SessionCreated
) -> list[Draft]:
    drafts = []
    state = SessionState()
    for seq, event in enumerate(history, 1):
        ours = make_event(Draft(session, event), seq=seq, time_us=0, turn=None, step=None)
        state = apply(state, ours)
        drafts.append(Draft(session, ours))
    return [*drafts, Draft(session, created), *after_history(state, session)]


async def _lines(requests: AsyncIterator[sessions_pb2.ImportRequest]) -> AsyncIterator[bytes]:
    received = 0
    async for request in requests:
        match request.WhichOneof("part"):
            case "lines":
                received += len(request.lines)
                yield request.lines
            case "end" if request.end.bytes == received:
                return
            case "end":
                raise invalid(
                    "end.bytes",
                    f"expected {request.end.bytes} bytes of lines, found {received}: nothing was imported",
                )
            case _:
                raise invalid("part", "expected the next lines of the file, or its end")
    raise invalid("end", "the stream ended before the file did: nothing was imported; send all of it again")


def _title(history: Sequence[event_pb2.Event]) -> str:
    title = ""
    for event in history:
        if event.HasField("session_created"):
            title = event.session_created.title
        elif event.session_changed.HasField("title"):
            title = event.session_changed.title
    return title[:MAX_TITLE]
