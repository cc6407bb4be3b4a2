"""Attach: committed events from a cursor on, as the bytes that the log holds (RPC-01)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Protocol

import grpc

from turnd.rpc.calls import RunningCalls
from turnd.rpc.commands import Presence, SessionCommands
from turnd.rpc.limits import HEARTBEAT_S
from turnd.rpc.refusals import BadRequest
from turnd.sessions.tail import Batch, CursorOutOfRange
from turnd.v1 import sessions_pb2

_EVENTS_TAG = bytes([sessions_pb2.AttachResponse.EVENTS_FIELD_NUMBER << 3 | 2])
_LAST_WORDS_S = 0.25
_HEARTBEAT = sessions_pb2.AttachResponse(heartbeat=True).SerializeToString()


class Tail(Protocol):
    """The log as a stream."""

    def follow(self, session: str | None, after: int) -> AsyncGenerator[Batch, None]:
        """Batches from a cursor on, without end; each fits in a message. Raises CursorOutOfRange."""


class Attach:
    """Serves Attach. A subscriber is a cursor: nothing is queued for it here (RPC-02)."""

    def __init__(
        self,
        commands: SessionCommands,
        tail: Tail,
        presence: Presence,
        calls: RunningCalls,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self._commands = commands
        self._tail = tail
        self._presence = presence
        self._stopping = calls.stopping
        self._heartbeat_s = heartbeat_s

    async def follow(self, request: sessions_pb2.AttachRequest) -> AsyncGenerator[bytes, None]:
        """Encoded AttachResponses until the client leaves or the daemon stops."""
        session, after, field = await self._cursor(request)
        try:
            with self._presence.attached(session, request.client):
                async with aclosing(self._batches(self._tail.follow(session, after))) as batches:
                    async for batch in batches:
                        yield _HEARTBEAT if batch is None else encode(batch)
        except CursorOutOfRange as wrong:
            raise _refused_cursor(field, wrong) from None
        text = "the daemon is stopping: attach again from the last cursor"
        raise BadRequest("", text, grpc.StatusCode.UNAVAILABLE)

    async def _batches(self, source: AsyncGenerator[Batch, None]) -> AsyncGenerator[Batch | None, None]:
        """The batches, and None for each silence of a heartbeat's length. Ends when the daemon stops.

        What was committed before the stop is given first: it tells the client how its Turn ended.
        """
        stopping = asyncio.ensure_future(self._stopping.wait())
        following = asyncio.ensure_future(_next(source))
        try:
            while True:
                last_words = stopping.done()
                await asyncio.wait(
                    {following} if last_words else {following, stopping},
                    timeout=_LAST_WORDS_S if last_words else self._heartbeat_s,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if following.done():
                    batch = following.result()
                    if batch is None:
                        return
                    yield batch
                    following = asyncio.ensure_future(_next(source))
                elif last_words:
                    return
                elif not stopping.done():
                    yield None
        finally:
            for task in (following, stopping):
                task.cancel()
            await asyncio.wait({following, stopping})
            await source.aclose()

    async def _cursor(self, request: sessions_pb2.AttachRequest) -> tuple[str | None, int, str]:
        match request.WhichOneof("target"):
            case "session":
                asked = sessions_pb2.GetSessionRequest(session=request.session.session)
                found = await self._commands.get_session(asked)
                return found.session.id, request.session.after_seq, "session.after_seq"
            case "all":
                return None, request.all.after_position, "all.after_position"
            case _:
                raise BadRequest("target", "expected a session or all, found neither")


def encode(batch: Batch) -> bytes:
    """The batch as an AttachResponse: the log's blobs are the wire's, so that nothing is encoded for each client."""
    parts: list[bytes] = []
    for blob in batch.blobs:
        parts += (_EVENTS_TAG, _varint(len(blob)), blob)
    cursor = sessions_pb2.AttachResponse(
        seq=batch.last_seq, position=batch.last_position, caught_up=batch.caught_up
    )
    return b"".join((*parts, cursor.SerializeToString()))


async def _next(source: AsyncIterator[Batch]) -> Batch | None:
    return await anext(source, None)


def _refused_cursor(field: str, wrong: CursorOutOfRange) -> BadRequest:
    # Never "from now": a client that is wrong about what it has seen must hear of it (C02).
    code = grpc.StatusCode.INVALID_ARGUMENT if wrong.after < 0 else grpc.StatusCode.OUT_OF_RANGE
    return BadRequest(field, f"{field}: {wrong}; 0 gives everything", code)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
