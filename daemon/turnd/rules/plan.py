"""The plan of a Step: its resource calls, each with its own decision (GATE-01, GATE-10)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol

from turnd.rules import canon, policy
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

MAX_PLAN_BYTES: Final = 4 * 2**20
"""Of a plan in the log, as far as its texts for people decide it; half of what an event may have."""
_CUT: Final = "\n[... the rest is left out: the plan is too long ...]\n"


class Veto(Protocol):
    """A denial by a subscriber."""

    @property
    def subscriber(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def call_ids(self) -> tuple[str, ...]:
        """Empty: the whole plan."""

    @property
    def failed(self) -> bool:
        """The subscriber failed, which denies (GATE-13)."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """One resource call and all that was known of it at plan time."""

    call_id: str
    call: policy.PolicyCall
    description: str = ""
    preview: str = ""
    preconditions: tuple[common.Precondition, ...] = ()
    rememberable: common.GrantRule = field(default_factory=common.GrantRule)
    """What a decision with a wider scope than once would remember of it."""


def item(proposal: Proposal, verdict: policy.Verdict) -> common.PlanItem:
    """The item of a call: classification, preview and decision as they are now, whatever changes later
    (GATE-10).
    """
    call = proposal.call
    return common.PlanItem(
        call_id=proposal.call_id,
        provider=call.provider,
        tool=call.tool,
        input=call.input,
        decision=verdict.action,
        decided_by=verdict.decided_by,
        reason=verdict.reason,
        kind=call.kind,
        risk=call.risk,
        description=proposal.description,
        preview=proposal.preview,
        preconditions=proposal.preconditions,
        bound_to_state=bool(proposal.preconditions),
    )


def ready(items: Iterable[common.PlanItem]) -> event_pb2.PlanReady:
    """The plan as it is written into the log; where it is too long, the longest of its texts for people are cut."""
    made = event_pb2.PlanReady(items=items)
    excess = made.ByteSize() - MAX_PLAN_BYTES
    if excess > 0:
        sizes = [len(text.encode()) for each in made.items for text in _texts(each)]
        most = _most(sizes, sum(sizes) - excess - len(sizes) * len(_CUT))
        for each in made.items:
            each.preview, each.description, each.reason = (_cut(text, most) for text in _texts(each))
    return made


def vetoed(veto: Veto) -> policy.Verdict:
    """What a veto says of a call that it names, at `pre-tool-call` as at `plan-ready`."""
    if veto.failed:
        kind, said = common.DECIDED_BY_KIND_FAILURE, f"Hook {veto.subscriber!r} failed, which denies"
    else:
        kind, said = common.DECIDED_BY_KIND_HOOK, f"Denied by hook {veto.subscriber!r}"
    return policy.Verdict(
        common.POLICY_ACTION_DENY,
        common.DecidedBy(kind=kind, name=veto.subscriber),
        f"{said}: {veto.reason}" if veto.reason else f"{said}.",
    )


def with_vetoes(items: Iterable[common.PlanItem], vetoes: Sequence[Veto]) -> tuple[common.PlanItem, ...]:
    """The items after the vetoes of `plan-ready`, which can only deny more (HOOK-08).

    What is denied already keeps its reason, so of several vetoes the first stands. One that names a call that
    the plan does not have makes no sense, and therefore denies the whole plan (GATE-13).
    """
    planned = tuple(items)
    known = {each.call_id for each in planned}
    for veto in vetoes:
        named = set(veto.call_ids)
        verdict = vetoed(veto)
        if not named <= known:
            verdict = policy.Verdict(
                common.POLICY_ACTION_DENY,
                common.DecidedBy(kind=common.DECIDED_BY_KIND_FAILURE, name=veto.subscriber),
                f"Hook {veto.subscriber!r} denied calls that the plan does not have, which denies all of it.",
            )
            named = set()
        planned = tuple(
            _decided(each, verdict)
            if each.decision != common.POLICY_ACTION_DENY and (not named or each.call_id in named)
            else each
            for each in planned
        )
    return planned


def unattended(items: Iterable[common.PlanItem]) -> tuple[common.PlanItem, ...]:
    """The items where nobody is there to ask: what would ask is denied, and told how to be allowed
    (GATE-15).
    """
    return tuple(
        _decided(each, nobody_there(each)) if each.decision == common.POLICY_ACTION_ASK else each
        for each in items
    )


def nobody_there(asked: common.PlanItem) -> policy.Verdict:
    """Why an item that asks is denied in an unattended session."""
    rule = policy.allowing_rule(asked.provider, asked.tool, asked.decided_by)
    return policy.Verdict(
        common.POLICY_ACTION_DENY,
        common.DecidedBy(kind=common.DECIDED_BY_KIND_UNATTENDED),
        f"It needs an approval, and nobody is there to give one: the session is unattended; {rule}.",
    )


def digest(planned: common.PlanItem) -> str:
    """What an approval of the item is bound to: SHA-256 in hex (GATE-16)."""
    return canon.digest(planned.provider, planned.tool, planned.input, planned.preconditions)


def approval_request(
    planned: common.PlanItem, request_id: str, expires: datetime, grant: common.GrantRule
) -> event_pb2.ApprovalRequest:
    """The request for an item that asks; `grant` is what wider scopes than once would remember."""
    request = event_pb2.ApprovalRequest(
        request_id=request_id, item=planned, digest=digest(planned), grant=grant
    )
    request.expires.FromDatetime(expires)
    return request


def applied(
    items: Iterable[common.PlanItem],
    results: Mapping[str, event_pb2.ToolResult],
    decisions: Mapping[str, event_pb2.ApprovalDecided],
) -> event_pb2.PlanApplied:
    """What became of each item, by the results and the settled requests of its call id."""
    return event_pb2.PlanApplied(
        items=[_applied(each, results.get(each.call_id), decisions.get(each.call_id)) for each in items]
    )


def outcome_of(result: event_pb2.ToolResult | None) -> common.ItemOutcome.ValueType:
    """What a result says of its item: work that ended by itself was applied, also where it failed at its
    task.
    """
    if result is None:
        return common.ITEM_OUTCOME_NOT_STARTED
    match result.category:
        case common.TOOL_ERROR_CATEGORY_UNSPECIFIED:
            return common.ITEM_OUTCOME_APPLIED
        case common.TOOL_ERROR_CATEGORY_DENIED:
            return common.ITEM_OUTCOME_DENIED
        case common.TOOL_ERROR_CATEGORY_NOT_STARTED | common.TOOL_ERROR_CATEGORY_TRUNCATED:
            return common.ITEM_OUTCOME_NOT_STARTED
        case common.TOOL_ERROR_CATEGORY_INTERRUPTED | common.TOOL_ERROR_CATEGORY_CANCELLED:
            return common.ITEM_OUTCOME_INTERRUPTED
        case _:
            return common.ITEM_OUTCOME_FAILED


def _texts(planned: common.PlanItem) -> tuple[str, str, str]:
    return planned.preview, planned.description, planned.reason


def _most(sizes: Iterable[int], room: int) -> int:
    """How long each may be, so that all of them fit: what short ones leave is for the long ones."""
    longest_last = sorted(sizes, reverse=True)
    room = max(room, 0)
    while longest_last and longest_last[-1] <= room // len(longest_last):
        room -= longest_last.pop()
    return room // max(len(longest_last), 1)


def _cut(text: str, most: int) -> str:
    encoded = text.encode()
    return text if len(encoded) <= most else encoded[:most].decode(errors="ignore") + _CUT


def _applied(
    planned: common.PlanItem,
    result: event_pb2.ToolResult | None,
    decided: event_pb2.ApprovalDecided | None,
) -> common.AppliedItem:
    decision, by = planned.decision, planned.decided_by
    client = decided.client if decided is not None else ""
    match decided.outcome if decided is not None else common.APPROVAL_OUTCOME_UNSPECIFIED:
        case common.APPROVAL_OUTCOME_APPROVED:
            decision = common.POLICY_ACTION_ALLOW
            by = common.DecidedBy(kind=common.DECIDED_BY_KIND_CLIENT, name=client)
        case common.APPROVAL_OUTCOME_DENIED:
            decision = common.POLICY_ACTION_DENY
            by = common.DecidedBy(kind=common.DECIDED_BY_KIND_CLIENT, name=client)
        case _:  # never asked, or settled by nobody: what expires is not a person's denial
            pass
    return common.AppliedItem(
        call_id=planned.call_id, outcome=outcome_of(result), decision=decision, decided_by=by
    )


def _decided(planned: common.PlanItem, verdict: policy.Verdict) -> common.PlanItem:
    decided = common.PlanItem()
    decided.CopyFrom(planned)
    decided.decision = verdict.action
    decided.decided_by.CopyFrom(verdict.decided_by)
    decided.reason = verdict.reason
    return decided
