"""Files of workspaces: what counts untrusted and trusted, what is refused, and hostile ones."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.unit.stored import TickingClock

from turnd.config.profile import SHIPPED_PROFILE
from turnd.config.trust import TrustFile
from turnd.layers import WorkspaceLayers
from turnd.ports import LayerUnusable
from turnd.rules.layer import WorkspaceLayer, within
from turnd.rules.policy import Layer, Match, Policy, PolicyCall, PolicyRule
from turnd.v1 import common_pb2 as common

ALLOW, ASK, DENY = common.POLICY_ACTION_ALLOW, common.POLICY_ACTION_ASK, common.POLICY_ACTION_DENY

FILE = """\
[[policy]]
name = "tests"
match = { tool = "run_command" }
action = "allow"

[[policy]]
match = { tool = "write_file" }
action = "deny"

[profiles.default]
tools = ["workspace.read_*", "mine.*"]
max_turns = 5
max_cost_usd = 50
max_depth = 9
model = "replay:/etc/passwd"

[[hooks]]
point = "plan-ready"
"""


class Office:
    """The layers of one workspace, whose file and trust are kept in a directory."""

    def __init__(self, base: Path) -> None:
        self.workspace = base / "w"
        self.file = self.workspace / ".turnd" / "config.toml"
        self.file.parent.mkdir(parents=True)
        self.profiles = {"default": SHIPPED_PROFILE.snapshot("default")}
        self.trust = TrustFile(base / "trust.json")
        self.layers = WorkspaceLayers(lambda: self.profiles, self.trust, TickingClock())

    async def layer(self) -> WorkspaceLayer:
        return await self.layers.of(str(self.workspace))

    async def refusal(self) -> str:
        with pytest.raises(LayerUnusable) as unusable:
            await self.layer()
        return str(unusable.value)


@pytest.fixture
def office(tmp_path: Path) -> Office:
    return Office(tmp_path.resolve())


def verdict(policy: Policy, tool: str) -> int:
    return policy.evaluate(
        PolicyCall("workspace", tool, common.TOOL_KIND_RESOURCE, common.RISK_MODERATE)
    ).action


@pytest.mark.req("OPS-04")
async def test_until_it_is_trusted_a_file_only_narrows(office: Office) -> None:
    assert (await office.layer()).file == ""
    office.file.write_text(FILE)
    with capture_logs() as logs:
        layer = await office.layer()
        await office.layer()
    assert [rule.source for rule in layer.policy.rules] == [f"{office.file}:6"]
    assert [rule.layer for rule in layer.policy.rules] == [Layer.WORKSPACE]
    assert (verdict(layer.policy, "write_file"), verdict(layer.policy, "run_command")) == (DENY, ASK)
    profile = layer.over(office.profiles["default"])
    assert list(profile.tools) == ["workspace.read_*"]
    assert (profile.bounds.max_turns, profile.bounds.max_cost_nano_usd, profile.max_depth) == (
        5,
        5 * 10**9,
        2,
    )
    assert profile.model == ""

    trust = "ignored until you trust this file: `turn trust`"
    assert list(layer.warnings) == [
        f'{office.file}:1: policy[0]: "tests": allow {{"tool": ["run_command"]}}; {trust}',
        f"{office.file}:13: profiles.default.max_cost_usd: asks for 50, more than 5; {trust}",
        f"{office.file}:14: profiles.default.max_depth: asks for 9, more than 2; {trust}",
        f"{office.file}:11: profiles.default.tools: asks for tools that the profile does not have: mine.*; {trust}",
        f"{office.file}:15: profiles.default.model: no workspace's file can say this, trusted or not: put it into "
        "your own configuration",
        f"{office.file}:17: hooks: no workspace's file can say this, trusted or not: put it into your own "
        "configuration",
    ]
    assert [entry["ignored"] for entry in logs] == list(layer.warnings)


@pytest.mark.req("OPS-04")
async def test_trust_is_for_one_content_in_one_directory(office: Office, tmp_path: Path) -> None:
    office.file.write_text(FILE)
    digest = (await office.layer()).digest
    await office.layers.trust(str(office.workspace), digest)
    layer = await office.layer()
    assert layer.trusted
    assert verdict(layer.policy, "run_command") == ALLOW
    profile = layer.over(office.profiles["default"])
    assert list(profile.tools) == ["workspace.read_*", "mine.*"]
    assert (profile.bounds.max_cost_nano_usd, profile.max_depth) == (50 * 10**9, 9)
    assert all("trusted or not" in warning for warning in layer.warnings)
    assert not profile.model

    other = Office(tmp_path.resolve() / "other")
    other.file.write_text(FILE)
    same = WorkspaceLayers(lambda: office.profiles, TrustFile(tmp_path / "trust.json"), TickingClock())
    assert (await same.of(str(office.workspace))).trusted
    assert not (await same.of(str(other.workspace))).trusted

    office.file.write_text(f"{FILE}# changed\n")
    assert verdict((await office.layer()).policy, "run_command") == ASK
    office.file.write_text(FILE)
    assert (await office.layer()).trusted
    assert await office.layers.forget(str(office.workspace))
    assert not (await office.layer()).trusted
    assert not await office.layers.forget(str(office.workspace))


@pytest.mark.req("GATE-05", "OPS-04")
@pytest.mark.parametrize("user", [ALLOW, ASK, DENY, None])
@pytest.mark.parametrize("workspace", [ALLOW, ASK, DENY, None])
def test_layers_are_apart_and_the_strictest_wins(
    user: common.PolicyAction.ValueType | None, workspace: common.PolicyAction.ValueType | None
) -> None:
    def of(action: common.PolicyAction.ValueType | None, layer: Layer, **match: list[str]) -> Policy:
        if action is None:
            return Policy()
        return Policy([PolicyRule("r", "f:1", Match.of(**match), action, layer)])

    # The workspace's rule is the more specific one, which counts within one layer only.
    both = of(user, Layer.USER).joined(of(workspace, Layer.WORKSPACE, tool=["write_file"]))
    said = [action for action in (user, workspace) if action is not None]
    assert verdict(both, "write_file") == (max(said) if said else ASK)


@pytest.mark.req("OPS-04", "OPS-03")
@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[[policy]]\naction = 'deny\n", ":3: not valid TOML"),
        ("[[polcy]]\naction = 'deny'\n", ":1: polcy: unknown key; did you mean policy?"),
        ("[[policy]]\naction = 'forbid'\n", ":2: policy[0].action: expected one of"),
        ("[profiles.default]\nmax_turns = -1\n", ":2: profiles.default.max_turns: expected a whole number"),
        ("[profiles.default]\nmax_turn = 1\n", ":2: profiles.default.max_turn: unknown key"),
        ("profiles = 3\n", ":1: profiles: expected a table"),
        ("policy = [{ action = 'deny' }, { action = 'ask' }]", "match the same calls"),
        ("x = " + "[" * 5000, "nested too deeply"),
        ("x = " + "{a=" * 5000, "nested too deeply"),
        ("a" + ".a" * 5000 + " = 1", "at most 200 dots in one line"),
        ("x = " + "9" * 5000, "not valid TOML"),
        ("x = '\udcff'", "expected UTF-8, found the byte 0xff"),
        ("x = '" + "y" * 70_000 + "'", "it is larger than 65536 bytes"),
    ],
)
async def test_a_broken_file_is_refused_by_file_line_and_key(office: Office, content: str, says: str) -> None:
    office.file.write_bytes(content.encode("utf-8", "surrogateescape"))
    text = await office.refusal()
    assert f"{office.file}" in text
    assert says in text
    assert "mend it, or take it away" in text
    assert len(text) < 2000


@pytest.mark.req("OPS-04")
async def test_only_a_regular_file_of_the_workspace_itself_is_read(office: Office, tmp_path: Path) -> None:
    outside = tmp_path / "outside.toml"
    outside.write_text(FILE)
    office.file.symlink_to(outside)
    assert "symbolic link" in await office.refusal()
    office.file.unlink()
    (office.workspace / "inside.toml").write_text(FILE)
    office.file.symlink_to("../inside.toml")
    assert "symbolic link" in await office.refusal()
    office.file.unlink()
    os.mkfifo(office.file)
    async with asyncio.timeout(5):
        assert "not a regular file" in await office.refusal()
    office.file.unlink()
    office.file.mkdir()
    assert "not a regular file" in await office.refusal()
    office.file.rmdir()
    office.file.parent.rmdir()
    office.file.parent.symlink_to(tmp_path)
    assert "symbolic link" in await office.refusal()
    office.file.parent.unlink()
    office.file.parent.write_text("a file")
    assert (await office.layer()).file == ""


@pytest.mark.req("OPS-04")
def test_what_two_sets_of_globs_share_is_never_more_than_either() -> None:
    assert within(["*"], ["workspace.*", "core.*"]) == ["workspace.*", "core.*"]
    assert within(["workspace.read_file"], ["workspace.*"]) == ["workspace.read_file"]
    assert within(["mine.*"], ["workspace.*"]) == []
    assert within(["w*e.read"], ["w?e.read"]) == ["w?e.read"]
    assert within(["x[ab]"], ["*ab]"]) == []
    assert within(["work*"], ["work*", "w*"]) == ["work*"]


@pytest.mark.req("OPS-04")
async def test_a_list_of_trust_that_cannot_be_read_trusts_nothing_and_says_so(tmp_path: Path) -> None:
    file = tmp_path / "trust.json"
    for content in ("{", "[]", '{"version": 2, "workspaces": {}}', '{"version": 1, "workspaces": {"/w": 3}}'):
        file.write_text(content)
        trust = TrustFile(file)
        assert trust.all() == {}
        assert str(file) in trust.problem
    await trust.add("/w", "d", 1)
    assert trust.problem == ""
    assert TrustFile(file).trusts("/w", "d")
    assert file.stat().st_mode & 0o777 == 0o600
