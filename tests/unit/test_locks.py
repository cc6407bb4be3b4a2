"""The table of what runs: nothing that conflicts runs together, and nobody waits for itself (SCHED-08 to SCHED-11)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnd.ports import WaitsForItself
from turnd.rules.schedule import Claim, Exclusive, Keyed, Unique, conflicts
from turnd.sessions.locks import LockTable

A, B = "root/a", "root/b"


def keyed(path: str, instance: str = A) -> Keyed:
    return Keyed(instance, "workspace", "file", (f"path {path}",))


class Runner:
    """Calls that run until the test ends them."""

    def __init__(self, table: LockTable) -> None:
        self.table = table
        self.running: dict[str, Claim] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.ends: dict[str, asyncio.Event] = {}

    def start(self, call: str, claim: Claim, chain: Sequence[str] = ()) -> None:
        self.ends[call] = asyncio.Event()
        self.tasks[call] = asyncio.create_task(self._run(call, claim, chain))

    async def _run(self, call: str, claim: Claim, chain: Sequence[str]) -> None:
        async with self.table.running(call, claim, chain):
            assert not any(conflicts(claim, other) for other in self.running.values())
            self.running[call] = claim
            await self.ends[call].wait()
            del self.running[call]

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


@pytest.mark.req("SCHED-08")
async def test_the_same_file_is_one_key_in_all_sessions() -> None:
    runner = Runner(LockTable())
    runner.start("one", keyed("/w/f", "root1/workspace"))
    runner.start("two", keyed("/w/f", "root2/workspace"))
    runner.start("three", keyed("/w/g", "root2/workspace"))
    await runner.settle()
    assert set(runner.running) == {"one", "three"}
    runner.ends["one"].set()
    await runner.settle()
    assert set(runner.running) == {"two", "three"}


@pytest.mark.req("SCHED-10")
async def test_what_came_first_runs_first_and_nobody_passes_an_exclusive_call() -> None:
    runner = Runner(LockTable())
    runner.start("reads", Unique(A))
    runner.start("alone", Exclusive(A))
    runner.start("later", Unique(A))
    await runner.settle()
    assert set(runner.running) == {"reads"}
    runner.ends["reads"].set()
    await runner.settle()
    assert set(runner.running) == {"alone"}
    runner.ends["alone"].set()
    await runner.settle()
    assert set(runner.running) == {"later"}


@pytest.mark.req("SCHED-11")
async def test_a_call_that_waits_for_its_own_ancestor_is_refused() -> None:
    runner = Runner(LockTable())
    runner.start("spawns", Unique(A))
    runner.start("below", Exclusive(A), ["spawns"])
    await runner.settle()
    with pytest.raises(WaitsForItself, match="call spawns"):
        await runner.tasks["below"]


@pytest.mark.req("SCHED-11", "SCHED-10")
async def test_two_families_that_wait_for_each_other_are_not_stuck() -> None:
    runner = Runner(LockTable())
    runner.start("spawns a", Unique(A))
    runner.start("spawns b", Unique(B))
    runner.start("below a", Exclusive(B), ["spawns a"])
    await runner.settle()
    assert not runner.tasks["below a"].done()
    runner.start("below b", Exclusive(A), ["spawns b"])
    await runner.settle()
    with pytest.raises(WaitsForItself, match="call spawns b"):
        await runner.tasks["below b"]
    runner.ends["spawns b"].set()
    await runner.settle()
    assert "below a" in runner.running


@pytest.mark.req("SCHED-11")
async def test_a_sub_agent_passes_an_exclusive_call_that_waits_for_its_parent() -> None:
    runner = Runner(LockTable())
    runner.start("spawns", Unique(A))
    runner.start("alone", Exclusive(A))
    runner.start("below", Unique(A), ["spawns"])
    await runner.settle()
    assert set(runner.running) == {"spawns", "below"}


@pytest.mark.req("SCHED-10")
async def test_a_call_that_is_cancelled_leaves_nothing_behind() -> None:
    runner = Runner(LockTable())
    runner.start("holds", Exclusive(A))
    runner.start("waits", Exclusive(A))
    runner.start("last", Unique(A))
    await runner.settle()
    runner.tasks["waits"].cancel()
    await runner.settle()
    runner.tasks["holds"].cancel()
    await runner.settle()
    async with AsyncExitStack() as stack, asyncio.timeout(5):
        await stack.enter_async_context(runner.table.running("other", Unique(A), []))


CLAIMS = [Exclusive(A), Exclusive(B), Unique(A), Unique(B), keyed("/f"), keyed("/g", B), keyed("/f", B)]


@pytest.mark.req("SCHED-08", "SCHED-10", "SCHED-11")
@settings(deadline=None, max_examples=300)
@given(st.data())
def test_a_forest_of_calls_always_ends(data: st.DataObject) -> None:
    """Calls at any depth, some of which spawn: once those that run end, all others have run or were refused."""

    async def play() -> None:
        runner = Runner(LockTable())
        chains: dict[str, tuple[str, ...]] = {}
        spawning: set[str] = set()
        for number in range(data.draw(st.integers(1, 14))):
            parents = [None, *sorted(s for s in spawning if s in runner.running)]
            parent = data.draw(st.sampled_from(parents))
            chain = () if parent is None else (*chains[parent], parent)
            call = f"c{number}"
            chains[call] = chain
            claim = data.draw(st.sampled_from(CLAIMS))
            if isinstance(claim, Unique) and data.draw(st.booleans()):
                spawning.add(call)
            runner.start(call, claim, chain)
            await runner.settle()
        for _ in range(len(chains) + 1):
            for call in list(runner.running):
                # A call that spawns ends when all below it have.
                below = [c for c, chain in chains.items() if call in chain and not runner.tasks[c].done()]
                if call not in spawning or not below:
                    runner.ends[call].set()
            await runner.settle()
        assert all(task.done() for task in runner.tasks.values()), "somebody waits for ever"
        for call, task in runner.tasks.items():
            if task.exception() is not None:
                assert isinstance(task.exception(), WaitsForItself)
                assert chains[call], "only a sub-agent's call can wait for itself"

    asyncio.run(play())
