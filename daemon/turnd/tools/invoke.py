"""One call at a provider: input checked, stream read in order, exactly one end, result checked (TOOL-02)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final

import grpc

from turnd.ports import Invocation, Preview, ToolFailure, ToolOutcome, ToolSession
from turnd.tools.calloutput import CallOutput
from turnd.tools.flight import Flight, Use
from turnd.tools.harmless import NotJson, checked_json, visible
from turnd.tools.instance import Instance
from turnd.tools.progress import Progress
from turnd.tools.registration import RegisteredTool
from turnd.tools.spool import Spool
from turnd.tools.stream import (
    END_OF_STREAM_S,
    MAX_STATE_BYTES,
    ContractBroken,
    Reader,
    failure_of,
    mismatch_of,
)
from turnd.v1 import common_pb2 as common
from turnd.v1 import provider_pb2

DEADLINE_GRACE_S: Final = 2.0
"""After its deadline a call may take this long to say what had happened; then its process is ended."""
CRASH_SEEN_S: Final = 1.0
PREVIEW_TIMEOUT_S: Final = 5.0
MAX_PREVIEW_CHARACTERS: Final = 64 * 1024


def check_input(tool: RegisteredTool, raw: bytes) -> ToolFailure | None:
    """What is wrong with a call's input, for the model; None: nothing."""
    try:
        value = checked_json(raw or b"{}")[1]
    except NotJson as error:
        return _invalid(f"the arguments are not JSON: {error}")
    if (mismatch := mismatch_of(tool.input, value)) is not None:
        return _invalid(f"the arguments of {tool.spec.name} do not fit its schema: {mismatch}")
    return None


async def preview(instance: Instance, session: ToolSession, call: Invocation) -> Preview:
    """What the call would do; empty where the provider is slow, fails or answers nonsense."""
    request = provider_pb2.PreviewRequest(
        tool=call.tool, input=call.input, context=_context(session, call, PREVIEW_TIMEOUT_S)
    )
    try:
        shown = await instance.stub.Preview(request, timeout=PREVIEW_TIMEOUT_S)
    except grpc.RpcError:
        return Preview()
    if shown.HasField("error"):
        return Preview(failure=failure_of(shown.error))
    if (size := sum(bound.ByteSize() for bound in shown.preconditions)) > MAX_STATE_BYTES:
        message = (
            f"its preview binds {call.tool} to {size} bytes of state; at most {MAX_STATE_BYTES} are taken"
        )
        return Preview(failure=ToolFailure(common.TOOL_ERROR_CATEGORY_UNKNOWN, message))
    text = visible(shown.preview)
    if len(text) > MAX_PREVIEW_CHARACTERS:
        text = text[:MAX_PREVIEW_CHARACTERS] + "\n[... the rest of the preview is left out ...]\n"
    return Preview(text, tuple(shown.preconditions))


async def invoke(
    instance: Instance, tool: RegisteredTool, use: Use, call: Invocation, spool: Spool
) -> ToolOutcome | ToolFailure:
    """Runs one call to its end. When this returns, or is cancelled, nothing that the call started is left
    (TOOL-04).
    """
    if (failure := check_input(tool, call.input)) is not None:
        return failure
    output = CallOutput(
        spool.writer(use.session.session, call.call_id), Progress(use.emit, call.call_id, call.attempt)
    )
    deadline = asyncio.get_running_loop().time() + call.timeout_s
    flight = Flight(call, use, tool.spec, deadline, output)
    async with _in_the_air(instance, flight):
        ended = await _until_the_end(instance, tool, flight)
        await output.progress.finish()
    match ended:
        case ToolOutcome():
            return replace(ended, spooled_bytes=output.spooled_bytes)
        case ToolFailure():
            return ended


@contextlib.asynccontextmanager
async def _in_the_air(instance: Instance, flight: Flight) -> AsyncIterator[None]:
    instance.flights.enter(flight)
    try:
        yield
    finally:
        await instance.flights.leave(flight)
        await flight.output.progress.abandon()
        flight.output.close()


async def _until_the_end(
    instance: Instance, tool: RegisteredTool, flight: Flight
) -> ToolOutcome | ToolFailure:
    call = flight.call
    request = provider_pb2.InvokeRequest(
        tool=call.tool,
        input=call.input or b"{}",
        context=_context(flight.use.session, call, call.timeout_s),
        preconditions=call.preconditions,
    )
    longest = call.timeout_s + DEADLINE_GRACE_S
    stream = instance.stub.Invoke(request, timeout=longest + END_OF_STREAM_S)
    reader = Reader(tool, flight.output)
    reading = asyncio.create_task(reader.read(stream))
    try:
        either: set[asyncio.Future[Any]] = {reading, instance.ended}
        await asyncio.wait(either, timeout=longest, return_when=asyncio.FIRST_COMPLETED)
        if reading.done():
            return await _read(reading, instance, reader, call)
        if instance.ended.done():
            return _crashed(instance, reader, call)
        # It does not listen to its deadline, so it is ended: a call that timed out does not go on behind.
        instance.kill(f"it did not end a call of {call.tool} at its deadline")
        # The end of a killed process has a time-out in its cell.
        await asyncio.wait({instance.ended})
        message = f"{call.tool} did not end within {call.timeout_s:g} s, and its process was ended for it"
        return ToolFailure(common.TOOL_ERROR_CATEGORY_TIMEOUT, message, details=reader.partial)
    finally:
        stream.cancel()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def _read(
    reading: asyncio.Task[ToolOutcome | ToolFailure], instance: Instance, reader: Reader, call: Invocation
) -> ToolOutcome | ToolFailure:
    try:
        return await reading
    except ContractBroken as broken:
        message = f"provider {call.provider} broke the contract in a call of {call.tool}: {broken}"
    except grpc.aio.AioRpcError as error:
        # A stream breaks a moment before or after the end of its process is seen.
        await asyncio.wait({instance.ended}, timeout=CRASH_SEEN_S)
        if instance.ended.done():
            return _crashed(instance, reader, call)
        message = f"the stream of {call.tool} broke: {error.details()}"
    return ToolFailure(common.TOOL_ERROR_CATEGORY_UNKNOWN, message, details=reader.partial)


def _crashed(instance: Instance, reader: Reader, call: Invocation) -> ToolFailure:
    message = f"provider {call.provider} ended while {call.tool} was running: {instance.ended.result()}"
    return ToolFailure(common.TOOL_ERROR_CATEGORY_PROCESS_CRASHED, message, details=reader.partial)


def _context(session: ToolSession, call: Invocation, timeout_s: float) -> provider_pb2.CallContext:
    context = provider_pb2.CallContext(
        session=session.session,
        turn=call.turn,
        step=call.step,
        call_id=call.call_id,
        attempt=call.attempt,
        cwd=session.cwd,
        workspace=session.workspace,
        traceparent=call.traceparent,
    )
    context.deadline.FromNanoseconds(time.time_ns() + round(timeout_s * 1e9))
    return context


def _invalid(message: str) -> ToolFailure:
    return ToolFailure(common.TOOL_ERROR_CATEGORY_INVALID_ARGUMENTS, message)
