"""What hooks leave in the log, and how often they fire, in the loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.sim.test_limits import RUNNING
from tests.sim.test_loop import DONE, Watch
from tests.sim.world import Sim, transcript

from turnd.hooks.subscriber import Transformed
from turnd.ports import At
from turnd.sessions.going_on import GoingOn
from turnd.v1 import common_pb2 as common

SHORT = [{"role": "user", "blocks": [{"text": {"text": "only this"}}]}]


@dataclass(frozen=True)
class Shortening:
    """Puts one short message in the place of all others."""

    point: common.HookPoint.ValueType
    name: str = "shortening"
    mode: common.HookMode.ValueType = common.HOOK_MODE_TRANSFORM
    timeout_s: float = 30

    async def answer(self, at: At, payload: Mapping[str, object]) -> Transformed:
        field = "history" if self.point == common.HOOK_POINT_CONTEXT_ASSEMBLE else "messages"
        return Transformed(dict(payload) | {field: SHORT})


@pytest.mark.req("HOOK-04")
@pytest.mark.parametrize(
    "points",
    [
        (),
        (common.HOOK_POINT_CONTEXT_ASSEMBLE,),
        (common.HOOK_POINT_PRE_MODEL_CALL,),
        (common.HOOK_POINT_CONTEXT_ASSEMBLE, common.HOOK_POINT_PRE_MODEL_CALL),
    ],
)
async def test_a_request_that_a_hook_changed_is_in_the_log_whole(
    tmp_path: Path, points: tuple[common.HookPoint.ValueType, ...]
) -> None:
    sim = Sim([], subscribers=[Shortening(point) for point in points])
    live = await sim.session(transcript(tmp_path, DONE))
    await sim.turn(live, "something long")
    (request,) = sim.of(live, "agent/request")
    assert bool(request.whole) == bool(points)
    if points:
        whole = json.loads(request.whole)
        (message,) = whole["messages"]
        assert message["blocks"][0]["text"]["text"] == "only this"
        assert set(whole) == {"model", "messages", "tools", "parameters"}


@pytest.mark.req("LOOP-06", "BOUND-04")
async def test_session_start_fires_once_also_where_a_bound_came_before_the_first_step(tmp_path: Path) -> None:
    seen: list[str] = []
    sim = Sim([], subscribers=[Watch(common.HOOK_POINT_SESSION_START, seen)])
    bounds = common.Bounds(max_turns=0, limit_mode=common.LIMIT_MODE_SOFT)
    live = await sim.session(transcript(tmp_path, DONE), bounds=bounds)
    await sim.turn(live)
    assert sim.log.view(live.session).status == common.SESSION_STATUS_PAUSED
    await GoingOn(sim.log, sim.live.tree).continue_(live, RUNNING, common.Bounds(max_turns=5), "test", None)
    await asyncio.wait_for(live.idle(), 20)
    assert sim.log.view(live.session).final_text == "done"
    assert seen == ["session-start"]
