"""The items of a plan: their decisions, and what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pytest

from turnd.rules import canon, plan, policy
from turnd.rules.plan import Proposal
from turnd.rules.policy import Match, Policy, PolicyCall, PolicyRule
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

ALLOW, ASK, DENY = common.POLICY_ACTION_ALLOW, common.POLICY_ACTION_ASK, common.POLICY_ACTION_DENY
STATE = common.Precondition(target="a.txt", state="sha256:1")


@dataclass(frozen=True)
class Veto:
    subscriber: str = "my-gate"
    reason: str = "not on a Friday"
    call_ids: tuple[str, ...] = ()
    failed: bool = False


def proposed(call_id: str, tool: str = "write_file") -> Proposal:
    return Proposal(
        call_id=call_id,
        call=PolicyCall(
            "workspace", tool, common.TOOL_KIND_RESOURCE, common.RISK_MODERATE, b'{"path":"a.txt"}'
        ),
        description="Writes a file.",
        preview="+hello",
        preconditions=(STATE,),
    )


def items(rules: Policy, *proposals: Proposal) -> tuple[common.PlanItem, ...]:
    return tuple(plan.item(each, rules.evaluate(each.call)) for each in proposals)


RULES = Policy(
    [
        PolicyRule("no commands", "c:1", Match.of(tool=["run_command"]), DENY),
        PolicyRule("edits", "c:2", Match.of(tool=["edit_file"]), ALLOW),
    ]
)
PLANNED = items(RULES, proposed("c1"), proposed("c2", "run_command"), proposed("c3", "edit_file"))


@pytest.mark.req("GATE-01")
def test_each_item_is_decided_by_itself() -> None:
    assert [each.decision for each in PLANNED] == [ASK, DENY, ALLOW]
    assert [each.decided_by.name for each in PLANNED] == ["", "no commands", "edits"]
    assert plan.ready(PLANNED) == event_pb2.PlanReady(items=PLANNED)


@pytest.mark.req("GATE-10")
def test_an_item_holds_everything_as_it_was_at_plan_time() -> None:
    assert PLANNED[0] == common.PlanItem(
        call_id="c1",
        provider="workspace",
        tool="write_file",
        input=b'{"path":"a.txt"}',
        decision=ASK,
        decided_by=common.DecidedBy(kind=common.DECIDED_BY_KIND_DEFAULT),
        reason="No policy rule matches workspace.write_file; the default is ask.",
        kind=common.TOOL_KIND_RESOURCE,
        risk=common.RISK_MODERATE,
        description="Writes a file.",
        preview="+hello",
        preconditions=[STATE],
        bound_to_state=True,
    )
    unbound = items(RULES, replace(proposed("c1"), preconditions=()))
    assert not unbound[0].bound_to_state


@pytest.mark.req("HOOK-08")
def test_a_veto_denies_the_items_it_names_and_nothing_else() -> None:
    after = plan.with_vetoes(PLANNED, [Veto(call_ids=("c3",))])

    assert [each.decision for each in after] == [ASK, DENY, DENY]
    assert after[:2] == PLANNED[:2]
    assert after[2].decided_by == common.DecidedBy(kind=common.DECIDED_BY_KIND_HOOK, name="my-gate")
    assert after[2].reason == "Denied by hook 'my-gate': not on a Friday"
    assert PLANNED[2].decision == ALLOW


@pytest.mark.req("HOOK-08")
def test_a_veto_without_names_denies_the_whole_plan_and_what_was_denied_keeps_its_reason() -> None:
    after = plan.with_vetoes(PLANNED, [Veto("first"), Veto("second")])

    assert {each.decision for each in after} == {DENY}
    assert [each.decided_by.name for each in after] == ["first", "no commands", "first"]
    assert plan.with_vetoes(PLANNED, []) == PLANNED


@pytest.mark.req("GATE-13", "A12")
def test_a_veto_that_failed_denies_with_a_cause_that_is_not_its_will() -> None:
    (after,) = plan.with_vetoes(PLANNED[:1], [Veto(failed=True, reason="timed out after 2000 ms")])

    assert after.decision == DENY
    assert after.decided_by == common.DecidedBy(kind=common.DECIDED_BY_KIND_FAILURE, name="my-gate")
    assert after.reason == "Hook 'my-gate' failed, which denies: timed out after 2000 ms"


@pytest.mark.req("GATE-13")
def test_a_veto_of_calls_that_are_not_there_is_nonsense_and_denies_everything() -> None:
    after = plan.with_vetoes(PLANNED, [Veto(call_ids=("c3", "c9"))])

    assert {each.decision for each in after} == {DENY}
    assert after[0].decided_by.kind == common.DECIDED_BY_KIND_FAILURE


def test_a_veto_at_pre_tool_call_decides_the_item() -> None:
    item = plan.item(proposed("c1"), plan.vetoed(Veto(reason="")))

    assert (item.decision, item.reason) == (DENY, "Denied by hook 'my-gate'.")


@pytest.mark.req("GATE-15", "A07")
def test_nobody_there_denies_what_would_ask_and_says_which_rule_would_allow_it() -> None:
    after = plan.unattended(PLANNED)

    assert [each.decision for each in after] == [DENY, DENY, ALLOW]
    assert after[1:] == PLANNED[1:]
    assert after[0].decided_by.kind == common.DECIDED_BY_KIND_UNATTENDED
    assert "nobody is there" in after[0].reason
    assert 'match = { tool = "workspace.write_file" } and action = "allow"' in after[0].reason

    asks = Policy([PolicyRule("careful", "c:7", Match(), ASK)])
    (asked,) = plan.unattended(items(asks, proposed("c1")))
    assert "policy rule 'careful' asks" in asked.reason


@pytest.mark.req("GATE-16")
def test_a_request_is_bound_to_what_it_approves() -> None:
    grant = policy.grant_for(proposed("c1").call)
    expires = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    request = plan.approval_request(PLANNED[0], "r1", expires, grant)

    assert request.item == PLANNED[0]
    assert request.digest == canon.digest("workspace", "write_file", b'{ "path": "a.txt" }', [STATE])
    assert request.expires.ToDatetime(UTC) == expires
    assert (request.request_id, request.grant) == ("r1", grant)
    moved = common.PlanItem()
    moved.CopyFrom(PLANNED[0])
    moved.preconditions[0].state = "sha256:2"
    assert plan.digest(moved) != request.digest


@pytest.mark.parametrize(
    ("category", "is_error", "outcome"),
    [
        (common.TOOL_ERROR_CATEGORY_UNSPECIFIED, False, common.ITEM_OUTCOME_APPLIED),
        (common.TOOL_ERROR_CATEGORY_UNSPECIFIED, True, common.ITEM_OUTCOME_APPLIED),
        (common.TOOL_ERROR_CATEGORY_EXECUTION_FAILED, True, common.ITEM_OUTCOME_FAILED),
        (common.TOOL_ERROR_CATEGORY_TIMEOUT, True, common.ITEM_OUTCOME_FAILED),
        (common.TOOL_ERROR_CATEGORY_PRECONDITION_FAILED, True, common.ITEM_OUTCOME_FAILED),
        (common.TOOL_ERROR_CATEGORY_PROCESS_CRASHED, True, common.ITEM_OUTCOME_FAILED),
        (common.TOOL_ERROR_CATEGORY_DENIED, True, common.ITEM_OUTCOME_DENIED),
        (common.TOOL_ERROR_CATEGORY_NOT_STARTED, True, common.ITEM_OUTCOME_NOT_STARTED),
        (common.TOOL_ERROR_CATEGORY_TRUNCATED, True, common.ITEM_OUTCOME_NOT_STARTED),
        (common.TOOL_ERROR_CATEGORY_INTERRUPTED, True, common.ITEM_OUTCOME_INTERRUPTED),
        (common.TOOL_ERROR_CATEGORY_CANCELLED, True, common.ITEM_OUTCOME_INTERRUPTED),
    ],
)
def test_the_outcome_follows_from_the_result(
    category: common.ToolErrorCategory.ValueType, is_error: bool, outcome: common.ItemOutcome.ValueType
) -> None:
    assert plan.outcome_of(event_pb2.ToolResult(category=category, is_error=is_error)) == outcome


@pytest.mark.parametrize(
    ("settled", "decision", "kind", "name"),
    [
        (None, ASK, common.DECIDED_BY_KIND_DEFAULT, ""),
        (common.APPROVAL_OUTCOME_APPROVED, ALLOW, common.DECIDED_BY_KIND_CLIENT, "laptop"),
        (common.APPROVAL_OUTCOME_DENIED, DENY, common.DECIDED_BY_KIND_CLIENT, "laptop"),
        (common.APPROVAL_OUTCOME_EXPIRED, ASK, common.DECIDED_BY_KIND_DEFAULT, ""),
        (common.APPROVAL_OUTCOME_CANCELLED, ASK, common.DECIDED_BY_KIND_DEFAULT, ""),
    ],
)
def test_what_was_applied_says_who_decided_and_no_person_where_none_did(
    settled: common.ApprovalOutcome.ValueType | None,
    decision: common.PolicyAction.ValueType,
    kind: common.DecidedByKind.ValueType,
    name: str,
) -> None:
    decisions = {}
    if settled is not None:
        client = "laptop" if kind == common.DECIDED_BY_KIND_CLIENT else ""
        decisions["c1"] = event_pb2.ApprovalDecided(call_id="c1", outcome=settled, client=client)
    made = plan.applied(PLANNED[:1], {"c1": event_pb2.ToolResult(call_id="c1")}, decisions)

    assert made.items == [
        common.AppliedItem(
            call_id="c1",
            outcome=common.ITEM_OUTCOME_APPLIED,
            decision=decision,
            decided_by=common.DecidedBy(kind=kind, name=name),
        )
    ]


def test_an_item_without_a_result_was_not_started() -> None:
    made = plan.applied(PLANNED, {}, {})

    assert [each.outcome for each in made.items] == [common.ITEM_OUTCOME_NOT_STARTED] * 3
