"""The doom loop in its second tier: a cycle, an error that stays the same, a model that is asked (BOUND-11)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.sim.world import Sim, SimTool, spec, transcript

from turnd.loop.session import LiveSession
from turnd.ports import ToolFailure
from turnd.v1 import common_pb2 as common

LAST = {"stream": [{"text": "I stop"}], "expect": {"tools": False, "last_contains": "doom loop"}}
GOES_ON = {"stream": [{"text": "there"}], "expect": {"tools": True}}


def reads(*names: str) -> list[dict[str, Any]]:
    """A Step for each of them."""
    return [{"stream": [{"tool": "read", "input": {"name": name}}]} for name in names]


def doom_check(word: str) -> dict[str, Any]:
    return {
        "stream": [{"text": word}],
        "purpose": "doom_check",
        "usage": {"input_tokens": 7, "output_tokens": 1},
    }


async def played(sim: Sim, directory: Path, *lines: dict[str, Any], second_tier: bool = True) -> LiveSession:
    live = await sim.session(transcript(directory, *lines))
    profile = sim.log.view(live.session).profile
    profile.doom_loop.second_tier = second_tier
    await sim.turn(live)
    return live


@pytest.mark.req("BOUND-11", "BOUND-10", "M06")
@pytest.mark.parametrize("words", [[], ["STUCK"], ["no idea"]], ids=["nobody to ask", "stuck", "no answer"])
async def test_a_cycle_fires_where_nobody_says_that_things_move(tmp_path: Path, words: list[str]) -> None:
    sim = Sim([SimTool(spec("read"))])
    lines = (*reads("a", "b", "a", "b", "a", "b"), LAST, *map(doom_check, words))
    live = await played(sim, tmp_path, *lines)
    view = sim.log.view(live.session)
    assert (view.status, view.steps) == (common.SESSION_STATUS_ERROR_DOOM_LOOP, 7)
    purposes = [usage.purpose for usage in sim.of(live, "usage")]
    assert purposes.count(common.REQUEST_PURPOSE_DOOM_CHECK) == len(words)


@pytest.mark.req("BOUND-11")
async def test_a_cycle_goes_on_where_the_model_says_that_things_move_and_is_looked_at_again(
    tmp_path: Path,
) -> None:
    sim = Sim([SimTool(spec("read"))])
    lines = (*reads(*"ababab"), *reads(*"cdcdcd"), LAST, doom_check("Moves."), doom_check("STUCK"))
    live = await played(sim, tmp_path, *lines)
    view = sim.log.view(live.session)
    assert (view.status, view.steps) == (common.SESSION_STATUS_ERROR_DOOM_LOOP, 13)


@pytest.mark.req("BOUND-11")
async def test_the_second_tier_is_off_by_default(tmp_path: Path) -> None:
    sim = Sim([SimTool(spec("read"))])
    live = await played(sim, tmp_path, *reads(*"abababab"), GOES_ON, second_tier=False)
    assert sim.log.view(live.session).status == common.SESSION_STATUS_IDLE


@pytest.mark.req("BOUND-11", "L03")
async def test_the_same_error_six_times_under_varying_input_fires(tmp_path: Path) -> None:
    failing = SimTool(
        spec("read"),
        answer=lambda call: ToolFailure(
            common.TOOL_ERROR_CATEGORY_EXECUTION_FAILED, f"no such table 'x{call.call_id}' (code 17)"
        ),
    )
    sim = Sim([failing])
    live = await played(sim, tmp_path, *reads(*"abcdef"), LAST)
    view = sim.log.view(live.session)
    assert (view.status, view.steps) == (common.SESSION_STATUS_ERROR_DOOM_LOOP, 7)
    (hit,) = sim.of(live, "limit/reached")[0].hits
    assert (hit.dimension, hit.value) == (common.LIMIT_DIMENSION_DOOM_LOOP, 6)
