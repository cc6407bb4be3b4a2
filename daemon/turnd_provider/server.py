"""Serving a provider: the socket, the Kernel stream, calls and previews."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc

from turnd.v1 import common_pb2 as common
from turnd.v1 import provider_pb2, provider_pb2_grpc
from turnd_provider import schema
from turnd_provider.context import BlockingContext, Call, Context
from turnd_provider.errors import ToolError
from turnd_provider.kernel import Kernel, KernelRefused
from turnd_provider.provider import Outcome, PreviewText, Provider, Tool, encoded

MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""The largest message either way; the daemon has the same limit."""
MAX_THREADS: Final = 32
"""Calls of tools that are ordinary functions which run at once; a further one waits."""
STOP_GRACE_S: Final = 1.0

_Context = grpc.aio.ServicerContext[Any, Any]


def serve(provider: Provider) -> None:
    """Serves until the daemon ends the Kernel stream or sends SIGTERM.

    The socket's path comes from TURND_LISTEN, the descriptor that `ready` is written to from TURND_READY_FD.
    """
    try:
        listen, ready_fd = os.environ["TURND_LISTEN"], int(os.environ["TURND_READY_FD"])
    except (KeyError, ValueError):
        sys.exit(
            "expected TURND_LISTEN and TURND_READY_FD: a provider is started by turnd (see docs/providers.md)"
        )
    asyncio.run(_serve(provider, listen, ready_fd))


async def _serve(provider: Provider, listen: str, ready_fd: int) -> None:
    servicer = Servicer(provider)
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ]
    )
    provider_pb2_grpc.add_ToolProviderServicer_to_server(servicer, server)
    server.add_insecure_port(f"unix:{listen}")
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, servicer.finished.set)
    await server.start()
    os.write(ready_fd, b"ready\n")
    os.close(ready_fd)
    # No time-out: a provider serves until it is told to stop.
    await servicer.finished.wait()
    await server.stop(STOP_GRACE_S)
    servicer.close()


class Servicer(provider_pb2_grpc.ToolProviderServicer):
    """Answers the daemon. The mutable state is the configuration, which comes once, and the kernel's
    calls.
    """

    def __init__(self, provider: Provider) -> None:
        self.finished = asyncio.Event()
        self._provider = provider
        self._kernel = Kernel()
        self._connected = False
        self._config: Mapping[str, Any] = {}
        self._secrets: Mapping[str, str] = {}
        self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="tool")

    def close(self) -> None:
        """Gives up the threads; the end of the process ends those that do not look at `cancelled`."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def Kernel(  # type: ignore[override]
        self, request_iterator: Any, context: _Context
    ) -> None:
        """The stream on which this provider calls the daemon; there is one, and its end ends the provider."""
        if self._connected:
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, "the Kernel stream is open already")
        self._connected = True
        answers = asyncio.create_task(self._take_answers(request_iterator))
        sending = asyncio.create_task(self._send_calls(context))
        try:
            await asyncio.wait({answers, sending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._kernel.close()
            for task in (answers, sending):
                task.cancel()
            await asyncio.gather(answers, sending, return_exceptions=True)
            self.finished.set()

    async def _send_calls(self, context: _Context) -> None:
        await context.write(provider_pb2.KernelResponse(register=self._provider.registration()))
        while True:
            await context.write(await self._kernel.next_outgoing())

    async def _take_answers(self, requests: AsyncIterator[provider_pb2.KernelRequest]) -> None:
        async for request in requests:
            match request.WhichOneof("answer"):
                case "registered":
                    config = request.registered.config
                    self._config = json.loads(config) if config else {}
                    self._secrets = dict(request.registered.secrets)
                case "refused" if request.id == 0:
                    sys.stderr.write(
                        f"the daemon refused the registration: {request.refused.error.message}" + "\n"
                    )
                    return
                case _:
                    self._kernel.answered(request)

    async def Invoke(  # type: ignore[override]
        self, request: provider_pb2.InvokeRequest, context: _Context
    ) -> None:
        """Runs a tool. Cancelling the call cancels an async tool, and sets `cancelled` for one in a
        thread.
        """
        preconditions = {item.target: item.state for item in request.preconditions}
        writing = asyncio.Lock()

        async def send(event: provider_pb2.InvokeResponse) -> None:
            async with writing:
                await context.write(event)

        call = Context(
            Call.of(request.context, preconditions),
            config=self._config,
            secrets=self._secrets,
            kernel=self._kernel,
            send=send,
        )
        await send(await self._terminal(request, call))

    async def _terminal(
        self, request: provider_pb2.InvokeRequest, call: Context
    ) -> provider_pb2.InvokeResponse:
        try:
            tool, arguments = self._resolve(request.tool, request.input)
            async with asyncio.timeout(_seconds_left(request.context)):
                value = await self._run(tool, call, arguments)
            return provider_pb2.InvokeResponse(result=_result(value))
        except TimeoutError:
            error = ToolError.timeout(f"{request.tool} did not end before its deadline")
        except ToolError as raised:
            error = raised
        except KernelRefused as refused:
            error = ToolError(refused.category, refused.message)
        except Exception as failure:  # noqa: BLE001 - an author's function may raise anything
            traceback.print_exc()
            error = ToolError.failed(f"{request.tool} failed: {type(failure).__name__}: {failure}")
        return provider_pb2.InvokeResponse(error=error.to_message())

    async def _run(self, tool: Tool, call: Context, arguments: Mapping[str, Any]) -> object:
        if not tool.blocking:
            return await tool.function(call, **arguments)
        loop = asyncio.get_running_loop()
        cancelled = threading.Event()
        blocking = BlockingContext(call, loop, cancelled)
        try:
            return await loop.run_in_executor(self._threads, lambda: tool.function(blocking, **arguments))
        finally:
            cancelled.set()

    async def Preview(
        self, request: provider_pb2.PreviewRequest, context: _Context
    ) -> provider_pb2.PreviewResponse:
        """What a call would do. A tool without a preview gives an empty one."""
        call = Context(
            Call.of(request.context), config=self._config, secrets=self._secrets, kernel=None, send=None
        )
        try:
            tool, arguments = self._resolve(request.tool, request.input)
            if tool.previewer is None:
                return provider_pb2.PreviewResponse()
            shown: PreviewText = await tool.previewer(call, **arguments)
        except ToolError as error:
            return provider_pb2.PreviewResponse(error=error.to_message())
        states = [common.Precondition(target=t, state=s) for t, s in shown.preconditions.items()]
        return provider_pb2.PreviewResponse(preview=_clean(shown.text), preconditions=states)

    async def Health(
        self, request: provider_pb2.HealthRequest, context: _Context
    ) -> provider_pb2.HealthResponse:
        """Serving as long as it answers."""
        return provider_pb2.HealthResponse(serving=True)

    def _resolve(self, name: str, raw: bytes) -> tuple[Tool, dict[str, Any]]:
        tool = self._provider.tools.get(name)
        if tool is None:
            raise ToolError.not_found(f"{self._provider.name} has no tool {name!r}")
        try:
            return tool, schema.arguments_of(tool.fields, json.loads(raw or b"{}"))
        except (schema.Mismatch, ValueError) as mismatch:
            raise ToolError.invalid_arguments(f"{name}: {mismatch}") from mismatch


def _seconds_left(context: provider_pb2.CallContext) -> float | None:
    if not context.HasField("deadline"):
        return None
    return max(0.0, context.deadline.ToNanoseconds() / 1e9 - time.time())


def _result(value: object) -> provider_pb2.InvokeResult:
    outcome = value if isinstance(value, Outcome) else Outcome(value)
    return provider_pb2.InvokeResult(
        content=encoded(outcome.content),
        is_error=outcome.is_error,
        left_state=[common.Precondition(target=t, state=s) for t, s in outcome.left_state.items()],
    )


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
