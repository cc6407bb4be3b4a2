"""What tests of models share: a clock that passes time at will, requests, and streams put together."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from turnd.ports import (
    Message,
    ModelFailure,
    ModelRequest,
    RedactedThinking,
    Stop,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ThinkingSignature,
    ToolCallDelta,
    ToolCallDone,
    ToolCallStart,
    UsageReport,
    WireTool,
)
from turnd.rules.assemble import AssembledMessage, Assembler
from turnd.v1 import common_pb2 as common


@dataclass
class VirtualClock:
    """Sleeping takes no time, and is written down."""

    now: int = 1_700_000_000_000_000
    slept: list[float] = field(default_factory=list)

    def now_us(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return sum(self.slept)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def text_block(text: str) -> common.ContentBlock:
    return common.ContentBlock(text=common.TextBlock(text=text))


def user(*texts: str) -> Message:
    return Message(role="user", blocks=tuple(text_block(text) for text in texts))


def tool_use(call_id: str, name: str, arguments: object, raw: str = "") -> common.ContentBlock:
    written = b"" if raw else json.dumps(arguments).encode()
    return common.ContentBlock(
        tool_use=common.ToolUseBlock(call_id=call_id, wire_name=name, input=written, raw_arguments=raw)
    )


def tool_result(call_id: str, content: object, *, is_error: bool = False) -> common.ContentBlock:
    return common.ContentBlock(
        tool_result=common.ToolResultBlock(
            call_id=call_id, content=json.dumps(content).encode(), is_error=is_error
        )
    )


def wire_tool(
    full_name: str, wire_name: str = "", schema: bytes = b'{"type":"object","properties":{}}'
) -> WireTool:
    provider, _, tool = full_name.partition(".")
    return WireTool(
        wire_name=wire_name or tool,
        provider=provider,
        tool=tool,
        description=f"the tool {tool}",
        input_schema=schema,
    )


def request(
    *messages: Message,
    number: int = 0,
    purpose: common.RequestPurpose.ValueType = common.REQUEST_PURPOSE_STEP,
    depth: int = 0,
    profile: str = "default",
    system: str = "",
    tools: Sequence[WireTool] = (),
    tools_withheld: bool = False,
    parameters: dict[str, object] | None = None,
) -> ModelRequest:
    return ModelRequest(
        session="01J00000000000000000000000",
        purpose=purpose,
        number=number,
        depth=depth,
        profile=profile,
        system=system,
        messages=messages or (user("hello"),),
        tools=tuple(tools),
        tools_withheld=tools_withheld,
        parameters=parameters or {},
    )


async def received(
    stream: AsyncIterator[StreamEvent],
) -> tuple[list[StreamEvent], common.ModelError | None]:
    """The events of a stream, and how it failed, if it did."""
    events: list[StreamEvent] = []
    try:
        async for event in stream:
            events.append(event)
    except ModelFailure as failed:
        return events, failed.error
    return events, None


async def failure_of(stream: AsyncIterator[StreamEvent]) -> common.ModelError:
    _, error = await received(stream)
    assert error is not None, "the stream did not fail"
    return error


def assembled(events: Sequence[StreamEvent]) -> AssembledMessage:
    """The message that the loop would make of a stream."""
    assembler = Assembler()
    for event in events:
        match event:
            case TextDelta(text):
                assembler.text(text)
            case ThinkingDelta(text):
                assembler.thinking(text)
            case ThinkingSignature(signature):
                assembler.signature(signature)
            case RedactedThinking(data):
                assembler.redacted(data)
            case ToolCallStart(key, vendor_call_id, wire_name):
                assembler.tool_start(key, vendor_call_id, wire_name)
            case ToolCallDelta(key, arguments):
                assembler.tool_arguments(key, arguments)
            case ToolCallDone(key):
                assembler.tool_done(key)
            case Stop(reason, vendor_reason):
                assembler.stop(reason, vendor_reason)
            case UsageReport():
                pass
    return assembler.message()
