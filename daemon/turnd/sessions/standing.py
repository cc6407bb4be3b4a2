"""Refusals that stand: none rests on an event that is on its way to the disk and may never get there (LOG-14).

A command is checked against what was accepted, so that two of them cannot both be first. Where it is refused while
something of its session is not settled, that may be why, and may fail: then the refusal would be false. It is said
only when all of that is stored; where some of it failed, or was stored meanwhile, the command looks again.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Protocol, TypeVar

from google.protobuf.message import Message

from turnd.ports import Log
from turnd.rules.state import SessionState, Violation
from turnd.rules.status import SessionView
from turnd.sessions.refusal import CommandRefused
from turnd.sessions.requests import Answering


class SettledLog(Log, Protocol):
    """A log that tells what is stored from what is only accepted."""

    async def committed(self, session: str) -> tuple[SessionState, SessionView]:
        """As of the last committed event, and not before what a read of the file can have seen. Raises UnknownSession.

        The session must be loaded.
        """

    def in_flight(self, session: str) -> bool:
        """Something of the loaded session is accepted and not settled."""

    def failures(self, session: str) -> int:
        """How often the loaded session has gone back to what is on disk."""

    async def settle(self, session: str) -> None:
        """Returns when all that is in flight of the session now is stored or has failed. No time-out: the disk's."""

    def refusal(self) -> str:
        """Why the log takes nothing just now, in words for people; empty where it does."""


class _Settling(Protocol):
    """Whoever has commands."""

    @property
    def _log(self) -> SettledLog: ...

    async def _loaded(self, prefix: str) -> str: ...


class _OfSession(Protocol):
    """A request about a session."""

    session: str


_Self = TypeVar("_Self", bound=_Settling)
_Request = TypeVar("_Request", bound=_OfSession)
_Response = TypeVar("_Response", bound=Message)
_Method = Callable[[_Self, _Request, Answering[_Response]], Awaitable[_Response]]


def standing(
    method: _Method[_Self, _Request, _Response],
) -> Callable[[_Self, _Request, Answering[_Response]], Coroutine[None, None, _Response]]:
    """Makes the method's refusals stand; a method that refuses must have changed nothing."""

    @functools.wraps(method)
    async def stands(self: _Self, request: _Request, answering: Answering[_Response]) -> _Response:
        session = await self._loaded(request.session)
        looked_again = False
        while True:
            failures, unsettled = self._log.failures(session), self._log.in_flight(session)
            last_seq = self._log.view(session).last_seq
            try:
                return await method(self, request, answering)
            except (CommandRefused, Violation):
                # It may have come while the method waited for something else, and have been settled meanwhile.
                came = self._log.view(session).last_seq != last_seq
                unsettled = unsettled or came or self._log.in_flight(session)
                await self._log.settle(session)
                failed = self._log.failures(session) != failures
                if not failed and (looked_again or not unsettled):
                    raise
                # The second look also says who was first: only what is stored names them.
                looked_again = True

    return stands
