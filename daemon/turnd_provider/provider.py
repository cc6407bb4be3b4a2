"""A provider as its author writes it: functions with type hints, and what they declare."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

from turnd.v1 import common_pb2 as common
from turnd.v1 import provider_pb2
from turnd_provider import schema
from turnd_provider.context import BlockingContext, Context

PROTOCOL: Final = 1

Kind = Literal["data_source", "resource", "interactive"]
Risk = Literal["read_only", "low", "moderate", "high", "critical"]

_KINDS: Mapping[Kind, common.ToolKind.ValueType] = {
    "data_source": common.TOOL_KIND_DATA_SOURCE,
    "resource": common.TOOL_KIND_RESOURCE,
    "interactive": common.TOOL_KIND_INTERACTIVE,
}
_RISKS: Mapping[Risk, common.Risk.ValueType] = {
    "read_only": common.RISK_READ_ONLY,
    "low": common.RISK_LOW,
    "moderate": common.RISK_MODERATE,
    "high": common.RISK_HIGH,
    "critical": common.RISK_CRITICAL,
}

_T = TypeVar("_T")
Function = Callable[..., Any]


class DeclarationError(TypeError):
    """A tool is declared in a way that cannot work; the message names the tool and what to change."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[_T]):
    """A result with more to say than its content.

    `is_error` marks work that was done and failed: it passed a limit. A failing test run is an ordinary result.
    `left_state` is the state
    that each target was left in, in the words of the tool's own preconditions.
    """

    content: _T
    is_error: bool = False
    left_state: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PreviewText:
    """What a call would do: text for a person (a unified diff, a command line), and the states it counts
    on.
    """

    text: str
    preconditions: Mapping[str, str] = dataclasses.field(default_factory=dict)


def value_key(name: str) -> common.KeyField:
    """A key field that is compared as the JSON value."""
    return common.KeyField(name=name, type=common.KEY_FIELD_TYPE_VALUE)


def path_key(name: str) -> common.KeyField:
    """A key field that is compared as the canonical absolute path, however it is written."""
    return common.KeyField(name=name, type=common.KEY_FIELD_TYPE_PATH)


class Tool:
    """One tool: its function, its preview if it has one, and its specification."""

    def __init__(self, function: Function, spec: provider_pb2.ToolSpec) -> None:
        self.function = function
        self.spec = spec
        self.fields = schema.parameters(function)
        self.previewer: Function | None = None

    @property
    def blocking(self) -> bool:
        """True: an ordinary function, which runs in a thread."""
        return not inspect.iscoroutinefunction(self.function)

    def preview(self, function: Function) -> Function:
        """Decorates the function that says what a call would do, without doing it.

        It is async, takes a Context and the tool's own arguments, and returns a PreviewText.
        """
        if schema.object_schema(schema.parameters(function)) != schema.object_schema(self.fields):
            raise DeclarationError(f"{self.spec.name}: the preview must take the same arguments as the tool")
        if not inspect.iscoroutinefunction(function):
            raise DeclarationError(f"{self.spec.name}: the preview must be an async function")
        self.previewer = function
        return function


class Provider:
    """A named set of tools."""

    def __init__(self, name: str, version: str, config_schema: Mapping[str, Any] | None = None) -> None:
        self.name = name
        self.version = version
        self.config_schema = config_schema
        self.tools: dict[str, Tool] = {}

    def tool(
        self,
        *,
        kind: Kind,
        risk: Risk,
        safe: bool | None = None,
        key_fields: Sequence[common.KeyField] = (),
        group: str = "",
        idempotent: bool = False,
        terminates_turn: bool = False,
        spawns: bool = False,
        runs_commands: bool = False,
        streaming: bool = False,
        command_field: str = "",
        path_field: str = "",
        host_field: str = "",
        timeout_s: float = 0,
    ) -> Callable[[Function], Tool]:
        """Makes a function a tool of its own name; its docstring is the description that the model reads.

        `safe` None means true for a data_source (any calls may overlap) and undeclared for the rest (the
        call runs alone at this provider). With `key_fields` calls of one key run one after another; tools of
        one `group` share keys. `timeout_s` 0 leaves the daemon's default.
        """

        def declare(function: Function) -> Tool:
            name = function.__name__
            if name in self.tools:
                raise DeclarationError(f"{name}: declared twice")
            _check_context(function)
            effective = True if safe is None and kind == "data_source" else safe
            spec = provider_pb2.ToolSpec(
                name=name,
                kind=_KINDS[kind],
                risk=_RISKS[risk],
                description=inspect.cleandoc(function.__doc__ or ""),
                input_schema=_json(schema.object_schema(schema.parameters(function))),
                output_schema=_output_schema(function),
                streaming=streaming,
                default_timeout_ms=round(timeout_s * 1000),
                idempotent=idempotent,
                terminates_turn=terminates_turn,
                spawns=spawns,
                runs_commands=runs_commands,
                command_field=command_field,
                path_field=path_field,
                host_field=host_field,
            )
            if effective is not None:
                spec.concurrency.CopyFrom(
                    common.ConcurrencySpec(safe=effective, key_fields=key_fields, group=group)
                )
            self.tools[name] = Tool(function, spec)
            return self.tools[name]

        return declare

    def registration(self) -> provider_pb2.Register:
        """What the provider says of itself when the daemon opens the Kernel stream."""
        return provider_pb2.Register(
            name=self.name,
            version=self.version,
            protocol=PROTOCOL,
            config_schema=b"" if self.config_schema is None else _json(self.config_schema),
            tools=[tool.spec for tool in self.tools.values()],
        )


def encoded(content: object) -> bytes:
    """A tool's content as JSON; characters that are not valid Unicode are replaced. Raises TypeError,
    ValueError.
    """
    plain = dataclasses.asdict(content) if dataclasses.is_dataclass(content) else content  # type: ignore[arg-type]
    return json.dumps(plain, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _check_context(function: Function) -> None:
    name = function.__name__
    first = next(iter(inspect.signature(function).parameters), None)
    hint = get_type_hints(function).get(first) if first else None
    wanted = Context if inspect.iscoroutinefunction(function) else BlockingContext
    if hint is not wanted:
        raise DeclarationError(f"{name}: the first parameter must be a {wanted.__name__}")


def _output_schema(function: Function) -> bytes:
    hint = get_type_hints(function, include_extras=True).get("return", Any)
    origin = get_origin(hint)
    if origin is Annotated:
        hint, origin = get_args(hint)[0], get_origin(get_args(hint)[0])
    if origin is Outcome:
        hint = get_args(hint)[0]
    return b"" if hint is Any else _json(schema.schema_of(hint, "result"))
