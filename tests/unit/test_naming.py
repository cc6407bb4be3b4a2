"""Names of tools for vendors."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnd.rules.naming import WireNames

LEGAL = re.compile(r"[A-Za-z0-9_-]{1,64}")
PART = st.text(alphabet="ab_.é-", max_size=4) | st.text(max_size=80) | st.sampled_from(["x" * 64, "y" * 62])
TOOLS = st.lists(st.tuples(PART, PART), max_size=12)


def names(tools: list[tuple[str, str]]) -> dict[tuple[str, str], str]:
    made = WireNames(tools)
    return {tool: made.name(*tool) for tool in tools}


@given(st.data())
def test_names_are_legal_unique_resolvable_and_independent_of_order(data: st.DataObject) -> None:
    tools = data.draw(TOOLS)
    shuffled = data.draw(st.permutations(tools))
    found = names(tools)

    assert all(LEGAL.fullmatch(name) for name in found.values())
    assert len(set(found.values())) == len(set(tools))
    made = WireNames(tools)
    assert all(made.resolve(name) == tool for tool, name in found.items())
    assert names(shuffled) == found
    assert names([*tools, *tools]) == found


def test_the_plain_name_where_it_is_unique_else_with_its_provider() -> None:
    assert names([("workspace", "read_file"), ("mine", "search"), ("web", "search")]) == {
        ("workspace", "read_file"): "read_file",
        ("mine", "search"): "mine__search",
        ("web", "search"): "web__search",
    }


def test_a_name_that_is_not_legal_or_too_long_gets_a_hash() -> None:
    found = names([("mcp", "files.read"), ("mcp", "x" * 65), ("mcp:github", "go"), ("other", "go")])

    assert re.fullmatch(r"mcp__files_read_[0-9a-f]{10}", found["mcp", "files.read"])
    assert re.fullmatch(r"mcp__x{48}_[0-9a-f]{10}", found["mcp", "x" * 65])
    assert re.fullmatch(r"mcp_github__go_[0-9a-f]{10}", found["mcp:github", "go"])
    assert found["other", "go"] == "other__go"


def test_names_that_would_read_the_same_are_told_apart() -> None:
    found = names([("a", "_b"), ("a_", "b"), ("c", "_b"), ("c", "b")])

    assert len(set(found.values())) == 4
    assert found["c", "_b"] == "c___b"
    assert re.fullmatch(r"a___b_[0-9a-f]{10}", found["a", "_b"])


def test_a_tool_cannot_take_the_name_of_another_providers_tool() -> None:
    honest = [("workspace", "read_file"), ("web", "read_file")]
    hashed = names([("p", "x.y")])["p", "x.y"]
    disguised = [("evil", "workspace__read_file"), ("evil", hashed), ("p", "x.y")]
    found = WireNames([*honest, *disguised])

    for tool in (*honest, *disguised):
        assert found.resolve(found.name(*tool)) == tool
    assert found.name("workspace", "read_file") != "workspace__read_file"
    assert found.name("p", "x.y") != hashed


def test_a_name_that_nobody_has_is_nobodys() -> None:
    made = WireNames([("workspace", "read_file")])

    assert made.resolve("write_file") is None
    assert made.resolve("") is None
    with pytest.raises(KeyError):
        made.name("workspace", "write_file")
