"""Sub-agents: what goes in, what comes out, what a tree shares, and how it is cancelled (SUB-01 to SUB-07)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.sim.world import Sim, SimTool

from turnd.loop.session import LiveSession
from turnd.rules.event import event_type
from turnd.v1 import common_pb2 as common
from turnd.v1 import provider_pb2

USAGE = {"input_tokens": 1000, "output_tokens": 100}


def transcript(
    directory: Path, *lines: Mapping[str, object], pricing: Mapping[str, float] | None = None
) -> Path:
    path = directory / "model.jsonl"
    model: dict[str, object] = {"pricing": pricing} if pricing else {}
    path.write_text("\n".join(json.dumps(line) for line in ({"model": model}, *lines)) + "\n")
    return path


def text(said: str, **more: object) -> dict[str, object]:
    return {"stream": [{"text": said}], "usage": USAGE, **more}


def spawns(*prompts: str, **more: object) -> dict[str, object]:
    """One message that starts a sub-agent for each prompt."""
    calls = [{"tool": "spawn_agent", "input": {"prompt": p, "profile": "worker"}} for p in prompts]
    return {"stream": calls, "usage": USAGE, **more}


def spawn_tool() -> SimTool:
    return SimTool(
        provider_pb2.ToolSpec(
            name="spawn_agent",
            kind=common.TOOL_KIND_RESOURCE,
            risk=common.RISK_CRITICAL,
            concurrency=common.ConcurrencySpec(safe=True),
            spawns=True,
        ),
        provider="core",
    )


def sim_with(*tools: SimTool, **fields: Any) -> Sim:
    sim = Sim([spawn_tool(), *tools])
    given = {
        "tools": ["*"],
        "may_spawn": ["worker"],
        "max_concurrent_subagents": 4,
        "max_subagents_total": 32,
    }
    sim.profiles["worker"] = common.ProfileSnapshot(
        name="worker", doom_loop=common.DoomLoop(threshold=3, window_size=10), **(given | fields)
    )
    return sim


async def root_of(sim: Sim, model: Path, **fields: Any) -> LiveSession:
    given = {"may_spawn": ["worker"], "max_concurrent_subagents": 4, "max_subagents_total": 32}
    return await sim.session(model, **(given | fields))


def children_of(sim: Sim, session: str) -> list[str]:
    return [s for s, (_, view) in sim.log._folded.items() if view.parent == session]


@pytest.mark.req("SUB-01", "SUB-06")
async def test_only_the_prompt_goes_in_and_only_the_last_message_comes_out(tmp_path: Path) -> None:
    sim = sim_with()
    model = transcript(
        tmp_path,
        spawns("count the files"),
        text("thanks", expect={"last_contains": "there are 7"}),
        text("there are 7", profile="worker", expect={"messages": 1, "last_contains": "count the files"}),
    )
    live = await root_of(sim, model)
    await sim.turn(live, "a secret of the parent's")
    (child,) = children_of(sim, live.session)
    (result,) = sim.of(live, "tool/result")
    assert json.loads(result.content) == {"session_id": child, "status": "completed", "result": "there are 7"}
    (ended,) = sim.of(live, "child/ended")
    assert (ended.status, ended.total_input_tokens, ended.total_output_tokens) == (
        common.SESSION_STATUS_COMPLETED,
        1000,
        100,
    )
    assert sim.log.view(child).status == common.SESSION_STATUS_COMPLETED
    assert sim.log.view(live.session).status == common.SESSION_STATUS_IDLE


def held_work() -> SimTool:
    """A read of a worker's that lasts until the test lets it end."""
    return SimTool(
        provider_pb2.ToolSpec(
            name="work",
            kind=common.TOOL_KIND_DATA_SOURCE,
            risk=common.RISK_READ_ONLY,
            concurrency=common.ConcurrencySpec(safe=True),
        ),
        hold=True,
    )


WORKS = {"stream": [{"tool": "work", "input": {}}], "usage": USAGE, "profile": "worker"}


async def until(condition: Any) -> None:
    """Lets everybody else run until it holds."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0)


@pytest.mark.req("SUB-03")
async def test_as_many_run_at_once_as_the_profile_says_and_the_step_joins_all(tmp_path: Path) -> None:
    sim = sim_with(held_work())
    jobs = [f"job {n}" for n in range(5)]
    model = transcript(
        tmp_path, spawns(*jobs), text("all five are done"), WORKS, text("worked", profile="worker")
    )
    live = await root_of(sim, model, max_concurrent_subagents=2)
    await sim.send(live, "go")
    for done in range(5):
        await until(lambda done=done: len(sim.tools.running - {"x"}) == min(2, 5 - done))
        assert len(children_of(sim, live.session)) == min(done + 2, 5)
        sim.tools.release(next(iter(sim.tools.running)))
        await until(lambda done=done: len(sim.of(live, "child/ended")) == done + 1)
    await asyncio.wait_for(live.idle(), 20)
    assert sim.types(live).count("step/start") == 2


@pytest.mark.req("SUB-05", "LOOP-07")
async def test_cancel_ends_every_descendant_in_its_own_log(tmp_path: Path) -> None:
    sim = sim_with(held_work(), may_spawn=["worker"])
    deeper = {**spawns("below"), "profile": "worker", "expect": {"tools_include": ["spawn_agent"]}}
    model = transcript(tmp_path, spawns("above"), deeper)
    (tmp_path / "below.jsonl").write_text(json.dumps({**WORKS, "profile": "leaf"}) + "\n")
    sim.profiles["leaf"] = common.ProfileSnapshot(
        name="leaf", model=f"replay:{tmp_path / 'below.jsonl'}", tools=["*"]
    )
    sim.profiles["worker"].may_spawn[:] = ["leaf"]
    live = await root_of(sim, model)
    transcript(
        tmp_path,
        spawns("above"),
        {
            "stream": [{"tool": "spawn_agent", "input": {"prompt": "below", "profile": "leaf"}}],
            "profile": "worker",
        },
    )
    await sim.send(live, "go")
    await until(lambda: sim.tools.running)
    (child,) = children_of(sim, live.session)
    (grandchild,) = children_of(sim, child)
    assert await live.cancel(common.CANCEL_CAUSE_USER, "test")
    for session, reason in (
        (live.session, common.TURN_END_REASON_ABORTED),
        (child, common.TURN_END_REASON_ABORTED),
        (grandchild, common.TURN_END_REASON_ABORTED),
    ):
        state, view = sim.log.state(session), sim.log.view(session)
        assert state.open_turn is None
        assert view.last_reason == reason
    assert sim.log.view(child).status == sim.log.view(grandchild).status == common.SESSION_STATUS_CANCELLED
    assert [e.status for e in sim.of(live, "child/ended")] == [common.SESSION_STATUS_CANCELLED]
    causes = [e.turn_stopping.cancel.cause for e in sim.log.events[grandchild] if event_type(e) == "turn/stopping"]
    assert causes == [common.CANCEL_CAUSE_PARENT]
    assert not sim.tools.running
