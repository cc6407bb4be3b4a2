"""Every rule of a registration, and the error that names it."""

from __future__ import annotations

from typing import Any

import pytest

from turnd.tools.coretools import registration as core_registration
from turnd.tools.registration import Registration, RegistrationRefused, accept
from turnd.v1 import common_pb2 as common
from turnd.v1 import provider_pb2

SCHEMA = b'{"type": "object", "properties": {"path": {"type": "string"}, "n": {"type": "integer"}}}'


def spec(**changes: Any) -> provider_pb2.ToolSpec:
    made = provider_pb2.ToolSpec(
        name="act",
        kind=common.TOOL_KIND_DATA_SOURCE,
        risk=common.RISK_READ_ONLY,
        input_schema=SCHEMA,
    )
    for name, value in changes.items():
        if hasattr(value, "SerializeToString"):
            getattr(made, name).CopyFrom(value)
        else:
            setattr(made, name, value)
    return made


def resource(**changes: Any) -> provider_pb2.ToolSpec:
    return spec(kind=common.TOOL_KIND_RESOURCE, risk=common.RISK_MODERATE, **changes)


def register(*tools: provider_pb2.ToolSpec, **changes: Any) -> provider_pb2.Register:
    return provider_pb2.Register(**{"name": "p", "version": "1", "protocol": 1, "tools": tools, **changes})


def accepted(made: provider_pb2.Register, **more: Any) -> Registration:
    return accept(made, expected_name="p", config=more.pop("config", {}), **more)


def keyed(*names: str, safe: bool = True, group: str = "") -> common.ConcurrencySpec:
    return common.ConcurrencySpec(safe=safe, group=group, key_fields=[common.KeyField(name=n) for n in names])


SAFE = common.ConcurrencySpec(safe=True)
INTERACTIVE = common.TOOL_KIND_INTERACTIVE


@pytest.mark.req("TOOL-01")
@pytest.mark.parametrize(
    "tool",
    [
        spec(),
        spec(concurrency=SAFE),
        spec(kind=INTERACTIVE),
        resource(concurrency=keyed("path", "n", group="file")),
        resource(concurrency=common.ConcurrencySpec(safe=False)),
        resource(spawns=True, concurrency=SAFE),
        resource(terminates_turn=True),
        spec(command_field="path", path_field="path", host_field="path", output_schema=b"true"),
    ],
)
def test_what_keeps_the_rules_is_accepted(tool: provider_pb2.ToolSpec) -> None:
    assert list(accepted(register(tool)).tools) == ["act"]


@pytest.mark.req("TOOL-01", "SCHED-05")
@pytest.mark.parametrize(
    ("tool", "rule"),
    [
        (spec(kind=INTERACTIVE, concurrency=SAFE), "an interactive tool cannot have a ConcurrencySpec"),
        (
            spec(kind=INTERACTIVE, concurrency=keyed(safe=False)),
            "an interactive tool cannot have a ConcurrencySpec",
        ),
        (spec(kind=common.TOOL_KIND_RESOURCE), "a resource tool cannot have risk read_only"),
        (spec(risk=common.RISK_LOW), "must have risk read_only"),
        (spec(kind=INTERACTIVE, risk=common.RISK_HIGH), "must have risk read_only"),
        (spec(kind=common.TOOL_KIND_UNSPECIFIED), "the kind must be"),
        (spec(kind=77), "the kind must be"),
        (spec(risk=common.RISK_UNSPECIFIED), "the risk must be"),
        (spec(risk=77), "the risk must be"),
        (resource(concurrency=keyed("nowhere")), "key field 'nowhere' is not in the input schema"),
        (resource(concurrency=keyed("path", safe=False)), "key_fields need safe: true"),
        (resource(concurrency=keyed("path", "path")), "named twice"),
        (spec(spawns=True, concurrency=SAFE), "only a resource tool can declare spawns"),
        (spec(terminates_turn=True), "only a resource tool can declare terminates_turn"),
        (resource(spawns=True), "must be safe: true without key_fields"),
        (resource(spawns=True, concurrency=keyed("path")), "must be safe: true without key_fields"),
        (spec(input_schema=b""), "the input schema is not valid JSON Schema"),
        (spec(input_schema=b"{"), "the input schema is not valid JSON Schema"),
        (spec(input_schema=b'{"type": "objekt"}'), "the input schema is not valid JSON Schema"),
        (spec(input_schema=b'{"type": "object", "$ref": "http://127.0.0.1:9/"}'), "is not valid JSON Schema"),
        (
            spec(input_schema=b'{"type": "object", "$schema": "http://127.0.0.1:9/"}'),
            "is not valid JSON Schema",
        ),
        (
            spec(input_schema=b'{"type": "object", "properties": {"a": {"pattern": "("}}}'),
            "is not valid JSON Schema",
        ),
        (spec(input_schema=b'{"type": "string"}'), "must describe an object"),
        (spec(input_schema=b"true"), "must describe an object"),
        (spec(output_schema=b'{"type": 5}'), "the output schema is not valid JSON Schema"),
        (spec(path_field="file"), "path_field 'file' is not in the input schema"),
        (spec(command_field="c"), "command_field 'c' is not in the input schema"),
        (spec(host_field="h"), "host_field 'h' is not in the input schema"),
        (spec(description="x" * 20_000), "the description has more than"),
    ],
)
def test_a_broken_rule_refuses_the_whole_and_names_tool_and_rule(
    tool: provider_pb2.ToolSpec, rule: str
) -> None:
    with pytest.raises(RegistrationRefused) as refused:
        accepted(register(spec(name="sound"), tool))
    assert "provider p: tool 'act': " in str(refused.value)
    assert rule in str(refused.value)


@pytest.mark.req("TOOL-01")
@pytest.mark.parametrize("name", ["", "1a", "a.b", "a b", "ä", "a" * 65, "../x"])
def test_names_that_no_vendor_takes_are_refused(name: str) -> None:
    with pytest.raises(RegistrationRefused, match="a name is a letter"):
        accepted(register(spec(name=name)))


@pytest.mark.req("TOOL-01")
@pytest.mark.parametrize(
    ("made", "rule"),
    [
        (register(spec(), spec()), "tool 'act': two tools have this name"),
        (register(spec(), name="q"), "registers as 'q'"),
        (register(spec(), protocol=2), "protocol 2"),
        (register(spec(), version=""), "no version"),
        (register(*(spec(name=f"t{n}") for n in range(300))), "300 tools"),
        (register(spec(), config_schema=b"{"), "configuration schema is not valid JSON Schema"),
        (register(spec(), config_schema=b'{"required": ["root"]}'), '"root" is a required property'),
    ],
)
def test_rules_about_the_provider_itself(made: provider_pb2.Register, rule: str) -> None:
    with pytest.raises(RegistrationRefused) as refused:
        accepted(made)
    assert rule in str(refused.value)


@pytest.mark.req("TOOL-13")
def test_configuration_is_checked_against_the_registered_schema() -> None:
    schema = b'{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'
    assert accepted(register(spec(), config_schema=schema), config={"n": 1})
    with pytest.raises(RegistrationRefused, match="configuration n: "):
        accepted(register(spec(), config_schema=schema), config={"n": "x"})
    with pytest.raises(RegistrationRefused, match="takes no configuration, but n"):
        accepted(register(spec()), config={"n": 1})


RESOURCE = common.TOOL_KIND_RESOURCE


@pytest.mark.req("TOOL-01")
@pytest.mark.parametrize(
    ("before", "after", "rule"),
    [
        (resource(), spec(), "weaker kind"),
        (spec(kind=INTERACTIVE), spec(), "weaker kind"),
        (resource(), spec(kind=INTERACTIVE), "weaker kind"),
        (
            spec(kind=RESOURCE, risk=common.RISK_HIGH),
            spec(kind=RESOURCE, risk=common.RISK_LOW),
            "weaker risk",
        ),
    ],
)
def test_nothing_comes_back_weaker_than_it_was_shown(
    before: provider_pb2.ToolSpec, after: provider_pb2.ToolSpec, rule: str
) -> None:
    shown = accepted(register(before))
    with pytest.raises(RegistrationRefused, match=rule):
        accepted(register(after), shown=shown)
    assert accepted(register(before), shown=shown)


def test_a_tool_may_come_back_stronger() -> None:
    shown = accepted(register(spec()))
    assert accepted(register(resource(), spec(name="new")), shown=shown)


def test_the_core_tools_keep_the_rules_too() -> None:
    core = accept(core_registration("1"), expected_name="core", config={})
    kinds = {name: tool.spec.kind for name, tool in core.tools.items()}
    assert kinds["ask_user"] == INTERACTIVE
    assert core.tools["report_result"].spec.terminates_turn
    low = [n for n, t in core.tools.items() if t.spec.kind == RESOURCE and t.spec.risk == common.RISK_LOW]
    assert low == ["report_result", "update_tasks"]
