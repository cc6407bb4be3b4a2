"""What stands between the lines of a Step: vetoes, the end by a terminal call, counts, rows of equal calls, locks."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path

import pytest
from tests.sim.test_compact import MODEL, REFUSED, read, read_of
from tests.sim.test_corrections import KEYED, Denies, asked, asking, decide
from tests.sim.test_loop import DONE, GrantingPolicy, calls
from tests.sim.world import Sim, SimTool, spec, transcript

from turnd.ports import Invocation, Preview, ToolFailure, ToolOutcome
from turnd.rules.event import Draft
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

RESOURCE, READS, ASKS = common.TOOL_KIND_RESOURCE, common.TOOL_KIND_DATA_SOURCE, common.TOOL_KIND_INTERACTIVE
SAFE = common.ConcurrencySpec(safe=True)


@pytest.mark.req("HOOK-01", "HOOK-05", "HOOK-08")
@pytest.mark.parametrize("kind", [RESOURCE, READS, ASKS], ids=["resource", "data source", "interactive"])
async def test_a_veto_before_a_call_denies_that_call_and_no_other(
    tmp_path: Path, kind: common.ToolKind.ValueType
) -> None:
    veto = Denies(common.HOOK_POINT_PRE_TOOL_CALL, "secret")
    sim = Sim([SimTool(spec("do", kind))], subscribers=[veto])
    live = await sim.session(
        transcript(tmp_path, calls(("do", {"name": "plain"}), ("do", {"name": "secret"})), DONE)
    )
    await sim.turn(live)
    assert [json.loads(shown)["call"]["input"]["name"] for shown in veto.seen] == ["plain", "secret"]
    (secret,) = [result for result in sim.of(live, "tool/result") if result.is_error]
    assert secret.category == common.TOOL_ERROR_CATEGORY_DENIED
    assert "no secret" in secret.content.decode()
    if kind == ASKS:
        assert [json.loads(e.input)["name"] for e in sim.of(live, "interactive/request")] == ["plain"]
    else:
        assert sim.tools.started == ["plain"]
    assert not [request for request in sim.people.asked if b"secret" in request.item.input]


@pytest.mark.req("LOOP-03")
@pytest.mark.parametrize("limited_by", ["turns", "doom loop"])
async def test_a_terminal_call_ends_the_turn_before_any_limit_is_looked_at(
    tmp_path: Path, limited_by: str
) -> None:
    report = spec("report", RESOURCE, terminates_turn=True, concurrency=SAFE)
    sim = Sim([SimTool(report), SimTool(spec("read"))], policy=GrantingPolicy({"report"}))
    bounds = common.Bounds(max_turns=1) if limited_by == "turns" else common.Bounds()
    again = [("read", {})] * (3 if limited_by == "doom loop" else 0)
    model = transcript(tmp_path, calls(("report", {}), *again), DONE)
    live = await sim.session(model, bounds=bounds)
    await sim.turn(live)
    view = sim.log.view(live.session)
    assert (view.status, view.last_reason) == (common.SESSION_STATUS_IDLE, common.TURN_END_REASON_COMPLETED)
    assert not sim.of(live, "limit/reached")
    assert view.steps == 1


@pytest.mark.req("LOOP-09")
async def test_a_step_has_the_tokens_of_all_its_attempts(tmp_path: Path) -> None:
    failing = {
        "stream": [{"text": "lo"}],
        "error": {"category": "overloaded", "message": "busy", "after_deltas": 1},
        "usage": {"input_tokens": 100, "output_tokens": 1, "cache_read_tokens": 1000},
    }
    first = calls(("read", {})) | {"usage": {"input_tokens": 20, "output_tokens": 5, "cache_write_tokens": 7}}
    sim = Sim([SimTool(spec("read"))])
    live = await sim.session(transcript(tmp_path, failing, first, DONE))
    await sim.turn(live)
    assert [step.tokens for step in sim.of(live, "step/end")] == [
        common.TokenCounts(input_tokens=120, output_tokens=6, cache_read_tokens=1000, cache_write_tokens=7),
        common.TokenCounts(input_tokens=10, output_tokens=2),
    ]
    assert sim.log.view(live.session).tokens.counts() == common.TokenCounts(
        input_tokens=130, output_tokens=8, cache_read_tokens=1000, cache_write_tokens=7
    )


@pytest.mark.req("BOUND-09", "L01")
@pytest.mark.parametrize(
    ("moves", "configured", "fires_at"), [(True, True, 21), (False, True, 3), (True, False, 3)]
)
async def test_a_poll_that_the_configuration_names_may_go_on_while_something_changes(
    tmp_path: Path, moves: bool, configured: bool, fires_at: int
) -> None:
    numbers = itertools.count()
    poll = SimTool(spec("poll"), answer=lambda _: ToolOutcome(str(next(numbers) if moves else 0).encode()))
    sim = Sim([poll])
    polls = calls(("poll", {"what": "build"}))
    last = {"stream": [{"text": "it hangs"}], "expect": {"tools": False}}
    model = transcript(tmp_path, *[polls] * fires_at, last)
    live = await sim.session(model, polling=["sim.poll"] if configured else [])
    await sim.turn(live)
    view = sim.log.view(live.session)
    assert (view.status, view.steps) == (common.SESSION_STATUS_ERROR_DOOM_LOOP, fires_at + 1)
    (hit,) = sim.of(live, "limit/reached")[0].hits
    assert (hit.dimension, hit.value) == (common.LIMIT_DIMENSION_DOOM_LOOP, fires_at)


@pytest.mark.req("BOUND-09", "LOOP-10")
@pytest.mark.parametrize("steered", [True, False])
async def test_steering_starts_the_row_of_equal_calls_anew(tmp_path: Path, steered: bool) -> None:
    sim = Sim([SimTool(spec("read"), hold=True)])
    same = calls(("read", {"name": "same"}))
    live = await sim.session(transcript(tmp_path, same, same, same, DONE | {"repeat": True}))
    await sim.send(live, "go")
    for number in range(3):
        await asyncio.wait_for(sim.tools.until_running(1), 10)
        if number == 1 and steered:
            await sim.send(live, "look closer", common.DELIVERY_NEXT_STEP)
        gate = sim.tools.gates.pop("same")
        gate.set()
        while len(sim.of(live, "step/end")) <= number:
            await asyncio.sleep(0)
    await asyncio.wait_for(live.idle(), 10)
    stopped = sim.log.view(live.session).status == common.SESSION_STATUS_ERROR_DOOM_LOOP
    assert stopped is not steered


@pytest.mark.req("BOUND-02", "BOUND-03")
async def test_the_final_step_is_not_tried_again_when_its_request_is_too_long(tmp_path: Path) -> None:
    sim = Sim([read_of(2000)])
    model = transcript(tmp_path, MODEL, read("a"), read("b"), REFUSED, DONE)
    live = await sim.session(model, bounds=common.Bounds(max_turns=2))
    await sim.turn(live)
    view = sim.log.view(live.session)
    assert (view.status, view.last_reason) == (
        common.SESSION_STATUS_ERROR_MAX_TURNS,
        common.TURN_END_REASON_ERROR,
    )
    assert len(sim.of(live, "agent/request")) == 3
    assert sim.of(live, "turn/stopping")[-1].error.category == "context_length_exceeded"


@pytest.mark.req("P07", "LOOP-15", "LOOP-07")
async def test_a_cancel_settles_the_question_that_is_open_and_those_that_wait(tmp_path: Path) -> None:
    sim = Sim([SimTool(spec("ask", ASKS)), SimTool(spec("change", RESOURCE))])
    async with asking(sim):
        stream = calls(("ask", {"name": "open"}), ("ask", {"name": "later"}), ("change", {"name": "c"}))
        live = await sim.session(transcript(tmp_path, stream, DONE))
        await sim.send(live, "go")
        async with asyncio.timeout(10):
            while not sim.of(live, "interactive/request"):
                await asyncio.sleep(0)
        assert len(sim.log.view(live.session).open_requests) == 1
        assert await live.cancel(common.CANCEL_CAUSE_USER, "me")
    (answered,) = sim.of(live, "interactive/answered")
    assert (answered.outcome, answered.client) == (common.ANSWER_OUTCOME_CANCELLED, "me")
    assert not sim.log.view(live.session).open_requests
    state = sim.log.state(live.session)
    assert (state.open_turn, dict(state.calls), dict(state.requests)) == (None, {}, {})
    assert len(sim.of(live, "tool/result")) == 3
    assert all(result.is_error for result in sim.of(live, "tool/result"))
    assert not sim.tools.started


@pytest.mark.req("SCHED-11")
async def test_nothing_is_held_while_a_person_is_waited_for(tmp_path: Path) -> None:
    """Locks of keyed calls hold across all sessions, so another one would wait for the person too."""
    change = SimTool(spec("change", RESOURCE, concurrency=KEYED))
    sim = Sim([change])
    async with asking(sim) as approvals:
        waiting = await sim.session(
            transcript(tmp_path, calls(("change", {"name": "slow", "key": "k"})), DONE)
        )
        await sim.send(waiting, "go")
        request = await asked(sim, waiting)
        directory = tmp_path / "other"
        directory.mkdir()
        other = await sim.session(
            transcript(directory, calls(("change", {"name": "quick", "key": "k"})), DONE)
        )
        await sim.send(other, "go")
        await decide(approvals, other, await asked(sim, other))
        await asyncio.wait_for(other.idle(), 10)
        assert sim.tools.started == ["quick"], "a call with the same key ran meanwhile"
        await decide(approvals, waiting, request)
        await asyncio.wait_for(waiting.idle(), 10)
        assert sim.tools.started == ["quick", "slow"]


@pytest.mark.req("SCHED-11", "GATE-03")
async def test_a_call_that_waits_for_a_person_takes_no_place_under_the_ceiling(tmp_path: Path) -> None:
    sim = Sim(
        [
            SimTool(spec("change", RESOURCE, concurrency=SAFE)),
            SimTool(spec("quick", RESOURCE, concurrency=SAFE)),
        ],
        policy=GrantingPolicy({"quick"}),
        calls_in_flight=1,
    )
    async with asking(sim) as approvals:
        live = await sim.session(
            transcript(tmp_path, calls(("change", {"name": "slow"}), ("quick", {"name": "quick"})), DONE)
        )
        await sim.send(live, "go")
        request = await asked(sim, live)
        async with asyncio.timeout(10):
            while not sim.of(live, "tool/result"):
                await asyncio.sleep(0)
        assert sim.tools.started == ["quick"]
        await decide(approvals, live, request)
        await asyncio.wait_for(live.idle(), 10)
        assert sim.tools.started == ["quick", "slow"]


@pytest.mark.req("SCHED-07", "P01")
async def test_a_file_has_one_key_however_it_is_written(tmp_path: Path) -> None:
    by_path = common.ConcurrencySpec(
        safe=True, key_fields=[common.KeyField(name="path", type=common.KEY_FIELD_TYPE_PATH)]
    )
    (tmp_path / "sub").mkdir()
    (tmp_path / "f").write_text("x")
    (tmp_path / "link").symlink_to("f")
    (tmp_path / "linked").symlink_to("sub/..")
    same = ["f", "./f", "sub/../f", "link", "linked/f", str(tmp_path / "f"), "//" + str(tmp_path / "f")]
    sim = Sim([SimTool(spec("put", RESOURCE, concurrency=by_path))], policy=GrantingPolicy({"put"}))
    stream = calls(*(("put", {"name": str(i), "path": path}) for i, path in enumerate([*same, "other"])))
    profile = common.ProfileSnapshot(
        name="default", model=f"replay:{transcript(tmp_path, stream, DONE)}", tools=["*"]
    )
    created = event_pb2.SessionCreated(cwd=str(tmp_path), workspace=str(tmp_path), profile=profile)
    await sim.log.append(Draft("S", created))
    live = await sim.live.get("S")
    await sim.turn(live)
    assert sorted(sim.tools.started) == [str(number) for number in range(len(same) + 1)]
    other = str(len(same))
    assert all(other in pair for pair in sim.tools.overlaps), sim.tools.overlaps
    assert [name for name in sim.tools.started if name != other] == [str(i) for i in range(len(same))]


@pytest.mark.req("A07", "GATE-15", "GATE-16")
async def test_drift_in_an_unattended_session_asks_nobody(tmp_path: Path) -> None:
    granted = {"put"}

    def drifts(call: Invocation) -> ToolFailure:
        granted.clear()
        return ToolFailure(common.TOOL_ERROR_CATEGORY_PRECONDITION_FAILED, "it has changed")

    bound = (common.Precondition(target="f", state="1"),)
    put = SimTool(spec("put", RESOURCE), answer=drifts, preview=lambda _: Preview("", bound))
    sim = Sim([put], policy=GrantingPolicy(granted))
    live = await sim.session(transcript(tmp_path, calls(("put", {"name": "p"})), DONE), unattended=True)
    await sim.turn(live)
    (result,) = sim.of(live, "tool/result")
    assert result.category == common.TOOL_ERROR_CATEGORY_DENIED
    assert "nobody is there" in result.content.decode()
    assert not sim.of(live, "approval/request")
