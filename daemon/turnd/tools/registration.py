"""What a provider says of itself, checked whole against the rules of the contract (TOOL-01)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import jsonschema_rs

from turnd.v1 import common_pb2 as common
from turnd.v1 import provider_pb2

PROTOCOL: Final = 1
MAX_TOOLS: Final = 256
MAX_DESCRIPTION_BYTES: Final = 16 * 1024

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_KINDS: Final = frozenset(
    (common.TOOL_KIND_DATA_SOURCE, common.TOOL_KIND_RESOURCE, common.TOOL_KIND_INTERACTIVE)
)
_RISKS: Final = frozenset(value for value in common.Risk.values() if value != common.RISK_UNSPECIFIED)


class RegistrationRefused(Exception):
    """A registration breaks a rule; the message names the provider, the tool and the rule."""


@dataclass(frozen=True, slots=True)
class RegisteredTool:
    """A tool as it was accepted, with what checks its input and output; no schema checks nothing."""

    spec: provider_pb2.ToolSpec
    input: jsonschema_rs.Validator
    output: jsonschema_rs.Validator | None


@dataclass(frozen=True, slots=True)
class Registration:
    """A provider that was accepted. Tools are in the order in which they were registered."""

    name: str
    version: str
    tools: Mapping[str, RegisteredTool]


def accept(
    register: provider_pb2.Register,
    *,
    expected_name: str,
    config: Mapping[str, Any],
    shown: Registration | None = None,
) -> Registration:
    """The registration, checked. `shown` is what sessions were shown before a restart. Raises
    RegistrationRefused.
    """
    for rule in _provider_rules(register, expected_name, config):
        raise RegistrationRefused(f"provider {expected_name}: {rule}")
    tools: dict[str, RegisteredTool] = {}
    for spec in register.tools:
        try:
            if spec.name in tools:
                raise _Broken("two tools have this name")
            tools[spec.name] = _accept_tool(spec, None if shown is None else shown.tools.get(spec.name))
        except _Broken as broken:
            where = f"provider {expected_name}: tool {spec.name!r}"
            raise RegistrationRefused(f"{where}: {broken}") from broken
    return Registration(register.name, register.version, tools)


class _Broken(Exception):
    """A rule about a tool is broken; the message says which."""


def _provider_rules(
    register: provider_pb2.Register, expected_name: str, config: Mapping[str, Any]
) -> Iterator[str]:
    if register.name != expected_name:
        yield f"it registers as {register.name!r}; the name must be the one it is configured under"
    if register.protocol != PROTOCOL:
        yield f"it speaks protocol {register.protocol}; this daemon speaks {PROTOCOL}"
    if not register.version:
        yield "it has no version"
    if len(register.tools) > MAX_TOOLS:
        yield f"it registers {len(register.tools)} tools; at most {MAX_TOOLS} are taken"
    if register.config_schema:
        try:
            validator, _ = _schema(register.config_schema, "configuration schema")
        except _Broken as broken:
            yield str(broken)
            return
        for error in validator.iter_errors(dict(config)):
            where = "/".join(map(str, error.instance_path))
            yield f"configuration{' ' + where if where else ''}: {error.message}"
    elif config:
        yield f"it takes no configuration, but {', '.join(sorted(config))} is configured for it"


def _accept_tool(spec: provider_pb2.ToolSpec, shown: RegisteredTool | None) -> RegisteredTool:
    if not _NAME.fullmatch(spec.name):
        raise _Broken("a name is a letter and up to 63 letters, digits, _ or -")
    if len(spec.description.encode()) > MAX_DESCRIPTION_BYTES:
        raise _Broken(f"the description has more than {MAX_DESCRIPTION_BYTES} bytes")
    input_validator, schema = _schema(spec.input_schema, "input schema")
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise _Broken('the input schema must describe an object ("type": "object")')
    output_validator = _schema(spec.output_schema, "output schema")[0] if spec.output_schema else None
    fields = frozenset(schema.get("properties", {}))
    for rule in _RULES:
        rule(spec, fields)
    if shown is not None:
        _not_weaker(spec, shown.spec)
    return RegisteredTool(spec, input_validator, output_validator)


def _schema(text: bytes, what: str) -> tuple[jsonschema_rs.Validator, Any]:
    try:
        schema = json.loads(text)
        # Offline: a provider's schema must not make the daemon fetch anything.
        return jsonschema_rs.validator_for(schema, offline=True), schema
    except (ValueError, RecursionError, jsonschema_rs.ReferencingError) as error:
        reason = str(error).partition("\n")[0]
        raise _Broken(f"the {what} is not valid JSON Schema: {reason}") from error


def _classified(spec: provider_pb2.ToolSpec, fields: frozenset[str]) -> None:
    if spec.kind not in _KINDS:
        raise _Broken("the kind must be data_source, resource or interactive; it is unspecified or unknown")
    if spec.risk not in _RISKS:
        raise _Broken(
            "the risk must be read_only, low, moderate, high or critical; it is unspecified or unknown"
        )
    reads = spec.risk == common.RISK_READ_ONLY
    if spec.kind == common.TOOL_KIND_RESOURCE and reads:
        raise _Broken("a resource tool cannot have risk read_only")
    if spec.kind != common.TOOL_KIND_RESOURCE and not reads:
        raise _Broken("a data_source or interactive tool must have risk read_only")


def _concurrency(spec: provider_pb2.ToolSpec, fields: frozenset[str]) -> None:
    if not spec.HasField("concurrency"):
        return
    if spec.kind == common.TOOL_KIND_INTERACTIVE:
        raise _Broken(
            "an interactive tool cannot have a ConcurrencySpec: questions are asked one after another"
        )
    keys = [key.name for key in spec.concurrency.key_fields]
    for key in keys:
        if key not in fields:
            raise _Broken(f"key field {key!r} is not in the input schema's properties")
    if len(set(keys)) != len(keys):
        raise _Broken("a key field is named twice")
    if keys and not spec.concurrency.safe:
        raise _Broken("key_fields need safe: true; without it every call runs alone")


def _only_resources(spec: provider_pb2.ToolSpec, fields: frozenset[str]) -> None:
    resource = spec.kind == common.TOOL_KIND_RESOURCE
    if spec.spawns and not resource:
        raise _Broken("only a resource tool can declare spawns")
    if spec.terminates_turn and not resource:
        raise _Broken("only a resource tool can declare terminates_turn")
    if spec.spawns and (not spec.concurrency.safe or spec.concurrency.key_fields):
        raise _Broken(
            "a tool that spawns must be safe: true without key_fields, or it would wait for its children"
        )


def _named_fields(spec: provider_pb2.ToolSpec, fields: frozenset[str]) -> None:
    named = {
        "command_field": spec.command_field,
        "path_field": spec.path_field,
        "host_field": spec.host_field,
    }
    for what, name in named.items():
        if name and name not in fields:
            raise _Broken(f"{what} {name!r} is not in the input schema's properties")


_RULES: Final[tuple[Callable[[provider_pb2.ToolSpec, frozenset[str]], None], ...]] = (
    _classified,
    _concurrency,
    _only_resources,
    _named_fields,
)


def _not_weaker(spec: provider_pb2.ToolSpec, shown: provider_pb2.ToolSpec) -> None:
    if spec.kind not in (shown.kind, common.TOOL_KIND_RESOURCE):
        was, now = common.ToolKind.Name(shown.kind), common.ToolKind.Name(spec.kind)
        raise _Broken(f"it came back with a weaker kind: {was} before, {now} now")
    if spec.risk < shown.risk:
        was, now = common.Risk.Name(shown.risk), common.Risk.Name(spec.risk)
        raise _Broken(f"it came back with a weaker risk: {was} before, {now} now")
