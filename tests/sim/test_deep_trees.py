"""Deep trees: what is spent far below, what each level may still have, what is left of them (BOUND-06, SUB-05)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.sim.test_corrections import asking
from tests.sim.test_subagents import (
    PRICES,
    WORKS,
    children_of,
    costs,
    held_work,
    root_of,
    sim_with,
    spawns,
    text,
    transcript,
    until,
    usd,
)
from tests.sim.world import Sim, SimTool, spec

from turnd.rules.event import Draft
from turnd.rules.policy import Match, Policy, PolicyRule
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

OUT_OF_MONEY = common.SESSION_STATUS_ERROR_MAX_BUDGET_USD
FINAL: dict[str, Any] = {"expect": {"tools": False}}


def below(profile: str, **more: Any) -> dict[str, object]:
    """What a sub-agent of this profile says: it starts one of profile leaf."""
    call = {"tool": "spawn_agent", "input": {"prompt": "on", "profile": "leaf"}}
    return {"stream": [call], "profile": profile, **more}


def three_levels(*tools: SimTool, **leaf: Any) -> Sim:
    """A root that starts workers, which start leaves."""
    sim = sim_with(*tools)
    sim.profiles["worker"].may_spawn[:] = ["leaf"]
    sim.profiles["leaf"] = common.ProfileSnapshot(name="leaf", tools=["*"], **leaf)
    return sim


@pytest.mark.req("BOUND-06", "BOUND-01", "SUB-06")
@pytest.mark.parametrize("bounded", ["root", "worker"])
async def test_what_a_grandchild_spends_counts_at_every_level_at_once(tmp_path: Path, bounded: str) -> None:
    sim = three_levels(SimTool(spec("work")))
    dollar = common.Bounds(max_cost_nano_usd=10**9)
    if bounded == "worker":
        sim.profiles["worker"].bounds.CopyFrom(dollar)
    root_ends = FINAL if bounded == "root" else {}
    model = transcript(
        tmp_path,
        spawns("a") | {"usage": costs(0.10)},
        text("done", **root_ends) | {"usage": costs(0.01)},
        below("worker", usage=costs(0.20)),
        text("up", profile="worker", **FINAL) | {"usage": costs(0.02)},
        {"stream": [{"tool": "work", "input": {}}], "profile": "leaf", "usage": costs(0.90)},
        text("enough", profile="leaf", **FINAL) | {"usage": costs(0.03)},
        pricing=PRICES,
    )
    live = await root_of(sim, model, **({"bounds": dollar} if bounded == "root" else {}))
    await sim.turn(live)
    (child,) = children_of(sim, live.session)
    (grandchild,) = children_of(sim, child)
    assert [sim.log.view(session).status for session in (child, grandchild)] == [OUT_OF_MONEY] * 2
    at_root = OUT_OF_MONEY if bounded == "root" else common.SESSION_STATUS_IDLE
    assert sim.log.view(live.session).status == at_root
    told = {
        session: next(e.child_ended for e in sim.log.events[session] if e.HasField("child_ended"))
        for session in (live.session, child)
    }
    assert usd(told[live.session].total_cost_nano_usd) == 1.15
    assert usd(told[child].total_cost_nano_usd) == 0.93
    assert told[live.session].total_input_tokens == 1150
    assert told[child].total_input_tokens == 930
    assert usd(sim.live.tree.spent_nano_usd(live.session)) == 1.26


@pytest.mark.req("SUB-06")
async def test_the_tokens_of_a_subtree_are_all_in_its_end(tmp_path: Path) -> None:
    sim = three_levels()
    model = transcript(
        tmp_path,
        spawns("a"),
        text("done"),
        below("worker"),
        text("up", profile="worker"),
        text("leaf", profile="leaf"),
    )
    live = await root_of(sim, model)
    await sim.turn(live)
    (ended,) = sim.of(live, "child/ended")
    counts = [
        event.usage.tokens
        for session in sim.log.events
        if session != live.session
        for event in sim.log.events[session]
        if event.HasField("usage")
    ]
    assert len(counts) == 3
    assert ended.total_output_tokens == sum(tokens.output_tokens for tokens in counts) > 0
    assert ended.total_input_tokens == sum(tokens.input_tokens for tokens in counts) > 0


@pytest.mark.req("BOUND-07", "SUB-04", "L05")
@pytest.mark.parametrize(
    ("own", "offered"), [(None, True), (0, False), (1, True), (9, True)], ids=["unset", "none", "one", "more"]
)
async def test_a_childs_depth_is_the_smaller_of_its_own_and_what_is_left(
    tmp_path: Path, own: int | None, offered: bool
) -> None:
    sim = three_levels()
    if own is not None:
        sim.profiles["worker"].max_depth = own
    sim.profiles["leaf"].max_depth = 9
    sim.profiles["leaf"].may_spawn[:] = ["leaf"]
    expect = {"tools_include" if offered else "tools_exclude": ["spawn_agent"]}
    says = below("worker", expect=expect) if offered else text("up", profile="worker", expect=expect)
    model = transcript(
        tmp_path,
        spawns("a"),
        text("done"),
        says,
        text("up", profile="worker"),
        text("leaf", profile="leaf", expect={"tools_exclude": ["spawn_agent"]}),
    )
    live = await root_of(sim, model, max_depth=2)
    await sim.turn(live)
    (child,) = children_of(sim, live.session)
    assert sim.log.view(child).last_reason == common.TURN_END_REASON_COMPLETED
    assert len(children_of(sim, child)) == offered
    for grandchild in children_of(sim, child):
        assert sim.log.view(grandchild).last_reason == common.TURN_END_REASON_COMPLETED


@pytest.mark.req("BOUND-07", "BOUND-01")
@pytest.mark.parametrize(
    ("own_ms", "limit_ms"),
    [(None, 90_000), (30_000, 30_000), (500_000, 90_000)],
    ids=["unset", "less", "more"],
)
async def test_a_childs_time_is_the_smaller_of_its_own_and_what_is_left(
    tmp_path: Path, own_ms: int | None, limit_ms: int
) -> None:
    sim = sim_with(SimTool(spec("work")))
    if own_ms is not None:
        sim.profiles["worker"].bounds.max_wall_clock_ms = own_ms
    model = transcript(
        tmp_path,
        spawns("a", delay_s=10),
        text("done", **FINAL) if limit_ms == 90_000 else text("done"),
        {"stream": [{"tool": "work", "input": {}}], "profile": "worker", "delay_s": 95},
        text("no time", profile="worker", **FINAL),
    )
    live = await root_of(sim, model, bounds=common.Bounds(max_wall_clock_ms=100_000))
    await sim.turn(live)
    (child,) = children_of(sim, live.session)
    view = sim.log.view(child)
    assert view.bounds.max_wall_clock_ms == limit_ms
    assert view.status == common.SESSION_STATUS_ERROR_MAX_WALL_CLOCK


@pytest.mark.req("BOUND-07", "BOUND-01")
async def test_a_childs_own_budget_fires_though_its_parent_has_more(tmp_path: Path) -> None:
    sim = sim_with(SimTool(spec("work")))
    sim.profiles["worker"].bounds.max_cost_nano_usd = 10**8
    model = transcript(
        tmp_path,
        spawns("a"),
        text("done", expect={"last_contains": "error_max_budget_usd"}),
        {"stream": [{"tool": "work", "input": {}}], "profile": "worker", "usage": costs(0.20)},
        text("that was it", profile="worker", **FINAL),
        pricing=PRICES,
    )
    live = await root_of(sim, model, bounds=common.Bounds(max_cost_nano_usd=10**11))
    await sim.turn(live)
    (child,) = children_of(sim, live.session)
    assert sim.log.view(child).status == OUT_OF_MONEY
    assert sim.log.view(live.session).last_reason == common.TURN_END_REASON_COMPLETED


@pytest.mark.req("SUB-04", "L05")
async def test_of_a_model_that_always_delegates_no_more_than_ten_are_made_in_the_whole_tree(
    tmp_path: Path,
) -> None:
    """Each starts three, the leaves too where they can; what the root may have counts, whatever others say."""
    sim = three_levels(may_spawn=["leaf"], max_subagents_total=99, max_concurrent_subagents=3)
    sim.profiles["worker"].max_subagents_total = 99
    three = {
        "stream": [
            {"tool": "spawn_agent", "input": {"prompt": p, "profile": "leaf"}} for p in ("d", "e", "f")
        ]
    }
    model = transcript(
        tmp_path,
        spawns("a", "b", "c"),
        text("done", expect={"tools_exclude": ["spawn_agent"]}),
        three | {"profile": "worker"},
        text("up", profile="worker"),
        three | {"profile": "leaf"},
        text("up", profile="leaf"),
    )
    live = await root_of(sim, model, max_depth=3, max_subagents_total=10, max_concurrent_subagents=3)
    await sim.turn(live)
    assert len(sim.log.events) == 1 + 10
    refused = [
        event.tool_result.content.decode()
        for events in sim.log.events.values()
        for event in events
        if event.tool_result.is_error
    ]
    assert refused
    assert all("max_subagents_total 10" in said or "no further sub-agents" in said for said in refused), (
        refused
    )


@pytest.mark.req("SUB-02")
async def test_a_child_has_environment_and_directory_of_its_parent_and_is_unattended_with_it(
    tmp_path: Path,
) -> None:
    sim = sim_with()
    profile = common.ProfileSnapshot(
        name="default",
        model=f"replay:{transcript(tmp_path, spawns('a'), text('done'), text('ok', profile='worker'))}",
        tools=["*"],
        may_spawn=["worker"],
        max_subagents_total=1,
    )
    created = event_pb2.SessionCreated(
        cwd="/w/below",
        workspace="/w",
        profile=profile,
        environment={"LANG": "C"},
        unattended=True,
        sandbox="bubblewrap",
        unenforced=["memory"],
    )
    await sim.log.append(Draft("R", created))
    live = await sim.live.get("R")
    await sim.turn(live)
    (child,) = children_of(sim, "R")
    view = sim.log.view(child)
    assert (view.cwd, view.workspace, dict(view.environment)) == ("/w/below", "/w", {"LANG": "C"})
    assert (view.unattended, view.sandbox, view.unenforced) == (True, "bubblewrap", ("memory",))


@pytest.mark.req("SUB-02", "GATE-11", "SUB-03")
async def test_plan_mode_that_was_turned_on_meanwhile_holds_for_a_child_that_starts_then(
    tmp_path: Path,
) -> None:
    sim = sim_with(held_work(), SimTool(spec("change", common.TOOL_KIND_RESOURCE)))
    model = transcript(
        tmp_path,
        spawns("first", "second"),
        text("done"),
        WORKS,
        text("ok", profile="worker"),
    )
    live = await root_of(sim, model, max_concurrent_subagents=1)
    await sim.send(live, "go")
    await until(lambda: sim.tools.running)
    await sim.log.append(Draft(live.session, event_pb2.SessionChanged(plan_mode=True)))
    sim.tools.release(next(iter(sim.tools.running)))
    await until(lambda: len(children_of(sim, live.session)) == 2 and sim.tools.running)
    for name in list(sim.tools.running):
        sim.tools.release(name)
    await asyncio.wait_for(live.idle(), 20)
    first, second = children_of(sim, live.session)
    assert (sim.log.view(first).planning, sim.log.view(second).planning) == (False, True)
    offered = [
        [tool.tool for tool in event.agent_request.tools]
        for child in (first, second)
        for event in sim.log.events[child]
        if event.HasField("agent_request")
    ]
    assert ["change" in tools for tools in offered] == [True, True, False, False]


@pytest.mark.req("SUB-02", "GATE-04")
async def test_what_policy_denies_is_denied_at_every_depth(tmp_path: Path) -> None:
    sim = three_levels(SimTool(spec("change", common.TOOL_KIND_RESOURCE)))
    denied = PolicyRule("no", "test", Match.of(tool=["change"]), common.POLICY_ACTION_DENY)
    sim.settings = replace(sim.settings, policy=Policy([*sim.settings.policy.rules, denied]))
    model = transcript(
        tmp_path,
        spawns("a"),
        text("done"),
        below("worker"),
        text("up", profile="worker"),
        {"stream": [{"tool": "change", "input": {}}], "profile": "leaf"},
        text("leaf", profile="leaf"),
    )
    live = await root_of(sim, model)
    await sim.turn(live)
    (child,) = children_of(sim, live.session)
    (grandchild,) = children_of(sim, child)
    (result,) = [e.tool_result for e in sim.log.events[grandchild] if e.HasField("tool_result")]
    assert result.category == common.TOOL_ERROR_CATEGORY_DENIED
    assert not sim.tools.started


@pytest.mark.req("SUB-05", "S12", "LOOP-07")
@pytest.mark.parametrize("lost", ["root", "child"])
async def test_a_cancel_settles_everything_below_a_session_whose_tasks_are_gone(
    tmp_path: Path, lost: str
) -> None:
    work = held_work()
    sim = three_levels(work)
    model = transcript(
        tmp_path,
        spawns("a"),
        below("worker"),
        {"stream": [{"tool": "work", "input": {}}], "profile": "leaf"},
    )
    live = await root_of(sim, model)
    await sim.send(live, "go")
    await until(lambda: sim.tools.running)
    (child,) = children_of(sim, live.session)
    (grandchild,) = children_of(sim, child)
    without = live if lost == "root" else await sim.live.get(child)
    # What a root's work still waits for would end with it: only what follows the work is gone there.
    for task in (without._runner, without._turn, without._work if lost == "child" else None):
        if task is not None:
            task.cancel()
    await until(lambda: without._turn is not None and without._turn.done())
    assert await asyncio.wait_for(live.cancel(common.CANCEL_CAUSE_USER, "test"), 20)
    for session in (live.session, child, grandchild):
        state = sim.log.state(session)
        assert (state.open_turn, state.open_step) == (None, None)
        assert not any((state.calls, state.requests, state.children))
    for session in (child, grandchild):
        assert sim.log.view(session).status == common.SESSION_STATUS_CANCELLED
        (result,) = [e.tool_result for e in sim.log.events[session] if e.HasField("tool_result")]
        assert result.category == common.TOOL_ERROR_CATEGORY_INTERRUPTED
    assert not sim.tools.running


@pytest.mark.req("GATE-17")
async def test_a_question_of_a_grandchild_is_shown_and_settled_at_the_root(tmp_path: Path) -> None:
    sim = three_levels(SimTool(spec("ask", common.TOOL_KIND_INTERACTIVE)))
    model = transcript(
        tmp_path,
        spawns("a"),
        text("done"),
        below("worker"),
        text("up", profile="worker"),
        {"stream": [{"tool": "ask", "input": {"question": "which?"}}], "profile": "leaf"},
        text("leaf", profile="leaf"),
    )
    async with asking(sim):
        live = await root_of(sim, model, max_depth=2)
        await sim.send(live, "go")
        await until(lambda: sim.log.view(live.session).open_requests)
        (shown,) = sim.log.view(live.session).open_requests.values()
        (child,) = children_of(sim, live.session)
        (grandchild,) = children_of(sim, child)
        assert (shown.session, list(shown.path)) == (grandchild, [child, grandchild])
        assert shown.interactive.tool == "ask"
        answered = event_pb2.InteractiveAnswered(
            request_id=shown.interactive.request_id,
            call_id=shown.interactive.call_id,
            outcome=common.ANSWER_OUTCOME_ANSWERED,
            client="me",
            output=b'{"answer": "that"}',
        )
        await sim.log.append(Draft(grandchild, answered))
        await asyncio.wait_for(live.idle(), 20)
    states = [e.state for e in sim.of(live, "child/attention")]
    assert states == [event_pb2.ATTENTION_STATE_OPEN, event_pb2.ATTENTION_STATE_SETTLED]
    assert sim.of(live, "child/attention")[1].answered.client == "me"
    assert not sim.log.view(live.session).open_requests
