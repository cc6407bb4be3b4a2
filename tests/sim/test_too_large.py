"""What could be larger than an event may be: bounded where it arises, and what is left ends the Turn with a reason."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.sim.test_loop import DONE, calls
from tests.sim.world import Sim, SimTool, spec, transcript

from turnd.hooks.subscriber import Transformed
from turnd.loop.session import LiveSession
from turnd.ports import (
    MAX_EVENT_BYTES,
    EventTooLarge,
    ModelRequest,
    ModelSpec,
    Preview,
    Stop,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ThinkingSignature,
    ToolCallStart,
    ToolOutcome,
)
from turnd.rules.event import Draft
from turnd.rules.policy import Policy
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

pytestmark = pytest.mark.timeout(60)

RESOURCE = common.TOOL_KIND_RESOURCE
ERROR = common.TURN_END_REASON_ERROR


def why(sim: Sim, live: LiveSession) -> tuple[str, str]:
    """Why the last Turn ended with an error."""
    assert sim.of(live, "turn/end")[-1].reason == ERROR
    error = sim.of(live, "turn/stopping")[-1].error
    return error.source, error.category


@dataclass(frozen=True)
class Wordy:
    """Makes the request far longer."""

    name: str = "wordy"
    point: common.HookPoint.ValueType = common.HOOK_POINT_PRE_MODEL_CALL
    mode: common.HookMode.ValueType = common.HOOK_MODE_TRANSFORM
    timeout_s: float = 30

    async def answer(self, at: object, payload: Mapping[str, object]) -> Transformed:
        text = {"text": {"text": "x" * MAX_EVENT_BYTES}}
        return Transformed(dict(payload) | {"messages": [{"role": "user", "blocks": [text]}]})


@pytest.mark.req("LOG-04", "HOOK-04")
async def test_a_request_that_a_hook_made_too_large_is_not_sent(tmp_path: Path) -> None:
    sim = Sim(subscribers=[Wordy()])
    live = await sim.session(transcript(tmp_path, DONE))
    await sim.turn(live)
    assert why(sim, live) == ("hook", "too_large")
    assert "nothing was sent" in sim.of(live, "turn/stopping")[-1].error.message
    assert not sim.of(live, "agent/request")
    assert not sim.of(live, "usage")


@pytest.mark.req("GATE-01", "GATE-10")
async def test_the_texts_of_a_plan_share_its_room(tmp_path: Path) -> None:
    """Each preview is short enough for one item; all of them together are not for one event."""

    def preview(call: Any) -> Preview:
        return Preview("short" if call.input == b'{"name":"w0"}' else "\N{MUSICAL SYMBOL G CLEF}" * 100_000)

    sim = Sim([SimTool(spec("write", RESOURCE), preview=preview)], policy=Policy())
    names = [f"w{number}" for number in range(30)]
    live = await sim.session(transcript(tmp_path, calls(*(("write", {"name": n}) for n in names)), DONE))
    await sim.turn(live)
    assert sim.of(live, "turn/end")[-1].reason == common.TURN_END_REASON_COMPLETED
    assert sorted(sim.tools.started) == sorted(names)
    (plan,) = sim.of(live, "plan/ready")
    assert 3 * 2**20 < plan.ByteSize() <= 4 * 2**20
    first, *others = plan.items
    assert first.preview == "short"
    assert all("the plan is too long" in item.preview for item in others)


class OneModel:
    """Says what the test has it say."""

    spec = ModelSpec("said", context_window=100_000, max_output_tokens=1000)

    def __init__(self, said: Sequence[StreamEvent]) -> None:
        self._said = said

    def open(self, name: str) -> OneModel:
        return self

    def price(self, at_us: int, tokens: common.TokenCounts) -> None:
        return None

    async def prepare(self) -> None:
        return None

    def answers(self, purpose: common.RequestPurpose.ValueType, profile: str | None) -> bool:
        return False

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        for event in self._said:
            yield event


STOP = Stop(common.STOP_REASON_END_TURN, "stop")
SIGNED = [ThinkingDelta("hm"), ThinkingSignature(b"x" * MAX_EVENT_BYTES), TextDelta("yes"), STOP]
CALLED = [*(ToolCallStart(number, "v" * 100, "t") for number in range(30_000)), STOP]


@pytest.mark.req("MODEL-02", "LOG-04")
@pytest.mark.parametrize("said", [SIGNED, CALLED], ids=["a signature", "calls without arguments"])
async def test_an_answer_is_bounded_in_all_its_parts(tmp_path: Path, said: Sequence[StreamEvent]) -> None:
    sim = Sim()
    sim.world = replace(sim.world, models=OneModel(said))
    sim.live = sim.make_live()
    live = await sim.session(tmp_path)
    await sim.turn(live)
    assert why(sim, live) == ("model", "unknown")
    assert "is longer than" in sim.of(live, "turn/stopping")[-1].error.message
    assert not sim.of(live, "assistant/message")
    assert sim.of(live, "usage"), "what was received is paid for"


@pytest.mark.req("LOG-04", "LOOP-12", "LOOP-15")
async def test_an_event_that_is_too_large_all_the_same_ends_the_turn_with_its_reason(tmp_path: Path) -> None:
    left = common.Precondition(target="x" * MAX_EVENT_BYTES)
    tool = SimTool(spec("write", RESOURCE), answer=lambda _: ToolOutcome(b'"done"', left_state=(left,)))
    sim = Sim([tool], policy=Policy())
    live = await sim.session(transcript(tmp_path, calls(("write", {"name": "w"})), DONE))
    await sim.turn(live)
    assert why(sim, live) == ("log", "event_too_large")
    assert "found tool/result of" in sim.of(live, "turn/stopping")[-1].error.message
    assert len(sim.of(live, "tool/started")) == len(sim.of(live, "tool/result")) == 1
    await sim.turn(live, "again")
    assert sim.of(live, "turn/end")[-1].reason == common.TURN_END_REASON_COMPLETED


@pytest.mark.req("LOOP-10")
async def test_a_turn_that_cannot_be_opened_is_not_tried_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = Sim()
    live = await sim.session(transcript(tmp_path, DONE))
    append = sim.log.append
    tried: list[object] = []

    async def refusing(*drafts: Draft, **more: Any) -> list[event_pb2.Event]:
        if any(isinstance(draft.payload, event_pb2.TurnStart) for draft in drafts):
            tried.append(drafts)
            raise EventTooLarge("user/message", MAX_EVENT_BYTES + 1)
        return await append(*drafts, **more)

    with monkeypatch.context() as patch:
        patch.setattr(sim.log, "append", refusing)
        await sim.send(live, "go")
        await asyncio.wait_for(live.idle(), 5)
    assert len(tried) == 1
    assert len(sim.log.view(live.session).queue) == 1
    live.poke()
    await asyncio.wait_for(live.idle(), 5)
    assert sim.of(live, "turn/end")[-1].reason == common.TURN_END_REASON_COMPLETED
