"""What waits in a session's queue: what a cancel leaves of it, and when it waits for a person (LOOP-10)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.sim.test_limits import RUNNING
from tests.sim.world import Sim, SimTool, spec, transcript
from tests.unit.slow_disk import Disk, disk_below
from tests.unit.test_standing import Office, office_over

from turnd.sessions.going_on import GoingOn
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2, sessions_pb2

pytestmark = pytest.mark.req("LOOP-10")

DONE = {"stream": [{"text": "done"}], "repeat": True}
READS = {"stream": [{"tool": "read", "input": {"name": "held"}}]}
FAILS = {"error": {"category": "invalid_request", "message": "no such thing"}}


@asynccontextmanager
async def at_work(
    directory: Path, monkeypatch: pytest.MonkeyPatch, *lines: Mapping[str, object]
) -> AsyncIterator[Office]:
    """The session's first Turn runs a call that lasts, and two messages wait: one for a Turn, one for a Step."""
    disk = disk_below(monkeypatch, Disk())
    tools = [SimTool(spec("read"), hold=True)]
    async with office_over(directory, disk, tools, lines, drain_s=0) as office:
        await send(office, "first")
        await office.sim.tools.until_running(1)
        await send(office, "a turn of its own")
        await send(office, "for the next step", common.DELIVERY_NEXT_STEP)
        yield office


async def send(
    office: Office, text: str, delivery: common.Delivery.ValueType = common.DELIVERY_NEXT_TURN
) -> None:
    block = common.ContentBlock(text=common.TextBlock(text=text))
    await office.commands.send_message(
        sessions_pb2.SendMessageRequest(session="S", blocks=[block], delivery=delivery)
    )


async def quiet(office: Office) -> sessions_pb2.GetSessionResponse:
    """The session once no Turn is open and, for as long as it takes to begin one, none begins."""
    async with asyncio.timeout(20):
        while True:
            before = await office.shown()
            await asyncio.sleep(0.05)
            after = await office.shown()
            if not after.HasField("open_turn") and before.as_of_seq == after.as_of_seq:
                return after


def texts(blocks: Sequence[common.ContentBlock]) -> str:
    return " ".join(block.text.text for block in blocks)


async def said(office: Office) -> list[str]:
    """What users said in the Turns so far."""
    events = [event async for page in office.log.read("S") for event in page]
    return [
        texts(event.user_message.blocks)
        for event in events
        if event.HasField("user_message") and not event.synthetic
    ]


@pytest.mark.parametrize("keep", [False, True], ids=["cleared", "kept"])
async def test_cancel_clears_the_queue_unless_it_is_told_to_keep_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    async with at_work(tmp_path, monkeypatch, READS, DONE) as office:
        await office.commands.cancel(sessions_pb2.CancelRequest(session="S", keep_queue=keep))
        shown = await quiet(office)
        kept = ["a turn of its own", "for the next step"] if keep else []
        assert await said(office) == ["first", *kept]
        assert not shown.session.queued
        events = [event async for page in office.log.read("S") for event in page]
        cleared = [
            len(event.inbox_cleared.message_ids) for event in events if event.HasField("inbox_cleared")
        ]
        assert cleared == ([] if keep else [2])


async def test_after_an_error_the_queue_waits_for_a_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with at_work(tmp_path, monkeypatch, READS, FAILS, DONE) as office:
        office.sim.tools.release("held")
        shown = await quiet(office)
        assert shown.session.last_reason == common.TURN_END_REASON_ERROR
        assert [texts(message.blocks) for message in shown.session.queued] == ["a turn of its own"]
        assert await said(office) == ["first", "for the next step"]
        await send(office, "go on")
        assert not (await quiet(office)).session.queued
        assert (await said(office))[2:] == ["a turn of its own", "go on"]


async def test_after_a_shutdown_the_queue_waits_for_a_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with at_work(tmp_path, monkeypatch, READS, DONE):
        pass
    async with office_over(tmp_path, disk_below(monkeypatch, Disk()), lines=[DONE], begin=False) as office:
        await office.log.load("S")
        shown = await quiet(office)
        assert shown.session.last_reason == common.TURN_END_REASON_INTERRUPTED
        assert [texts(message.blocks) for message in shown.session.queued] == [
            "a turn of its own",
            "for the next step",
        ]
        await send(office, "go on")
        assert not (await quiet(office)).session.queued
        assert await said(office) == ["first", "a turn of its own", "for the next step", "go on"]


async def test_after_a_breaker_the_queue_waits_for_a_person(tmp_path: Path) -> None:
    change = SimTool(spec("change", common.TOOL_KIND_RESOURCE))
    sim = Sim([change], max_consecutive_denials=1)
    asked = asyncio.Event()

    def refuses(request: event_pb2.ApprovalRequest) -> bool | None:
        asked.set()
        return None

    sim.people.decide = refuses
    model = transcript(tmp_path, {"stream": [{"tool": "change", "input": {}}]}, DONE)
    live = await sim.session(model)
    await sim.send(live, "first")
    await asyncio.wait_for(asked.wait(), 20)
    await sim.send(live, "second")
    await sim.people.settle(live.session, sim.people.asked[0], False)
    await asyncio.wait_for(live.idle(), 20)
    view = sim.log.view(live.session)
    assert (view.last_reason, view.turns, len(view.queue)) == (common.TURN_END_REASON_BLOCKED, 1, 1)
    await sim.turn(live, "third")
    view = sim.log.view(live.session)
    assert (view.turns, len(view.queue)) == (3, 0)


async def test_after_a_pause_the_queue_waits_for_a_person(tmp_path: Path) -> None:
    sim = Sim([SimTool(spec("read"), hold=True)])
    soft = common.Bounds(max_turns=1, limit_mode=common.LIMIT_MODE_SOFT)
    live = await sim.session(transcript(tmp_path, READS, DONE), bounds=soft)
    await sim.send(live, "first")
    await sim.tools.until_running(1)
    await sim.send(live, "second")
    sim.tools.release("held")
    await asyncio.wait_for(live.idle(), 20)
    view = sim.log.view(live.session)
    assert (view.status, view.turns, len(view.queue)) == (common.SESSION_STATUS_PAUSED, 1, 1)
    await GoingOn(sim.log, sim.live.tree).continue_(live, RUNNING, common.Bounds(max_turns=9), "test", None)
    await asyncio.wait_for(live.idle(), 20)
    view = sim.log.view(live.session)
    assert (view.status, view.turns, len(view.queue)) == (common.SESSION_STATUS_IDLE, 3, 0)


async def test_who_sends_something_as_a_turn_ends_is_the_person_that_the_queue_waits_for(
    tmp_path: Path,
) -> None:
    """The end is in the log already, and the session's runner has not come to it yet."""
    sim = Sim()
    live = await sim.session(transcript(tmp_path, FAILS, DONE))
    sending: list[asyncio.Task[None]] = []

    def committed(events: Sequence[event_pb2.Event]) -> None:
        if not sending and any(event.HasField("turn_end") for event in events):
            assert live.busy
            sending.append(asyncio.create_task(sim.send(live, "second")))

    sim.log.subscribers.append(committed)
    await sim.turn(live, "first")
    await asyncio.wait_for(sending[0], 20)
    await asyncio.wait_for(live.idle(), 20)
    view = sim.log.view(live.session)
    assert (view.turns, len(view.queue)) == (2, 0)
    assert [end.reason for end in sim.of(live, "turn/end")] == [
        common.TURN_END_REASON_ERROR,
        common.TURN_END_REASON_COMPLETED,
    ]
