"""What opens the requests of a Turn: the same bytes in every Step, with the instructions as they were at its start."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from tests.sim.recording import recorded
from tests.sim.test_loop import DONE, READ, calls
from tests.sim.world import Sim, transcript

from turnd.rules.opening import InstructionFile

pytestmark = pytest.mark.timeout(60)


def read(name: str) -> dict[str, object]:
    return calls(("read", {"name": name}))


async def test_instructions_are_read_at_the_beginning_of_each_turn_and_stay_for_all_of_it(
    tmp_path: Path,
) -> None:
    sim = Sim([READ])
    recording = recorded(sim)
    sim.instructions.files = [InstructionFile("/w/AGENTS.md", "use tabs")]

    async def changed(request: object) -> None:
        sim.instructions.files = [InstructionFile("/w/AGENTS.md", "use spaces")]

    live = await sim.session(
        transcript(tmp_path, read("a"), read("b"), DONE, DONE),
        system_prompt="You are an agent.",
        instructions=["AGENTS.md"],
    )
    recording.before = changed
    await sim.turn(live)
    assert [request.system for request in recording.requests] == [
        "You are an agent.\n\n# Instructions from /w/AGENTS.md\n\nuse tabs"
    ] * 3
    assert sim.instructions.reads == 1
    await sim.turn(live)
    assert recording.requests[-1].system.endswith("use spaces")


@pytest.mark.req("MODEL-08")
async def test_a_request_is_the_one_before_with_more_behind_it_and_keeps_its_cache_points(
    tmp_path: Path,
) -> None:
    sim = Sim([READ])
    recording = recorded(sim)
    live = await sim.session(
        transcript(tmp_path, DONE, read("a"), read("b"), DONE), system_prompt="You are an agent."
    )
    await sim.turn(live, "one")
    await sim.turn(live, "two")
    first, *steps = recording.requests
    assert first.cache_points == (0, 1)
    assert [request.cache_points for request in steps] == [(0, 2, 3), (0, 2, 5), (0, 2, 7)]
    for before, after in pairwise(steps):
        assert (after.system, after.tools, after.parameters) == (
            before.system,
            before.tools,
            before.parameters,
        )
        sent = [message.digest for message in after.messages]
        assert sent[: len(before.messages)] == [message.digest for message in before.messages]
