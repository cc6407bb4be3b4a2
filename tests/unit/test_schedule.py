"""Which calls may overlap, against a reference that reads the table of the design literally."""

from __future__ import annotations

import json
import posixpath
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnd.rules import schedule
from turnd.rules.schedule import Claim, Exclusive, Interactive, Keyed, Unique
from turnd.v1 import common_pb2 as common
from turnd.v1 import provider_pb2

VALUE, PATH = common.KEY_FIELD_TYPE_VALUE, common.KEY_FIELD_TYPE_PATH


def canonical_path(path: str) -> str:
    """A file system with one symlink, `link.txt` to `a.txt`, and one that goes round in circles."""
    if "\0" in path:
        raise ValueError("embedded null byte")
    whole = posixpath.normpath(posixpath.join("/project", path))
    if whole == "/project/loop":
        raise OSError("too many levels of symbolic links")
    return "/project/a.txt" if whole == "/project/link.txt" else whole


def spec(
    name: str,
    *,
    kind: common.ToolKind.ValueType = common.TOOL_KIND_RESOURCE,
    safe: bool | None = None,
    keys: dict[str, common.KeyFieldType.ValueType] | None = None,
    group: str = "",
) -> provider_pb2.ToolSpec:
    made = provider_pb2.ToolSpec(name=name, kind=kind)
    if safe is not None:
        made.concurrency.safe = safe
        made.concurrency.group = group
        for key, of_type in (keys or {}).items():
            made.concurrency.key_fields.add(name=key, type=of_type)
    return made


def claim(of: provider_pb2.ToolSpec, data: str = "{}", provider: str = "p", instance: str = "p1") -> Claim:
    return schedule.claim(
        of, provider=provider, instance=instance, data=data.encode(), canonical_path=canonical_path
    )


READ = spec("read", kind=common.TOOL_KIND_DATA_SOURCE, safe=True)
RUN = spec("run", safe=False)
UNDECLARED = spec("undeclared")
WRITE = spec("write", safe=True, keys={"path": PATH}, group="file")
EDIT = spec("edit", safe=True, keys={"path": PATH}, group="file")
ROW = spec("row", safe=True, keys={"table": VALUE, "id": VALUE})
QUESTION = spec("question", kind=common.TOOL_KIND_INTERACTIVE)


@pytest.mark.req("SCHED-03")
@pytest.mark.parametrize("alone", [RUN, UNDECLARED], ids=lambda each: each.name)
def test_what_is_not_declared_safe_runs_alone_at_its_instance(alone: provider_pb2.ToolSpec) -> None:
    assert claim(alone) == Exclusive("p1")
    for other in (RUN, UNDECLARED, READ, WRITE):
        assert schedule.conflicts(claim(alone), claim(other, '{"path": "a"}'))
        assert schedule.conflicts(claim(other, '{"path": "a"}'), claim(alone))
        elsewhere = claim(other, '{"path": "a"}', instance="p2")
        assert not schedule.conflicts(claim(alone), elsewhere)


@pytest.mark.req("SCHED-04")
def test_safe_without_key_fields_runs_beside_its_like() -> None:
    assert claim(READ) == Unique("p1")
    assert schedule.blockers([claim(READ, '{"path": "a"}')] * 8) == (frozenset(),) * 8


@pytest.mark.req("SCHED-02")
def test_one_key_is_one_after_another_and_tools_of_a_group_share_keys() -> None:
    a, also_a, b = (
        claim(WRITE, '{"path": "a"}'),
        claim(EDIT, '{"path": "a", "old": "x"}'),
        claim(EDIT, '{"path": "b"}'),
    )

    assert schedule.blockers([a, also_a, b, a]) == (
        frozenset(),
        frozenset({0}),
        frozenset(),
        frozenset({0, 1}),
    )


@pytest.mark.req("SCHED-02")
def test_without_a_group_the_tools_own_name_is_it() -> None:
    one = spec("one", safe=True, keys={"path": PATH})
    two = spec("two", safe=True, keys={"path": PATH})

    assert not schedule.conflicts(claim(one, '{"path": "a"}'), claim(two, '{"path": "a"}'))
    assert schedule.conflicts(claim(one, '{"path": "a"}'), claim(one, '{"path": "a"}'))


def test_keys_hold_across_instances_of_a_provider_but_not_across_providers() -> None:
    here = claim(WRITE, '{"path": "a"}')

    assert schedule.conflicts(here, claim(WRITE, '{"path": "a"}', instance="p2"))
    assert not schedule.conflicts(here, claim(WRITE, '{"path": "a"}', provider="q"))


@pytest.mark.req("SCHED-07", "P01")
@pytest.mark.parametrize(
    "path", ["a.txt", "./a.txt", "sub/../a.txt", "/project/a.txt", "link.txt", "\\u0061.txt"]
)
def test_every_spelling_of_a_path_is_one_key(path: str) -> None:
    assert claim(EDIT, f'{{"path": "{path}"}}') == Keyed("p1", "p", "file", ("path /project/a.txt",))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ('{"table": "t", "id": 1}', '{"id": 1.0, "table": "\\u0074", "more": true}', True),
        ('{"table": "t", "id": 9007199254740993}', '{"table": "t", "id": 9007199254740992}', False),
        ('{"table": "t", "id": 1}', '{"table": "t", "id": "1"}', False),
        ('{"table": "t", "id": 1}', '{"table": 1, "id": "t"}', False),
        ('{"table": "t"}', '{"table": "t"}', True),
        ('{"table": "t"}', '{"table": "t", "id": null}', False),
        ('{"table": "t"}', '{"id": "t"}', False),
        ('{"table": "t"}', '{"table": "t", "id": "missing"}', False),
        ("{}", "{}", True),
    ],
)
def test_values_are_compared_as_json_and_a_missing_one_is_a_value_of_its_own(
    one: str, other: str, same: bool
) -> None:
    assert schedule.conflicts(claim(ROW, one), claim(ROW, other)) is same


def test_a_path_and_a_value_that_read_the_same_are_not() -> None:
    value = spec("write", safe=True, keys={"path": VALUE}, group="file")

    assert not schedule.conflicts(
        claim(WRITE, '{"path": "/project/a"}'), claim(value, '{"path": "/project/a"}')
    )
    assert schedule.conflicts(claim(WRITE, '{"path": 1}'), claim(WRITE, '{"path": 1.0}'))


@pytest.mark.parametrize(
    "data", ["", "[1]", "{", '{"path": "a", "path": "b"}', '{"path": "a\\u0000"}', '{"path": "loop"}']
)
def test_a_key_that_cannot_be_told_for_certain_is_exclusive(data: str) -> None:
    assert claim(WRITE, data) == Exclusive("p1")


@pytest.mark.req("SCHED-05")
def test_interactive_calls_are_one_after_another_whatever_is_declared() -> None:
    declared = spec("declared", kind=common.TOOL_KIND_INTERACTIVE, safe=True)
    asked = [claim(QUESTION), claim(declared, instance="p2"), claim(QUESTION, provider="q")]

    assert asked == [Interactive()] * 3
    assert schedule.blockers(asked) == (frozenset(), frozenset({0}), frozenset({0, 1}))
    assert not schedule.conflicts(claim(RUN), claim(QUESTION))


@pytest.mark.req("SCHED-06")
@given(st.sampled_from([READ, RUN, UNDECLARED, WRITE, ROW]), st.sampled_from(["{}", '{"path": "a"}']))
def test_kind_has_no_say(of: provider_pb2.ToolSpec, data: str) -> None:
    def of_kind(kind: common.ToolKind.ValueType) -> provider_pb2.ToolSpec:
        made = provider_pb2.ToolSpec()
        made.CopyFrom(of)
        made.kind = kind
        return made

    assert claim(of_kind(common.TOOL_KIND_RESOURCE), data) == claim(
        of_kind(common.TOOL_KIND_DATA_SOURCE), data
    )


@dataclass(frozen=True)
class Call:
    """A call as a person would describe it."""

    tool: provider_pb2.ToolSpec
    provider: str
    instance: str
    path: str | None

    def claim(self) -> Claim:
        data = "{}" if self.path is None else json.dumps({"path": self.path})
        return claim(self.tool, data, self.provider, self.instance)


CALLS = st.builds(
    Call,
    st.sampled_from([READ, RUN, UNDECLARED, WRITE, EDIT, QUESTION]),
    st.just("p"),
    st.sampled_from(["p1", "p2"]),
    st.sampled_from(["a.txt", "./a.txt", "link.txt", "b.txt", None]),
) | st.builds(
    Call,
    st.sampled_from([READ, RUN, WRITE]),
    st.just("q"),
    st.just("q1"),
    st.sampled_from(["a.txt", "b.txt"]),
)
FILES = {"a.txt": 1, "./a.txt": 1, "link.txt": 1, "b.txt": 2, None: None}


def must_not_overlap(one: Call, other: Call) -> bool:
    """The table of tools.md, line by line."""
    if QUESTION in (one.tool, other.tool):
        return one.tool == other.tool
    if one.tool in (RUN, UNDECLARED) or other.tool in (RUN, UNDECLARED):
        return one.instance == other.instance
    if READ in (one.tool, other.tool):
        return False
    return one.provider == other.provider and FILES[one.path] == FILES[other.path]


@pytest.mark.req("SCHED-02", "SCHED-10")
@given(st.lists(CALLS, max_size=8))
def test_a_call_waits_for_exactly_the_earlier_ones_it_conflicts_with(calls: list[Call]) -> None:
    assert schedule.blockers([call.claim() for call in calls]) == tuple(
        frozenset(i for i in range(j) if must_not_overlap(calls[i], calls[j])) for j in range(len(calls))
    )
