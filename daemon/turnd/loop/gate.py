"""Lines 9 to 11 before anything runs: policy on every call, the plan, the vetoes, and the people who are asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from turnd.loop.calls import Call, invocation, refuse
from turnd.loop.run import Run
from turnd.ports import Span
from turnd.rules import plan
from turnd.rules.policy import PolicyCall, Verdict, grant_for
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2
from turnd.v1.jsonform import message_to_json

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


def evaluate(run: Run, call: Call) -> Verdict:
    """What policy says of one call. What was granted to a session holds for all below it (GATE-09)."""
    grants = [grant for view in run.path for grant in view.grants]
    return run.settings.policy.evaluate(_policy_call(call), grants)


async def precheck(run: Run, calls: Sequence[Call]) -> list[Call]:
    """The calls that may run; each other one gets its result here (GATE-04)."""
    allowed = []
    for call in calls:
        verdict = call.veto or evaluate(run, call)
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
        call=_policy_call(call),
        description=call.spec.description,
        preview=_shown(preview.text),
        preconditions=preview.preconditions,
    )


async def decide_plan(run: Run, made: Plan) -> None:
    """Line 11: policy on every item, then the veto chain of `plan-ready`, then what nobody is there to answer.

    The hook fires with an empty plan too; plan/ready is written only where there is a plan.
    """
    items = [decided_item(run, call, made.proposals[call.id]) for call in made.calls]
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


def decided_item(run: Run, call: Call, proposal: plan.Proposal) -> common.PlanItem:
    """The item as policy, or a veto at pre-tool-call, decides it."""
    return plan.item(proposal, call.veto or evaluate(run, call))


async def ask(run: Run, call: Call, item: common.PlanItem) -> event_pb2.ApprovalDecided:
    """Asks people about one item and waits for the first decision (GATE-07). No lock is held meanwhile."""
    expires_s = run.world.clock.now_us() / 1_000_000 + run.settings.approval_timeout_s
    request = plan.approval_request(
        item, run.world.ids.request(), datetime.fromtimestamp(expires_s, UTC), grant_for(_policy_call(call))
    )
    await run.append(request)
    with run.meter.waiting():
        return await run.world.people.decision(run.session, request.request_id)


def _shown(preview: str) -> str:
    """A preview that a person can take in: what is longer is cut, and says so."""
    if len(preview) <= PREVIEW_CHARACTERS:
        return preview
    return f"{preview[:PREVIEW_CHARACTERS]}\n[{len(preview) - PREVIEW_CHARACTERS} more characters]\n"


def _policy_call(call: Call) -> PolicyCall:
    return PolicyCall.of(call.event.provider, call.spec, call.input)
