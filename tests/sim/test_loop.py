"""The loop in a simulated world: the order of a Step, how Turns end, what waits for what."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from tests.sim.world import Sim, SimTool, spec, transcript

from turnd.hooks.subscriber import Observed
from turnd.ports import At, Invocation, ToolFailure, ToolOutcome
from turnd.rules.history import History
from turnd.rules.policy import Match, Policy, PolicyCall, PolicyRule, Verdict
from turnd.v1 import common_pb2 as common
from turnd.v1.jsonform import enum_text

READ = SimTool(spec("read"))
WRITE = SimTool(spec("write", common.TOOL_KIND_RESOURCE))
ASK = SimTool(spec("ask", common.TOOL_KIND_INTERACTIVE))

DONE = {"stream": [{"text": "done"}], "usage": {"input_tokens": 10, "output_tokens": 2}}


class GrantingPolicy(Policy):
    """Allows the tools of a set that grows, as remembered decisions do."""

    def __init__(self, granted: set[str]) -> None:
        super().__init__()
        self._granted = granted

    def evaluate(self, call: PolicyCall, grants: Iterable[common.GrantRule] = ()) -> Verdict:
        if call.tool not in self._granted:
            return super().evaluate(call, grants)
        grant = common.GrantRule(provider=call.provider, tool=call.tool)
        return super().evaluate(call, [*grants, grant])


class Watch:
    """Notes that its point was passed."""

    name, mode, timeout_s = "watch", common.HOOK_MODE_OBSERVE, 1.0

    def __init__(self, point: common.HookPoint.ValueType, seen: list[str]) -> None:
        self.point = point
        self._seen = seen

    async def answer(self, at: At, payload: Mapping[str, object]) -> Observed:
        self._seen.append(enum_text(common.HookPoint, self.point))
        return Observed()


def calls(*named: tuple[str, dict[str, object]]) -> dict[str, object]:
    return {"stream": [{"tool": tool, "input": data} for tool, data in named]}


@pytest.mark.req("LOOP-02")
async def test_an_answer_without_calls_completes_the_turn(tmp_path: Path) -> None:
    sim = Sim()
    live = await sim.session(transcript(tmp_path, DONE))
    await sim.turn(live)
    assert sim.types(live) == [
        "session/created",
        "inbox/queued",
        "inbox/taken",
        "turn/start",
        "user/message",
        "step/start",
        "agent/request",
        "assistant/chunk",
        "usage",
        "assistant/message",
        "step/end",
        "turn/stopping",
        "turn/end",
        "session/status",
    ]


@pytest.mark.req("LOOP-01", "LOOP-04", "LOOP-05")
async def test_reads_come_before_questions_and_questions_before_mutations(tmp_path: Path) -> None:
    sim = Sim([READ, WRITE, ASK])
    asked = calls(("write", {"name": "w"}), ("ask", {"name": "q"}), ("read", {"name": "r"}))
    live = await sim.session(transcript(tmp_path, asked, DONE))
    await sim.turn(live)
    types = sim.types(live)
    assert sim.tools.started == ["r", "w"]
    order = ["interactive/request", "interactive/answered", "plan/ready", "approval/request", "plan/applied"]
    assert [t for t in types if t in order] == order
    assert types.index("tool/started") < types.index("interactive/request")
    history = live._run.history.messages()
    results = [block.tool_result.call_id for block in history[2].blocks]
    assert results == [call.call_id for call in sim.of(live, "tool/call")]


@pytest.mark.req("LOOP-13")
async def test_an_unknown_tool_and_bad_arguments_are_results(tmp_path: Path) -> None:
    sim = Sim([READ])
    wrong = {"stream": [{"tool": "nothing", "input": {}}, {"tool": "read", "arguments": '{"a": nope}'}]}
    live = await sim.session(transcript(tmp_path, wrong, DONE))
    await sim.turn(live)
    results = sim.of(live, "tool/result")
    assert [r.category for r in results] == [
        common.TOOL_ERROR_CATEGORY_NOT_FOUND,
        common.TOOL_ERROR_CATEGORY_INVALID_ARGUMENTS,
    ]
    assert sim.of(live, "turn/end")[-1].reason == common.TURN_END_REASON_COMPLETED


@pytest.mark.req("BOUND-01", "BOUND-02", "BOUND-03")
@pytest.mark.parametrize(
    ("bounds", "status"),
    [
        (common.Bounds(max_turns=1), common.SESSION_STATUS_ERROR_MAX_TURNS),
        (common.Bounds(max_cost_nano_usd=1), common.SESSION_STATUS_ERROR_MAX_BUDGET_USD),
        (common.Bounds(max_wall_clock_ms=1000), common.SESSION_STATUS_ERROR_MAX_WALL_CLOCK),
    ],
)
async def test_a_bound_gives_one_more_step_without_tools(
    tmp_path: Path, bounds: common.Bounds, status: common.SessionStatus.ValueType
) -> None:
    sim = Sim([READ])
    lines = [
        {"model": {"pricing": {"input_per_mtok": 3.0, "output_per_mtok": 15.0}}},
        calls(("read", {"name": "a"})) | {"usage": {"input_tokens": 100, "output_tokens": 5}, "delay_s": 2},
        {"stream": [{"text": "stopped"}], "expect": {"tools": False, "last_contains": "limit"}},
    ]
    live = await sim.session(transcript(tmp_path, *lines), bounds=bounds)
    await sim.turn(live)
    assert sim.log.view(live.session).status == status
    assert sim.log.view(live.session).steps == 2
    types = sim.types(live)
    tail = types[types.index("limit/reached") :]
    assert [t for t in tail if t != "assistant/chunk"] == [
        "limit/reached",
        "user/message",
        "step/start",
        "agent/request",
        "usage",
        "assistant/message",
        "step/end",
        "turn/stopping",
        "turn/end",
        "session/status",
        "session/ended",
    ]
    assert sim.of(live, "agent/request")[-1].tools_withheld
    assert not sim.of(live, "agent/request")[-1].tools


@pytest.mark.req("BOUND-01")
async def test_a_bound_fires_before_the_first_step_of_a_turn_without_tools(tmp_path: Path) -> None:
    sim = Sim([READ])
    live = await sim.session(
        transcript(tmp_path, DONE | {"expect": {"tools": False}}), bounds=common.Bounds(max_turns=0)
    )
    await sim.turn(live)
    assert sim.log.view(live.session).status == common.SESSION_STATUS_ERROR_MAX_TURNS
    assert sim.log.view(live.session).steps == 1


@pytest.mark.req("BOUND-04")
async def test_a_soft_limit_pauses(tmp_path: Path) -> None:
    sim = Sim([READ])
    live = await sim.session(
        transcript(tmp_path, calls(("read", {"name": "a"})), DONE),
        bounds=common.Bounds(max_turns=1, limit_mode=common.LIMIT_MODE_SOFT),
    )
    await sim.turn(live)
    assert sim.log.view(live.session).status == common.SESSION_STATUS_PAUSED
    assert sim.of(live, "turn/end")[-1].reason == common.TURN_END_REASON_INTERRUPTED


@pytest.mark.req("BOUND-09", "BOUND-10")
async def test_equal_calls_in_a_row_are_a_doom_loop(tmp_path: Path) -> None:
    sim = Sim([READ])
    spellings = ['{"a": 1, "name": "x"}', '{ "name":"x","a":1 }', '{"a":1,"\\u006eame":"x"}']
    lines = [{"stream": [{"tool": "read", "arguments": text}]} for text in spellings]
    final = {"stream": [{"tool": "read", "input": {}}, {"text": "stuck"}], "expect": {"tools": False}}
    live = await sim.session(transcript(tmp_path, *lines, final))
    await sim.turn(live)
    assert sim.log.view(live.session).status == common.SESSION_STATUS_ERROR_DOOM_LOOP
    assert len(sim.tools.started) == 3
    assert sim.of(live, "tool/result")[-1].category == common.TOOL_ERROR_CATEGORY_NOT_STARTED


@pytest.mark.req("LOOP-03")
async def test_a_terminal_tool_ends_the_turn_and_what_follows_it_is_not_started(tmp_path: Path) -> None:
    report = SimTool(spec("report", common.TOOL_KIND_RESOURCE, terminates_turn=True))
    sim = Sim([WRITE, report])
    asked = calls(("write", {"name": "w1"}), ("report", {"name": "t"}), ("write", {"name": "w2"}))
    live = await sim.session(transcript(tmp_path, asked))
    await sim.turn(live)
    assert sim.tools.started == ["w1", "t"]
    assert sim.of(live, "tool/result")[-1].category == common.TOOL_ERROR_CATEGORY_NOT_STARTED
    assert sim.of(live, "turn/end")[-1].reason == common.TURN_END_REASON_COMPLETED
    assert sim.types(live)[-4:] == ["step/end", "turn/stopping", "turn/end", "session/status"]


@pytest.mark.req("SCHED-01", "SCHED-04")
async def test_safe_reads_run_at_once_up_to_the_ceiling(tmp_path: Path) -> None:
    sim = Sim([SimTool(spec("read"), hold=True)], calls_in_flight=8)
    names = [f"r{i}" for i in range(10)]
    live = await sim.session(transcript(tmp_path, calls(*(("read", {"name": n}) for n in names)), DONE))
    await sim.send(live, "go")
    await asyncio.wait_for(sim.tools.until_running(8), 10)
    assert sim.tools.most_running == 8
    for name in names:
        sim.tools.release(name)
    await asyncio.wait_for(live.idle(), 10)
    assert sim.tools.most_running == 8
    assert sorted(sim.tools.started) == sorted(names)


@pytest.mark.req("SCHED-02", "SCHED-03", "SCHED-06")
async def test_undeclared_calls_of_a_provider_run_alone_in_declaration_order(tmp_path: Path) -> None:
    sim = Sim([WRITE])
    live = await sim.session(
        transcript(tmp_path, calls(*(("write", {"name": f"w{i}"}) for i in range(4))), DONE)
    )
    await sim.turn(live)
    assert sim.tools.started == ["w0", "w1", "w2", "w3"]
    assert sim.tools.most_running == 1


@pytest.mark.req("GATE-01", "GATE-02", "GATE-03")
async def test_an_item_that_does_not_conflict_goes_ahead_of_one_that_waits(tmp_path: Path) -> None:
    keyed = SimTool(
        spec(
            "put",
            common.TOOL_KIND_RESOURCE,
            concurrency=common.ConcurrencySpec(
                safe=True, key_fields=[common.KeyField(name="key", type=common.KEY_FIELD_TYPE_VALUE)]
            ),
        )
    )
    sim = Sim([keyed])
    sim.people.decide = lambda request: None
    asked = calls(
        ("put", {"name": "a1", "key": "a"}),
        ("put", {"name": "b1", "key": "b"}),
        ("put", {"name": "a2", "key": "a"}),
    )
    live = await sim.session(transcript(tmp_path, asked, DONE))
    await sim.send(live, "go")
    await asyncio.wait_for(sim.people.until_asked(3), 10)
    waiting = {json.loads(r.item.input)["name"]: r for r in sim.people.asked}
    await sim.people.settle(live.session, waiting["a2"], approve=True)
    await sim.people.settle(live.session, waiting["b1"], approve=True)
    for _ in range(50):
        await asyncio.sleep(0)
    assert sim.tools.started == ["b1"], "a2 waits for a1, which waits for a person"
    await sim.people.settle(live.session, waiting["a1"], approve=False)
    await asyncio.wait_for(live.idle(), 10)
    assert sim.tools.started == ["b1", "a2"]
    categories = [r.category for r in sim.of(live, "tool/result")]
    assert common.TOOL_ERROR_CATEGORY_DENIED in categories


@pytest.mark.req("LOOP-07")
async def test_cancel_while_tools_run_settles_everything(tmp_path: Path) -> None:
    sim = Sim([SimTool(spec("read"), hold=True), WRITE])
    asked = calls(("read", {"name": "r1"}), ("read", {"name": "r2"}), ("write", {"name": "w"}))
    live = await sim.session(transcript(tmp_path, asked, DONE))
    await sim.send(live, "go")
    await asyncio.wait_for(sim.tools.until_running(2), 10)
    assert await live.cancel(common.CANCEL_CAUSE_USER, "test")
    assert sorted(sim.tools.cancelled) == ["r1", "r2"]
    assert [r.category for r in sim.of(live, "tool/result")] == [
        common.TOOL_ERROR_CATEGORY_INTERRUPTED,
        common.TOOL_ERROR_CATEGORY_INTERRUPTED,
        common.TOOL_ERROR_CATEGORY_NOT_STARTED,
    ]
    assert sim.of(live, "turn/end")[-1].reason == common.TURN_END_REASON_ABORTED
    assert sim.of(live, "turn/stopping")[-1].cancel.client == "test"
    await sim.turn(live, "next")
    assert sim.of(live, "turn/end")[-1].reason == common.TURN_END_REASON_COMPLETED


@pytest.mark.req("LOOP-07")
async def test_cancel_while_the_model_streams_keeps_what_it_said(tmp_path: Path) -> None:
    sim = Sim()
    hanging = {"stream": [{"text": "half a thought"}], "hang_s": 0}
    live = await sim.session(transcript(tmp_path, hanging | {"hang_s": 3600}, DONE))

    async def sleep(seconds: float) -> None:
        if seconds > 60:
            await asyncio.Event().wait()

    sim.clock.sleep = sleep  # type: ignore[method-assign]
    await sim.send(live, "go")
    while not sim.of(live, "assistant/chunk"):
        await asyncio.sleep(0.01)
    await live.cancel(common.CANCEL_CAUSE_USER, "test")
    types = sim.types(live)
    tail = types[types.index("turn/stopping") :]
    assert tail == ["turn/stopping", "usage", "assistant/message", "step/end", "turn/end", "session/status"]
    assert sim.of(live, "usage")[-1].estimated
    assert sim.of(live, "assistant/message")[-1].partial


@pytest.mark.req("LOG-14")
async def test_a_turn_whose_log_fails_ends_when_the_log_takes_events_again(tmp_path: Path) -> None:
    sim = Sim([READ])

    def answer(call: object) -> ToolOutcome:
        sim.log.failing = True
        return ToolOutcome(b'"done"')

    sim.tools.tools[0] = SimTool(spec("read"), answer=answer)
    live = await sim.session(transcript(tmp_path, calls(("read", {"name": "a"})), DONE))
    await sim.send(live, "go")
    while not sim.log.failing:
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    sim.log.failing = False
    await asyncio.wait_for(live.idle(), 10)
    assert sim.of(live, "turn/end")[-1].reason == common.TURN_END_REASON_ERROR
    sim.tools.tools[0] = READ
    await sim.turn(live, "again")
    assert sim.of(live, "turn/end")[-1].reason == common.TURN_END_REASON_COMPLETED


@pytest.mark.req("GATE-15")
async def test_an_unattended_session_asks_nobody(tmp_path: Path) -> None:
    sim = Sim([WRITE, ASK])
    asked = calls(("write", {"name": "w"}), ("ask", {"name": "q"}))
    live = await sim.session(transcript(tmp_path, asked, DONE), unattended=True)
    await sim.turn(live)
    assert not sim.people.asked
    assert sim.tools.started == []
    assert sim.of(live, "turn/end")[-1].reason == common.TURN_END_REASON_COMPLETED


@pytest.mark.req("GATE-12")
async def test_steps_in_which_everything_is_denied_end_blocked(tmp_path: Path) -> None:
    sim = Sim([WRITE])
    sim.people.decide = lambda request: False
    lines = [calls(("write", {"name": f"w{i}"})) for i in range(3)]
    live = await sim.session(transcript(tmp_path, *lines, DONE | {"expect": {"tools": False}}))
    await sim.turn(live)
    assert sim.of(live, "turn/end")[-1].reason == common.TURN_END_REASON_BLOCKED
    assert sim.log.view(live.session).status == common.SESSION_STATUS_IDLE


@pytest.mark.req("GATE-16")
async def test_drift_between_approval_and_run_asks_again(tmp_path: Path) -> None:
    drifted = iter(
        [ToolFailure(common.TOOL_ERROR_CATEGORY_PRECONDITION_FAILED, "changed"), ToolOutcome(b'"ok"')]
    )
    tool = SimTool(spec("write", common.TOOL_KIND_RESOURCE), answer=lambda call: next(drifted))
    sim = Sim([tool])
    live = await sim.session(transcript(tmp_path, calls(("write", {"name": "w"})), DONE))
    await sim.turn(live)
    assert len(sim.people.asked) == 2
    types = [t for t in sim.types(live) if t.startswith(("tool/", "approval/"))]
    assert types == [
        "tool/call",
        "approval/request",
        "approval/decided",
        "tool/started",
        "tool/retry",
        "approval/request",
        "approval/decided",
        "tool/started",
        "tool/result",
    ]


@pytest.mark.req("LOOP-12", "MODEL-13")
@pytest.mark.parametrize(
    "cut",
    [
        {"stream": [{"tool": "write", "arguments": '{"name": "rm -rf /'}], "stop": "max_tokens"},
        {
            "stream": [{"tool": "write", "input": {"name": "rm -rf /"}}],
            "usage": {"input_tokens": 10, "output_tokens": 8000},
        },
    ],
    ids=["said so", "tokens at the cap"],
)
async def test_an_answer_at_the_output_limit_runs_nothing(tmp_path: Path, cut: dict[str, object]) -> None:
    sim = Sim([WRITE])
    live = await sim.session(transcript(tmp_path, {"model": {"max_output_tokens": 8000}}, cut))
    await sim.turn(live)
    assert sim.tools.started == []
    assert sim.of(live, "tool/result")[-1].category == common.TOOL_ERROR_CATEGORY_TRUNCATED
    assert sim.of(live, "turn/end")[-1].reason == common.TURN_END_REASON_MAX_TOKENS


@pytest.mark.req("LOOP-08")
async def test_a_failed_attempt_is_retried_within_its_step(tmp_path: Path) -> None:
    sim = Sim()
    failing = {
        "stream": [{"text": "lost"}],
        "error": {"category": "overloaded", "message": "busy", "after_deltas": 1},
    }
    live = await sim.session(transcript(tmp_path, failing, DONE))
    await sim.turn(live)
    assert sim.log.view(live.session).steps == 1
    types = sim.types(live)
    assert types[types.index("agent/request") :][:7] == [
        "agent/request",
        "assistant/chunk",
        "usage",
        "agent/retry",
        "assistant/chunk",
        "usage",
        "assistant/message",
    ]
    assert sim.of(live, "usage")[0].estimated


@pytest.mark.req("LOOP-10")
async def test_a_steering_message_is_seen_at_the_next_step(tmp_path: Path) -> None:
    sim = Sim([SimTool(spec("read"), hold=True)])
    live = await sim.session(
        transcript(tmp_path, calls(("read", {"name": "a"})), DONE | {"expect": {"last_contains": "faster"}})
    )
    await sim.send(live, "go")
    await asyncio.wait_for(sim.tools.until_running(1), 10)
    await sim.send(live, "faster", common.DELIVERY_NEXT_STEP)
    sim.tools.release("a")
    await asyncio.wait_for(live.idle(), 10)
    assert sim.log.view(live.session).turns == 1
    assert sim.of(live, "turn/end")[-1].reason == common.TURN_END_REASON_COMPLETED


@pytest.mark.req("LOG-13", "LOOP-07")
async def test_the_live_history_is_that_of_the_log(tmp_path: Path) -> None:
    """What others append (a cancel, a decision, a queued message) reaches the history as well."""
    sim = Sim([SimTool(spec("read"), hold=True), WRITE])
    asked = calls(("write", {"name": "w"}), ("read", {"name": "r1"}))
    live = await sim.session(transcript(tmp_path, asked, DONE, DONE))
    await sim.send(live, "go")
    await asyncio.wait_for(sim.tools.until_running(1), 10)
    await live.cancel(common.CANCEL_CAUSE_USER, "test")
    await sim.turn(live, "next")
    replayed = History()
    for event in sim.log.events[live.session]:
        replayed.advance(event)
    assert live._run is not None
    assert live._run.history.messages() == replayed.messages()


@pytest.mark.req("LOOP-06")
async def test_session_hooks_fire_once_for_each_opening(tmp_path: Path) -> None:
    seen: list[str] = []
    points = [common.HOOK_POINT_SESSION_START, common.HOOK_POINT_SESSION_END]
    sim = Sim([READ], subscribers=[Watch(point, seen) for point in points])
    line = DONE | {"repeat": True}
    live = await sim.session(transcript(tmp_path, line), bounds=common.Bounds(max_turns=2))
    await sim.turn(live)
    await sim.turn(live)
    assert seen == ["session-start"]
    await sim.turn(live)
    assert sim.log.view(live.session).status == common.SESSION_STATUS_ERROR_MAX_TURNS
    assert seen == ["session-start", "session-end"]


@pytest.mark.req("HOOK-01", "HOOK-02", "LOOP-01")
async def test_all_hooks_of_a_step_fire_in_the_order_of_its_lines(tmp_path: Path) -> None:
    seen: list[str] = []
    every = [value for value in common.HookPoint.values() if value]
    sim = Sim([READ, WRITE], subscribers=[Watch(point, seen) for point in every])
    asked = calls(("write", {"name": "w"}), ("read", {"name": "r"}))
    live = await sim.session(transcript(tmp_path, asked, DONE))
    await sim.turn(live)
    first = ["context-assemble", "pre-model-call", "post-model-response"]
    assert seen == [
        "session-start",
        *first,
        *("pre-tool-call", "pre-tool-call", "plan-ready", "post-tool-call", "post-tool-call", "post-apply"),
        *first,
    ]


@pytest.mark.req("LOG-14")
async def test_a_fault_of_a_tool_adapter_ends_the_turn_and_is_said(tmp_path: Path) -> None:
    def broken(call: Invocation) -> ToolOutcome:
        raise RuntimeError("a bug")

    sim = Sim([SimTool(spec("read"), answer=broken)])
    live = await sim.session(transcript(tmp_path, calls(("read", {"name": "a"})), DONE))
    await sim.turn(live)
    stop = sim.of(live, "turn/stopping")[-1]
    assert (stop.reason, stop.error.source) == (common.TURN_END_REASON_ERROR, "daemon")
    assert "a bug" in stop.error.message
    await sim.turn(live, "again")
    assert sim.of(live, "turn/end")[-1].reason == common.TURN_END_REASON_COMPLETED


@pytest.mark.req("GATE-16", "GATE-07")
async def test_drift_of_a_call_that_a_grant_allows_by_now_needs_no_second_question(tmp_path: Path) -> None:
    answers = iter(
        [ToolFailure(common.TOOL_ERROR_CATEGORY_PRECONDITION_FAILED, "changed"), ToolOutcome(b'"ok"')]
    )
    sim = Sim([])

    def drift(call: Invocation) -> ToolOutcome | ToolFailure:
        sim.people.granted.add("write")
        return next(answers)

    sim.tools.tools.append(SimTool(spec("write", common.TOOL_KIND_RESOURCE), answer=drift))
    sim.settings = replace(sim.settings, policy=GrantingPolicy(sim.people.granted))
    live = await sim.session(transcript(tmp_path, calls(("write", {"name": "w"})), DONE))
    await sim.turn(live)
    assert len(sim.people.asked) == 1
    assert sim.of(live, "turn/end")[-1].reason == common.TURN_END_REASON_COMPLETED
    assert not sim.of(live, "tool/result")[-1].is_error


@pytest.mark.req("MODEL-13", "T01")
async def test_a_call_that_is_not_whole_never_runs_and_the_turn_goes_on(tmp_path: Path) -> None:
    sim = Sim([WRITE])
    cut = {
        "stream": [
            {"tool": "write", "arguments": '{"name": "rm -rf /'},
            {"tool": "write", "input": {"name": "whole"}},
        ],
        "stop": "tool_use",
    }
    live = await sim.session(transcript(tmp_path, cut, DONE))
    await sim.turn(live)
    assert sim.tools.started == ["whole"]
    assert sim.of(live, "tool/result")[0].category == common.TOOL_ERROR_CATEGORY_TRUNCATED
    assert sim.of(live, "turn/end")[-1].reason == common.TURN_END_REASON_COMPLETED


async def test_an_idle_session_lets_go_and_comes_back(tmp_path: Path) -> None:
    sim = Sim([READ], idle_s=600.0)
    lines = [
        calls(("read", {"name": "a"})),
        DONE,
        calls(("read", {"name": "b"})),
        DONE | {"expect": {"messages": 7}},
    ]
    live = await sim.session(transcript(tmp_path, *lines))
    await sim.turn(live)
    async with asyncio.timeout(10):
        while not sim.tools.closed:
            await asyncio.sleep(0)
    assert live._run is None
    await sim.turn(live, "again")
    assert sim.of(live, "turn/end")[-1].reason == common.TURN_END_REASON_COMPLETED
    assert sim.tools.opened == 2


@pytest.mark.req("GATE-11")
async def test_plan_mode_offers_no_mutations_and_runs_none_that_is_called_anyway(tmp_path: Path) -> None:
    sim = Sim([READ, WRITE], policy=GrantingPolicy({"write"}))
    asked = calls(("write", {"name": "w"}), ("read", {"name": "r"}))
    first = asked | {"expect": {"tools_include": ["read"], "tools_exclude": ["write"]}}
    live = await sim.session(transcript(tmp_path, first, DONE), plan_mode=True)
    await sim.turn(live)
    assert sim.tools.started == ["r"]
    assert sim.of(live, "tool/result")[0].category == common.TOOL_ERROR_CATEGORY_DENIED
    assert not sim.people.asked
    assert sim.of(live, "turn/end")[-1].reason == common.TURN_END_REASON_COMPLETED


ASK_READS = Policy(
    [
        PolicyRule("ask", "here", Match.of(tool=["read", "ask"]), common.POLICY_ACTION_ASK),
        PolicyRule("no", "here", Match.of(tool=["look"]), common.POLICY_ACTION_DENY),
    ]
)


@pytest.mark.req("GATE-04")
async def test_what_mutates_nothing_is_prechecked_and_ask_is_denied_with_a_warning(tmp_path: Path) -> None:
    look = SimTool(spec("look"))
    sim = Sim([READ, look, ASK], policy=ASK_READS)
    asked = calls(("read", {"name": "r"}), ("look", {"name": "l"}), ("ask", {"name": "q"}))
    live = await sim.session(transcript(tmp_path, asked, DONE))
    await sim.turn(live)
    assert sim.tools.started == []
    assert sim.of(live, "interactive/request") == []
    denied = common.TOOL_ERROR_CATEGORY_DENIED
    assert [result.category for result in sim.of(live, "tool/result")] == [denied] * 3
    ids = {call.tool: call.call_id for call in sim.of(live, "tool/call")}
    warned = [(warning.call_id, warning.rule) for warning in sim.of(live, "policy/warning")]
    assert warned == [(ids["read"], "ask"), (ids["ask"], "ask")], "a plain deny is no downgrade"


@pytest.mark.req("SCHED-05")
async def test_the_second_question_is_asked_after_the_first_was_answered(tmp_path: Path) -> None:
    sim = Sim([ASK])
    live = await sim.session(
        transcript(tmp_path, calls(("ask", {"name": "a"}), ("ask", {"name": "b"})), DONE)
    )
    await sim.turn(live)
    one = ["interactive/request", "interactive/answered", "tool/result"]
    assert [t for t in sim.types(live) if t in one] == one * 2


@pytest.mark.req("LOOP-03")
@pytest.mark.parametrize("arguments", ['{"name": "t"}', "{}[]"], ids=["valid", "invalid"])
async def test_a_terminal_call_waits_for_those_before_it_and_those_after_it_never_start(
    tmp_path: Path, arguments: str
) -> None:
    safe = common.ConcurrencySpec(safe=True)
    report = spec("report", common.TOOL_KIND_RESOURCE, terminates_turn=True, concurrency=safe)
    put = spec("put", common.TOOL_KIND_RESOURCE, concurrency=safe)
    sim = Sim([SimTool(put, hold=True), SimTool(report)], policy=GrantingPolicy({"put", "report"}))
    stream = [
        {"tool": "put", "input": {"name": "before"}},
        {"tool": "report", "arguments": arguments},
        {"tool": "put", "input": {"name": "after"}},
    ]
    live = await sim.session(transcript(tmp_path, {"stream": stream}, DONE))
    await sim.send(live, "go")
    await asyncio.wait_for(sim.tools.until_running(1), 10)
    for _ in range(50):
        await asyncio.sleep(0)
    assert sim.tools.started == ["before"]
    sim.tools.release("before")
    await asyncio.wait_for(live.idle(), 10)
    assert "after" not in sim.tools.started
    assert sim.tools.started == (["before", "t"] if arguments != "{}[]" else ["before"])


@pytest.mark.req("LOOP-06")
async def test_session_end_fires_when_a_session_is_closed(tmp_path: Path) -> None:
    seen: list[str] = []
    points = [common.HOOK_POINT_SESSION_START, common.HOOK_POINT_SESSION_END]
    sim = Sim([], subscribers=[Watch(point, seen) for point in points])
    live = await sim.session(transcript(tmp_path, DONE))
    await sim.turn(live)
    await live.close(common.SESSION_STATUS_COMPLETED)
    assert seen == ["session-start", "session-end"]
    assert sim.types(live)[-1] == "session/ended"


@pytest.mark.req("BOUND-01", "BOUND-02")
async def test_steering_does_not_walk_past_a_bound(tmp_path: Path) -> None:
    sim = Sim([])
    slow = {"stream": [{"text": "first"}], "chunk": 1, "delay_s": 1}
    live = await sim.session(
        transcript(tmp_path, slow, DONE | {"expect": {"tools": False}}), bounds=common.Bounds(max_turns=1)
    )
    await sim.send(live, "go")
    while not sim.of(live, "agent/request"):
        await asyncio.sleep(0)
    await sim.send(live, "and faster", common.DELIVERY_NEXT_STEP)
    await asyncio.wait_for(live.idle(), 10)
    assert sim.log.view(live.session).status == common.SESSION_STATUS_ERROR_MAX_TURNS
    assert len(sim.log.view(live.session).queue) == 1, "steering stays queued in the final Step"


@pytest.mark.req("BOUND-02")
async def test_the_request_of_the_final_step_is_tried_once(tmp_path: Path) -> None:
    sim = Sim([])
    failing = {"error": {"category": "overloaded", "message": "busy"}}
    live = await sim.session(transcript(tmp_path, failing, DONE), bounds=common.Bounds(max_turns=0))
    await sim.turn(live)
    assert sim.of(live, "agent/retry") == []
    assert sim.of(live, "turn/end")[-1].reason == common.TURN_END_REASON_ERROR
    assert sim.log.view(live.session).status == common.SESSION_STATUS_ERROR_MAX_TURNS


@pytest.mark.req("BOUND-01", "BOUND-05", "BOUND-14")
async def test_a_bound_is_looked_at_before_a_retry_with_what_the_failed_attempt_cost(tmp_path: Path) -> None:
    sim = Sim([])
    pricing = {"model": {"pricing": {"input_per_mtok": 3.0, "output_per_mtok": 15.0}}}
    billed = {
        "stream": [{"text": "lost"}],
        "error": {"category": "overloaded", "message": "busy", "after_deltas": 1},
        "usage": {"input_tokens": 1000, "output_tokens": 100},
    }
    live = await sim.session(
        transcript(tmp_path, pricing, billed, DONE | {"expect": {"tools": False}}),
        bounds=common.Bounds(max_cost_nano_usd=4_500_000),
    )
    await sim.turn(live)
    assert sim.of(live, "usage")[0].cost_nano_usd == 1000 * 3_000 + 100 * 15_000
    assert sim.log.view(live.session).status == common.SESSION_STATUS_ERROR_MAX_BUDGET_USD
    assert [step.step for step in sim.of(live, "step/start")] == [1, 2]


@pytest.mark.req("LOOP-01", "OBS-01")
async def test_the_trace_of_a_step_has_its_lines_in_order(tmp_path: Path) -> None:
    sim = Sim([READ, WRITE, ASK])
    asked = calls(("write", {"name": "w"}), ("ask", {"name": "q"}), ("read", {"name": "r"}))
    live = await sim.session(transcript(tmp_path, asked, DONE))
    await sim.turn(live)
    steps = [span for span in sim.trace.spans if span.name == "turnd.step"]
    assert [name for name, _ in steps[0].events] == [
        *("turnd.done_check", "turnd.split", "turnd.precheck", "turnd.precheck", "turnd.plan"),
        *("turnd.history", "turnd.doom_loop", "turnd.bounds", "turnd.next"),
    ]
    assert [name for name, _ in steps[1].events] == ["turnd.done_check", "turnd.history", "turnd.next"]
    begun = [span.name for span in sim.trace.spans if span.name != "turnd.hook"]
    assert begun == [
        *("turnd.step", "turnd.model", "turnd.tool", "turnd.tool", "turnd.veto_chain", "turnd.tool"),
        *("turnd.step", "turnd.model"),
    ]
    names = [span.attributes["gen_ai.tool.name"] for span in sim.trace.spans if span.name == "turnd.tool"]
    assert names == ["read", "ask", "write"]


@pytest.mark.req("LOOP-07", "LOOP-14")
async def test_no_turn_begins_while_a_session_is_being_closed(tmp_path: Path) -> None:
    sim = Sim([SimTool(spec("read"), hold=True)])
    live = await sim.session(transcript(tmp_path, calls(("read", {"name": "r"})), DONE | {"repeat": True}))
    await sim.send(live, "go")
    await asyncio.wait_for(sim.tools.until_running(1), 10)
    closing = asyncio.create_task(live.close(common.SESSION_STATUS_CANCELLED, "test"))
    for _ in range(5):
        await sim.send(live, "more")
    await asyncio.wait_for(closing, 10)
    assert sim.log.view(live.session).turns == 1
    assert sim.log.view(live.session).queue == ()
    assert sim.types(live)[-1] == "session/ended"


@pytest.mark.req("MODEL-05")
async def test_an_answer_without_end_ends_the_turn(tmp_path: Path) -> None:
    sim = Sim([])
    live = await sim.session(transcript(tmp_path, {"stream": [{"text": "x" * (2**21 + 1)}], "chunk": 65536}))
    await sim.turn(live)
    assert sim.of(live, "turn/end")[-1].reason == common.TURN_END_REASON_ERROR
    assert "longer than" in sim.of(live, "turn/stopping")[-1].error.message
