"""The breakers: what keeps being denied, or crashes again and again, is not tried for ever (GATE-12)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.sim.world import Sim, SimTool, spec, transcript

from turnd.ports import ToolFailure
from turnd.v1 import common_pb2 as common

DONE = {"stream": [{"text": "done"}], "usage": {"input_tokens": 10, "output_tokens": 2}}
GONE = ToolFailure(common.TOOL_ERROR_CATEGORY_PROCESS_CRASHED, "the provider crashed")
WRITE = SimTool(spec("write", common.TOOL_KIND_RESOURCE))


def calls(*named: tuple[str, dict[str, object]]) -> dict[str, object]:
    return {"stream": [{"tool": tool, "input": data} for tool, data in named]}


@pytest.mark.req("GATE-12")
async def test_denied_steps_that_are_not_in_a_row_trip_nothing(tmp_path: Path) -> None:
    sim = Sim([WRITE])
    denied = [calls(("write", {"name": f"w{i}"})) for i in range(3)]
    lines = [line for one in denied for line in (one, DONE)]
    live = await sim.session(transcript(tmp_path, *lines), unattended=True)
    for _ in range(3):
        await sim.turn(live)
    reasons = [end.reason for end in sim.of(live, "turn/end")]
    assert reasons == [common.TURN_END_REASON_COMPLETED] * 3


@pytest.mark.req("LOOP-13", "TOOL-03")
async def test_a_provider_that_is_gone_is_a_result_and_three_times_in_a_row_a_breaker(tmp_path: Path) -> None:
    sim = Sim([SimTool(spec("read"), answer=lambda call: GONE)])
    lines = [calls(("read", {"name": f"r{i}"})) for i in range(3)]
    live = await sim.session(transcript(tmp_path, *lines, DONE | {"expect": {"tools": False}}))
    await sim.turn(live)
    assert [result.category for result in sim.of(live, "tool/result")] == [GONE.category] * 3
    assert sim.of(live, "turn/stopping")[-1].error.source == "crashes"
    assert sim.of(live, "turn/end")[-1].reason == common.TURN_END_REASON_BLOCKED


@pytest.mark.req("GATE-12", "LOG-13")
async def test_what_is_in_a_row_is_so_across_turns_and_restarts(tmp_path: Path) -> None:
    """Each Turn has one crash, and the session is loaded anew in between: the third one in a row trips."""
    sim = Sim([SimTool(spec("read"), answer=lambda call: GONE)])
    lines = [line for i in range(3) for line in (calls(("read", {"name": f"r{i}"})), DONE)]
    live = await sim.session(transcript(tmp_path, *lines))
    for _ in range(3):
        await sim.turn(live)
        sim.live = sim.make_live()
        live = await sim.live.get(live.session)
    completed, blocked = common.TURN_END_REASON_COMPLETED, common.TURN_END_REASON_BLOCKED
    assert [end.reason for end in sim.of(live, "turn/end")] == [completed, completed, blocked]


@pytest.mark.req("GATE-12")
async def test_a_restart_does_not_put_denied_steps_in_a_row_that_are_not(tmp_path: Path) -> None:
    sim = Sim([WRITE])
    lines = [line for i in range(4) for line in (calls(("write", {"name": f"w{i}"})), DONE)]
    live = await sim.session(transcript(tmp_path, *lines), unattended=True)
    for _ in range(4):
        await sim.turn(live)
        sim.live = sim.make_live()
        live = await sim.live.get(live.session)
    assert {end.reason for end in sim.of(live, "turn/end")} == {common.TURN_END_REASON_COMPLETED}
