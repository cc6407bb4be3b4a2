"""The stream of one call as the contract has it: in order, one exit status at most, exactly one end
(TOOL-02).
"""

from __future__ import annotations

import asyncio
from typing import Final

import grpc
import jsonschema_rs

from turnd.ports import ToolFailure, ToolOutcome
from turnd.tools.calloutput import CallOutput, OutputStream
from turnd.tools.harmless import NotJson, checked_json, visible
from turnd.tools.registration import RegisteredTool
from turnd.v1 import common_pb2 as common
from turnd.v1 import provider_pb2

END_OF_STREAM_S: Final = 2.0
"""From the result to the end of the stream."""
MAX_RESULT_BYTES: Final = 1024 * 1024
MAX_MESSAGE_CHARACTERS: Final = 16 * 1024
MAX_STATE_BYTES: Final = 256 * 1024
"""Of all that a call is bound to, and of all that it left."""

_ONLY_THE_DAEMON_SAYS: Final = frozenset(
    (
        common.TOOL_ERROR_CATEGORY_UNSPECIFIED,
        common.TOOL_ERROR_CATEGORY_DENIED,
        common.TOOL_ERROR_CATEGORY_TRUNCATED,
        common.TOOL_ERROR_CATEGORY_NOT_STARTED,
        common.TOOL_ERROR_CATEGORY_CANCELLED,
        common.TOOL_ERROR_CATEGORY_PROCESS_CRASHED,
        common.TOOL_ERROR_CATEGORY_INTERRUPTED,
    )
)

Stream = grpc.aio.UnaryStreamCall[provider_pb2.InvokeRequest, provider_pb2.InvokeResponse]


class ContractBroken(Exception):
    """A provider answered in a way that the contract does not have; the message says what."""


class Reader:
    """Reads the stream of one call. The mutable state is how far it came."""

    def __init__(self, tool: RegisteredTool, output: CallOutput) -> None:
        self._tool = tool
        self._output = output
        self._streams: dict[str, OutputStream] = {}
        self._exited = False
        self.partial = b""
        """The last partial result as JSON; what is known of a call that does not reach its end."""

    async def read(self, stream: Stream) -> ToolOutcome | ToolFailure:
        """Reads to the end. Raises ContractBroken, and grpc.RpcError where the stream breaks."""
        async for event in stream:
            if (end := await self._take(event)) is not None:
                await _ends(stream)
                return end
        raise ContractBroken("its stream ended without a result or an error")

    async def _take(self, event: provider_pb2.InvokeResponse) -> ToolOutcome | ToolFailure | None:
        kind = event.WhichOneof("event")
        if self._exited and kind not in ("result", "error"):
            raise ContractBroken(f"it sent {kind} after the exit status")
        match kind:
            case "result":
                return self._result(event.result)
            case "error":
                return failure_of(event.error)
            case "output":
                self._stream_of(event.output.channel).feed(event.output.data)
            case "progress":
                fraction = event.progress.fraction if event.progress.HasField("fraction") else None
                await self._output.progress.say(event.progress.message, fraction)
            case "partial":
                self.partial, _ = _sized_json(event.partial.content, "partial result")
            case "exit_status":
                self._exited = True
            case None:
                raise ContractBroken("it sent a message that this daemon does not know")
        return None

    def _stream_of(self, channel: str) -> OutputStream:
        name = "stderr" if channel == "stderr" else "stdout"
        if name not in self._streams:
            self._streams[name] = self._output.stream()
        return self._streams[name]

    def _result(self, result: provider_pb2.InvokeResult) -> ToolOutcome:
        content, value = _sized_json(result.content, "result")
        if self._tool.output is not None and (mismatch := mismatch_of(self._tool.output, value)) is not None:
            raise ContractBroken(f"its result does not fit its output schema: {mismatch}")
        if (size := sum(left.ByteSize() for left in result.left_state)) > MAX_STATE_BYTES:
            raise ContractBroken(f"it says of {size} bytes what it left; at most {MAX_STATE_BYTES} are taken")
        return ToolOutcome(content, result.is_error, tuple(result.left_state))


def failure_of(error: provider_pb2.ToolError) -> ToolFailure:
    """A provider's error as the daemon takes it: what only the daemon may say becomes `unknown`."""
    message = visible(error.message[:MAX_MESSAGE_CHARACTERS]) or "the tool failed without saying why"
    category = error.category
    if category in _ONLY_THE_DAEMON_SAYS or category not in common.ToolErrorCategory.values():
        category = common.TOOL_ERROR_CATEGORY_UNKNOWN
    try:
        details, _ = _sized_json(error.details, "details") if error.details else (b"", None)
    except ContractBroken as broken:
        return ToolFailure(common.TOOL_ERROR_CATEGORY_UNKNOWN, f"{message} ({broken})")
    return ToolFailure(category, message, error.retryable, details)


def mismatch_of(validator: jsonschema_rs.Validator, value: object) -> str | None:
    """Where a value does not fit a schema, and how; None: it fits."""
    for error in validator.iter_errors(value):
        where = "/".join(map(str, error.instance_path))
        text = visible(error.message[:MAX_MESSAGE_CHARACTERS])
        return f"{where}: {text}" if where else text
    return None


def _sized_json(data: bytes, what: str) -> tuple[bytes, object]:
    if len(data) > MAX_RESULT_BYTES:
        raise ContractBroken(f"its {what} has {len(data)} bytes; at most {MAX_RESULT_BYTES} are taken")
    try:
        return checked_json(data)
    except NotJson as error:
        raise ContractBroken(f"its {what} is not JSON: {error}") from error


async def _ends(stream: Stream) -> None:
    try:
        async with asyncio.timeout(END_OF_STREAM_S):
            async for _ in stream:
                raise ContractBroken("it sent more after the end of the call")
    except TimeoutError:
        raise ContractBroken("it did not end its stream after the end of the call") from None
