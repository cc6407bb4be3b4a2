"""The real daemon, with real providers and cells, killed where a client just saw an event, and at random moments."""

from __future__ import annotations

import asyncio
import json
import random

import pytest
from tests.faults.soak import in_soak
from tests.harness import RunningDaemon, running_daemon
from tests.marks import NEEDS_CELLS

from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2
from turnd_client.client import Client
from turnd_client.errors import ConnectionLost, Refused

pytestmark = [NEEDS_CELLS, pytest.mark.timeout(in_soak(1800, 240))]

EVENTS = 70
"""About so many are in a session; one that ended before its kill was to come is killed at rest."""
PLACES = in_soak(tuple(range(2, EVENTS)), (13, 24, 33, 44))
RANDOM_KILLS = in_soak(30, 1)
MOST_S = 2.0
"""A random kill comes within this time."""


def calls(*named: tuple[str, dict[str, object]]) -> dict[str, object]:
    return {"stream": [{"text": "Now."}, *({"tool": tool, "input": data} for tool, data in named)]}


def write(path: str) -> tuple[str, dict[str, object]]:
    return "write_file", {"path": path, "content": f"{path}\n"}


LINES = (
    calls(("list_dir", {"path": "."}), ("list_dir", {"path": "."}), ("read_file", {"path": "none"})),
    calls(write("yes.txt"), write("denied.txt"), ("ask_user", {"question": "Which one?"})),
    calls(("run_command", {"command": "sleep 0.1; echo ran > ran.txt"}), write("more.txt")),
    {"stream": [{"text": "Done."}], "repeat": True},
)


async def answer_all(client: Client, session: str) -> None:
    """A person who answers whatever is asked, until the daemon is gone."""
    try:
        async for batch in client.attach(session):
            for event in batch.events:
                await _answer(client, event)
    except ConnectionLost:
        return


async def _answer(client: Client, event: event_pb2.Event) -> None:
    try:
        match event.WhichOneof("data"):
            case "approval_request":
                item = event.approval_request.item
                approve = json.loads(item.input).get("path") != "denied.txt"
                await client.decide(event.session, event.approval_request.request_id, approve=approve)
            case "interactive_request":
                request = event.interactive_request.request_id
                await client.answer(event.session, request, json.dumps({"answer": "both"}).encode())
            case _:
                pass
    except Refused:
        # A Turn that was repaired or has ended has nothing to ask any more.
        return


async def begun(daemon: RunningDaemon) -> str:
    """A session that works, with a message for a Turn after the first one."""
    session = await daemon.client.create_session(str(daemon.workspace), model=daemon.replay(*LINES))
    await daemon.client.send_message(session.id, "go")
    await daemon.client.send_message(session.id, "and then this")
    return session.id


async def killed_after(daemon: RunningDaemon, session: str, seq: int) -> list[event_pb2.Event]:
    """What the client had seen, up to this event or the end of the second Turn."""
    async with await daemon.connect("person") as person:
        answering = asyncio.create_task(answer_all(person, session))
        ends = 0

        def last(event: event_pb2.Event) -> bool:
            nonlocal ends
            ends += event.HasField("turn_end")
            return event.seq == seq or ends == 2

        seen = await daemon.events(session, last)
        await daemon.kill()
        await answering
    return seen


async def killed_within(daemon: RunningDaemon, session: str, seconds: float) -> list[event_pb2.Event]:
    """What the client had seen when the time was over."""
    seen: list[event_pb2.Event] = []
    async with await daemon.connect("person") as person, await daemon.connect("watcher") as watcher:

        async def watch() -> None:
            try:
                async for batch in watcher.attach(session):
                    seen.extend(batch.events)
            except ConnectionLost:
                return

        tasks = [asyncio.create_task(answer_all(person, session)), asyncio.create_task(watch())]
        await asyncio.sleep(seconds)
        await daemon.kill()
        await asyncio.gather(*tasks)
    return seen


async def check_goes_on(daemon: RunningDaemon, session: str, seen: list[event_pb2.Event]) -> None:
    """Nothing that was seen is missing, the log is lawful, and the next prompt has its Turn."""
    found = await daemon.client.get_session(session)
    assert found.session.status == common.SESSION_STATUS_IDLE
    assert not found.HasField("open_turn")
    assert not found.session.open_requests
    stored = await daemon.events(session, lambda event: event.seq == found.as_of_seq)
    assert stored[: len(seen)] == seen, "what a client saw is in the log, at the same place"
    assert not (await daemon.client.verify_session(session)).faults
    turns = found.next_turn + len(found.session.queued) + 1
    async with await daemon.connect("person") as person:
        answering = asyncio.create_task(answer_all(person, session))
        await daemon.client.send_message(session, "go on")
        events = await daemon.events(
            session,
            lambda event: event.HasField("turn_end") and event.turn_end.turn == turns - 1,
            after_seq=found.as_of_seq,
        )
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
    ends = [event.turn_end for event in events if event.HasField("turn_end")]
    assert {end.reason for end in ends} == {common.TURN_END_REASON_COMPLETED}
    assert not (await daemon.client.verify_session(session)).faults


@pytest.mark.req("LOG-08", "LOG-11", "LOG-20", "LOG-23", "S01", "S03", "S09")
async def test_after_events_that_a_client_saw() -> None:
    async with running_daemon() as daemon:
        for seq in PLACES:
            session = await begun(daemon)
            seen = await killed_after(daemon, session, seq)
            await daemon.start()
            await check_goes_on(daemon, session, seen)


@pytest.mark.req("LOG-08", "LOG-20", "LOG-23")
async def test_at_random_moments() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    async with running_daemon() as daemon:
        for _ in range(RANDOM_KILLS):
            session = await begun(daemon)
            seen = await killed_within(daemon, session, rng.random() * MOST_S)
            await daemon.start()
            await check_goes_on(daemon, session, seen)
