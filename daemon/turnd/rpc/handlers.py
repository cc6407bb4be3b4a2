"""From a method that takes and gives messages to a gRPC handler that always answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn, TypeAlias, TypeVar

import grpc
import structlog
from google.protobuf.message import DecodeError, Message

from turnd.rpc.calls import RunningCalls, is_being_cancelled
from turnd.rpc.checks import check
from turnd.rpc.limits import MAX_MESSAGE_BYTES, STUCK_CLIENT_S
from turnd.rpc.refusals import BadRequest, Refusal, ResponseTooLarge, abort, refusal_of

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
_Request = TypeVar("_Request", bound=Message)

_log = structlog.get_logger(__name__)

_CANCELLED_INSIDE = Refusal(
    grpc.StatusCode.ABORTED,
    "what this command waited for was cancelled inside the daemon; it may have had effects: `turn show` tells",
)
_STUCK = Refusal(
    grpc.StatusCode.ABORTED,
    "disconnected: nothing was taken from this stream for too long; attach again from the last cursor",
)


class ClientStuck(Exception):
    """The transport took nothing of what was written for too long (RPC-02)."""


@dataclass(frozen=True, slots=True)
class _Undecodable:
    """A request that is not the message it should be; gRPC's own answer to that names nothing."""

    text: str


class Handlers:
    """Makes handlers: each is in the registry while it runs, and ends with an answer or a status (G01)."""

    def __init__(self, calls: RunningCalls, stuck_client_s: float = STUCK_CLIENT_S) -> None:
        self._calls = calls
        self._stuck_client_s = stuck_client_s

    def unary(
        self, method: Callable[[_Request], Awaitable[Message]], request_type: type[_Request]
    ) -> Handler:
        """One request, one response."""

        async def handle(request: _Request | _Undecodable, context: _Context) -> bytes:
            async with _Answering(self._calls, context):
                return _encoded(await method(_decoded(request)))

        return grpc.unary_unary_rpc_method_handler(handle, _decoder(request_type), None)

    def stream(
        self,
        method: Callable[[_Request], AsyncGenerator[Message | bytes, None]],
        request_type: type[_Request],
    ) -> Handler:
        """One request, many responses; those that are bytes are on the wire as they are."""

        async def handle(request: _Request | _Undecodable, context: _Context) -> None:
            async with _Answering(self._calls, context):
                await self._write_all(context, method(_decoded(request)))

        return grpc.unary_stream_rpc_method_handler(handle, _decoder(request_type), None)

    def upload(
        self,
        method: Callable[[AsyncIterator[_Request]], Awaitable[Message]],
        request_type: type[_Request],
    ) -> Handler:
        """Many requests, one response."""

        async def handle(requests: AsyncIterator[_Request | _Undecodable], context: _Context) -> bytes:
            async with _Answering(self._calls, context):
                return _encoded(await method(_decoded(request) async for request in requests))

        return grpc.stream_unary_rpc_method_handler(handle, _decoder(request_type), None)

    async def _write_all(self, context: _Context, responses: AsyncGenerator[Message | bytes, None]) -> None:
        # Closed here in any case: gRPC would leave that to the collector (G02).
        async with aclosing(responses):
            async for response in responses:
                await self._write(context, _encoded(response))

    async def _write(self, context: _Context, response: bytes) -> None:
        try:
            async with asyncio.timeout(self._stuck_client_s):
                await context.write(response)
        except TimeoutError:
            raise ClientStuck from None


class _Answering:
    """Keeps a call in the registry, and makes an answer of whatever exception ends it."""

    def __init__(self, calls: RunningCalls, context: _Context) -> None:
        self._running = calls.running()
        self._context = context

    async def __aenter__(self) -> None:
        self._running.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                await _answer(self._context, error)
        finally:
            self._running.__exit__(None, None, None)


async def _answer(context: _Context, error: BaseException) -> NoReturn:
    if isinstance(error, asyncio.CancelledError) and not is_being_cancelled():
        await abort(context, _CANCELLED_INSIDE)
    if not isinstance(error, Exception) or isinstance(error, grpc.aio.AbortError):
        raise error
    if isinstance(error, ClientStuck):
        await abort(context, _STUCK)
    if context.done():
        # The client left while it was written to (G02); there is nobody to answer.
        raise error
    refusal = refusal_of(error)
    if refusal is None:
        _log.error("a call failed", exc_info=error)
        text = f"the daemon failed at this ({type(error).__name__}): its log has the details"
        refusal = Refusal(grpc.StatusCode.INTERNAL, text)
    await abort(context, refusal)


def _decoder(request_type: type[_Request]) -> Callable[[bytes], _Request | _Undecodable]:
    def decode(data: bytes) -> _Request | _Undecodable:
        try:
            request = request_type()
            request.ParseFromString(data)
        except DecodeError as error:
            return _Undecodable(f"the request is not a valid {request_type.DESCRIPTOR.full_name}: {error}")
        return request

    return decode


def _decoded(request: _Request | _Undecodable) -> _Request:
    if isinstance(request, _Undecodable):
        raise BadRequest("", request.text)
    check(request)
    return request


def _encoded(response: Message | bytes) -> bytes:
    data = response if isinstance(response, bytes) else response.SerializeToString()
    if len(data) > MAX_MESSAGE_BYTES:
        kind = (
            "this stream"
            if isinstance(response, bytes)
            else response.DESCRIPTOR.name.removesuffix("Response")
        )
        raise ResponseTooLarge(kind, len(data))
    return data
