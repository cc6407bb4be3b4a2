"""Sub-agents: what goes in, what comes out, what a tree shares, and how it is cancelled (SUB-01 to SUB-07)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.sim.world import Sim, SimTool, spec

from turnd.loop.session import LiveSession
from turnd.rules.event import event_type
from turnd.rules.policy import Match, Policy, PolicyRule
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2, provider_pb2

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
    allowed = PolicyRule("agents", "test", Match.of(tool=["spawn_agent"]), common.POLICY_ACTION_ALLOW)
    sim = Sim([spawn_tool(), *tools], policy=Policy([allowed]))
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
    causes = [
        e.turn_stopping.cancel.cause for e in sim.log.events[grandchild] if event_type(e) == "turn/stopping"
    ]
    assert causes == [common.CANCEL_CAUSE_PARENT]
    assert not sim.tools.running


PRICES = {"input_per_mtok": 1000.0, "output_per_mtok": 1000.0}
"""A thousand tokens cost a dollar."""


def costs(usd: float) -> dict[str, int]:
    """The usage of a request that costs so much at these prices."""
    return {"input_tokens": round(usd * 1000), "output_tokens": 0}


def usd(nano: int) -> float:
    return round(nano / 10**9, 4)


@pytest.mark.req("BOUND-06", "BOUND-01", "SUB-06", "M03")
async def test_four_children_share_what_is_left_of_one_budget(tmp_path: Path) -> None:
    sim = sim_with(held_work())
    spend = {"usage": costs(0.50), "profile": "worker"}
    model = transcript(
        tmp_path,
        {**spawns("a", "b", "c", "d"), "usage": costs(0.30)},
        {"stream": [{"text": "the money is spent"}], "usage": costs(0.01), "expect": {"tools": False}},
        {"stream": [{"tool": "work", "input": {}}], **spend},
        {"stream": [{"text": "final"}], **spend, "usage": costs(0.02), "expect": {"tools": False}},
        pricing=PRICES,
    )
    live = await root_of(sim, model, bounds=common.Bounds(max_cost_nano_usd=10**9))
    await sim.send(live, "go")
    await until(lambda: len(sim.tools.running) == 4)
    for name in list(sim.tools.running):
        sim.tools.release(name)
    await asyncio.wait_for(live.idle(), 20)
    children = children_of(sim, live.session)
    assert {sim.log.view(c).status for c in children} == {common.SESSION_STATUS_ERROR_MAX_BUDGET_USD}
    assert sim.log.view(live.session).status == common.SESSION_STATUS_ERROR_MAX_BUDGET_USD
    ended = sim.of(live, "child/ended")
    assert [usd(e.total_cost_nano_usd) for e in ended] == [0.52] * 4
    spent = sim.live.tree.spent_nano_usd(live.session)
    assert usd(spent) == usd(sum(sim.log.view(s).cost_nano_usd for s in (live.session, *children))) == 2.39
    (hit,) = sim.of(live, "limit/reached")[0].hits
    assert (hit.dimension, usd(hit.limit), usd(hit.value)) == (common.LIMIT_DIMENSION_MAX_COST_USD, 1.0, 2.38)


@pytest.mark.req("BOUND-07", "SUB-04", "L05")
@pytest.mark.parametrize("depth", [0, 1, 2])
async def test_a_model_that_always_delegates_stops_at_the_depth(tmp_path: Path, depth: int) -> None:
    sim = sim_with()
    delegating = {"profile": "worker", "expect": {"tools_include": ["spawn_agent"]}}
    leaf = {"profile": "worker", "expect": {"tools_exclude": ["spawn_agent"]}}
    for level in range(depth + 1):
        name = f"worker{level}"
        last = level == depth
        path = tmp_path / f"level{level}.jsonl"
        lines: list[dict[str, object]] = (
            [text("leaf", **leaf | {"profile": name})]
            if last
            else [
                {
                    "stream": [
                        {"tool": "spawn_agent", "input": {"prompt": "on", "profile": f"worker{level + 1}"}}
                    ],
                    **delegating,
                    "profile": name,
                },
                text("joined", profile=name),
            ]
        )
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        sim.profiles[name] = common.ProfileSnapshot(
            name=name,
            model=f"replay:{path}",
            tools=["*"],
            may_spawn=[f"worker{level + 1}"],
            max_subagents_total=9,
        )
    expect = {"tools_exclude" if depth == 0 else "tools_include": ["spawn_agent"]}
    model = transcript(
        tmp_path,
        {
            "stream": [{"tool": "spawn_agent", "input": {"prompt": "on", "profile": "worker1"}}],
            "expect": expect,
        },
        text("done"),
    )
    live = await root_of(sim, model, may_spawn=["worker1"], max_depth=depth)
    await sim.turn(live)
    depths = sorted(view.depth for _, view in sim.log._folded.values())
    assert depths == list(range(depth + 1))
    (result,) = sim.of(live, "tool/result")
    assert result.is_error == (depth == 0)


@pytest.mark.req("SUB-04", "L05")
async def test_no_more_than_the_whole_tree_may_have_are_started(tmp_path: Path) -> None:
    sim = sim_with()
    model = transcript(
        tmp_path,
        spawns("a", "b", "c", "d"),
        text("done", expect={"tools_exclude": ["spawn_agent"]}),
        text("ok", profile="worker"),
    )
    live = await root_of(sim, model, max_subagents_total=3)
    await sim.turn(live)
    assert len(children_of(sim, live.session)) == 3
    refused = [r for r in sim.of(live, "tool/result") if r.is_error]
    assert len(refused) == 1
    assert "max_subagents_total 3" in json.loads(refused[0].content)


@pytest.mark.req("GATE-17", "SUB-05")
async def test_a_request_of_a_grandchild_is_shown_and_settled_at_the_root(tmp_path: Path) -> None:
    change = SimTool(
        provider_pb2.ToolSpec(name="change", kind=common.TOOL_KIND_RESOURCE, risk=common.RISK_MODERATE)
    )
    sim = sim_with(change)
    sim.people.decide = lambda request: None if request.item.tool == "change" else True
    leaf = tmp_path / "leaf.jsonl"
    asks = {"stream": [{"tool": "change", "input": {}}], "profile": "leaf"}
    leaf.write_text("".join(json.dumps(x) + "\n" for x in (asks, text("changed", profile="leaf"))))
    sim.profiles["leaf"] = common.ProfileSnapshot(name="leaf", model=f"replay:{leaf}", tools=["*"])
    sim.profiles["worker"].may_spawn[:] = ["leaf"]
    below = {"tool": "spawn_agent", "input": {"prompt": "below", "profile": "leaf"}}
    model = transcript(
        tmp_path,
        spawns("above"),
        text("done"),
        {"stream": [below], "profile": "worker"},
        text("joined", profile="worker"),
    )
    live = await root_of(sim, model)
    await sim.send(live, "go")
    await until(lambda: any(r.item.tool == "change" for r in sim.people.asked))
    (child,) = children_of(sim, live.session)
    (grandchild,) = children_of(sim, child)
    (shown,) = sim.log.view(live.session).open_requests.values()
    assert shown.session == grandchild
    assert list(shown.path) == [child, grandchild]
    assert not sim.log.view(child).open_requests
    request = shown.approval
    await sim.people.settle(grandchild, request, True)
    await asyncio.wait_for(live.idle(), 20)
    told = [
        e.child_attention.state for e in sim.log.events[live.session] if event_type(e) == "child/attention"
    ]
    assert told.count(event_pb2.ATTENTION_STATE_OPEN) == told.count(event_pb2.ATTENTION_STATE_SETTLED)
    assert not sim.log.view(live.session).open_requests


@pytest.mark.req("SUB-05", "S12")
async def test_a_child_whose_runner_is_gone_is_settled_with_its_parent(tmp_path: Path) -> None:
    sim = sim_with(held_work())
    model = transcript(tmp_path, spawns("a"), WORKS)
    live = await root_of(sim, model)
    await sim.send(live, "go")
    await until(lambda: sim.tools.running)
    (child,) = children_of(sim, live.session)
    lost = await sim.live.get(child)
    assert lost._runner is not None
    assert lost._turn is not None
    for task in (lost._runner, lost._turn, lost._work):
        assert task is not None
        task.cancel()
    await until(lambda: not sim.log.state(live.session).children)
    assert sim.log.state(child).open_turn is None
    assert sim.log.view(child).status == common.SESSION_STATUS_CANCELLED
    await live.cancel(common.CANCEL_CAUSE_USER, "test")
    assert sim.log.state(live.session).open_turn is None


@pytest.mark.req("SUB-02")
async def test_a_child_has_no_tool_that_parent_profile_and_request_do_not_all_have(tmp_path: Path) -> None:
    reads = [
        SimTool(
            provider_pb2.ToolSpec(name=name, kind=common.TOOL_KIND_DATA_SOURCE, risk=common.RISK_READ_ONLY)
        )
        for name in ("one", "two", "three", "four")
    ]
    sim = sim_with(*reads, tools=["sim.two", "sim.three", "sim.four"])
    call = {"prompt": "p", "profile": "worker", "tools": ["sim.one", "sim.two", "sim.four"]}
    model = transcript(
        tmp_path,
        {"stream": [{"tool": "spawn_agent", "input": call}]},
        text("done"),
        text(
            "ok",
            profile="worker",
            expect={"tools_include": ["two"], "tools_exclude": ["one", "three", "four"]},
        ),
    )
    live = await root_of(sim, model, unattended=True, tools=["core.*", "sim.one", "sim.two", "sim.three"])
    await sim.turn(live)
    (child,) = children_of(sim, live.session)
    assert list(sim.log.view(child).profile.tools) == ["sim.two"]
    assert sim.log.view(child).unattended
    (result,) = sim.of(live, "tool/result")
    assert not result.is_error, result.content


@pytest.mark.req("SCHED-10", "SCHED-11")
async def test_a_tree_with_exclusive_tools_at_each_level_never_deadlocks(tmp_path: Path) -> None:
    """Every level starts two sub-agents and, in the same message, a call that runs alone at its provider."""
    alone = SimTool(spec("alone"))
    alone.spec.concurrency.safe = False
    sim = sim_with(alone)
    levels = 3
    for level in range(1, levels + 1):
        path = tmp_path / f"level{level}.jsonl"
        below = [
            {"tool": "spawn_agent", "input": {"prompt": f"p{level}{n}", "profile": f"level{level + 1}"}}
            for n in range(2 if level < levels else 0)
        ]
        first = {"stream": [{"tool": "alone", "input": {}}, *below, {"tool": "alone", "input": {}}]}
        lines = [first | {"profile": f"level{level}"}, text("up", profile=f"level{level}")]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        sim.profiles[f"level{level}"] = common.ProfileSnapshot(
            name=f"level{level}",
            model=f"replay:{path}",
            tools=["*"],
            may_spawn=[f"level{level + 1}"],
            max_concurrent_subagents=2,
        )
    call = {"tool": "spawn_agent", "input": {"prompt": "p", "profile": "level1"}}
    model = transcript(tmp_path, {"stream": [call, {"tool": "alone", "input": {}}, call]}, text("done"))
    live = await root_of(sim, model, may_spawn=["level1"], max_depth=levels)
    await sim.turn(live)
    assert sim.log.view(live.session).last_reason == common.TURN_END_REASON_COMPLETED
    sessions = 1 + 2 + 4 + 8
    assert len(sim.log.events) == sessions
    assert all(not r.is_error for r in sim.of(live, "tool/result"))
    assert all(frozenset() == o for o in sim.tools.overlaps)


@pytest.mark.req("SCHED-10", "SCHED-11")
async def test_a_call_that_would_wait_for_a_call_above_it_is_refused_at_every_depth(tmp_path: Path) -> None:
    """The provider that spawns has a call that runs alone: below a spawning call it could never begin."""
    alone = SimTool(spec("alone"), provider="core")
    alone.spec.concurrency.safe = False
    sim = sim_with(alone)
    sim.profiles["worker"].may_spawn[:] = ["leaf"]
    path = tmp_path / "leaf.jsonl"
    waits = {"stream": [{"tool": "alone", "input": {}}]}
    lines = [waits | {"profile": "leaf"}, text("up", profile="leaf")]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    sim.profiles["leaf"] = common.ProfileSnapshot(name="leaf", model=f"replay:{path}", tools=["*"])
    below = {"tool": "spawn_agent", "input": {"prompt": "p", "profile": "leaf"}}
    model = transcript(
        tmp_path,
        spawns("a"),
        text("done"),
        {"stream": [{"tool": "alone", "input": {}}, below], "profile": "worker"},
        text("up", profile="worker"),
    )
    live = await root_of(sim, model)
    await sim.turn(live)
    assert sim.log.view(live.session).last_reason == common.TURN_END_REASON_COMPLETED
    refused = [
        (event.session, event.tool_result.category)
        for events in sim.log.events.values()
        for event in events
        if event.tool_result.is_error
    ]
    (child,) = children_of(sim, live.session)
    (grandchild,) = children_of(sim, child)
    conflict = common.TOOL_ERROR_CATEGORY_CONCURRENCY_CONFLICT
    assert refused == [(child, conflict), (grandchild, conflict)]


@pytest.mark.req("BOUND-01", "BOUND-07")
async def test_a_childs_work_uses_up_its_parents_wall_clock_and_its_waiting_does_not(tmp_path: Path) -> None:
    change = SimTool(spec("change", common.TOOL_KIND_RESOURCE))
    sim = sim_with(change)
    waited_s = 5000.0

    def decide(request: event_pb2.ApprovalRequest) -> bool:
        sim.clock.seconds += waited_s
        return True

    sim.people.decide = decide
    model = transcript(
        tmp_path,
        spawns("slow", delay_s=0),
        text("done"),
        {"stream": [{"tool": "change", "input": {}}], "profile": "worker", "delay_s": 20},
        text("ok", profile="worker", delay_s=20),
    )
    live = await root_of(sim, model, bounds=common.Bounds(max_wall_clock_ms=100_000))
    await sim.turn(live)
    view = sim.log.view(live.session)
    (child,) = children_of(sim, live.session)
    assert view.status == common.SESSION_STATUS_IDLE
    assert 40_000 <= view.active_ms < 60_000
    assert sim.log.view(child).active_ms >= 40_000
    assert sim.log.view(child).bounds.max_wall_clock_ms == 100_000
    assert sim.of(live, "step/end")[0].waited_ms < waited_s


@pytest.mark.req("BOUND-09", "SUB-06", "L02")
async def test_a_doom_loop_in_a_sub_agent_fires_there_and_its_parent_is_told(tmp_path: Path) -> None:
    sim = sim_with(SimTool(spec("grep")))
    sim.profiles["worker"].doom_loop.threshold = 3
    greps = {"stream": [{"tool": "grep", "input": {"for": "x"}}], "profile": "worker"}
    model = transcript(
        tmp_path,
        spawns("search"),
        text("it went round in circles", expect={"last_contains": "error_doom_loop"}),
        *[greps] * 300,
    )
    live = await root_of(sim, model)
    await sim.turn(live)
    (child,) = children_of(sim, live.session)
    assert sim.log.view(child).status == common.SESSION_STATUS_ERROR_DOOM_LOOP
    assert len(sim.tools.started) == 3
    assert sim.of(live, "child/ended")[0].status == common.SESSION_STATUS_ERROR_DOOM_LOOP
    assert sim.log.view(live.session).last_reason == common.TURN_END_REASON_COMPLETED
