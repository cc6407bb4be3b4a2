"""Situations in which systems of this kind have failed in the field, in the loop: cancel, budget, bounds, requests."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
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
    until,
    usd,
)
from tests.sim.test_subagents import transcript as priced_transcript
from tests.sim.world import Sim, SimTool, spec, transcript

from turnd.hooks.subscriber import Answer, Verdict
from turnd.ports import At, Invocation, ToolOutcome
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

RESOURCE = common.TOOL_KIND_RESOURCE


def calls(*named: tuple[str, str]) -> dict[str, Any]:
    return {"stream": [{"tool": tool, "input": {"name": name}} for tool, name in named]}


def results(sim: Sim, session: str) -> dict[str, event_pb2.ToolResult]:
    """Each call's result by the name in its input."""
    events = sim.log.events[session]
    names = {
        e.tool_call.call_id: json.loads(e.tool_call.input)["name"] for e in events if e.HasField("tool_call")
    }
    return {names[e.tool_result.call_id]: e.tool_result for e in events if e.HasField("tool_result")}


@pytest.mark.req("S07", "LOOP-07", "SCHED-02")
async def test_a_cancel_gives_each_of_five_calls_its_own_end(tmp_path: Path) -> None:
    """One has ended, two run, and two wait for the key of one that runs."""
    keyed = common.ConcurrencySpec(
        safe=True, key_fields=[common.KeyField(name="key", type=common.KEY_FIELD_TYPE_VALUE)]
    )
    sim = Sim([SimTool(spec("quick")), SimTool(spec("slow", concurrency=keyed), hold=True)])
    slow = [
        {"tool": "slow", "input": {"name": name, "key": key}}
        for name, key in (("b", "k1"), ("c", "k2"), ("d", "k1"), ("e", "k2"))
    ]
    model = transcript(tmp_path, {"stream": [{"tool": "quick", "input": {"name": "a"}}, *slow]})
    live = await sim.session(model)
    await sim.send(live, "go")
    await until(lambda: sim.tools.running == {"b", "c"} and "tool/result" in sim.types(live))
    assert await live.cancel(common.CANCEL_CAUSE_USER, "test")
    ends = results(sim, live.session)
    interrupted, waiting = common.TOOL_ERROR_CATEGORY_INTERRUPTED, common.TOOL_ERROR_CATEGORY_NOT_STARTED
    assert {name: end.category for name, end in ends.items()} == {
        "a": common.TOOL_ERROR_CATEGORY_UNSPECIFIED,
        "b": interrupted,
        "c": interrupted,
        "d": waiting,
        "e": waiting,
    }
    assert json.loads(ends["a"].content) == "done"
    assert "may have had effects" in json.loads(ends["b"].content)
    assert sim.log.view(live.session).last_reason == common.TURN_END_REASON_ABORTED


@pytest.mark.req("P07", "LOOP-15", "LOOP-07")
async def test_one_cancel_settles_an_approval_a_question_a_child_and_a_call(tmp_path: Path) -> None:
    sim = sim_with(held_work(), SimTool(spec("change", RESOURCE)))
    sim.people.decide = lambda request: None
    model = priced_transcript(
        tmp_path,
        {"stream": [*spawns("below")["stream"], {"tool": "change", "input": {"name": "x"}}]},  # type: ignore[misc]
        WORKS,
    )
    live = await root_of(sim, model)
    await sim.send(live, "go")
    await until(lambda: sim.tools.running and sim.people.asked)
    (child,) = children_of(sim, live.session)
    assert await live.cancel(common.CANCEL_CAUSE_USER, "test")
    for session in (live.session, child):
        state = sim.log.state(session)
        assert (state.open_turn, state.open_step) == (None, None)
        left = (state.calls, state.requests, state.children, state.attentions)
        assert not any(left)
    (decided,) = sim.of(live, "approval/decided")
    assert (decided.outcome, decided.client) == (common.APPROVAL_OUTCOME_CANCELLED, "test")
    assert not sim.tools.running


@pytest.mark.req("M04", "BOUND-06")
async def test_a_child_that_fails_after_spending_is_in_its_parents_sum(tmp_path: Path) -> None:
    sim = sim_with(SimTool(spec("work")))
    broken = {"category": "auth_error", "message": "no key"}
    model = priced_transcript(
        tmp_path,
        {**spawns("a"), "usage": costs(0.1)},
        {**text("it failed"), "usage": costs(0.1)},
        {**WORKS, "usage": costs(0.5)},
        {"stream": [], "error": broken, "profile": "worker"},
        pricing=PRICES,
    )
    live = await root_of(sim, model)
    await sim.turn(live)
    (ended,) = sim.of(live, "child/ended")
    assert (ended.status, usd(ended.total_cost_nano_usd)) == (common.SESSION_STATUS_FAILED, 0.5)
    assert usd(sim.live.tree.spent_nano_usd(live.session)) == 0.7
    (result,) = sim.of(live, "tool/result")
    assert json.loads(result.content)["status"] == "failed"


class AlwaysDenies:
    """A veto that is against everything."""

    name = "no"
    point = common.HOOK_POINT_PLAN_READY
    mode = common.HOOK_MODE_VETO
    timeout_s = 5.0

    async def answer(self, at: At, payload: Any) -> Answer:
        return Verdict(False, "never")


@pytest.mark.req("L04", "GATE-12", "HOOK-05")
async def test_a_veto_that_always_denies_is_bounded(tmp_path: Path) -> None:
    sim = Sim([SimTool(spec("change", RESOURCE))], subscribers=[AlwaysDenies()])
    tries = [calls(("change", name)) for name in "abcdefgh"]
    model = transcript(tmp_path, *tries[:3], {"stream": [{"text": "I give up"}], "expect": {"tools": False}})
    live = await sim.session(model)
    await sim.turn(live)
    view = sim.log.view(live.session)
    assert (view.status, view.last_reason) == (common.SESSION_STATUS_IDLE, common.TURN_END_REASON_BLOCKED)
    assert view.final_text == "I give up"
    assert not sim.tools.started


@pytest.mark.req("A08", "GATE-17")
@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_a_request_at_any_depth_is_shown_at_the_root_with_its_path_and_nowhere_else(
    tmp_path: Path, depth: int
) -> None:
    sim = sim_with(SimTool(spec("change", RESOURCE)))
    sim.people.decide = lambda request: None
    for level in range(1, depth + 1):
        path = tmp_path / f"level{level}.jsonl"
        below = {"tool": "spawn_agent", "input": {"prompt": "on", "profile": f"level{level + 1}"}}
        asks = {"tool": "change", "input": {"name": "deep"}}
        lines = [{"stream": [asks if level == depth else below]}, {"stream": [{"text": "up"}]}]
        path.write_text("".join(json.dumps(line | {"profile": f"level{level}"}) + "\n" for line in lines))
        sim.profiles[f"level{level}"] = common.ProfileSnapshot(
            name=f"level{level}", model=f"replay:{path}", tools=["*"], may_spawn=[f"level{level + 1}"]
        )
    call = {"tool": "spawn_agent", "input": {"prompt": "on", "profile": "level1"}}
    model = priced_transcript(tmp_path, {"stream": [call]}, text("done"))
    live = await root_of(sim, model, may_spawn=["level1"], max_depth=3)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    beside = await sim.session(transcript(elsewhere, calls(("read", "x"))))
    await sim.send(live, "go")
    await until(lambda: sim.people.asked)
    path_down: list[str] = []
    while below_ids := children_of(sim, path_down[-1] if path_down else live.session):
        path_down += below_ids
    assert len(path_down) == depth
    (shown,) = sim.log.view(live.session).open_requests.values()
    assert list(shown.path) == path_down
    for between in path_down[:-1]:
        assert not sim.log.view(between).open_requests
    assert not sim.log.view(beside.session).open_requests
    await sim.people.settle(path_down[-1], shown.approval, True)
    await asyncio.wait_for(live.idle(), 20)
    assert sim.log.view(live.session).last_reason == common.TURN_END_REASON_COMPLETED
    assert sim.tools.started == ["deep"]


@pytest.mark.req("SCHED-09")
async def test_a_model_without_parallel_calls_gets_them_one_by_one(tmp_path: Path) -> None:
    running: list[str] = []

    def answer(call: Invocation) -> ToolOutcome:
        running.append(json.loads(call.input)["name"])
        return ToolOutcome(b'"ok"')

    sim = Sim([SimTool(spec("read"), answer=answer), SimTool(spec("other"), provider="else", answer=answer)])
    lines = (calls(("read", "a"), ("other", "b"), ("read", "c")), {"stream": [{"text": "done"}]})
    one_by_one = {"model": {"parallel_tool_calls": False}}
    live = await sim.session(transcript(tmp_path, one_by_one, *lines))
    await sim.turn(live)
    assert running == ["a", "b", "c"]
    assert sim.tools.most_running == 1
    at_once = await sim.session(transcript(tmp_path, *lines))
    await sim.turn(at_once)
    assert sim.tools.most_running > 1
