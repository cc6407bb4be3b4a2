"""What the core tools declare: the same specification that a provider's tools have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from turnd.tools.registration import PROTOCOL
from turnd.tools.spool import MAX_BYTES
from turnd.v1 import common_pb2 as common
from turnd.v1 import provider_pb2

NAME: Final = "core"

_TEXT: Final = {"type": "string"}
_COUNT: Final = {"type": "integer", "minimum": 0}
_TASKS: Final = {
    "type": "array",
    "maxItems": 200,
    "items": {
        "type": "object",
        "properties": {
            "title": {"type": "string", "minLength": 1, "maxLength": 500},
            "state": {"enum": ["open", "doing", "done", "dropped"]},
        },
        "required": ["title", "state"],
        "additionalProperties": False,
    },
}


def registration(version: str) -> provider_pb2.Register:
    """The core tools as a registration, which is checked by the same rules as everybody's."""
    return provider_pb2.Register(
        name=NAME,
        version=version,
        protocol=PROTOCOL,
        tools=[
            _ask_user(),
            _spawn_agent(),
            _report_result(),
            _update_tasks(),
            _list_tasks(),
            _read_output(),
        ],
    )


def _ask_user() -> provider_pb2.ToolSpec:
    return provider_pb2.ToolSpec(
        name="ask_user",
        kind=common.TOOL_KIND_INTERACTIVE,
        risk=common.RISK_READ_ONLY,
        description="Asks the person a question and waits for the answer. Ask only what you cannot find out.",
        input_schema=_object(
            {
                "question": {"type": "string", "minLength": 1},
                "options": {
                    "type": "array",
                    "items": {"type": "string", "minLength": 1},
                    "description": "Answers to choose from; the person may also answer freely.",
                },
                "multi": {"type": "boolean", "description": "More than one option may be chosen."},
            },
            required=["question"],
        ),
        output_schema=_object({"answer": _TEXT}, required=["answer"]),
    )


def _spawn_agent() -> provider_pb2.ToolSpec:
    return provider_pb2.ToolSpec(
        name="spawn_agent",
        kind=common.TOOL_KIND_RESOURCE,
        risk=common.RISK_CRITICAL,
        description=(
            "Gives a task to a sub-agent and waits for its final answer. It sees nothing of this conversation: put "
            "all that it needs into the prompt. Several calls in one message run side by side."
        ),
        input_schema=_object(
            {
                "prompt": {"type": "string", "minLength": 1, "description": "The whole task."},
                "profile": {
                    "type": "string",
                    "description": "What it runs under; the first allowed one if omitted.",
                },
                "tools": {
                    "type": "array",
                    "items": {"type": "string", "minLength": 1},
                    "description": "Globs over provider.tool that narrow what it may use, such as workspace.read_*.",
                },
            },
            required=["prompt"],
        ),
        output_schema=_object(
            {
                "session_id": _TEXT,
                "status": _TEXT,
                "result": {**_TEXT, "description": "Its last message."},
                "total_cost_usd": {"type": "number"},
                "total_input_tokens": _COUNT,
                "total_output_tokens": _COUNT,
            },
            required=[
                "session_id",
                "status",
                "result",
                "total_cost_usd",
                "total_input_tokens",
                "total_output_tokens",
            ],
        ),
        concurrency=common.ConcurrencySpec(safe=True),
        spawns=True,
    )


def _report_result() -> provider_pb2.ToolSpec:
    return provider_pb2.ToolSpec(
        name="report_result",
        kind=common.TOOL_KIND_RESOURCE,
        risk=common.RISK_LOW,
        description="Ends the work with its result. Call it alone, when there is nothing left to do.",
        input_schema=_object(
            {
                "summary": {
                    "type": "string",
                    "minLength": 1,
                    "description": "What was done, and what was found.",
                },
                "success": {"type": "boolean", "description": "Whether what was asked for is done."},
            },
            required=["summary", "success"],
        ),
        output_schema=_object({"reported": {"type": "boolean"}}, required=["reported"]),
        concurrency=common.ConcurrencySpec(safe=True),
        terminates_turn=True,
    )


def _update_tasks() -> provider_pb2.ToolSpec:
    return provider_pb2.ToolSpec(
        name="update_tasks",
        kind=common.TOOL_KIND_RESOURCE,
        risk=common.RISK_LOW,
        description="Writes the list of tasks anew: always the whole list, in order.",
        input_schema=_object({"tasks": _TASKS}, required=["tasks"]),
        output_schema=_object({"tasks": _COUNT}, required=["tasks"]),
        concurrency=common.ConcurrencySpec(safe=True),
    )


def _list_tasks() -> provider_pb2.ToolSpec:
    return provider_pb2.ToolSpec(
        name="list_tasks",
        kind=common.TOOL_KIND_DATA_SOURCE,
        risk=common.RISK_READ_ONLY,
        description="The list of tasks as update_tasks wrote it last.",
        input_schema=_object({}, required=[]),
        output_schema=_object({"tasks": _TASKS}, required=["tasks"]),
        concurrency=common.ConcurrencySpec(safe=True),
    )


def _read_output() -> provider_pb2.ToolSpec:
    return provider_pb2.ToolSpec(
        name="read_output",
        kind=common.TOOL_KIND_DATA_SOURCE,
        risk=common.RISK_READ_ONLY,
        description="Reads the output of an earlier call of this session, where its result shows only a part.",
        input_schema=_object(
            {
                "call_id": {"type": "string", "minLength": 1, "description": "The call whose output it is."},
                "offset": {
                    "type": "integer",
                    "minimum": 0,
                    "maximum": MAX_BYTES,
                    "description": "The first byte wanted, from 0.",
                },
                "limit": {"type": "integer", "minimum": 1, "maximum": 65536, "description": "Bytes at most."},
            },
            required=["call_id"],
        ),
        output_schema=_object(
            {
                "text": _TEXT,
                "offset": _COUNT,
                "next_offset": {**_COUNT, "description": "Read on from here."},
                "spooled_bytes": _COUNT,
                "total_bytes": {
                    **_COUNT,
                    "description": "All that there was; more than was kept if it was too long.",
                },
            },
            required=["text", "offset", "next_offset", "spooled_bytes", "total_bytes"],
        ),
        concurrency=common.ConcurrencySpec(safe=True),
    )


def _object(properties: Mapping[str, Any], required: list[str]) -> bytes:
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return json.dumps(schema).encode()
