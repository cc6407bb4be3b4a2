"""One Step: the RunTurn algorithm, line by line (LOOP-01).

The eighteen lines stand in `_lines` in their order, the last one in `run_step`, which has every way out of them; each
is a function of its own name, and nothing else happens between them.
"""

from __future__ import annotations

from functools import partial

from turnd.loop.apply import after_the_end, apply_plan
from turnd.loop.breakers import Tripped
from turnd.loop.calls import Call, StepCalls, called, refuse
from turnd.loop.complete import Completion, complete
from turnd.loop.context import assemble_context, prepare_request
from turnd.loop.doom_check import check_doom_loop
from turnd.loop.execute import run_data_source, run_side_by_side
from turnd.loop.gate import Plan, build_plan, decide_plan, precheck
from turnd.loop.outcome import COMPLETED, Ending, Limited, NextStep, StepOutcome, failed
from turnd.loop.questions import ask_in_turn
from turnd.loop.run import LimitFired, Run, StepFailed
from turnd.loop.settle import close_open_step
from turnd.ports import Span
from turnd.rules.plan import outcome_of, vetoed
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2
from turnd.v1.jsonform import enum_text, message_to_json


async def run_step(run: Run) -> StepOutcome:
    """One model completion and the calls it asks for. Ends with the Step closed in the log, however it ends."""
    with run.world.trace.span("turnd.step") as span:
        await _open(run, span)
        try:
            outcome = await _lines(run, span)
        except StepFailed as failure:
            await into_history(run, span)
            outcome = failed(failure.stop)
        except LimitFired as fired:
            await into_history(run, span)
            outcome = Limited(fired.reached)
        return next_step(outcome, span)  # 18


async def _lines(run: Run, span: Span) -> StepOutcome:
    assembled = await assemble_context(run)  # 1
    request = await prepare_request(run, assembled, final=False)  # 2
    said = await complete(run, request, final=False)  # 3, 4
    await post_model_response(run, said)  # 5
    if done_check(run, said, span):  # 6
        return await answered(run, said, span)
    calls = await pre_tool_calls(run, said)  # 7
    await split_by_kind(run, calls, span)  # 8
    await run_data_sources(run, calls, span)  # 9
    await run_questions(run, calls, span)  # 9b
    plan = await build_plan(run, calls.resource, span)  # 10
    await decide_plan(run, plan)  # 11
    await apply_plan(run, plan)  # 12
    await post_tool_calls(run, calls)  # 13
    await post_apply(run, plan)  # 14
    await into_history(run, span)  # 15
    if terminated(calls):
        return COMPLETED
    looping = await check_doom_loop(run, calls, span)  # 16
    return check_bounds(run, calls, looping, span) or NextStep()  # 17


async def run_final_step(run: Run) -> Ending:
    """The one Step after a bound or breaker: tools withheld, no call runs, no bound is checked (BOUND-02)."""
    with run.world.trace.span("turnd.step", {"turnd.final": True}) as span:
        await _open(run, span)
        try:
            assembled = await assemble_context(run)
            request = await prepare_request(run, assembled, final=True)
            said = await complete(run, request, final=True)
            await post_model_response(run, said)
            done_check(run, said, span)
            for call in _calls(run, said).all:
                why = "not started: no tools are offered in the final step"
                await refuse(run, call, common.TOOL_ERROR_CATEGORY_NOT_STARTED, why)
            ending = COMPLETED
        except StepFailed as failure:
            ending = failed(failure.stop)
        await into_history(run, span)
        next_step(ending, span)
        return ending


async def _open(run: Run, span: Span) -> None:
    state = run.state
    assert state.open_turn is not None, "a Step opens inside a Turn"
    await run.append(event_pb2.StepStart(turn=state.open_turn, step=state.next_step))
    span.set({"turnd.session": run.session, "turnd.turn": state.open_turn, "turnd.step": state.next_step})


async def post_model_response(run: Run, said: Completion) -> None:
    """Line 5."""
    await run.dispatch(
        common.HOOK_POINT_POST_MODEL_RESPONSE,
        lambda: {
            "message": message_to_json(said.message),
            "model": run.model.spec.id,
            "usage": message_to_json(said.usage.tokens),
            "cost_nano_usd": said.usage.cost_nano_usd,
        },
    )


def done_check(run: Run, said: Completion, span: Span) -> bool:
    """Line 6: true where there is no call to run, because there is none or because the message was cut."""
    answered_only = not said.calls or said.truncated or not may_run(said)
    span.event("turnd.done_check", {"calls": len(said.calls), "done": answered_only})
    return answered_only


async def answered(run: Run, said: Completion, span: Span) -> StepOutcome:
    """What follows an answer without calls to run: the end of the Turn, or a steering message's Step (LOOP-02)."""
    if said.calls:
        return await cut_short(run, said, span)
    await into_history(run, span)
    run.breakers.observe([])
    if said.truncated:
        return Ending(common.TURN_END_REASON_MAX_TOKENS)
    if said.message.stop_reason == common.STOP_REASON_CONTENT_FILTERED:
        return failed(_filtered(run, said))
    steered = any(m.delivery == common.DELIVERY_NEXT_STEP for m in run.view.queue)
    return NextStep() if steered else COMPLETED


def may_run(said: Completion) -> bool:
    """Calls run only where the vendor says that it stopped to have them run."""
    return said.message.stop_reason in (
        common.STOP_REASON_TOOL_USE,
        common.STOP_REASON_END_TURN,
        common.STOP_REASON_STOP_SEQUENCE,
    )


async def cut_short(run: Run, said: Completion, span: Span) -> Ending:
    """Calls of a message that was cut are never run (MODEL-13); each gets a result that says why (LOOP-12)."""
    for call in _calls(run, said).all:
        await refuse(
            run,
            call,
            common.TOOL_ERROR_CATEGORY_TRUNCATED
            if said.truncated
            else common.TOOL_ERROR_CATEGORY_NOT_STARTED,
            "truncated: the answer was cut off at the output limit, so the call did not run"
            if said.truncated
            else "not started: the model stopped for another reason than to have its tools run",
        )
    await into_history(run, span)
    if said.truncated:
        return Ending(common.TURN_END_REASON_MAX_TOKENS)
    return failed(_filtered(run, said))


def _filtered(run: Run, said: Completion) -> event_pb2.ErrorStop:
    return event_pb2.ErrorStop(
        source="model",
        category="content_filtered"
        if said.message.stop_reason == common.STOP_REASON_CONTENT_FILTERED
        else "unknown",
        message=f"{run.model.spec.id} stopped: {said.message.vendor_stop_reason or 'no reason given'}",
    )


async def pre_tool_calls(run: Run, said: Completion) -> StepCalls:
    """Line 7: the hook for each call in declaration order; a veto denies that call."""
    calls = _calls(run, said)
    for call in calls.all:
        dispatched = await run.dispatch(common.HOOK_POINT_PRE_TOOL_CALL, partial(_call_payload, call.event))
        call.veto = next((vetoed(veto) for veto in dispatched.vetoes), None)
    return calls


async def split_by_kind(run: Run, calls: StepCalls, span: Span) -> None:
    """Line 8: the groups; what is no call of a known tool gets its error result here (LOOP-13)."""
    ended_by = ""
    for call in calls.all:
        wrong = _invalid(run, call)
        if wrong is not None:
            await refuse(run, call, *wrong)
            if call.tool is not None and call.spec.terminates_turn:
                ended_by = call.spec.name
        elif ended_by and call.spec.kind == common.TOOL_KIND_RESOURCE:
            await refuse(run, call, common.TOOL_ERROR_CATEGORY_NOT_STARTED, after_the_end(ended_by))
        elif call.spec.kind == common.TOOL_KIND_DATA_SOURCE:
            calls.data_source.append(call)
        elif call.spec.kind == common.TOOL_KIND_INTERACTIVE:
            calls.interactive.append(call)
        else:
            calls.resource.append(call)
    span.event(
        "turnd.split",
        {
            "data_source": len(calls.data_source),
            "interactive": len(calls.interactive),
            "resource": len(calls.resource),
        },
    )


async def run_data_sources(run: Run, calls: StepCalls, span: Span) -> None:
    """Line 9: reads that policy allows run at once, side by side."""
    allowed = await precheck(run, calls.data_source)
    span.event("turnd.precheck", {"kind": "data_source", "allowed": len(allowed)})
    await run_side_by_side(run, allowed, lambda call, lane: run_data_source(run, call, lane))


async def run_questions(run: Run, calls: StepCalls, span: Span) -> None:
    """Line 9b: questions that policy allows, one after another."""
    allowed = await precheck(run, calls.interactive)
    span.event("turnd.precheck", {"kind": "interactive", "allowed": len(allowed)})
    await ask_in_turn(run, allowed)


async def post_tool_calls(run: Run, calls: StepCalls) -> None:
    """Line 13: the hook for each call and its result, in declaration order."""
    for call, result in calls.results:
        await run.dispatch(
            common.HOOK_POINT_POST_TOOL_CALL, partial(_call_payload, called(call), result=result)
        )


async def post_apply(run: Run, plan: Plan) -> None:
    """Line 14: the hook with the plan as it went; it fires with an empty plan too."""
    await run.dispatch(
        common.HOOK_POINT_POST_APPLY,
        lambda: {"items": [message_to_json(item) | _outcome(plan, item) for item in plan.items.values()]},
    )


def _outcome(made: Plan, item: common.PlanItem) -> dict[str, object]:
    """What became of an item, as the hook of line 14 is told."""
    result = next(call.result for call in made.calls if call.id == item.call_id)
    return {"outcome": enum_text(common.ItemOutcome, outcome_of(result))}


async def into_history(run: Run, span: Span) -> None:
    """Line 15: the Step closes; its message and results are history, results in declaration order (LOOP-05)."""
    await close_open_step(run)
    span.event("turnd.history", {"seq": run.state.seq})


def next_step(outcome: StepOutcome, span: Span) -> StepOutcome:
    """Line 18: what comes after this Step, as the trace is told."""
    span.event("turnd.next", {"outcome": type(outcome).__name__})
    return outcome


def terminated(calls: StepCalls) -> bool:
    """A tool that ends the Turn ran and succeeded (LOOP-03)."""
    return any(
        call.tool is not None and call.spec.terminates_turn and not result.is_error
        for call, result in calls.results
    )


def check_bounds(run: Run, calls: StepCalls, looping: bool, span: Span) -> Limited | Tripped | None:
    """Line 17: the bounds, then the denial and crash breakers."""
    reached = run.limits_reached()
    assert bool(reached) or not looping, "a fired doom loop is among the limits"
    tripped = run.breakers.observe([(call.event.provider, result) for call, result in calls.results])
    span.event("turnd.bounds", {"reached": len(reached), "breaker": tripped.source if tripped else ""})
    if reached:
        return Limited(reached)
    return tripped


def _call_payload(call: event_pb2.ToolCall, result: event_pb2.ToolResult | None = None) -> dict[str, object]:
    payload: dict[str, object] = {"call": message_to_json(call)}
    if result is not None:
        payload["result"] = message_to_json(result)
    return payload


def _calls(run: Run, said: Completion) -> StepCalls:
    return StepCalls(
        [
            Call(
                event,
                run.tools.find(event.provider, event.tool),
                offered=(event.provider, event.tool) in said.offered,
                cut_off=event.call_id in said.cut_calls,
            )
            for event in said.calls
        ]
    )


def _invalid(run: Run, call: Call) -> tuple[common.ToolErrorCategory.ValueType, str] | None:
    """What is wrong with a call before anybody is asked about it."""
    if call.tool is None:
        return (
            common.TOOL_ERROR_CATEGORY_NOT_FOUND,
            f"there is no tool {call.event.tool!r}; use one of the tools that are offered",
        )
    if not call.offered:
        if run.view.planning:
            why = "plan mode offers no tools that change anything"
        elif call.spec.spawns:
            why = "this session may start no further sub-agents"
        else:
            why = "it was not offered"
        return (common.TOOL_ERROR_CATEGORY_DENIED, f"{call.event.tool} did not run: {why}")
    if call.cut_off:
        return (
            common.TOOL_ERROR_CATEGORY_TRUNCATED,
            "truncated: the arguments were cut off, so it did not run",
        )
    if call.event.raw_arguments or not call.input:
        return (
            common.TOOL_ERROR_CATEGORY_INVALID_ARGUMENTS,
            f"the arguments are not valid JSON: {call.event.raw_arguments[:200]}",
        )
    misfit = run.tools.check_input(call.event.provider, call.event.tool, call.input)
    return None if misfit is None else (misfit.category, misfit.message)
