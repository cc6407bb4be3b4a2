"""The examples of docs/policy.md are what policy does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from immutables import Map

from turnd.config import load
from turnd.configured import loop_settings
from turnd.rules.commands import Found
from turnd.rules.policy import PolicyCall
from turnd.rules.shell import understood
from turnd.v1 import common_pb2 as common

PAGE = (Path(__file__).parents[2] / "docs" / "policy.md").read_text()
TOML = "\n".join(re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL))
ROWS = re.findall(r"^\| (allow|ask|deny) \| `(.+)` \|$", PAGE, re.MULTILINE)
SAID = {
    "allow": common.POLICY_ACTION_ALLOW,
    "ask": common.POLICY_ACTION_ASK,
    "deny": common.POLICY_ACTION_DENY,
}


def decided(tmp_path: Path, call: PolicyCall) -> common.PolicyAction.ValueType:
    file = tmp_path / "config.toml"
    file.write_text(TOML)
    verdict = loop_settings(load(file), lambda: 0.5).policy.evaluate(call)
    assert verdict.decided_by.kind != common.DECIDED_BY_KIND_FAILURE, verdict.reason
    return verdict.action


@pytest.mark.req("GATE-14", "GATE-05")
@pytest.mark.parametrize(("action", "line"), ROWS)
def test_the_lines_of_the_table(tmp_path: Path, action: str, line: str) -> None:
    line = line.replace("\\|", "|")
    call = PolicyCall(
        "workspace",
        "run_command",
        common.TOOL_KIND_RESOURCE,
        common.RISK_HIGH,
        command=line,
        workspace="/ws",
        programs=Map({name: Found(f"/usr/bin/{name}", writable=False) for name in understood(line).names}),
    )
    assert decided(tmp_path, call) == SAID[action]


def test_the_table_has_rows_of_each_kind() -> None:
    assert {action for action, _ in ROWS} == set(SAID)
    assert len(ROWS) > 15


@pytest.mark.parametrize(
    ("line", "action"),
    [
        ("deploy -v now", "allow"),
        ("deploy -vx now", "ask"),
        ("deploy hook:x", "ask"),
        ("with-secrets ls", "ask"),
    ],
)
def test_programs_of_ones_own(tmp_path: Path, line: str, action: str) -> None:
    more = '[[policy]]\nmatch = { command = ["deploy *", "with-secrets *"] }\naction = "allow"\n'
    file = tmp_path / "config.toml"
    file.write_text(TOML + more)
    call = PolicyCall(
        "workspace",
        "run_command",
        common.TOOL_KIND_RESOURCE,
        common.RISK_HIGH,
        command=line,
        programs=Map({name: Found(f"/usr/bin/{name}", writable=False) for name in understood(line).names}),
    )
    assert loop_settings(load(file), lambda: 0.5).policy.evaluate(call).action == SAID[action]


@pytest.mark.parametrize(
    ("leads_to", "action"),
    [("/ws/src/a/b.py", "allow"), ("/ws/other", "ask"), ("/ws/src/x.lock", "deny"), ("/ws/y.lock", "deny")],
)
def test_paths(tmp_path: Path, leads_to: str, action: str) -> None:
    call = PolicyCall(
        "workspace",
        "edit_file",
        common.TOOL_KIND_RESOURCE,
        common.RISK_MODERATE,
        path="spelled/somehow",
        canonical=leads_to,
        workspace="/ws",
    )
    assert decided(tmp_path, call) == SAID[action]
