"""Titles: asked for behind the first answer, in nobody's way, and over before the session is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.sim.recording import Recording, recorded
from tests.sim.test_loop import DONE, READ, calls
from tests.sim.world import Sim, transcript

from turnd.loop.session import LiveSession
from turnd.ports import ModelRequest
from turnd.rules.event import Draft
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

pytestmark = pytest.mark.timeout(60)

TITLE = common.REQUEST_PURPOSE_TITLE
NAMED: dict[str, object] = {
    "purpose": "title",
    "stream": [{"text": '"Fix the test"\n'}],
    "usage": {"input_tokens": 30, "output_tokens": 4},
}
PRICED = {"model": {"pricing": {"input_per_mtok": 1.0, "output_per_mtok": 1.0}}}


async def world(tmp_path: Path, *lines: dict[str, object], **more: Any) -> tuple[Sim, Recording, LiveSession]:
    sim = Sim([READ])
    recording = recorded(sim)
    return sim, recording, await sim.session(transcript(tmp_path, *lines), **more)


async def until(sim: Sim, live: LiveSession, kind: str) -> None:
    """Waits until the session has an event of this type."""
    async with asyncio.timeout(5):
        while not sim.of(live, kind):
            await asyncio.sleep(0)


def held(recording: Recording) -> asyncio.Event:
    """Requests for titles are never answered; the event says that one has come."""
    asked = asyncio.Event()

    async def before(request: ModelRequest) -> None:
        if request.purpose == TITLE:
            asked.set()
            await asyncio.Event().wait()

    recording.before = before
    return asked


async def test_a_session_without_a_title_gets_one_behind_its_first_answer(tmp_path: Path) -> None:
    lines = (PRICED, calls(("read", {"name": "a"})), DONE, DONE, NAMED)
    sim, recording, live = await world(tmp_path, *lines)
    await sim.turn(live, "the test fails, fix it")
    await until(sim, live, "session/changed")
    assert sim.log.view(live.session).title == "Fix the test"
    (request,) = recording.of(TITLE)
    assert request.number == 0
    assert not request.tools
    assert request.parameters == {"max_output_tokens": 64}
    assert "the test fails, fix it" in request.messages[0].blocks[0].text.text
    assert "Agent: done" in request.messages[0].blocks[0].text.text
    (usage,) = [one for one in sim.of(live, "usage") if one.purpose == TITLE]
    assert usage.cost_nano_usd == 34_000
    await sim.turn(live, "again")
    assert len(recording.of(TITLE)) == 1


async def test_a_title_delays_no_turn_and_counts_for_no_step(tmp_path: Path) -> None:
    sim, recording, live = await world(tmp_path, DONE, DONE, NAMED)
    asked = held(recording)
    await sim.turn(live)
    assert sim.of(live, "turn/end")[-1].reason == common.TURN_END_REASON_COMPLETED
    await asyncio.wait_for(asked.wait(), 5)
    await sim.turn(live, "meanwhile")
    assert len(sim.of(live, "turn/end")) == 2
    assert sum(end.tokens.input_tokens for end in sim.of(live, "step/end")) == 20
    await live.stop()


@pytest.mark.parametrize(
    ("lines", "more"),
    [
        ((DONE,), {}),
        ((PRICED, DONE, NAMED), {"bounds": common.Bounds(max_cost_nano_usd=10_000)}),
        ((PRICED, DONE, NAMED), {"bounds": common.Bounds(max_turns=1)}),
    ],
    ids=["a transcript without one", "no money left", "a bound has fired"],
)
async def test_no_title_is_asked_for(tmp_path: Path, lines: Any, more: Any) -> None:
    sim, recording, live = await world(tmp_path, *lines, **more)
    await sim.turn(live)
    await live.stop()
    assert not recording.of(TITLE)


async def test_a_session_that_has_a_title_keeps_it(tmp_path: Path) -> None:
    sim, recording, live = await world(tmp_path, DONE, NAMED)
    await sim.log.append(Draft(live.session, event_pb2.SessionChanged(title="mine")))
    await sim.turn(live)
    await live.stop()
    assert not recording.of(TITLE)
    assert sim.log.view(live.session).title == "mine"


async def test_a_title_that_a_person_gave_meanwhile_stands(tmp_path: Path) -> None:
    sim, recording, live = await world(tmp_path, DONE, NAMED)
    go = asyncio.Event()

    async def before(request: ModelRequest) -> None:
        if request.purpose == TITLE:
            await go.wait()

    recording.before = before
    await sim.turn(live)
    await sim.log.append(Draft(live.session, event_pb2.SessionChanged(title="mine")))
    go.set()
    await live.close(common.SESSION_STATUS_COMPLETED)
    assert [usage.purpose for usage in sim.of(live, "usage")][-1] == TITLE
    assert sim.log.view(live.session).title == "mine"


async def test_a_title_that_fails_is_only_missed(tmp_path: Path) -> None:
    wrong = {"purpose": "title", "error": {"category": "auth_error", "message": "no"}}
    sim, recording, live = await world(tmp_path, DONE, DONE, wrong)
    await sim.turn(live)
    await sim.turn(live)
    assert [end.reason for end in sim.of(live, "turn/end")] == [common.TURN_END_REASON_COMPLETED] * 2
    assert len(recording.of(TITLE)) == 1
    assert sim.log.view(live.session).title == ""


@pytest.mark.req("LOOP-06", "BOUND-14")
@pytest.mark.parametrize("how", ["close", "drain"])
async def test_a_title_under_way_is_over_and_booked_before_the_session_is(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnd.loop.session.GRACE_S", 0.05)
    sim, recording, live = await world(tmp_path, DONE, NAMED)
    asked = held(recording)
    await sim.turn(live)
    await asyncio.wait_for(asked.wait(), 5)
    if how == "close":
        await live.close(common.SESSION_STATUS_COMPLETED)
    else:
        await sim.live.drain(0)
    usage = sim.of(live, "usage")[-1]
    assert (usage.purpose, usage.estimated) == (TITLE, True)
    tail = ["usage", "session/status", "session/ended"] if how == "close" else ["usage"]
    assert sim.types(live)[-len(tail) :] == tail


@pytest.mark.req("LOOP-06", "BOUND-03")
async def test_a_title_under_way_is_over_before_a_bound_ends_the_session(tmp_path: Path) -> None:
    said = {"stream": [{"text": "I look"}, {"tool": "read", "input": {"name": "a"}}]}
    sim, recording, live = await world(tmp_path, said, said, DONE, NAMED, bounds=common.Bounds(max_turns=2))
    asked = held(recording)
    await sim.turn(live)
    assert asked.is_set()
    assert sim.log.view(live.session).status == common.SESSION_STATUS_ERROR_MAX_TURNS
    types = sim.types(live)
    assert types[-1] == "session/ended"
    assert types.index("turn/end") > max(at for at, kind in enumerate(types) if kind == "usage")
    assert sim.of(live, "usage")[-1].purpose == TITLE


async def test_sub_agents_get_none(tmp_path: Path) -> None:
    sim, recording, live = await world(tmp_path, DONE, NAMED)
    created = event_pb2.SessionCreated(
        cwd="/nowhere", profile=sim.log.view(live.session).profile, parent=live.session, parent_call_id="c0"
    )
    await sim.log.append(Draft("child", created))
    child = await sim.live.get("child")
    await sim.turn(child)
    assert sim.of(child, "assistant/message")
    await child.stop()
    assert not recording.of(TITLE)
