"""Each limit by itself: with and without tool calls, hard and soft; and what a lost task leaves (BOUND-01 to -04)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.sim.world import Sim, SimTool, spec, transcript

from turnd.rules.bounds import describe
from turnd.rules.lifecycle import Transition
from turnd.sessions.going_on import GoingOn
from turnd.sessions.refusal import CommandRefused
from turnd.v1 import common_pb2 as common

PRICED = {"model": {"pricing": {"input_per_mtok": 1000.0, "output_per_mtok": 1000.0}}}
USAGE = {"input_tokens": 900, "output_tokens": 100}
"""One dollar."""
ANSWER: dict[str, Any] = {"stream": [{"text": "an answer"}], "usage": USAGE, "delay_s": 10}
CALLS: dict[str, Any] = {"stream": [{"tool": "read", "input": {}}], "usage": USAGE, "delay_s": 10}
LAST: dict[str, Any] = {
    "stream": [{"text": "the last"}],
    "expect": {"tools": False, "last_contains": "limit"},
}

LIMITS = {
    "turns": (common.Bounds(max_turns=1), common.SESSION_STATUS_ERROR_MAX_TURNS, "max_turns"),
    "cost": (
        common.Bounds(max_cost_nano_usd=10**9),
        common.SESSION_STATUS_ERROR_MAX_BUDGET_USD,
        "max_cost_usd",
    ),
    "wall clock": (
        common.Bounds(max_wall_clock_ms=10_000),
        common.SESSION_STATUS_ERROR_MAX_WALL_CLOCK,
        "max_wall_clock_s",
    ),
}
MORE = {
    "turns": common.Bounds(max_turns=9),
    "cost": common.Bounds(max_cost_nano_usd=9 * 10**9),
    "wall clock": common.Bounds(max_wall_clock_ms=90_000),
}
RUNNING = Transition(common.SESSION_STATUS_RUNNING)


@pytest.mark.req("BOUND-01", "BOUND-02", "BOUND-03")
@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("with_calls", [True, False], ids=["with calls", "without calls"])
async def test_a_limit_ends_by_one_step_without_tools(tmp_path: Path, limit: str, with_calls: bool) -> None:
    bounds, status, name = LIMITS[limit]
    sim = Sim([SimTool(spec("read"))])
    live = await sim.session(
        transcript(tmp_path, PRICED, CALLS if with_calls else ANSWER, LAST), bounds=bounds
    )
    await sim.turn(live)
    if not with_calls:
        # Nothing was asked for after the answer: the next Turn is what the limit stops, before its first Step.
        assert sim.log.view(live.session).status == common.SESSION_STATUS_IDLE
        await sim.turn(live)
    view = sim.log.view(live.session)
    assert (view.status, view.steps, view.final_text) == (status, 2, "the last")
    assert view.last_reason == common.TURN_END_REASON_COMPLETED
    (reached,) = sim.of(live, "limit/reached")
    said = describe(reached.hits[0])
    assert said.startswith(f"{name} (limit 1")
    assert said in sim.of(live, "user/message")[-1].blocks[0].text.text


@pytest.mark.req("BOUND-04", "BOUND-01")
@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("with_calls", [True, False], ids=["with calls", "without calls"])
async def test_a_soft_limit_pauses_and_goes_on_with_more(
    tmp_path: Path, limit: str, with_calls: bool
) -> None:
    bounds = common.Bounds(limit_mode=common.LIMIT_MODE_SOFT)
    bounds.MergeFrom(LIMITS[limit][0])
    sim = Sim([SimTool(spec("read"))])
    goes_on = {"stream": [{"text": "went on"}], "expect": {"tools": True, "last_contains": "new allowance"}}
    lines = (CALLS if with_calls else ANSWER, goes_on)
    live = await sim.session(transcript(tmp_path, PRICED, *lines), bounds=bounds)
    await sim.turn(live)
    if not with_calls:
        await sim.turn(live)
    view = sim.log.view(live.session)
    assert (view.status, view.last_reason) == (
        common.SESSION_STATUS_PAUSED,
        common.TURN_END_REASON_INTERRUPTED,
    )
    assert view.steps == 1
    going_on = GoingOn(sim.log, sim.live.tree)
    with pytest.raises(CommandRefused, match=LIMITS[limit][2]):
        await going_on.continue_(live, RUNNING, common.Bounds(), "test", None)
    assert sim.log.view(live.session).status == common.SESSION_STATUS_PAUSED
    await going_on.continue_(live, RUNNING, MORE[limit], "test", None)
    await asyncio.wait_for(live.idle(), 20)
    view = sim.log.view(live.session)
    assert (view.status, view.final_text) == (common.SESSION_STATUS_IDLE, "went on")
    assert view.bounds.limit_mode == common.LIMIT_MODE_SOFT


@pytest.mark.req("BOUND-04")
async def test_unattended_is_hard_whatever_the_profile_says(tmp_path: Path) -> None:
    bounds = common.Bounds(max_turns=1, limit_mode=common.LIMIT_MODE_SOFT)
    sim = Sim([SimTool(spec("read"))])
    live = await sim.session(transcript(tmp_path, CALLS, LAST), bounds=bounds, unattended=True)
    await sim.turn(live)
    assert sim.log.view(live.session).status == common.SESSION_STATUS_ERROR_MAX_TURNS


@pytest.mark.req("BOUND-09", "BOUND-10", "BOUND-04", "L06")
async def test_a_soft_doom_loop_pauses_and_its_row_starts_anew(tmp_path: Path) -> None:
    sim = Sim([SimTool(spec("read"))])
    soft = common.Bounds(limit_mode=common.LIMIT_MODE_SOFT)
    live = await sim.session(
        transcript(tmp_path, CALLS, CALLS, CALLS, CALLS, CALLS, {"stream": [{"text": "out"}]}), bounds=soft
    )
    await sim.turn(live)
    assert sim.log.view(live.session).status == common.SESSION_STATUS_PAUSED
    await GoingOn(sim.log, sim.live.tree).continue_(live, RUNNING, common.Bounds(), "test", None)
    await asyncio.wait_for(live.idle(), 20)
    view = sim.log.view(live.session)
    assert (view.status, view.final_text, view.steps) == (common.SESSION_STATUS_IDLE, "out", 6)


@pytest.mark.req("LOOP-07", "LOOP-15", "S11")
async def test_a_turn_whose_task_is_gone_is_settled_by_cancel(tmp_path: Path) -> None:
    sim = Sim([SimTool(spec("read"), hold=True)])
    live = await sim.session(transcript(tmp_path, CALLS, {"stream": [{"text": "again"}]}))
    await sim.send(live, "go")
    await sim.tools.until_running(1)
    for task in (live._runner, live._turn, live._work):
        assert task is not None
        task.cancel()
        await asyncio.wait({task})
    assert sim.log.state(live.session).open_turn == 0
    assert await live.cancel(common.CANCEL_CAUSE_USER, "test")
    state, view = sim.log.state(live.session), sim.log.view(live.session)
    assert state.open_turn is None
    assert (view.status, view.last_reason) == (common.SESSION_STATUS_IDLE, common.TURN_END_REASON_ABORTED)
    (result,) = sim.of(live, "tool/result")
    assert result.category == common.TOOL_ERROR_CATEGORY_INTERRUPTED
    assert "may have had effects" in json.loads(result.content)
    await sim.turn(live, "on")
    assert sim.log.view(live.session).final_text == "again"
