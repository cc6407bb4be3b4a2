"""Line 12: the approved items of the plan run, scheduled by what their tools declare."""

from __future__ import annotations

from collections.abc import Sequence

from turnd.loop.calls import Call, conclude, refuse
from turnd.loop.correct import Corrections
from turnd.loop.execute import (
    TRIES,
    Lane,
    dispatch,
    log_retry,
    may_repeat,
    run_side_by_side,
    waits_for_itself,
)
from turnd.loop.gate import ALLOW, ASK, Plan, ask, decided_item, evaluate, propose
from turnd.loop.run import Run
from turnd.ports import ToolFailure, WaitsForItself
from turnd.rules import plan
from turnd.rules.policy import Verdict
from turnd.v1 import common_pb2 as common

PRECONDITION_FAILED = common.TOOL_ERROR_CATEGORY_PRECONDITION_FAILED


async def apply_plan(run: Run, made: Plan) -> None:
    """Every item to its result: denied ones at once, allowed ones when their turn comes, asked ones when decided.

    Items that do not conflict with one that waits for a person go ahead (GATE-03). A call that ends the Turn runs
    after all that stand before it have ended, and nothing that stands after it runs (LOOP-03).
    """
    if not made.calls:
        return
    last = next((i for i, call in enumerate(made.calls) if call.spec.terminates_turn), len(made.calls))

    async def one(call: Call, lane: Lane) -> None:
        await _apply_item(run, made, call, lane)

    await run_side_by_side(run, made.calls[:last], one)
    await run_side_by_side(run, made.calls[last : last + 1], one)
    for call in made.calls[last + 1 :]:
        await refuse(
            run,
            call,
            common.TOOL_ERROR_CATEGORY_NOT_STARTED,
            after_the_end(made.calls[last].spec.name),
        )
    results = {call.id: call.result for call in made.calls if call.result is not None}
    await run.append(plan.applied(made.items.values(), results, made.decisions))


def after_the_end(tool: str) -> str:
    """Why a call that stands after one that ends the Turn does not run."""
    return f"not started: {tool}, which ends the turn, was called before it"


async def _apply_item(run: Run, made: Plan, call: Call, lane: Lane) -> None:
    if not await _permitted(run, made, call, lane):
        return
    started_at = run.world.clock.monotonic()
    changed = 0
    while True:
        try:
            async with lane.running():
                outcome = await _no_longer_allowed(run, made, call) or await dispatch(
                    run, call, _current(made, made.items[call.id].preconditions)
                )
        except WaitsForItself as waits:
            outcome = waits_for_itself(waits)
            break
        if isinstance(outcome, Verdict):
            changed += 1
            if changed == TRIES:
                await refuse(run, call, common.TOOL_ERROR_CATEGORY_DENIED, outcome.reason)
                return
            await _plan_anew(run, made, call)
            if not await _permitted(run, made, call, lane):
                return
            continue
        if not isinstance(outcome, ToolFailure):
            made.left_state.update({left.target: left.state for left in outcome.left_state})
            break
        drifted = outcome.category == PRECONDITION_FAILED and call.attempts < TRIES
        if not drifted and not may_repeat(call, outcome):
            break
        await log_retry(run, call, outcome)
        if drifted:
            await _plan_anew(run, made, call)
            if not await _permitted(run, made, call, lane):
                return
    await conclude(run, call, outcome, started_at=started_at)


async def _permitted(run: Run, made: Plan, call: Call, lane: Lane) -> bool:
    """True where the item may run now; otherwise its result has been written."""
    item = made.items[call.id]
    reason = item.reason
    if item.decision == ASK:
        corrections = Corrections(run, call)
        decided = made.decisions[call.id] = await ask(run, made.proposals[call.id], item, corrections.correct)
        chosen = corrections.chosen(decided)
        if chosen is not None:
            call.corrected = decided.corrected_input
            made.proposals[call.id], made.items[call.id] = chosen
            lane.claim_anew()
        if decided.outcome == common.APPROVAL_OUTCOME_APPROVED:
            return True
        if decided.outcome == common.APPROVAL_OUTCOME_EXPIRED:
            reason = "nobody decided in time, so it did not run"
        else:
            reason = f"denied by {decided.client}" + (f": {decided.reason}" if decided.reason else "")
    elif item.decision == ALLOW:
        return True
    await refuse(run, call, common.TOOL_ERROR_CATEGORY_DENIED, reason)
    return False


async def _no_longer_allowed(run: Run, made: Plan, call: Call) -> Verdict | None:
    """What policy says now where it allowed the item before and does not any more; None where it still does.

    Earlier items may have put a program onto PATH, or a link into a path. A person approves what was shown to them.
    """
    if made.items[call.id].decision != ALLOW:
        return None
    verdict = await evaluate(run, call)
    return None if verdict.action == ALLOW else verdict


async def _plan_anew(run: Run, made: Plan, call: Call) -> None:
    """What the call is bound to has changed: preview and policy again, and people where policy asks (GATE-16)."""
    proposal = made.proposals[call.id] = await propose(run, call)
    item = await decided_item(run, call, proposal)
    if run.view.unattended:
        (item,) = plan.unattended((item,))
    made.items[call.id] = item
    if item.decision == ALLOW:
        # The approval of the first attempt is used up: what lets the next one start must be in the log.
        await run.append(plan.ready((item,)))


def _current(made: Plan, preconditions: Sequence[common.Precondition]) -> tuple[common.Precondition, ...]:
    """The preconditions with what earlier items of this plan left behind in place of what they found."""
    return tuple(
        common.Precondition(target=p.target, state=made.left_state.get(p.target, p.state))
        for p in preconditions
    )
