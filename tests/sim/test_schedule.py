"""The executor itself against a reference model: whatever is declared, in whatever order calls finish (SCHED-10)."""

from __future__ import annotations

import asyncio
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sim.world import Sim, SimTool, spec, transcript

from turnd.v1 import common_pb2 as common

KEY = common.KeyField(name="key", type=common.KEY_FIELD_TYPE_VALUE)
DECLARED = {
    "alone": None,
    "beside": common.ConcurrencySpec(safe=True),
    "keyed": common.ConcurrencySpec(safe=True, key_fields=[KEY], group="g"),
    "keyed_too": common.ConcurrencySpec(safe=True, key_fields=[KEY], group="g"),
}


@dataclass(frozen=True)
class Wanted:
    """One call as a person would describe it."""

    provider: str
    tool: str
    key: int


CALLS = st.lists(
    st.builds(Wanted, st.sampled_from(["p", "q"]), st.sampled_from(sorted(DECLARED)), st.integers(0, 2)),
    min_size=1,
    max_size=8,
)


def must_not_overlap(one: Wanted, other: Wanted) -> bool:
    """The table of tools.md, line by line."""
    if one.provider != other.provider:
        return False
    if "alone" in (one.tool, other.tool):
        return True
    return "beside" not in (one.tool, other.tool) and one.key == other.key


def tools(kind: common.ToolKind.ValueType) -> list[SimTool]:
    return [
        SimTool(spec(tool, kind, concurrency=declared), provider=provider, hold=True)
        for provider in ("p", "q")
        for tool, declared in DECLARED.items()
    ]


@pytest.mark.req("SCHED-01", "SCHED-02", "SCHED-03", "SCHED-06", "SCHED-10")
@pytest.mark.parametrize("kind", [common.TOOL_KIND_DATA_SOURCE, common.TOOL_KIND_RESOURCE])
@settings(max_examples=40, deadline=None)
@given(calls=CALLS, seed=st.integers(0, 2**32), ceiling=st.integers(1, 8))
def test_conflicts_run_in_declaration_order_and_everything_else_overlaps(
    kind: common.ToolKind.ValueType, calls: list[Wanted], seed: int, ceiling: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_check(Path(directory), kind, calls, seed, ceiling))


async def _check(
    directory: Path, kind: common.ToolKind.ValueType, calls: list[Wanted], seed: int, ceiling: int
) -> None:
    sim = Sim(tools(kind), calls_in_flight=ceiling)
    stream = [
        {"tool": f"{call.provider}.{call.tool}", "input": {"name": str(index), "key": call.key}}
        for index, call in enumerate(calls)
    ]
    live = await sim.session(transcript(directory, {"stream": stream}, {"stream": [{"text": "done"}]}))
    await sim.send(live, "go")
    ended: list[int] = []
    while len(ended) < len(calls):
        runnable = [
            index
            for index in range(len(calls))
            if index not in ended
            and all(e in ended for e in range(index) if must_not_overlap(calls[e], calls[index]))
        ]
        await asyncio.wait_for(sim.tools.until_running(min(len(runnable), ceiling)), 10)
        running = {int(name) for name in sim.tools.running}
        assert running <= set(runnable), "a call runs before one that it conflicts with has ended"
        assert len(running) <= ceiling
        finishing = random.Random(seed + len(ended)).choice(sorted(running))
        sim.tools.release(str(finishing))
        while str(finishing) in sim.tools.running:
            await asyncio.sleep(0)
        ended.append(finishing)
    await asyncio.wait_for(live.idle(), 10)
    declared = [call.call_id for call in sim.of(live, "tool/call")]
    assert live._run is not None
    results = live._run.history.messages()[2].blocks
    assert [block.tool_result.call_id for block in results] == declared
