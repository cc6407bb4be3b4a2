"""One running provider: its cell, its socket, its Kernel stream, and the calls that it serves."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import grpc
from structlog.typing import FilteringBoundLogger

from turnd.cells.port import Cell, CellExit, Cells, CellStuck
from turnd.cells.spec import LISTEN_DIR
from turnd.cells.workspace import Workspace
from turnd.tools.callback import Callbacks
from turnd.tools.definition import ProviderDefinition
from turnd.tools.environment import DEFAULT_PATH
from turnd.tools.exec import Commands
from turnd.tools.flight import Flights
from turnd.tools.harmless import visible
from turnd.tools.listening import SOCKET, ListenDirectory, NotReady, ReadyPipe, dialled
from turnd.tools.registration import Registration, RegistrationRefused, accept
from turnd.v1 import common_pb2 as common
from turnd.v1 import provider_pb2, provider_pb2_grpc

STOP_GRACE_S: Final = 2.0
LAST_WORDS_S: Final = 0.5
"""What a process that has ended had written is there already, and its end is seen soon: this bounds the wait."""
_PIECE_BYTES: Final = 4096
_LAST_WORDS_CHARACTERS: Final = 2000


class InstanceFailed(Exception):
    """A provider did not come up, and the message says how far it came and what it said."""


class Instance:
    """A provider that has registered. Made by `started`, which also ends it.

    `ended` is set, with the reason, the moment its process or its stream is gone.
    """

    def __init__(
        self, stub: provider_pb2_grpc.ToolProviderAsyncStub, registration: Registration, flights: Flights
    ) -> None:
        self.stub = stub
        self.registration = registration
        self.flights = flights
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._kill: str | None = None
        self.killed = asyncio.Event()

    def kill(self, reason: str) -> None:
        """Ends the process and all that it does; the reason is what its other calls are told."""
        self._kill = self._kill or reason
        self.killed.set()

    def gone(self, reason: str) -> None:
        """Its process or stream is gone: calls in flight fail now (TOOL-03)."""
        if not self.ended.done():
            self.ended.set_result(self._kill or reason)


@contextlib.asynccontextmanager
async def started(
    definition: ProviderDefinition,
    *,
    cells: Cells,
    commands: Commands,
    place: ListenDirectory,
    workspace: Workspace,
    shown: Registration | None,
    log: FilteringBoundLogger,
) -> AsyncIterator[Instance]:
    """Starts a provider and takes its registration; ends it, and everything of it, when the block is left.

    The caller has the time-out for the start. Raises InstanceFailed, RegistrationRefused, and what
    `Cells.start` raises.
    """
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.to_thread, place.remove)
        ready = ReadyPipe()
        stack.callback(ready.close)
        cell = await cells.start(
            definition.column(
                definition.command,
                env=_environment(ready.theirs),
                workspace=workspace.path,
                listen_dir=str(place.path),
                read=definition.read,
                pass_fds=(ready.theirs,),
                identity=workspace.identity,
            )
        )
        stack.push_async_callback(_end, cell)
        ready.given()
        words = LastWords(definition.name, log)
        listening = asyncio.gather(words.follow(cell.stdout), words.follow(cell.stderr))
        stack.push_async_callback(_finished, listening)
        try:
            await ready.wait()
            channel = await stack.enter_async_context(dialled(place))
            stub = provider_pb2_grpc.ToolProviderStub(channel)
            stream = stub.Kernel()
            stack.callback(stream.cancel)
            registration = await _register(stream, definition, shown)
        except (NotReady, grpc.RpcError) as error:
            raise InstanceFailed(await _why(error, cell, listening, words)) from error
        instance = Instance(stub, registration, Flights())
        callbacks = Callbacks(definition.name, stream, instance.flights, commands, log)
        watching = asyncio.create_task(
            _watch(instance, cell, callbacks, listening, words), name=f"{definition.name} watch"
        )
        stack.push_async_callback(_finished, watching)
        yield instance


async def _register(
    stream: grpc.aio.StreamStreamCall[provider_pb2.KernelRequest, provider_pb2.KernelResponse],
    definition: ProviderDefinition,
    shown: Registration | None,
) -> Registration:
    first = await stream.read()
    if not isinstance(first, provider_pb2.KernelResponse) or first.WhichOneof("call") != "register":
        raise InstanceFailed("expected its first message to be its registration, found something else")
    try:
        registration = accept(
            first.register, expected_name=definition.name, config=definition.config, shown=shown
        )
    except RegistrationRefused as refused:
        error = provider_pb2.ToolError(
            category=common.TOOL_ERROR_CATEGORY_INVALID_ARGUMENTS, message=str(refused)
        )
        await stream.write(provider_pb2.KernelRequest(refused=provider_pb2.Refused(error=error)))
        raise
    accepted = provider_pb2.Registered(
        config=json.dumps(dict(definition.config)).encode(), secrets=definition.secrets
    )
    await stream.write(provider_pb2.KernelRequest(registered=accepted))
    return registration


async def _watch(
    instance: Instance, cell: Cell, callbacks: Callbacks, listening: asyncio.Future[Any], words: LastWords
) -> None:
    """Ends the instance when its process ends, its stream ends, or somebody kills it; whichever comes
    first.
    """
    process = asyncio.create_task(cell.wait())
    stream = asyncio.create_task(callbacks.serve())
    killed = asyncio.create_task(instance.killed.wait())
    tasks = (process, stream, killed)
    try:
        # No time-out: a provider lives as long as it is used.
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not killed.done():
            # A process that dies takes its stream with it, a moment before its own end is seen.
            await asyncio.wait({process}, timeout=LAST_WORDS_S)
        by_itself = process.done()
        cell.kill()
        # The end of a killed process has a time-out in its cell.
        await asyncio.wait({process})
        await asyncio.wait({listening}, timeout=LAST_WORDS_S)
        if by_itself and process.exception() is None:
            instance.gone(_how(process.result(), words))
        else:
            instance.gone("its stream to the daemon ended, so its process was ended")
    finally:
        instance.gone("it was stopped")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _end(cell: Cell) -> None:
    try:
        await cell.stop(STOP_GRACE_S)
    except CellStuck:
        # It is killed, and what is left of it cannot be ended by anybody; `close` says so again to nobody's
        # use.
        return
    await cell.close()


async def _finished(work: asyncio.Future[Any]) -> None:
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


async def _why(error: Exception, cell: Cell, listening: asyncio.Future[Any], words: LastWords) -> str:
    cell.kill()
    ended: CellExit | None = None
    with contextlib.suppress(CellStuck):
        ended = await cell.wait()
    await asyncio.wait({listening}, timeout=LAST_WORDS_S)
    reason = (error.details() or "") if isinstance(error, grpc.aio.AioRpcError) else str(error)
    return reason if ended is None else f"{reason} ({_how(ended, words)})"


def _how(ended: CellExit, words: LastWords) -> str:
    limit = f", for passing its limit of {ended.limit}" if ended.limit else ""
    said = f"; it said last: {words.text.strip()}" if words.text.strip() else ""
    if ended.from_outside:
        return f"its sandbox was ended from outside{said}"
    return f"its process ended with status {ended.code}{limit}{said}"


class LastWords:
    """Keeps the end of what a provider writes to its standard streams, and logs it line by line."""

    def __init__(self, provider: str, log: FilteringBoundLogger) -> None:
        self._provider = provider
        self._log = log
        self.text = ""

    async def follow(self, stream: asyncio.StreamReader) -> None:
        """Reads to the end of a stream."""
        while data := await stream.read(_PIECE_BYTES):
            text = visible(data.decode("utf-8", "replace"))
            self.text = (self.text + text)[-_LAST_WORDS_CHARACTERS:]
            self._log.info("provider writes", provider=self._provider, text=text.rstrip("\n"))


def _environment(ready: int) -> Mapping[str, str]:
    return {
        "PATH": DEFAULT_PATH,
        "LANG": "C.UTF-8",
        "TURND_LISTEN": f"{LISTEN_DIR}/{SOCKET}",
        "TURND_READY_FD": str(ready),
        # Its handlers around fork make children of a process with a live server hang.
        "GRPC_ENABLE_FORK_SUPPORT": "0",
    }
