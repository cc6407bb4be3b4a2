"""Compaction in the loop: when it runs, what it spends, what it leaves in the log, and what ends it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.sim.recording import Recording, recorded
from tests.sim.test_loop import DONE, calls
from tests.sim.world import Sim, SimTool, spec, transcript
from tests.unit.session_log import check_vendor_accepts

from turnd.loop.session import LiveSession
from turnd.ports import ModelRequest, ToolOutcome
from turnd.rules.closing import repair
from turnd.rules.event import make_event
from turnd.rules.history import History
from turnd.rules.state import SessionState, apply, position
from turnd.v1 import common_pb2 as common

pytestmark = pytest.mark.timeout(60)

STEP, COMPACTION = common.REQUEST_PURPOSE_STEP, common.REQUEST_PURPOSE_COMPACTION
COMPLETED, ERROR = common.TURN_END_REASON_COMPLETED, common.TURN_END_REASON_ERROR
WINDOW = 4000
"""Tokens: the budget is 4000 * 0.8 - 1000 = 2200, the room 3000."""
MODEL: dict[str, object] = {
    "model": {
        "context_window": WINDOW,
        "max_output_tokens": 1000,
        "pricing": {"input_per_mtok": 1.0, "output_per_mtok": 1.0},
    }
}
SAID = {"stream": [{"text": "w" * 2000}], "usage": {"input_tokens": 10, "output_tokens": 2}}
"""500 tokens."""
SUMMARY: dict[str, object] = {
    "purpose": "compaction",
    "stream": [{"text": "in short"}],
    "usage": {"input_tokens": 1000, "output_tokens": 50},
}


def read_of(size: int) -> SimTool:
    """A tool whose results have so many characters."""
    return SimTool(spec("read"), answer=lambda _: ToolOutcome(json.dumps("r" * size).encode()))


def read(name: str) -> dict[str, object]:
    return calls(("read", {"name": name}))


def history(sim: Sim, live: LiveSession) -> History:
    """As whoever reads the log sees it."""
    made = History()
    for event in sim.log.events[live.session]:
        made.advance(event)
    return made


def texts(sim: Sim, live: LiveSession) -> str:
    messages = history(sim, live).messages()
    check_vendor_accepts(messages)
    return "\n".join(block.text.text for message in messages for block in message.blocks)


def reasons(sim: Sim, live: LiveSession) -> list[int]:
    return [end.reason for end in sim.of(live, "turn/end")]


async def talked(
    tmp_path: Path, *lines: dict[str, object], turns: int = 5, **more: Any
) -> tuple[Sim, LiveSession]:
    """A session that has said so much in so many Turns that the next one has to be compacted."""
    sim = Sim(**more)
    live = await sim.session(transcript(tmp_path, MODEL, *[SAID] * turns, *lines))
    for number in range(turns):
        await sim.turn(live, f"wish {number}")
    assert not sim.of(live, "context/compacted")
    return sim, live


@pytest.mark.req("S14", "MODEL-08")
async def test_a_log_of_three_times_the_window_is_trimmed_without_a_model(tmp_path: Path) -> None:
    """Every result stays in the log; the model is asked for nothing but its Steps."""
    sim = Sim([read_of(2000)])
    steps = [read(f"f{number}") for number in range(24)]
    live = await sim.session(transcript(tmp_path, MODEL, *steps, DONE))
    await sim.turn(live)
    assert reasons(sim, live) == [COMPLETED]
    results = sim.of(live, "tool/result")
    assert sum(len(one.content) for one in results) // 4 > 2.9 * WINDOW
    assert all(one.content == json.dumps("r" * 2000).encode() for one in results), "the log keeps everything"
    assert {request.purpose for request in sim.of(live, "agent/request")} == {STEP}
    assert max(request.estimated_tokens for request in sim.of(live, "agent/request")) < WINDOW
    events = sim.of(live, "context/compacted")
    assert len(events) > 1
    assert {event.method for event in events} == {"pruned"}
    assert all(event.tokens_after < event.tokens_before for event in events)
    assert len(events) < len(steps) / 2, "each makes room for more than one Step"


@pytest.mark.req("MODEL-08", "M06")
async def test_older_turns_become_a_summary_before_line_1_of_a_step(tmp_path: Path) -> None:
    sim, live = await talked(tmp_path, SUMMARY, DONE)
    whole = len(sim.log.events[live.session])
    spent = sim.log.view(live.session).cost_nano_usd
    await sim.turn(live, "the last wish")
    types = sim.types(live)[whole:]
    assert types[:8] == [
        "inbox/queued",
        "inbox/taken",
        "turn/start",
        "user/message",
        "agent/request",
        "usage",
        "context/compacted",
        "step/start",
    ]
    (event,) = sim.of(live, "context/compacted")
    assert (event.method, event.stopped_because) == ("summarised", "")
    assert event.tokens_after < 2200 < event.tokens_before
    (usage,) = [one for one in sim.of(live, "usage") if one.purpose == COMPACTION]
    assert usage.cost_nano_usd == 1_050_000
    assert sim.log.view(live.session).cost_nano_usd == spent + 1_050_000 + 12_000
    told = texts(sim, live)
    assert "in short" in told
    assert "wish 0" not in told
    assert "the last wish" in told
    assert reasons(sim, live)[-1] == COMPLETED
    said = [
        m for e in sim.log.events[live.session] if e.HasField("user_message") for m in e.user_message.blocks
    ]
    assert said[0].text.text == "wish 0", "the log keeps everything"


@pytest.mark.req("MODEL-08")
async def test_the_request_for_a_summary_offers_nothing_and_holds_what_goes(tmp_path: Path) -> None:
    sim = Sim([read_of(10)])
    recording = recorded(sim)
    live = await sim.session(transcript(tmp_path, MODEL, *[SAID] * 5, SUMMARY, DONE))
    for number in range(6):
        await sim.turn(live, f"wish {number}")
    (request,) = recording.of(COMPACTION)
    assert request.number == 0
    assert not request.tools
    (message,) = request.messages
    assert "User: wish 0" in message.blocks[0].text.text
    assert "wish 5" not in message.blocks[0].text.text
    assert request.parameters["max_output_tokens"] == 256
    logged = next(one for one in sim.of(live, "agent/request") if one.purpose == COMPACTION)
    assert logged.estimated_tokens < WINDOW


@pytest.mark.req("MODEL-08")
async def test_results_go_before_turns_are_summarised(tmp_path: Path) -> None:
    sim = Sim([read_of(3000)])
    lines = [line for number in range(4) for line in (read(f"f{number}"), DONE)]
    live = await sim.session(transcript(tmp_path, MODEL, *lines, SUMMARY))
    for number in range(4):
        await sim.turn(live, f"wish {number}")
    assert [event.method for event in sim.of(live, "context/compacted")] == ["pruned"]
    assert "wish 0" in texts(sim, live)


@pytest.mark.req("MODEL-08")
async def test_earlier_steps_of_a_long_turn_are_summarised_and_its_wish_stays(tmp_path: Path) -> None:
    sim = Sim([read_of(10)])
    wordy = [{"stream": [{"text": "w" * 1200}, *read(f"f{number}")["stream"]]} for number in range(9)]  # type: ignore[misc]
    live = await sim.session(transcript(tmp_path, MODEL, *wordy, SUMMARY | {"repeat": True}, DONE))
    await sim.turn(live, "the wish of all")
    assert reasons(sim, live) == [COMPLETED]
    assert "summarised" in {event.method for event in sim.of(live, "context/compacted")}
    first = history(sim, live).messages()[0]
    assert first.blocks[0].text.text == "the wish of all"
    assert "in short" in first.blocks[1].text.text


@pytest.mark.req("MODEL-08")
async def test_a_summary_that_gains_nothing_stops_with_its_reason_and_is_not_asked_for_again(
    tmp_path: Path,
) -> None:
    useless = SUMMARY | {"stream": [{"text": "x" * 9000}], "repeat": True}
    sim, live = await talked(tmp_path, useless, read("f"), DONE, tools=[read_of(10)])
    await sim.turn(live)
    (event,) = sim.of(live, "context/compacted")
    assert event.stopped_because == "the summary is no shorter than what it would replace"
    assert not event.replacement
    assert event.tokens_after == event.tokens_before
    assert len([one for one in sim.of(live, "usage") if one.purpose == COMPACTION]) == 1
    assert reasons(sim, live)[-1] == COMPLETED, "it fits the window, if not the budget"
    assert "wish 0" in texts(sim, live)


@pytest.mark.req("MODEL-08")
@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({"error": {"category": "auth_error", "message": "no key"}}, "failed (auth_error): no key"),
        ({"stream": []}, "answered nothing"),
    ],
)
async def test_a_summary_that_cannot_be_had_stops_with_its_reason(
    tmp_path: Path, line: dict[str, object], why: str
) -> None:
    sim, live = await talked(tmp_path, {"purpose": "compaction"} | line, DONE)
    await sim.turn(live)
    (event,) = sim.of(live, "context/compacted")
    assert event.stopped_because.endswith(why)
    assert reasons(sim, live)[-1] == COMPLETED


@pytest.mark.req("MODEL-08", "MODEL-03")
async def test_a_failed_request_for_a_summary_is_tried_again(tmp_path: Path) -> None:
    busy = {"purpose": "compaction", "error": {"category": "overloaded", "message": "busy"}}
    sim, live = await talked(tmp_path, busy, SUMMARY, DONE)
    await sim.turn(live)
    assert [one.purpose for one in sim.of(live, "agent/request")][5:] == [COMPACTION, COMPACTION, STEP]
    assert sim.of(live, "context/compacted")[-1].replacement
    assert not sim.of(live, "agent/retry"), "those are of Steps"
    assert sim.clock.seconds > 0


@pytest.mark.req("MODEL-08")
async def test_after_two_rounds_that_are_not_enough_it_stops_with_its_reason(tmp_path: Path) -> None:
    """One small Turn before, a long wish, and the first of four Steps: neither summary is much shorter than those."""
    said = {"stream": [{"text": "w" * 1200}]}
    wordy = [{"stream": [*said["stream"], *read(f"f{number}")["stream"]]} for number in range(4)]  # type: ignore[misc]
    long = SUMMARY | {"stream": [{"text": "s" * 1000}], "repeat": True}
    sim = Sim([read_of(10)])
    live = await sim.session(transcript(tmp_path, MODEL, said, *wordy, DONE, long))
    await sim.turn(live, "one")
    await sim.turn(live, "u" * 3600)
    first, second = sim.of(live, "context/compacted")
    assert not first.stopped_because
    assert second.stopped_because.startswith("2 summaries were made; the history has ")
    assert second.replacement
    assert reasons(sim, live)[-1] == COMPLETED


@pytest.mark.req("MODEL-08")
async def test_what_does_not_fit_ends_the_turn_with_a_typed_error(tmp_path: Path) -> None:
    sim = Sim()
    live = await sim.session(transcript(tmp_path, MODEL, DONE))
    await sim.turn(live, "x" * 4 * WINDOW)
    assert reasons(sim, live) == [ERROR]
    error = sim.of(live, "turn/stopping")[-1].error
    assert (error.source, error.category) == ("model", "context_length_exceeded")
    assert "about 4004 tokens, and 3000 is what its window of 4000 has left" in error.message
    assert not sim.of(live, "agent/request")


REFUSED = {"error": {"category": "context_length_exceeded", "message": "too long"}}


@pytest.mark.req("MODEL-03", "MODEL-08")
async def test_a_request_that_the_vendor_finds_too_long_is_compacted_and_tried_once_more(
    tmp_path: Path,
) -> None:
    sim = Sim([read_of(2000)])
    live = await sim.session(transcript(tmp_path, MODEL, read("a"), read("b"), REFUSED, DONE))
    await sim.turn(live)
    assert reasons(sim, live) == [COMPLETED]
    types = sim.types(live)
    inside = types[types.index("agent/request", len(types) - 1 - types[::-1].index("step/start")) :]
    assert inside[:4] == ["agent/request", "context/compacted", "agent/request", "assistant/chunk"]
    first, second = sim.of(live, "agent/request")[-2:]
    assert second.estimated_tokens < first.estimated_tokens
    assert sim.log.view(live.session).steps == 3
    assert not sim.of(live, "agent/retry")


@pytest.mark.req("MODEL-03", "MODEL-08")
async def test_a_request_that_is_too_long_twice_ends_the_turn_by_name(tmp_path: Path) -> None:
    """Also where more could be left out."""
    sim = Sim([read_of(1000)])
    reads = [read(f"f{number}") for number in range(6)]
    live = await sim.session(transcript(tmp_path, MODEL, *reads, REFUSED, REFUSED, DONE))
    await sim.turn(live)
    assert reasons(sim, live) == [ERROR]
    assert sim.of(live, "turn/stopping")[-1].error.category == "context_length_exceeded"
    assert len(sim.of(live, "context/compacted")) == 1
    assert len(sim.of(live, "agent/request")) == len(reads) + 2


@pytest.mark.req("MODEL-03")
async def test_a_request_that_is_too_long_with_nothing_to_leave_out_is_not_sent_again(tmp_path: Path) -> None:
    sim = Sim()
    live = await sim.session(transcript(tmp_path, MODEL, REFUSED, DONE))
    await sim.turn(live)
    assert reasons(sim, live) == [ERROR]
    assert sim.of(live, "turn/stopping")[-1].error.category == "context_length_exceeded"
    assert len(sim.of(live, "agent/request")) == 1


@pytest.mark.req("BOUND-01", "MODEL-08")
async def test_bounds_are_looked_at_before_each_request_for_a_summary(tmp_path: Path) -> None:
    """The first attempt uses up the money: no second one, but the final Step."""
    dear = {
        "purpose": "compaction",
        "stream": [{"text": "in"}],
        "usage": {"input_tokens": 10**6, "output_tokens": 1},
    }
    dear |= {"error": {"category": "stream_broken", "message": "gone", "after_deltas": 1}}
    sim = Sim()
    lines = [MODEL, *[SAID] * 5, dear, SUMMARY, DONE | {"expect": {"tools": False}}]
    live = await sim.session(transcript(tmp_path, *lines), bounds=common.Bounds(max_cost_nano_usd=10**9))
    for number in range(6):
        await sim.turn(live, f"wish {number}")
    assert [one.purpose for one in sim.of(live, "agent/request")][5:] == [COMPACTION, STEP]
    assert sim.of(live, "limit/reached")[-1].hits[0].dimension == common.LIMIT_DIMENSION_MAX_COST_USD
    assert sim.log.view(live.session).status == common.SESSION_STATUS_ERROR_MAX_BUDGET_USD
    assert reasons(sim, live)[-1] == COMPLETED


@pytest.mark.req("BOUND-01", "MODEL-08")
async def test_the_time_of_a_summary_counts_for_the_step_that_it_made_room_for(tmp_path: Path) -> None:
    sim, live = await talked(tmp_path, SUMMARY | {"delay_s": 7.0}, DONE)
    await sim.turn(live)
    assert sim.of(live, "step/end")[-1].active_ms == 7000
    assert sim.log.view(live.session).active_ms == 7000


@pytest.mark.req("LOOP-07", "BOUND-14", "MODEL-08")
async def test_a_cancel_in_a_compaction_books_what_was_spent_and_leaves_a_lawful_log(tmp_path: Path) -> None:
    sim = Sim()
    recording = recorded(sim)
    live = await sim.session(transcript(tmp_path, MODEL, *[SAID] * 5, SUMMARY | {"repeat": True}, DONE, DONE))
    for number in range(5):
        await sim.turn(live, f"wish {number}")
    asked = held(recording, COMPACTION)
    await sim.send(live, "the last wish")
    await asyncio.wait_for(asked.wait(), 5)
    await live.cancel(common.CANCEL_CAUSE_USER, "test")
    tail = sim.types(live)[-5:]
    assert tail == ["agent/request", "turn/stopping", "usage", "turn/end", "session/status"]
    usage = sim.of(live, "usage")[-1]
    assert (usage.purpose, usage.estimated) == (COMPACTION, True)
    assert "wish 0" in texts(sim, live)
    recording.before = nothing
    await sim.turn(live, "again")
    assert reasons(sim, live)[-2:] == [common.TURN_END_REASON_ABORTED, COMPLETED]
    assert "in short" in texts(sim, live)


async def nothing(request: ModelRequest) -> None:
    return None


def held(recording: Recording, purpose: common.RequestPurpose.ValueType) -> asyncio.Event:
    """Requests of this purpose are never answered; the event says that one has come."""
    asked = asyncio.Event()

    async def before(request: ModelRequest) -> None:
        if request.purpose == purpose:
            asked.set()
            await asyncio.Event().wait()

    recording.before = before
    return asked


@pytest.mark.req("LOG-08", "MODEL-08")
async def test_a_kill_anywhere_in_a_compaction_leaves_a_log_that_is_repaired(tmp_path: Path) -> None:
    sim, live = await talked(tmp_path, SUMMARY, DONE)
    whole = len(sim.log.events[live.session])
    await sim.turn(live, "the last wish")
    events = sim.log.events[live.session]
    for cut in range(whole, len(events) + 1):
        state, made = SessionState(), History()
        for event in events[:cut]:
            state = apply(state, event)
            made.advance(event)
        for draft in repair(state, live.session, 1):
            turn, step = position(state, draft.payload)
            event = make_event(draft, seq=state.seq + 1, time_us=1, turn=turn, step=step)
            state = apply(state, event)
            made.advance(event)
        assert state.open_turn is None
        check_vendor_accepts(made.messages())


@pytest.mark.req("V05", "LOG-14", "MODEL-08")
async def test_a_disk_that_is_full_in_a_compaction_fails_closed_and_goes_on_when_there_is_room(
    tmp_path: Path,
) -> None:
    sim = Sim()
    recording = recorded(sim)
    live = await sim.session(transcript(tmp_path, MODEL, *[SAID] * 5, SUMMARY | {"repeat": True}, DONE, DONE))
    for number in range(5):
        await sim.turn(live, f"wish {number}")
    before = [message.digest for message in live._run.history.messages()]  # type: ignore[union-attr]
    asked = asyncio.Event()

    async def full(request: ModelRequest) -> None:
        if request.purpose == COMPACTION:
            sim.log.failing = True
            asked.set()

    recording.before = full
    await sim.send(live, "the last wish")
    await asyncio.wait_for(asked.wait(), 5)
    for _ in range(20):
        await asyncio.sleep(0)
    assert live.busy, "it waits for room"
    assert not sim.of(live, "context/compacted")
    recording.before = nothing
    sim.log.failing = False
    await asyncio.wait_for(live.idle(), 10)
    assert reasons(sim, live)[-1] == ERROR
    assert sim.of(live, "turn/stopping")[-1].error.category == "commit_failed"
    after = [message.digest for message in history(sim, live).messages()]
    assert after[: len(before)] == before, "nothing of the history is gone"
    await sim.turn(live, "again")
    assert reasons(sim, live)[-1] == COMPLETED
    assert "in short" in texts(sim, live)
