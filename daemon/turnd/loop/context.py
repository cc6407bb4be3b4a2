"""Lines 1 and 2 of a Step: what goes to the model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from turnd.loop.run import Run, StepFailed
from turnd.ports import MAX_EVENT_BYTES, Dispatched, Message, ModelRequest, Tool, WireTool
from turnd.rules import estimate
from turnd.rules.naming import WireNames
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2
from turnd.v1.jsonform import JsonFormError, message_from_json, message_to_json

MAX_WHOLE_BYTES: Final = MAX_EVENT_BYTES - 2**20
"""Of a request that a hook changed. The rest of its event is for the names of tools, and for parameters."""


@dataclass(frozen=True, slots=True)
class Request:
    """A model request, with what the loop must know to read its answer."""

    model: str
    request: ModelRequest
    names: WireNames
    offered: tuple[event_pb2.OfferedTool, ...]
    estimated_tokens: int
    whole: bytes
    """The request as JSON where a hook changed it; empty elsewhere."""


async def assemble_context(run: Run) -> tuple[Message, ...]:
    """Line 1: the history within the budget, through the hook `context-assemble`."""
    messages = run.history.messages()
    spec = run.model.spec
    budget = int((spec.context_window - spec.max_output_tokens) * run.settings.context_share)
    dispatched = await run.dispatch(
        common.HOOK_POINT_CONTEXT_ASSEMBLE,
        lambda: {"history": _messages_to_json(messages), "budget": budget},
    )
    return _changed_messages(dispatched, "history", messages)


async def prepare_request(run: Run, messages: tuple[Message, ...], *, final: bool) -> Request:
    """Line 2: the request, through the hook `pre-model-call`.

    In the final Step tools are withheld (BOUND-02); in plan mode resource tools are not there at all (GATE-11), and
    those that spawn only where a sub-agent could be started (SUB-04).
    """
    view = run.view
    registered = run.tools.offered()
    names = WireNames((tool.provider, tool.spec.name) for tool in registered)
    may_spawn = run.children.may_spawn(run.session)
    shown = tuple(
        tool
        for tool in registered
        if not (view.planning and _mutates(tool)) and (may_spawn or not tool.spec.spawns)
    )
    offered = () if final and not run.model.spec.needs_tools_with_history else shown
    wire = tuple(_wire_tool(tool, names) for tool in offered)
    parameters = _parameters(view.profile.parameters)
    dispatched = await run.dispatch(
        common.HOOK_POINT_PRE_MODEL_CALL,
        lambda: {
            "model": run.model.spec.id,
            "messages": _messages_to_json(messages),
            "tools": [tool.wire_name for tool in wire],
            "parameters": dict(parameters),
        },
    )
    messages = _changed_messages(dispatched, "messages", messages)
    request = ModelRequest(
        session=run.session,
        purpose=common.REQUEST_PURPOSE_STEP,
        number=0,
        depth=view.depth,
        profile=view.profile.name,
        system=view.profile.system_prompt,
        messages=messages,
        tools=wire,
        tools_withheld=final,
        parameters=parameters,
    )
    whole = b"" if dispatched.changed is None else _whole(dispatched.changed)
    return Request(
        model=run.model.spec.id,
        request=request,
        names=names,
        offered=tuple(_offered(tool, names) for tool in offered),
        estimated_tokens=_estimate(request),
        whole=whole,
    )


def compact_json(value: object) -> bytes:
    """A value as compact JSON, every integer exact."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _whole(changed: Mapping[str, object]) -> bytes:
    """The changed request as the log keeps it. Raises StepFailed where it is too large for that."""
    whole = compact_json(changed)
    if len(whole) > MAX_WHOLE_BYTES:
        raise StepFailed(
            event_pb2.ErrorStop(
                source="hook",
                category="too_large",
                message=f"a transform at pre-model-call made a request of {len(whole)} bytes; the log, which has to "
                f"keep what was changed, takes {MAX_WHOLE_BYTES}: nothing was sent; shorten the history, or leave "
                "requests as long as this one unchanged",
            )
        )
    return whole


def _mutates(tool: Tool) -> bool:
    return tool.spec.kind == common.TOOL_KIND_RESOURCE


def _wire_tool(tool: Tool, names: WireNames) -> WireTool:
    return WireTool(
        wire_name=names.name(tool.provider, tool.spec.name),
        provider=tool.provider,
        tool=tool.spec.name,
        description=tool.spec.description,
        input_schema=tool.spec.input_schema,
    )


def _offered(tool: Tool, names: WireNames) -> event_pb2.OfferedTool:
    return event_pb2.OfferedTool(
        wire_name=names.name(tool.provider, tool.spec.name),
        provider=tool.provider,
        tool=tool.spec.name,
        kind=tool.spec.kind,
    )


def _parameters(stored: bytes) -> Mapping[str, object]:
    return cast(Mapping[str, object], json.loads(stored)) if stored else {}


def _estimate(request: ModelRequest) -> int:
    return estimate.request_tokens(
        request.system,
        (message.tokens for message in request.messages),
        ((tool.wire_name, tool.description, tool.input_schema) for tool in request.tools),
    )


def _messages_to_json(messages: Sequence[Message]) -> list[dict[str, object]]:
    return [{"role": m.role, "blocks": [message_to_json(b) for b in m.blocks]} for m in messages]


def _changed_messages(dispatched: Dispatched, key: str, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The messages after the chain. Raises StepFailed where a transform failed or answered nonsense (HOOK-04)."""
    failed = dispatched.transform_failed
    if failed is not None:
        raise StepFailed(
            event_pb2.ErrorStop(
                source="hook", category=failed.failure, message=f"hook {failed.subscriber}: {failed.message}"
            )
        )
    if dispatched.changed is None:
        return messages
    try:
        return tuple(
            Message(
                role=str(entry["role"]),
                blocks=tuple(message_from_json(common.ContentBlock, block) for block in entry["blocks"]),
            )
            for entry in cast(Sequence[Mapping[str, Sequence[Mapping[str, object]]]], dispatched.changed[key])
        )
    except (KeyError, TypeError, JsonFormError) as wrong:
        raise StepFailed(
            event_pb2.ErrorStop(
                source="hook",
                category="nonsense",
                message=f"a transform's {key} is not a list of messages: {wrong}",
            )
        ) from wrong
