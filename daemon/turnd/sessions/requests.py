"""Commands that carry a request id: sent again they give the first answer and do nothing twice (RPC-04).

What is kept of a command is stored in the transaction of the event that makes its effect irrevocable:

- CreateSession, SendMessage, ClearQueue, Decide, Answer: their only append;
- Cancel: turn/stopping, which stands whatever happens afterwards, since repair ends the Turn by it as well; what is
  taken out of the queue is in the same transaction. A Turn that was stopping already: the record alone;
- CloseSession: session/ended. A daemon that is killed before has not ended the session: sent again, the command
  finds the Turn closed and the queue empty, and ends the session then.

A command that had no event to write (nothing was in the queue) is recorded by itself. One that is refused is not
recorded. A client that leaves does not stop a command that has a request id: it can ask for the answer again.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from google.protobuf.message import Message

from turnd.ports import AnsweredRequest, Log, StoredAnswer
from turnd.sessions.refusal import CommandRefused, invalid
from turnd.v1 import event_pb2

MAX_REQUEST_ID: Final = 128
"""Characters."""
CLOSING_S: Final = 5.0
"""How long commands that nobody waits for any more may take when the daemon stops."""

_Response = TypeVar("_Response", bound=Message)


class RequestLog(Log, Protocol):
    """A log that remembers what it was told of commands."""

    async def answer_to(self, request_id: str) -> StoredAnswer | None:
        """What was answered to this id."""


class Answering(Generic[_Response]):
    """How one command hands its answer to its append. The mutable state is the answer, once there is one."""

    def __init__(self, request_id: str, method: str, digest: bytes) -> None:
        self._request_id = request_id
        self._method = method
        self._digest = digest
        self.answer: _Response | None = None

    def by(self, make: Callable[[Sequence[event_pb2.Event]], _Response]) -> AnsweredRequest | None:
        """For `Log.append`: what the command answers, made of the numbered events. None without a request id."""
        if not self._request_id:
            return None

        def encoded(events: Sequence[event_pb2.Event]) -> bytes:
            self.answer = make(events)
            return self.answer.SerializeToString()

        return AnsweredRequest(self._request_id, self._method, self._digest, encoded)


@dataclass(frozen=True, slots=True)
class _Running:
    """A command that is being carried out."""

    method: str
    digest: bytes
    task: asyncio.Task[Any]


class Requests:
    """Carries each command out once. The mutable state: those that are being carried out, by request id."""

    def __init__(self, log: RequestLog) -> None:
        self._log = log
        self._running: dict[str, _Running] = {}

    async def once(
        self,
        request: Message,
        response_type: type[_Response],
        carry_out: Callable[[Answering[_Response]], Awaitable[_Response]],
        again: Callable[[_Response], Awaitable[None]] | None = None,
        content: bytes = b"",
    ) -> _Response:
        """The answer of the command: of the one that is being carried out, of the log, or of `carry_out`.

        `again` is called with an answer out of the log. Raises what `carry_out` does, and CommandRefused where
        the request's id was used with another content. Without an id it is carried out each time. `content` is a
        digest of what came beside the request.
        """
        request_id: str = getattr(request, "request_id")  # noqa: B009
        method = request.DESCRIPTOR.name.removesuffix("Request")
        if not request_id:
            return await carry_out(Answering("", method, b""))
        if len(request_id) > MAX_REQUEST_ID:
            raise invalid(
                "request_id", f"expected at most {MAX_REQUEST_ID} characters, found {len(request_id)}"
            )
        digest = digest_of(request, content)
        running = self._running.get(request_id)
        if running is None:
            work = self._first(request_id, method, digest, response_type, carry_out, again)
            running = self._start(request_id, method, digest, work)
        elif (running.method, running.digest) != (method, digest):
            raise _other_content(request_id, method, running.method)
        answer: _Response = await asyncio.shield(running.task)
        return answer

    async def close(self) -> None:
        """Lets what is being carried out end, and cancels it after a while; the log must still be open."""
        tasks = {running.task for running in self._running.values()}
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=CLOSING_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    def _start(
        self, request_id: str, method: str, digest: bytes, work: Coroutine[Any, Any, Message]
    ) -> _Running:
        task = asyncio.create_task(work, name=f"{method} {request_id}")
        running = self._running[request_id] = _Running(method, digest, task)

        def ended(done: asyncio.Task[Any]) -> None:
            del self._running[request_id]
            # Where every client has left nobody asks for the outcome.
            if not done.cancelled():
                done.exception()

        task.add_done_callback(ended)
        return running

    async def _first(
        self,
        request_id: str,
        method: str,
        digest: bytes,
        response_type: type[_Response],
        carry_out: Callable[[Answering[_Response]], Awaitable[_Response]],
        again: Callable[[_Response], Awaitable[None]] | None,
    ) -> _Response:
        stored = await self._log.answer_to(request_id)
        if stored is not None:
            if (stored.method, stored.digest) != (method, digest):
                raise _other_content(request_id, method, stored.method)
            answer = response_type.FromString(stored.answer)
            if again is not None:
                await again(answer)
            return answer
        answering: Answering[_Response] = Answering(request_id, method, digest)
        response = await carry_out(answering)
        if answering.answer is not None:
            return answering.answer
        await self._log.append(answered=answering.by(lambda _: response))
        return response


def digest_of(request: Message, beside: bytes = b"") -> bytes:
    """Of what a command asks for: everything but its id and what its client calls itself; and what is beside it."""
    content = type(request)()
    content.CopyFrom(request)
    for name in ("request_id", "client"):
        if name in content.DESCRIPTOR.fields_by_name:
            content.ClearField(name)
    return hashlib.sha256(content.SerializeToString(deterministic=True) + beside).digest()


def _other_content(request_id: str, method: str, before: str) -> CommandRefused:
    asked = f"another {method}" if method == before else f"a {before}"
    return invalid(
        "request_id",
        f"the request id {request_id!r} was used before, for {asked}: nothing was done; a new command needs an "
        "id of its own, and one that is sent again must have the same content",
    )


class _Answers(Protocol):
    """Whoever has commands."""

    _requests: Requests


_Self = TypeVar("_Self", bound=_Answers)
_Request = TypeVar("_Request", bound=Message)
_Method = Callable[[_Self, _Request, Answering[_Response]], Awaitable[_Response]]


def once(
    response_type: type[_Response],
    again: Callable[[_Self, _Request, _Response], Awaitable[None]] | None = None,
) -> Callable[
    [_Method[_Self, _Request, _Response]], Callable[[_Self, _Request], Coroutine[Any, Any, _Response]]
]:
    """Makes a command of a method that hands its answer to its append; see `Requests.once`."""

    def command(
        method: _Method[_Self, _Request, _Response],
    ) -> Callable[[_Self, _Request], Coroutine[Any, Any, _Response]]:
        @functools.wraps(method)
        async def carried_out_once(self: _Self, request: _Request) -> _Response:
            then = None if again is None else functools.partial(again, self, request)
            return await self._requests.once(
                request, response_type, functools.partial(method, self, request), then
            )

        return carried_out_once

    return command
