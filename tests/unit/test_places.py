"""Patterns over paths and hosts, and the rules that have them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from turnd.rules.places import host_matches, host_of, host_problem, path_matches, path_problem
from turnd.rules.policy import Match, Policy, PolicyCall, PolicyRule
from turnd.v1 import common_pb2 as common
from turnd.v1 import provider_pb2

ALLOW, ASK, DENY = common.POLICY_ACTION_ALLOW, common.POLICY_ACTION_ASK, common.POLICY_ACTION_DENY


@pytest.mark.req("GATE-05")
@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("src/*.py", "/ws/src/a.py", True),
        ("src/*.py", "/ws/src/sub/a.py", False),
        ("src/**/*.py", "/ws/src/a.py", True),
        ("src/**/*.py", "/ws/src/x/y/a.py", True),
        ("src/**", "/ws/src/x/y", True),
        ("src/**", "/ws/src", True),
        ("src/**", "/ws/srcx", False),
        ("**", "/ws/any/thing", True),
        ("**", "/wsx/any", False),
        ("**/secret?", "/ws/secret1", True),
        ("**/.env", "/ws/a/.env", True),
        ("src", "/ws/src", True),
        ("src/", "/ws/src", True),
        ("src", "/other/src", False),
        ("/etc/*", "/etc/passwd", True),
        ("/etc/**", "/etc/ssl/x", True),
        ("/**", "/anything/at/all", True),
        ("a.c", "/ws/abc", False),
        ("[ab]", "/ws/a", False),
        ("*", "/ws/line\nline", True),
    ],
)
def test_paths(pattern: str, path: str, matches: bool) -> None:
    assert path_matches(pattern, path, "/ws") is matches
    assert path_problem(pattern) is None


@pytest.mark.parametrize("pattern", ["", "~/x", "../x", "./x", "a/../b", "a**", "**b/c"])
def test_what_is_no_pattern_over_paths(pattern: str) -> None:
    assert path_problem(pattern)


@pytest.mark.parametrize(
    ("pattern", "address", "matches"),
    [
        ("example.org", "example.org", True),
        ("example.org", "https://EXAMPLE.org:8443/x?y", True),
        ("example.org", "example.org.", True),
        ("example.org", "https://www.example.org", False),
        ("example.org", "https://example.org.evil.net", False),
        ("example.org", "https://example.org@evil.net/", False),
        ("example.org", "https://evil.net/#@example.org", False),
        ("example.org", "https://evil.net\\@example.org", False),
        ("*.example.org", "https://a.b.example.org/", True),
        ("*.example.org", "https://example.org/", False),
        ("*.example.org", "https://evilexample.org/", False),
        ("Example.ORG", "example.org", True),
        ("::1", "http://[::1]:80/", True),
        ("127.0.0.1", "127.0.0.1:80", True),
    ],
)
def test_hosts(pattern: str, address: str, matches: bool) -> None:
    assert host_matches(pattern, address) is matches
    assert host_problem(pattern) is None


@pytest.mark.parametrize("pattern", ["", "https://example.org", "a b", "*example.org", "a/b", "a.*"])
def test_what_is_no_pattern_over_hosts(pattern: str) -> None:
    assert host_problem(pattern)


@pytest.mark.parametrize("address", ["", " ", "http://", "http://[x", "http://a b/", "http://a\\b"])
def test_an_address_without_a_certain_host_has_none(address: str) -> None:
    assert host_of(address) == ""


EDIT = provider_pb2.ToolSpec(
    name="edit",
    kind=common.TOOL_KIND_RESOURCE,
    risk=common.RISK_MODERATE,
    path_field="path",
    host_field="url",
)


def decided(data: bytes, canonical: str, match: Match, action: common.PolicyAction.ValueType) -> int:
    call = replace(PolicyCall.of("mine", EDIT, data), workspace="/ws", canonical=canonical)
    return Policy([PolicyRule("r", "f:1", match, action)]).evaluate(call).action


def test_rules_look_at_where_a_path_leads_and_not_at_its_spelling() -> None:
    source, env = Match.of(path=["src/**"]), Match.of(path=[".env"])
    assert decided(b'{"path": "link"}', "/ws/src/x", source, ALLOW) == ALLOW
    assert decided(b'{"path": "src/../.env"}', "/ws/.env", source, ALLOW) == ASK
    assert decided(b'{"path": "src/../.env"}', "/ws/.env", env, DENY) == DENY
    assert decided(b'{"path": "src/x"}', "/ws/src/x", env, DENY) == ASK


def test_a_path_that_is_not_certain_is_never_allowed_and_always_denied() -> None:
    twice = b'{"path": "src/x", "path": ".env"}'
    source, env = Match.of(path=["src/**"]), Match.of(path=[".env"])
    assert decided(twice, "", source, ALLOW) == ASK
    assert decided(twice, "", env, DENY) == DENY
    assert decided(b"{}", "/ws", Match.of(path=["**"]), ALLOW) == ASK
    assert decided(b"{}", "/ws", Match.of(path=["**"]), DENY) == DENY
    assert decided(b"{}", "/ws", env, DENY) == ASK


def test_rules_over_hosts_look_at_the_host_of_the_address() -> None:
    example = Match.of(host=["*.example.org"])
    assert decided(b'{"url": "https://a.example.org/x"}', "", example, ALLOW) == ALLOW
    assert decided(b'{"url": "https://evil.net/a.example.org"}', "", example, ALLOW) == ASK
    assert decided(b'{"url": "https://a.example.org/x"}', "", example, DENY) == DENY
    assert decided(b'{"url": "nonsense nonsense"}', "", example, ALLOW) == ASK
    assert decided(b'{"url": "nonsense nonsense"}', "", example, DENY) == DENY


def test_a_tool_without_the_field_is_not_concerned() -> None:
    call = PolicyCall("mine", "x", common.TOOL_KIND_RESOURCE, common.RISK_LOW)
    for match in (Match.of(path=["**"]), Match.of(host=["a"]), Match.of(command=["a"])):
        assert Policy([PolicyRule("r", "f:1", match, DENY)]).evaluate(call).action == ASK
