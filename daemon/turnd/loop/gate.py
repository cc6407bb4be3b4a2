"""Lines 9 to 11 before anything runs: policy on every call, the plan, the vetoes, and the people who are asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from turnd.loop.calls import Call, invocation, refuse
from turnd.loop.judge import judge, looked_up
from turnd.loop.run import Run
from turnd.ports import Correct, Span, Where
from turnd.rules import plan
from turnd.rules.grants import Place
from turnd.rules.policy import PolicyCall, Verdict, grant_for
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2
from turnd.v1.jsonform import message_to_json
from turnd.v1.unseen import visible

PREVIEW_CHARACTERS = 128 * 1024

ALLOW, ASK, DENY = common.POLICY_ACTION_ALLOW, common.POLICY_ACTION_ASK, common.POLICY_ACTION_DENY


@dataclass(slots=True)
class Plan:
    """The resource calls of a Step in declaration order, with what is known of each by its call id."""

    calls: list[Call]
    proposals: dict[str, plan.Proposal]
    items: dict[str, common.PlanItem] = field(default_factory=dict)
    """Decided items (GATE-01)."""
    decisions: dict[str, event_pb2.ApprovalDecided] = field(default_factory=dict)
    """What people decided."""
    left_state: dict[str, str] = field(default_factory=dict)
    """What applied items left behind, by target: for later items of the plan that is no drift."""


async def evaluate(run: Run, call: Call) -> Verdict:
    """What policy says of one call. What was granted to a session holds for all below it (GATE-09)."""
    view = run.view
    grants = [grant for each in run.path for grant in each.grants]
    return await judge(run.settings.policy, run.world, policy_call(call), _where(run), Place.of(view), grants)


async def _rememberable(run: Run, call: Call) -> common.GrantRule:
    """What a decision on the call can remember; nothing, where the disk does not say what it would be about."""
    try:
        return grant_for(await looked_up(run.world.disk, policy_call(call), _where(run)))
    except (OSError, TimeoutError):
        return grant_for(replace(policy_call(call), command="", path=""))


def _where(run: Run) -> Where:
    view = run.view
    return Where(view.cwd, view.workspace or view.cwd, view.environment)


async def precheck(run: Run, calls: Sequence[Call]) -> list[Call]:
    """The calls that may run; each other one gets its result here (GATE-04)."""
    allowed = []
    for call in calls:
        verdict = call.veto or await evaluate(run, call)
        if verdict.downgraded:
            await run.append(
                event_pb2.PolicyWarning(
                    call_id=call.id,
                    rule=verdict.decided_by.name,
                    message="the rule says ask, but a call that does not mutate has nothing to gate: denied",
                )
            )
        if verdict.action == ALLOW:
            allowed.append(call)
        else:
            await refuse(run, call, common.TOOL_ERROR_CATEGORY_DENIED, verdict.reason)
    return allowed


async def build_plan(run: Run, calls: Sequence[Call], span: Span) -> Plan:
    """Line 10: what each resource call would do, with the preview and preconditions of this moment (GATE-10)."""
    with run.meter.active():
        proposals = await asyncio.gather(*(propose(run, call) for call in calls))
    span.event("turnd.plan", {"items": len(calls)})
    return Plan(list(calls), {proposal.call_id: proposal for proposal in proposals})


async def propose(run: Run, call: Call) -> plan.Proposal:
    """One call with its preview; a preview that cannot be had leaves the item without one."""
    preview = await run.tools.preview(invocation(run, call, (), ""))
    return plan.Proposal(
        call_id=call.id,
        call=policy_call(call),
        description=visible(call.spec.description),
        preview=_shown(preview.text),
        preconditions=preview.preconditions,
        rememberable=await _rememberable(run, call),
    )


async def decide_plan(run: Run, made: Plan) -> None:
    """Line 11: policy on every item, then the veto chain of `plan-ready`, then what nobody is there to answer.

    The hook fires with an empty plan too; plan/ready is written only where there is a plan.
    """
    items = [await decided_item(run, call, made.proposals[call.id]) for call in made.calls]
    with run.world.trace.span("turnd.veto_chain", {"turnd.items": len(items)}):
        dispatched = await run.dispatch(
            common.HOOK_POINT_PLAN_READY, lambda: {"items": [message_to_json(item) for item in items]}
        )
    settled = plan.with_vetoes(items, dispatched.vetoes)
    if run.view.unattended:
        settled = plan.unattended(settled)
    made.items = {item.call_id: item for item in settled}
    if settled:
        await run.append(plan.ready(settled))


async def decided_item(run: Run, call: Call, proposal: plan.Proposal) -> common.PlanItem:
    """The item as policy, or a veto at pre-tool-call, decides it."""
    return plan.item(proposal, call.veto or await evaluate(run, call))


async def ask(
    run: Run, proposal: plan.Proposal, item: common.PlanItem, correct: Correct
) -> event_pb2.ApprovalDecided:
    """Asks people about one item and waits for the first decision (GATE-07). No lock is held meanwhile.

    `correct` says what becomes of the call with another input.
    """
    expires_s = run.world.clock.now_us() / 1_000_000 + run.settings.approval_timeout_s
    request = plan.approval_request(
        item,
        run.world.ids.request(),
        datetime.fromtimestamp(expires_s, UTC),
        proposal.rememberable,
    )
    with run.world.people.correctable(run.session, request.request_id, correct):
        await run.append(request)
        with run.meter.waiting():
            return await run.world.people.decision(run.session, request.request_id)


def _shown(preview: str) -> str:
    """A preview that a person can take in: nothing in it is unseen; what is longer is cut, and says so."""
    preview = visible(preview)
    if len(preview) <= PREVIEW_CHARACTERS:
        return preview
    return f"{preview[:PREVIEW_CHARACTERS]}\n[{len(preview) - PREVIEW_CHARACTERS} more characters]\n"


def policy_call(call: Call) -> PolicyCall:
    """The call as policy sees it, with its effective input."""
    return PolicyCall.of(call.event.provider, call.spec, call.input)
