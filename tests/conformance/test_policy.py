"""`turn policy`: the rules with their places, and what they say of one call, over a real daemon."""

from __future__ import annotations

import json

import pytest
from tests.harness import RunningDaemon, running_daemon

from turnd.v1 import common_pb2 as common
from turnd.v1.jsonform import enum_text
from turnd_client.errors import Refused

pytestmark = pytest.mark.timeout(120)

RULES = """\
[[policy]]
name = "looking around"
match = { tool = "run_command", command = ["git status", "git log *", "ls *", "mine *"] }
action = "allow"

[[policy]]
match = { tool = "run_command", command = "git push *" }
action = "deny"

[[policy]]
name = "sources"
match = { path = "src/**" }
action = "allow"

[[policy]]
name = "reads of secrets"
match = { tool = "read_file", path = "secret" }
action = "ask"

[commands.ls]
options = ["--color"]
"""

WRONG = """
[[policy]]
name = "r"
match = { command = "git log | cat" }
action = "allow"
"""


async def explained(daemon: RunningDaemon, tool: str, **data: object) -> tuple[str, str, bool]:
    said = await daemon.client.explain_policy(str(daemon.workspace), tool, json.dumps(data).encode())
    return enum_text(common.PolicyAction, said.decision), said.rule, said.downgraded


@pytest.mark.req("GATE-05", "GATE-14", "CLI-01", "OPS-03", "A11")
async def test_rules_are_listed_and_explained_without_running_anything() -> None:
    async with running_daemon() as daemon:
        assert "there are no rules" in (await daemon.turn("policy")).stdout
        daemon.configure(RULES)
        await daemon.client.reload()

        rules = (await daemon.turn("policy", "--json")).json_lines
        file = daemon.home / "config" / "config.toml"
        assert [rule["source"] for rule in rules] == [f"{file}:{line}" for line in (1, 6, 10, 15)]
        assert rules[1] == {
            "action": "deny",
            "name": "config.toml:6",
            "match": {"tool": ["run_command"], "command": ["git push *"]},
            "source": f"{file}:6",
            "layer": "user",
        }
        assert "looking around" in (await daemon.turn("policy")).stdout

        words = ("policy", "explain", "run_command", '{"command": "git status | ls x"}')
        (said,) = (await daemon.turn(*words, "--json")).json_lines
        assert said == {"decision": "allow", "rule": "looking around", "downgraded": False}
        assert (await daemon.turn(*words)).stdout.startswith("allow: Policy rule 'looking around'")

        allowed, asks = ("allow", "looking around", False), ("ask", "", False)
        assert await explained(daemon, "workspace.run_command", command="bash -lc 'git log -3'") == allowed
        assert await explained(daemon, "run_command", command="ls --color=x") == asks
        assert (await explained(daemon, "run_command", command="git -C . push"))[:2] == (
            "deny",
            "config.toml:6",
        )
        (daemon.workspace / "src").symlink_to("elsewhere")
        (daemon.workspace / "other").mkdir()
        assert await explained(daemon, "write_file", path="src/x", content="x") == asks
        (daemon.workspace / "src").unlink()
        written = await explained(daemon, "write_file", path="other/../src/x", content="x")
        assert written == ("allow", "sources", False)
        assert not (daemon.workspace / "src").exists()
        assert await explained(daemon, "read_file", path="./secret") == ("deny", "reads of secrets", True)

        for tool, data, why in (
            ("nothing", b"{}", "no tool is called 'nothing'"),
            ("run_command", b'{"command": 3}', "would not take this"),
        ):
            with pytest.raises(Refused, match=why):
                await daemon.client.explain_policy(str(daemon.workspace), tool, data)
        with pytest.raises(Refused, match="there is no profile 'none'"):
            await daemon.client.explain_policy(str(daemon.workspace), "run_command", b"{}", profile="none")
        done = await daemon.turn("policy", "explain", "run_command", "[]")
        assert (done.code, "expected the input as a JSON object" in done.stderr) == (2, True)

        daemon.configure(WRONG)
        with pytest.raises(Refused, match=r"config\.toml:2\): match\.command"):
            await daemon.client.reload()
