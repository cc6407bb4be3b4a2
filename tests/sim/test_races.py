"""Commands and the runner of a session at the same moment: whatever comes first, nothing fails and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog
from tests.sim.test_limits import RUNNING
from tests.sim.test_subagents import children_of, held_work, root_of, sim_with, spawns, transcript, until
from tests.sim.test_subagents import text as says
from tests.sim.world import Sim, SimTool, spec
from tests.sim.world import transcript as lines_of

from turnd.loop.session import LiveSession
from turnd.rules.event import Draft
from turnd.rules.state import Violation
from turnd.sessions.going_on import GoingOn
from turnd.sessions.refusal import CommandRefused
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

READS = {"stream": [{"tool": "read", "input": {"name": "held"}}]}
DONE: dict[str, Any] = {"stream": [{"text": "done"}], "repeat": True}
TICKS = range(12)
"""Steps of the event loop between two things: enough for each of them to come first."""


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    """The daemon reports no fault of its own."""
    with structlog.testing.capture_logs() as logs:
        yield
    assert not [entry for entry in logs if entry["log_level"] == "error"]


async def aborted(directory: Path) -> tuple[Sim, LiveSession]:
    """A session whose Turn was cancelled, so that it can be resumed."""
    sim = Sim([SimTool(spec("read"), hold=True)])
    live = await sim.session(lines_of(directory, READS, DONE))
    await sim.send(live, "first")
    await sim.tools.until_running(1)
    assert await live.cancel(common.CANCEL_CAUSE_USER, "test")
    await asyncio.wait_for(live.idle(), 10)
    return sim, live


async def passed(ticks: int) -> None:
    for _ in range(ticks):
        await asyncio.sleep(0)


@pytest.mark.req("LOOP-10", "LOOP-11")
@pytest.mark.parametrize("ticks", TICKS)
async def test_a_message_and_a_resume_at_the_same_moment(tmp_path: Path, ticks: int) -> None:
    sim, live = await aborted(tmp_path)
    await sim.send(live, "second")
    await passed(ticks)
    resumed = 1
    try:
        await GoingOn(sim.log, sim.live.tree).resume(live, RUNNING, "test", None)
    except (CommandRefused, Violation):
        # The message's Turn is open already, or has ended.
        resumed = 0
    await asyncio.wait_for(live.idle(), 10)
    ends = [end.reason for end in sim.of(live, "turn/end")]
    assert ends == [common.TURN_END_REASON_ABORTED, *[common.TURN_END_REASON_COMPLETED] * (1 + resumed)]
    assert not sim.log.view(live.session).queue


@pytest.mark.req("LOOP-10")
@pytest.mark.parametrize("ticks", TICKS)
async def test_a_message_is_taken_out_of_the_queue_as_its_turn_begins(tmp_path: Path, ticks: int) -> None:
    sim = Sim()
    live = await sim.session(lines_of(tmp_path, DONE))
    await sim.turn(live, "first")
    await sim.send(live, "second")
    await sim.send(live, "third")
    await passed(ticks)
    second = next(m for m in sim.of(live, "inbox/queued") if m.blocks[0].text.text == "second")
    if any(m.message_id == second.message_id for m in sim.log.view(live.session).queue):
        cleared = event_pb2.InboxCleared(message_ids=[second.message_id], client="test")
        await sim.log.append(Draft(live.session, cleared))
    await asyncio.wait_for(live.idle(), 10)
    taken = any(second.message_id in event.message_ids for event in sim.of(live, "inbox/taken"))
    said = [message.blocks[0].text.text for message in sim.of(live, "user/message")]
    assert said == ["first", *(["second"] if taken else []), "third"]
    assert not sim.log.view(live.session).queue


@pytest.mark.req("LOOP-07", "LOOP-11")
@pytest.mark.parametrize("ticks", TICKS)
@pytest.mark.parametrize("resumes", [1, 2])
async def test_a_turn_that_is_being_opened_is_cancelled(
    tmp_path: Path, ticks: int, resumes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit of what opens it is there before whoever asked for it goes on."""
    sim, live = await aborted(tmp_path)
    append = sim.log.append

    async def slow(*drafts: Draft, **more: Any) -> list[event_pb2.Event]:
        events = await append(*drafts, **more)
        if any(isinstance(draft.payload, event_pb2.TurnStart) for draft in drafts):
            await passed(5)
        return events

    monkeypatch.setattr(sim.log, "append", slow)
    going_on = GoingOn(sim.log, sim.live.tree)
    resuming = [asyncio.create_task(going_on.resume(live, RUNNING, "test", None)) for _ in range(resumes)]
    await passed(ticks)
    cancelled = await asyncio.wait_for(live.cancel(common.CANCEL_CAUSE_USER, "test"), 10)
    outcomes = await asyncio.wait_for(asyncio.gather(*resuming, return_exceptions=True), 10)
    assert outcomes.count(None) == 1
    await asyncio.wait_for(live.idle(), 10)
    last = sim.of(live, "turn/end")[-1].reason
    assert last == (common.TURN_END_REASON_ABORTED if cancelled else common.TURN_END_REASON_COMPLETED)
    assert sim.log.state(live.session).open_turn is None


@pytest.mark.req("LOOP-07", "LOOP-11")
async def test_a_turn_that_was_taken_up_before_its_command_went_on_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = Sim([SimTool(spec("read"), hold=True)])
    live = await sim.session(lines_of(tmp_path, READS, READS, DONE))
    await sim.send(live, "first")
    await sim.tools.until_running(1)
    assert await live.cancel(common.CANCEL_CAUSE_USER, "test")
    await asyncio.wait_for(live.idle(), 10)
    append, commanded = sim.log.append, asyncio.Event()

    async def slow(*drafts: Draft, **more: Any) -> list[event_pb2.Event]:
        events = await append(*drafts, **more)
        if any(isinstance(draft.payload, event_pb2.TurnStart) for draft in drafts):
            await commanded.wait()
        return events

    monkeypatch.setattr(sim.log, "append", slow)
    resuming = asyncio.create_task(GoingOn(sim.log, sim.live.tree).resume(live, RUNNING, "test", None))
    await until(lambda: sim.log.state(live.session).open_turn is not None)
    live.poke()
    await asyncio.wait_for(sim.tools.until_running(1), 10)
    commanded.set()
    await asyncio.wait_for(resuming, 10)
    assert await asyncio.wait_for(live.cancel(common.CANCEL_CAUSE_USER, "test"), 10)
    assert not sim.tools.running


@pytest.mark.req("LOOP-07", "LOOP-14")
@pytest.mark.parametrize("ticks", TICKS)
@pytest.mark.parametrize("first", ["close", "resume"])
async def test_a_session_is_closed_as_a_turn_is_opened(
    tmp_path: Path, ticks: int, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim, live = await aborted(tmp_path)
    append = sim.log.append

    async def slow(*drafts: Draft, **more: Any) -> list[event_pb2.Event]:
        events = await append(*drafts, **more)
        await passed(3)
        return events

    monkeypatch.setattr(sim.log, "append", slow)
    doing = {
        "close": partial(live.close, common.SESSION_STATUS_CANCELLED, "test"),
        "resume": partial(GoingOn(sim.log, sim.live.tree).resume, live, RUNNING, "test", None),
    }
    begun = [asyncio.create_task(doing.pop(first)())]
    await passed(ticks)
    begun += [asyncio.create_task(act()) for act in doing.values()]
    outcomes = await asyncio.wait_for(asyncio.gather(*begun, return_exceptions=True), 10)
    assert all(outcome is None or isinstance(outcome, CommandRefused) for outcome in outcomes), outcomes
    await asyncio.wait_for(live.idle(), 10)
    state = sim.log.state(live.session)
    assert (state.ended, state.open_turn) == (True, None)


@pytest.mark.req("SUB-05", "LOOP-07")
@pytest.mark.parametrize("ticks", range(40))
async def test_a_cancel_as_sub_agents_are_started(tmp_path: Path, ticks: int) -> None:
    sim = sim_with(held_work())
    work = {"stream": [{"tool": "work", "input": {}}], "profile": "worker"}
    live = await root_of(sim, transcript(tmp_path, spawns("a", "b"), says("done"), work))
    await sim.send(live, "go")
    await until(lambda: sim.of(live, "tool/started"))
    await passed(ticks)
    assert await asyncio.wait_for(live.cancel(common.CANCEL_CAUSE_USER, "test"), 10)
    for session in (live.session, *children_of(sim, live.session)):
        state = sim.log.state(session)
        assert not any((state.open_turn, state.calls, state.children))
    assert len(sim.of(live, "child/started")) == len(children_of(sim, live.session))
    assert not sim.tools.running
