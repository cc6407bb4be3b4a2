"""What a provider may ask of the daemon on its Kernel stream, and for which calls (TOOL-08)."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final, Protocol

import grpc
from structlog.typing import FilteringBoundLogger

from turnd.ports import ChildRefused, ChildRequest, ChildResult, LogFailed, Spawn
from turnd.rules.state import Violation
from turnd.tools.exec import CommandRefused, Commands
from turnd.tools.flight import CallOver, Flight, Flights
from turnd.tools.harmless import NotJson, checked_json, visible
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2, provider_pb2

MAX_PENDING: Final = 128
"""Calls of one provider that may be unanswered at once; a further one is refused."""
TOLD_S: Final = 3.0
"""So long before its call's deadline a command is ended: from TERM to KILL, and for its output to be told."""
MAX_NOTE_BYTES: Final = 64 * 1024
MAX_NOTES: Final = 100
"""Notes that one call may put into the log."""
MAX_LOG_CHARACTERS: Final = 4096

_DENIED: Final = common.TOOL_ERROR_CATEGORY_PERMISSION_DENIED
_INVALID: Final = common.TOOL_ERROR_CATEGORY_INVALID_ARGUMENTS
_FAILED: Final = common.TOOL_ERROR_CATEGORY_EXECUTION_FAILED


class Refusal(Exception):
    """A call on the Kernel stream is refused; the provider is told why."""

    def __init__(self, category: common.ToolErrorCategory.ValueType, message: str) -> None:
        super().__init__(message)
        self.category = category
        self.message = message


class Stream(Protocol):
    """The daemon's end of a Kernel stream."""

    async def read(self) -> object:
        """The next message, or a marker of the end."""

    async def write(self, message: provider_pb2.KernelRequest) -> None:
        """Sends an answer."""


class Callbacks:
    """Answers one provider's calls. The mutable state is the calls that are not answered yet, and the notes'
    count.

    The stream offers nothing that a client has, and a call is answered only for a call in flight at this very
    process, in the session that it serves.
    """

    def __init__(
        self, provider: str, stream: Stream, flights: Flights, commands: Commands, log: FilteringBoundLogger
    ) -> None:
        self._provider = provider
        self._stream = stream
        self._flights = flights
        self._commands = commands
        self._log = log
        self._pending: dict[int, asyncio.Task[None]] = {}
        self._writing = asyncio.Lock()

    async def serve(self) -> None:
        """Answers until the stream ends. Raises grpc.RpcError where it breaks."""
        try:
            while isinstance(message := await self._stream.read(), provider_pb2.KernelResponse):
                await self._take(message)
        finally:
            pending = list(self._pending.values())
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    async def _take(self, message: provider_pb2.KernelResponse) -> None:
        if message.WhichOneof("call") == "cancel":
            given_up = self._pending.get(message.cancel.id)
            if given_up is not None:
                given_up.cancel()
            return
        if message.id == 0 or message.id in self._pending:
            await self._refuse(message.id, Refusal(_INVALID, "a call needs an id of its own"))
            return
        if len(self._pending) >= MAX_PENDING:
            await self._refuse(message.id, Refusal(_DENIED, f"{MAX_PENDING} calls are unanswered already"))
            return
        task = asyncio.create_task(self._handle(message), name=f"{self._provider} kernel call {message.id}")
        self._pending[message.id] = task
        task.add_done_callback(lambda _: self._pending.pop(message.id, None))

    async def _handle(self, message: provider_pb2.KernelResponse) -> None:
        try:
            answer = await self._answer(message)
        except Refusal as refusal:
            await self._refuse(message.id, refusal)
        else:
            answer.id = message.id
            await self._send(answer)

    async def _answer(self, message: provider_pb2.KernelResponse) -> provider_pb2.KernelRequest:
        match message.WhichOneof("call"):
            case "run_command":
                finished = await self._run_command(message.run_command)
                return provider_pb2.KernelRequest(command_finished=finished)
            case "emit":
                await self._emit(message.emit)
                return provider_pb2.KernelRequest(noted=provider_pb2.Noted())
            case "log":
                self._write_log(message.log)
                return provider_pb2.KernelRequest(noted=provider_pb2.Noted())
            case "register":
                raise Refusal(_DENIED, "a provider registers once, when the stream opens")
            case "run_session":
                finished_session = await self._run_session(message.run_session)
                return provider_pb2.KernelRequest(session_finished=finished_session)
            case other:
                raise Refusal(_INVALID, f"expected a call that this daemon knows, found {other or 'none'}")

    async def _run_command(self, request: provider_pb2.RunCommand) -> provider_pb2.CommandFinished:
        flight = self._in_flight(request.call_id)
        if not flight.spec.runs_commands:
            raise Refusal(_DENIED, f"tool {flight.spec.name} does not declare runs_commands")
        # A little before the call's own deadline, so that what the command had said can still be told.
        left = flight.deadline - asyncio.get_running_loop().time()
        within = max(0.0, left - min(TOLD_S, left / 4))
        if request.timeout_ms:
            within = min(within, request.timeout_ms / 1000)
        try:
            return await flight.run(
                self._commands.run(
                    flight.use.session, flight.use.workspace, request, flight.output.stream(), within
                )
            )
        except CommandRefused as refused:
            raise Refusal(refused.category, refused.message) from refused
        except CallOver as over:
            raise Refusal(common.TOOL_ERROR_CATEGORY_CANCELLED, "the call has ended") from over

    async def _run_session(self, request: provider_pb2.RunSession) -> provider_pb2.SessionFinished:
        flight = self._in_flight(request.call_id)
        if not flight.spec.spawns:
            raise Refusal(_DENIED, f"tool {flight.spec.name} does not declare spawns")
        wanted = ChildRequest(
            request.call_id, request.profile, request.prompt, tuple(request.tools) if request.tools else None
        )
        try:
            result = await flight.run(_spawned(flight.use.spawn, wanted))
        except ChildRefused as refused:
            raise Refusal(_DENIED, str(refused)) from refused
        except LogFailed as failed:
            raise Refusal(_FAILED, f"the log did not take the sub-agent: {failed}") from failed
        except CallOver as over:
            raise Refusal(common.TOOL_ERROR_CATEGORY_CANCELLED, "the call has ended") from over
        return provider_pb2.SessionFinished(
            session=result.session,
            status=result.status,
            text=result.text,
            total_cost_nano_usd=result.total_cost_nano_usd,
            total_input_tokens=result.total_input_tokens,
            total_output_tokens=result.total_output_tokens,
        )

    async def _emit(self, emit: provider_pb2.Emit) -> None:
        flight = self._in_flight(emit.call_id)
        if len(emit.text.encode()) + len(emit.data) > MAX_NOTE_BYTES:
            raise Refusal(_INVALID, f"a note has at most {MAX_NOTE_BYTES} bytes")
        if flight.notes >= MAX_NOTES:
            raise Refusal(_DENIED, f"a call may put {MAX_NOTES} notes into the log")
        try:
            data = checked_json(emit.data)[0] if emit.data else b""
        except NotJson as error:
            raise Refusal(_INVALID, f"the note's data is not JSON: {error}") from error
        flight.notes += 1
        note = event_pb2.Note(
            call_id=emit.call_id, provider=self._provider, text=visible(emit.text), data=data
        )
        try:
            await flight.use.emit(note)
        except (Violation, LogFailed) as error:
            raise Refusal(_FAILED, f"the log did not take the note: {error}") from error

    def _write_log(self, line: provider_pb2.LogLine) -> None:
        text = visible(line.message[:MAX_LOG_CHARACTERS])
        said = {"provider": self._provider, "text": text, "call": line.call_id}
        match line.level:
            case provider_pb2.LOG_LEVEL_ERROR:
                self._log.error("provider says", **said)
            case provider_pb2.LOG_LEVEL_WARNING:
                self._log.warning("provider says", **said)
            case provider_pb2.LOG_LEVEL_DEBUG:
                self._log.debug("provider says", **said)
            case _:
                self._log.info("provider says", **said)

    def _in_flight(self, call_id: str) -> Flight:
        flight = self._flights.get(call_id)
        if flight is None:
            raise Refusal(_DENIED, f"no call {call_id!r} is in flight at this provider")
        return flight

    async def _refuse(self, identifier: int, refusal: Refusal) -> None:
        error = provider_pb2.ToolError(category=refusal.category, message=refusal.message)
        refused = provider_pb2.Refused(error=error)
        await self._send(provider_pb2.KernelRequest(id=identifier, refused=refused))

    async def _send(self, answer: provider_pb2.KernelRequest) -> None:
        async with self._writing:
            # A stream that broke is found by `serve`, which reads it; nobody is left to be answered.
            with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
                await self._stream.write(answer)


async def _spawned(spawn: Spawn, wanted: ChildRequest) -> ChildResult:
    return await spawn(wanted)
