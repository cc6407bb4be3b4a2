"""Lines 1 and 2 of a Step: what goes to the model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from turnd.loop.ledger import compact_json
from turnd.loop.run import Run, StepFailed
from turnd.ports import MAX_EVENT_BYTES, Dispatched, Message, ModelRequest, Tool, WireTool
from turnd.rules import compact, estimate
from turnd.rules.cache_points import cache_points
from turnd.rules.compact import Budget
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
    whole: bytes
    """The request as JSON where a hook changed it; empty elsewhere."""


@dataclass(frozen=True, slots=True)
class Assembled:
    """The messages of a request."""

    messages: tuple[Message, ...]
    changed: bool
    """A transform made something else of the history."""


async def assemble_context(run: Run) -> Assembled:
    """Line 1: the history within the budget, through the hook `context-assemble`."""
    messages = run.history.messages()
    budget = context_budget(run).due
    dispatched = await run.dispatch(
        common.HOOK_POINT_CONTEXT_ASSEMBLE,
        lambda: {"history": _messages_to_json(messages), "budget": budget},
    )
    return Assembled(
        _changed_messages(dispatched, "history", messages), changed=dispatched.changed is not None
    )


async def prepare_request(run: Run, assembled: Assembled, *, final: bool) -> Request:
    """Line 2: the request, through the hook `pre-model-call`.

    In the final Step tools are withheld (BOUND-02); in plan mode resource tools are not there at all (GATE-11), and
    those that spawn only where a sub-agent could be started (SUB-04).
    """
    view = run.view
    names = _names(run)
    offered = () if final and not run.model.spec.needs_tools_with_history else _shown(run)
    wire = tuple(_wire_tool(tool, names) for tool in offered)
    parameters = _parameters(view.profile.parameters)

    def told() -> Mapping[str, object]:
        return {
            "model": run.model.spec.id,
            "messages": _messages_to_json(assembled.messages),
            "tools": [tool.wire_name for tool in wire],
            "parameters": dict(parameters),
        }

    dispatched = await run.dispatch(common.HOOK_POINT_PRE_MODEL_CALL, told)
    messages = _changed_messages(dispatched, "messages", assembled.messages)
    changed = told() if assembled.changed and dispatched.changed is None else dispatched.changed
    request = ModelRequest(
        session=run.session,
        purpose=common.REQUEST_PURPOSE_STEP,
        number=0,
        depth=view.depth,
        profile=view.profile.name,
        system=run.system,
        messages=messages,
        tools=wire,
        tools_withheld=final,
        parameters=parameters,
        cache_points=cache_points(messages, run.history.before_turn()),
    )
    whole = b"" if changed is None else _whole(changed)
    return Request(
        model=run.model.spec.id,
        request=request,
        names=names,
        offered=tuple(_offered(tool, names) for tool in offered),
        whole=whole,
    )


def context_budget(run: Run) -> Budget:
    """What the messages of the next request may come to (MODEL-08)."""
    spec = run.model.spec
    names = _names(run)
    asked = _parameters(run.view.profile.parameters).get("max_output_tokens")
    tools = [_wire_tool(tool, names) for tool in _shown(run)]
    return compact.budget(
        spec.context_window,
        run.settings.context_share,
        most_output=spec.max_output_tokens,
        asked_output=asked if isinstance(asked, int) else None,
        system=estimate.tokens(run.system),
        tools=estimate.request_tokens(
            "", (), ((tool.wire_name, tool.description, tool.input_schema) for tool in tools)
        ),
    )


def _names(run: Run) -> WireNames:
    return WireNames((tool.provider, tool.spec.name) for tool in run.tools.offered())


def _shown(run: Run) -> tuple[Tool, ...]:
    """In plan mode without resource tools (GATE-11), without those that spawn where no sub-agent may start (SUB-04)."""
    planning = run.view.planning
    may_spawn = run.children.may_spawn(run.session)
    return tuple(
        tool
        for tool in run.tools.offered()
        if not (planning and _mutates(tool)) and (may_spawn or not tool.spec.spawns)
    )


def _whole(changed: Mapping[str, object]) -> bytes:
    """The changed request as the log keeps it. Raises StepFailed where it is too large for that."""
    whole = compact_json(changed)
    if len(whole) > MAX_WHOLE_BYTES:
        raise StepFailed(
            event_pb2.ErrorStop(
                source="hook",
                category="too_large",
                message=f"a transform made a request of {len(whole)} bytes; the log, which has to "
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
