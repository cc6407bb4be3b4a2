"""A session that goes on from a log: one in a file, or another session's (LOG-17, LOG-22).

Its log begins with that log's events, whose numbers stay, then its own session/created, then what closes whatever
was left open. All of it is one transaction: after a crash the session is there whole, or not at all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from turnd.ports import AnsweredRequest, Ids, Models
from turnd.rules.shown import alone
from turnd.rules.status import SessionView, to_session
from turnd.sessions.refusal import Code, CommandRefused, invalid
from turnd.sessions.requests import Answering
from turnd.sessions.standing import SettledLog
from turnd.sessions.surroundings import Surroundings
from turnd.v1 import event_pb2, sessions_pb2

MAX_TITLE = 200
"""Characters; what is more is cut off."""
STALLED_S: Final = 60.0
"""A client that sends nothing for so long in the middle of its file does not import it."""


class HistoryLog(SettledLog, Protocol):
    """A log that makes sessions out of histories."""

    async def begin(
        self,
        session: str,
        history: deque[event_pb2.Event],
        created: event_pb2.SessionCreated,
        answered: Callable[[SessionView], AnsweredRequest | None],
    ) -> SessionView:
        """A new session that goes on from a history, which is used up, in one transaction; what it is then.

        `answered` gives the client's command that is carried out. Other sessions go on meanwhile. Raises LogFailed,
        EventTooLarge.
        """


@dataclass(frozen=True, slots=True)
class Arrived:
    """The log of one session out of a file, and the rules that it breaks. Making a session of it uses it up."""

    events: deque[event_pb2.Event]
    digest: bytes
    """Of the file's bytes."""
    faults: Sequence[sessions_pb2.LogFault]
    faults_in_all: int
    causes: int
    """Of all faults those that do not follow from another one."""


class Importing:
    """Makes sessions out of files."""

    def __init__(self, log: HistoryLog, ids: Ids, models: Models, surroundings: Surroundings) -> None:
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
        created = await self._created(start)
        created.title = await asyncio.to_thread(_title, arrived.events)
        count = len(arrived.events)

        def answer(view: SessionView) -> sessions_pb2.ImportResponse:
            return sessions_pb2.ImportResponse(
                session=as_made(view),
                faults=arrived.faults,
                events=count,
                faults_in_all=arrived.faults_in_all,
                causes=arrived.causes,
            )

        made = await self._log.begin(
            self._ids.session(), arrived.events, created, lambda view: answering.by(lambda _: answer(view))
        )
        return answer(made)

    async def _created(self, start: sessions_pb2.ImportStart) -> event_pb2.SessionCreated:
        around = self._surroundings
        cwd = around.directory(start.cwd)
        sandbox, unenforced = around.sandbox()
        return event_pb2.SessionCreated(
            cwd=cwd,
            workspace=cwd,
            profile=await around.profile(self._models, cwd, start.profile, start.model),
            environment=around.environment(start.environment),
            client=start.client,
            sandbox=sandbox,
            unenforced=unenforced,
        )


async def parts_of(
    requests: AsyncIterator[sessions_pb2.ImportRequest], stalled_s: float = STALLED_S
) -> tuple[sessions_pb2.ImportStart, AsyncIterator[bytes]]:
    """What the session is to work under, and the file in pieces, the first of which is there. Raises CommandRefused,
    also from the pieces.

    A transport can end a stream that its client left as if that had been all of it, hence the last part. For the
    first piece it is waited as long as the call may take: whoever makes the file may have to be asked something.
    """
    first = await anext(requests, sessions_pb2.ImportRequest())
    if not first.HasField("start"):
        raise invalid("start", "the first part of an import says where the session is to work")
    pieces = _lines(requests, stalled_s)
    piece = await anext(pieces, b"")
    return first.start, _after(piece, pieces)


def as_made(view: SessionView) -> sessions_pb2.Session:
    """The session as the first events of its log have made it."""
    return alone(to_session(view))


async def _after(first: bytes, rest: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    yield first
    async for piece in rest:
        yield piece


async def _lines(
    requests: AsyncIterator[sessions_pb2.ImportRequest], stalled_s: float
) -> AsyncGenerator[bytes, None]:
    received = 0
    while (request := await _next(requests, stalled_s if received else None)) is not None:
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


async def _next(
    requests: AsyncIterator[sessions_pb2.ImportRequest], stalled_s: float | None
) -> sessions_pb2.ImportRequest | None:
    try:
        async with asyncio.timeout(stalled_s):
            return await anext(requests, None)
    except TimeoutError:
        text = f"no part of the file came for {stalled_s:g} s: nothing was imported; send all of it again"
        raise CommandRefused(Code.UNAVAILABLE, text) from None


def _title(history: Iterable[event_pb2.Event]) -> str:
    title = ""
    for event in history:
        if event.HasField("session_created"):
            title = event.session_created.title
        elif event.session_changed.HasField("title"):
            title = event.session_changed.title
    return title[:MAX_TITLE]
