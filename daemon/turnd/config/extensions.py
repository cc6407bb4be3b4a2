"""Hooks and tool providers of the user's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import PurePosixPath

from immutables import Map

from turnd.config.kinds import Choice, Either, Flag, Kind, Many, Named, Record, Text, Whole, key
from turnd.config.models import Url
from turnd.config.problems import KeyPath, Problem, Refused, expected
from turnd.config.secrets import SECRET, Secret
from turnd.v1 import common_pb2 as common

FIRST_PARTY = frozenset({"workspace", "core", "web"})
"""Providers that turnd ships: configured without a command."""

POINTS = {
    "session-start": common.HOOK_POINT_SESSION_START,
    "context-assemble": common.HOOK_POINT_CONTEXT_ASSEMBLE,
    "pre-model-call": common.HOOK_POINT_PRE_MODEL_CALL,
    "post-model-response": common.HOOK_POINT_POST_MODEL_RESPONSE,
    "pre-tool-call": common.HOOK_POINT_PRE_TOOL_CALL,
    "plan-ready": common.HOOK_POINT_PLAN_READY,
    "post-tool-call": common.HOOK_POINT_POST_TOOL_CALL,
    "post-apply": common.HOOK_POINT_POST_APPLY,
    "session-end": common.HOOK_POINT_SESSION_END,
}
MODES = {
    "observe": common.HOOK_MODE_OBSERVE,
    "transform": common.HOOK_MODE_TRANSFORM,
    "veto": common.HOOK_MODE_VETO,
}
POINTS_OF_MODE = {
    common.HOOK_MODE_OBSERVE: tuple(POINTS),
    common.HOOK_MODE_TRANSFORM: ("context-assemble", "pre-model-call"),
    common.HOOK_MODE_VETO: ("pre-tool-call", "plan-ready"),
}

_COMMAND = Many(Text(), least=1)


@dataclass(frozen=True, slots=True)
class Hook:
    """A subscriber: a command or a provider."""

    point: common.HookPoint.ValueType = key(Choice(POINTS), "where it is called")
    mode: common.HookMode.ValueType = key(Choice(MODES), "what it may do")
    command: tuple[str, ...] | None = key(_COMMAND, "an absolute path and its arguments", default=None)
    provider: str | None = key(Text(), "a provider that implements HookSubscriber", default=None)
    timeout_ms: int | None = key(
        Whole(1, "milliseconds"), "omitted: limits.default_hook_timeout_ms", default=None
    )


def _check_hook(hook: Hook) -> Mapping[str, str]:
    problems: dict[str, str] = {}
    legal = POINTS_OF_MODE[hook.mode]
    point = next(text for text, value in POINTS.items() if value == hook.point)
    if point not in legal:
        mode = next(text for text, value in MODES.items() if value == hook.mode)
        problems["mode"] = f"{mode} means nothing at {point}; it is for {' and '.join(legal)}"
    if (hook.command is None) == (hook.provider is None):
        problems["command"] = "expected either command or provider"
    elif hook.command is not None and not PurePosixPath(hook.command[0]).is_absolute():
        problems["command"] = f'expected an absolute path, found "{hook.command[0]}"'
    return problems


HOOK = Record(Hook, "a table", _check_hook)

WORKSPACE_ACCESS = {"none": "none", "ro": "ro", "rw": "rw"}
SHARES = {"session": "session", "workspace": "workspace", "daemon": "daemon"}


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The cell of a provider; what is omitted is as the provider's row of the table of cells says."""

    workspace: str | None = key(Choice(WORKSPACE_ACCESS), "its access to the workspace", default=None)
    network: bool | None = key(Flag(), "it may connect to anything", default=None)
    memory_mb: int | None = key(Whole(1, "MB"), "most memory", default=None)
    read: tuple[str, ...] = key(
        Many(Text()), "further paths that it may read; ~ is the home directory", default=()
    )


@dataclass(frozen=True, slots=True)
class Unconfined:
    """`sandbox = "none"`: no cell, because the configuration says so for this provider by name (SBX-02)."""


@dataclass(frozen=True, slots=True)
class McpServer:
    """An MCP server: a command that speaks it on stdio, or a URL."""

    command: tuple[str, ...] | None = key(_COMMAND, "a program and its arguments", default=None)
    url: str | None = key(Url(), "streamable HTTP", default=None)


def _check_mcp(server: McpServer) -> Mapping[str, str]:
    return (
        {}
        if (server.command is None) != (server.url is None)
        else {"command": "expected either command or url"}
    )


_CELL: Kind[Sandbox | Unconfined] = Record(Sandbox)


@dataclass(frozen=True, slots=True)
class JsonTable:
    """Any table that JSON can hold, read into JSON; the provider's own schema says what is in it."""

    name: str = "a table of values that JSON has"

    def read(self, value: object, path: KeyPath) -> bytes:
        if not isinstance(value, dict):
            raise Refused([Problem(path, expected(self.name, value))])
        return json.dumps(self._plain(value, path), ensure_ascii=False).encode()

    def _plain(self, value: object, path: KeyPath) -> object:
        match value:
            case bool() | int() | str():
                return value
            case Decimal() if value.is_finite():
                return float(value)
            case list():
                return [self._plain(item, (*path, index)) for index, item in enumerate(value)]
            case dict():
                return {name: self._plain(item, (*path, name)) for name, item in value.items()}
            case _:
                raise Refused([Problem(path, expected("a value that JSON has", value))])


@dataclass(frozen=True, slots=True)
class Provider:
    """A tool provider."""

    command: tuple[str, ...] | None = key(_COMMAND, "a program and its arguments", default=None)
    mcp: McpServer | None = key(
        Record(McpServer, "a table", _check_mcp), "an MCP server instead", default=None
    )
    config: bytes = key(JsonTable(), "handed to it as JSON, checked by its schema", default=b"{}")
    secrets: Mapping[str, Secret] = key(
        Named(SECRET), "handed to it and to nobody else", default=Map[str, Secret]()
    )
    sandbox: Sandbox | Unconfined = key(Either("none", Unconfined(), _CELL), "its cell", default=Sandbox())
    share: str = key(Choice(SHARES), "who shares one instance of it", default="session")
    trust_hints: bool = key(Flag(), "believe an MCP server which of its tools only read", default=False)


PROVIDER = Record(Provider)


def check_providers(providers: Mapping[str, Provider]) -> list[Problem]:
    """What depends on the name: only providers that turnd ships are there without a command."""
    problems: list[Problem] = []
    for name, provider in providers.items():
        path = ("providers", name)
        given = (provider.command is not None) + (provider.mcp is not None)
        if name in FIRST_PARTY and given:
            problems.append(Problem(path, f"{name} is turnd's own; give yours another name"))
        elif name not in FIRST_PARTY and given != 1:
            problems.append(Problem(path, "expected either command or mcp"))
        if provider.trust_hints and provider.mcp is None:
            problems.append(Problem((*path, "trust_hints"), "only an MCP server has hints"))
    return problems
