"""A canonical request as the body of a Chat Completions request.

The same request always gives the same bytes, and a longer history only adds to them, so that a server's
prompt cache holds from Step to Step.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from turnd.models.chat_history import chat_messages
from turnd.models.endpoint import CompatibleEndpoint
from turnd.models.invalid import invalid_request
from turnd.ports import ModelRequest, WireTool

_ANY_OBJECT = b'{"type":"object","properties":{}}'
_TOOL_CHOICES = {"auto": "auto", "none": "none", "required": "required", "any": "required"}


def chat_request(endpoint: CompatibleEndpoint, model: str, request: ModelRequest) -> dict[str, object]:
    """The body. Raises ModelFailure `invalid_request` for what this model cannot take."""
    body: dict[str, object] = {
        "model": model,
        "messages": chat_messages(endpoint, request.system, request.messages),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        if not endpoint.tool_use:
            raise invalid_request(
                f"models.{endpoint.name} cannot call tools (tool_use = false), and the profile offers some"
            )
        body["tools"] = [_function(tool) for tool in request.tools]
        if not endpoint.parallel_tool_calls:
            body["parallel_tool_calls"] = False
    for name, value in request.parameters.items():
        match name:
            case "temperature":
                body["temperature"] = _temperature(value)
            case "max_output_tokens":
                body[endpoint.max_tokens_field] = _output_limit(value, endpoint)
            case "thinking":
                body["reasoning_effort"] = _effort(value, endpoint)
            case "tool_choice":
                if request.tools:
                    body["tool_choice"] = _tool_choice(value, request.tools)
            case _:
                raise invalid_request(
                    f"parameter {name!r} is not known to openai-compatible models; known are temperature, "
                    "max_output_tokens, thinking, tool_choice"
                )
    if request.tools and request.tools_withheld:
        body["tool_choice"] = "none"
    return body


def _function(tool: WireTool) -> dict[str, object]:
    schema: object = json.loads(tool.input_schema or _ANY_OBJECT)
    return {
        "type": "function",
        "function": {"name": tool.wire_name, "description": tool.description, "parameters": schema},
    }


def _temperature(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 2:
        raise invalid_request(f"temperature must be a number from 0 to 2, got {value!r}")
    return value


def _output_limit(value: object, endpoint: CompatibleEndpoint) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= endpoint.output_limit:
        raise invalid_request(
            f"max_output_tokens must be from 1 to the model's {endpoint.output_limit}, got {value!r}"
        )
    return value


def _effort(value: object, endpoint: CompatibleEndpoint) -> str:
    if not endpoint.thinking:
        raise invalid_request(
            f"thinking is set, and models.{endpoint.name} does not say that it can think (thinking = true)"
        )
    if not isinstance(value, str) or not value:
        raise invalid_request(f'thinking must be an effort such as "low" or "high", got {value!r}')
    return value


def _tool_choice(value: object, tools: Sequence[WireTool]) -> object:
    """A mode, or one tool by any of its names."""
    if isinstance(value, str) and value in _TOOL_CHOICES:
        return _TOOL_CHOICES[value]
    written = value.get("tool") if isinstance(value, Mapping) else value
    for tool in tools:
        if written in (tool.wire_name, tool.tool, f"{tool.provider}.{tool.tool}"):
            return {"type": "function", "function": {"name": tool.wire_name}}
    raise invalid_request(
        f"tool_choice must be {', '.join(_TOOL_CHOICES)} or a tool that is offered, got {value!r}"
    )
