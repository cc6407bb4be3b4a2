"""The tool calls of one Step: what each is, whether it may run, and what became of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import assert_never

from turnd.loop.run import Run
from turnd.ports import Invocation, Tool, ToolFailure, ToolOutcome
from turnd.rules.canon import canonical
from turnd.rules.policy import Verdict
from turnd.rules.results import capped
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2, provider_pb2

SPAWN_TIMEOUT_S = 7 * 86400.0
"""Of a call that spawns, where its tool states none: a sub-agent has bounds of its own, and may wait for a person."""


@dataclass(slots=True)
class Call:
    """One call on its way through the Step. `result` is set once, when it is in the log."""

    event: event_pb2.ToolCall
    tool: Tool | None
    offered: bool = True
    """The request offered it; a tool that was not offered is not called, whatever the model says (GATE-11)."""
    cut_off: bool = False
    """Its arguments are not whole."""
    veto: Verdict | None = None
    """The denial of a subscriber at pre-tool-call."""
    corrected: bytes | None = None
    """What a person put in the place of the input (GATE-08)."""
    attempts: int = 0
    result: event_pb2.ToolResult | None = None
    raw_result: bytes = b""
    """The content as the tool gave it, before it was capped; what the doom-loop check compares."""

    @property
    def id(self) -> str:
        return self.event.call_id

    @property
    def input(self) -> bytes:
        """The effective input."""
        return self.event.input if self.corrected is None else self.corrected

    @property
    def spec(self) -> provider_pb2.ToolSpec:
        """The registered tool; only for a call whose tool is known."""
        assert self.tool is not None, f"call {self.id} has no tool"
        return self.tool.spec


@dataclass(slots=True)
class StepCalls:
    """The calls of a Step in declaration order, and their split by kind (line 8)."""

    all: list[Call]
    data_source: list[Call] = field(default_factory=list)
    interactive: list[Call] = field(default_factory=list)
    resource: list[Call] = field(default_factory=list)

    @property
    def results(self) -> list[tuple[Call, event_pb2.ToolResult]]:
        """Calls that have a result, in declaration order."""
        return [(call, call.result) for call in self.all if call.result is not None]


def called(call: Call) -> event_pb2.ToolCall:
    """The call with its effective input, for whoever looks at what runs."""
    event = event_pb2.ToolCall()
    event.CopyFrom(call.event)
    event.input = call.input
    return event


async def conclude(run: Run, call: Call, outcome: ToolOutcome | ToolFailure, *, started_at: float) -> None:
    """Writes the result of a call that ran."""
    limit = run.settings.tool_result_bytes
    match outcome:
        case ToolOutcome():
            call.raw_result = outcome.content
            result = event_pb2.ToolResult(
                call_id=call.id,
                is_error=outcome.is_error,
                content=capped(outcome.content, limit),
                left_state=outcome.left_state,
                spooled_bytes=outcome.spooled_bytes,
            )
        case ToolFailure():
            result = failure_result(call, outcome, limit)
        case _:
            assert_never(outcome)
    changed = call.corrected is not None and canonical(call.corrected) != canonical(call.event.input)
    result.input_corrected = changed and call.attempts > 0
    result.duration_ms = round((run.world.clock.monotonic() - started_at) * 1000)
    await record(run, call, result)


async def refuse(run: Run, call: Call, category: common.ToolErrorCategory.ValueType, message: str) -> None:
    """Writes the error result of a call that does not run."""
    await record(
        run, call, failure_result(call, ToolFailure(category, message), run.settings.tool_result_bytes)
    )


async def record(run: Run, call: Call, result: event_pb2.ToolResult) -> None:
    """Commits a result, once."""
    assert call.result is None, f"call {call.id} has a result already"
    await run.append(result)
    call.result = result


def failure_result(call: Call, failure: ToolFailure, limit: int) -> event_pb2.ToolResult:
    """The error result that tells the model what went wrong."""
    call.raw_result = failure.message.encode()
    return event_pb2.ToolResult(
        call_id=call.id,
        is_error=True,
        category=failure.category,
        content=capped(json.dumps(failure.message, ensure_ascii=False).encode(), limit),
        details=failure.details,
    )


def invocation(
    run: Run, call: Call, preconditions: tuple[common.Precondition, ...], traceparent: str
) -> Invocation:
    """The call as its tool gets it."""
    at = run.at
    assert at.turn is not None, "a call runs inside a Turn"
    assert at.step is not None, "a call runs inside a Step"
    assert call.tool is not None, f"call {call.id} has no tool"
    timeout_ms = call.spec.default_timeout_ms
    default_s = SPAWN_TIMEOUT_S if call.spec.spawns else run.settings.tool_timeout_s
    return Invocation(
        call_id=call.id,
        provider=call.tool.provider,
        tool=call.spec.name,
        input=call.input,
        turn=at.turn,
        step=at.step,
        attempt=max(call.attempts, 1),
        preconditions=preconditions,
        timeout_s=timeout_ms / 1000 if timeout_ms else default_s,
        traceparent=traceparent,
    )
