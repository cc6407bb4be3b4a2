"""Policy over what the disk says, when the plan is made and when an item's turn comes."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest
from immutables import Map
from tests.sim.world import Sim, SimTool, spec, transcript

from turnd.ports import Facts, Invocation, ToolOutcome, Where
from turnd.rules.commands import Found
from turnd.rules.policy import Match, Policy, PolicyRule
from turnd.v1 import common_pb2 as common

RESOURCE = common.TOOL_KIND_RESOURCE
ALLOW, DENY = common.POLICY_ACTION_ALLOW, common.POLICY_ACTION_DENY
DONE = {"stream": [{"text": "done"}], "usage": {"input_tokens": 10, "output_tokens": 2}}
RULES = Policy(
    [
        PolicyRule("writes", "config.toml:1", Match.of(tool=["write"]), ALLOW),
        PolicyRule("tests", "config.toml:2", Match.of(command=["pytest *"]), ALLOW),
        PolicyRule("secret", "config.toml:3", Match.of(path=["/etc/**"]), DENY),
    ]
)


class ToldDisk:
    """Says of every program what the test last set."""

    def __init__(self) -> None:
        self.writable = False
        self.broken = False
        self.directory = "/usr/bin"
        self.asked: list[set[str]] = []

    async def facts(self, where: Where, programs: Collection[str], path: str | None) -> Facts:
        if self.broken:
            raise TimeoutError("the disk does not answer")
        self.asked.append(set(programs))
        found = {name: Found(f"{self.directory}/{name}", self.writable) for name in programs}
        return Facts(Map(found), "" if path is None else str(Path(where.cwd, path).resolve()))


def calls(*named: tuple[str, dict[str, object]]) -> dict[str, object]:
    return {"stream": [{"tool": tool, "input": data} for tool, data in named]}


def world(disk: ToldDisk, write: SimTool | None = None) -> Sim:
    run = SimTool(spec("run", RESOURCE, command_field="command"))
    sim = Sim([run, write or SimTool(spec("write", RESOURCE, path_field="path"))], policy=RULES)
    sim.world = replace(sim.world, disk=disk)
    sim.live = sim.make_live()
    return sim


RUN = ("run", {"name": "r", "command": "pytest -x"})


@pytest.mark.req("GATE-14")
async def test_an_allowed_command_runs_without_a_question(tmp_path: Path) -> None:
    disk = ToldDisk()
    sim = world(disk)
    live = await sim.session(transcript(tmp_path, calls(RUN), DONE))
    await sim.turn(live)
    (item,) = sim.of(live, "plan/ready")[0].items
    assert (item.decision, item.decided_by.name) == (ALLOW, "tests")
    assert sim.tools.started == ["r"]
    assert not sim.people.asked
    assert disk.asked[0] == {"pytest"}


@pytest.mark.req("GATE-14")
@pytest.mark.parametrize("approve", [True, False])
async def test_a_program_that_an_earlier_item_put_onto_path_is_asked_about(
    tmp_path: Path, approve: bool
) -> None:
    disk = ToldDisk()

    def plant(_: Invocation) -> ToolOutcome:
        disk.writable = True
        return ToolOutcome(b'"done"')

    sim = world(disk, SimTool(spec("write", RESOURCE, path_field="path"), answer=plant))
    sim.people.decide = lambda _: approve
    live = await sim.session(transcript(tmp_path, calls(("write", {"name": "w", "path": "x"}), RUN), DONE))
    await sim.turn(live)
    assert [item.decision for item in sim.of(live, "plan/ready")[0].items] == [ALLOW, ALLOW]
    (asked,) = sim.people.asked
    assert json.loads(asked.item.input)["command"] == "pytest -x"
    assert sim.tools.started == (["w", "r"] if approve else ["w"])
    assert len(sim.of(live, "tool/result")) == 2
    assert sim.of(live, "turn/end")[-1].reason == common.TURN_END_REASON_COMPLETED


@pytest.mark.req("GATE-13")
async def test_a_disk_that_does_not_answer_denies(tmp_path: Path) -> None:
    disk = ToldDisk()
    disk.broken = True
    sim = world(disk)
    live = await sim.session(transcript(tmp_path, calls(RUN), DONE))
    await sim.turn(live)
    (item,) = sim.of(live, "plan/ready")[0].items
    assert (item.decision, item.decided_by.kind) == (DENY, common.DECIDED_BY_KIND_FAILURE)
    assert "the disk does not answer" in item.reason
    assert not sim.tools.started


async def test_a_path_is_judged_by_where_it_leads(tmp_path: Path) -> None:
    sim = world(ToldDisk())
    elsewhere = ("write", {"name": "w", "path": "../etc/x/../passwd"})
    live = await sim.session(transcript(tmp_path, calls(elsewhere), DONE))
    await sim.turn(live)
    (item,) = sim.of(live, "plan/ready")[0].items
    assert (item.decision, item.decided_by.name) == (DENY, "secret")


@pytest.mark.req("GATE-09", "GATE-14")
async def test_a_remembered_command_is_remembered_with_the_programs_that_it_had(tmp_path: Path) -> None:
    """What an earlier call put onto PATH is not what a person has allowed for the session."""
    disk = ToldDisk()

    def plant(_: Invocation) -> ToolOutcome:
        disk.directory = "/ws/bin"
        return ToolOutcome(b'"done"')

    make = ("run", {"name": "m", "command": "make"})
    sim = world(disk, SimTool(spec("write", RESOURCE, path_field="path"), answer=plant))
    sim.people.scope = common.APPROVAL_SCOPE_SESSION
    write = ("write", {"name": "w", "path": "x"})
    live = await sim.session(transcript(tmp_path, *(calls(call) for call in (make, make, write, make)), DONE))
    await sim.turn(live)
    decided = [item.decided_by.kind for ready in sim.of(live, "plan/ready") for item in ready.items]
    assert decided[1] == common.DECIDED_BY_KIND_GRANT
    assert [asked.grant.programs.path_of["make"] for asked in sim.people.asked] == [
        "/usr/bin/make",
        "/ws/bin/make",
    ]
    assert sim.tools.started == ["m", "m", "w", "m"]
