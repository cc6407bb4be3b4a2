"""Rules for what happens inside of a Step: model, calls, plan, requests, sub-agents (LOG-03, LOG-06).

Each raises Violation. An event that needs an open Step and comes after turn/stopping is told of the Step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from turnd.rules.event import event_type
from turnd.rules.state_model import (
    OpenAttention,
    OpenCall,
    OpenChild,
    OpenRequest,
    PlannedItem,
    SessionState,
    Violation,
)
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2


def needs_step(state: SessionState, event: event_pb2.Event) -> SessionState:
    if state.open_step is None:
        raise Violation(f"{event_type(event)} without open step")
    return state


def agent_request(state: SessionState, event: event_pb2.Event) -> SessionState:
    """Compaction runs between Steps, titles beside everything; only the requests of Steps need one."""
    purpose = event.agent_request.purpose
    if _of_step(purpose):
        needs_step(state, event)
    if purpose == common.REQUEST_PURPOSE_COMPACTION:
        _needs_turn(state, event)
    if purpose != common.REQUEST_PURPOSE_TITLE:
        _not_stopping(state, event)
    return state


def context_compacted(state: SessionState, event: event_pb2.Event) -> SessionState:
    """Within a Turn that goes on, and never between a call and its result."""
    _needs_turn(state, event)
    if state.calls:
        raise Violation("context/compacted while tool/call still open")
    _not_stopping(state, event)
    return state


def usage(state: SessionState, event: event_pb2.Event) -> SessionState:
    if _of_step(event.usage.purpose):
        needs_step(state, event)
    if state.open_step is None or event.usage.purpose == common.REQUEST_PURPOSE_TITLE:
        return state
    return state._replace(step_tokens=state.step_tokens.plus(event.usage.tokens))


def tool_call(state: SessionState, event: event_pb2.Event) -> SessionState:
    call = event.tool_call
    if state.open_step is None:
        raise Violation("tool/call without open step")
    _not_stopping(state, event)
    if call.call_id in state.used_call_ids:
        raise Violation("tool/call id already used")
    opened = OpenCall(
        call_id=call.call_id,
        provider=call.provider,
        tool=call.tool,
        kind=call.kind,
        risk=call.risk,
        input=call.input,
        index=call.index,
        step=state.open_step,
    )
    return state._replace(
        calls=state.calls.set(call.call_id, opened),
        used_call_ids=state.used_call_ids.set(call.call_id, event.seq),
    )


def tool_started(state: SessionState, event: event_pb2.Event) -> SessionState:
    started = event.tool_started
    call = state.calls.get(started.call_id)
    if call is None:
        raise Violation("tool/started without open tool/call")
    _not_stopping(state, event)
    if call.attempt_open:
        raise Violation("tool/started twice")
    if call.kind == common.TOOL_KIND_RESOURCE:
        if not call.approved:
            raise Violation("tool/started without approval")
        if started.input != (call.corrected or call.input):
            raise Violation("tool/started with another input than the approved one")
    if started.attempt != call.attempt + 1:
        raise Violation(f"tool/started expected attempt {call.attempt + 1}, got {started.attempt}")
    return _with_call(state, replace(call, attempt=started.attempt, attempt_open=True))


def tool_retry(state: SessionState, event: event_pb2.Event) -> SessionState:
    """An approval is for the state it was shown with: where that no longer holds, it is used up (GATE-10)."""
    retry = event.tool_retry
    call = state.calls.get(retry.call_id)
    if call is None or not call.attempt_open or call.attempt != retry.attempt:
        raise Violation("tool/retry without open attempt")
    stale = retry.category == common.TOOL_ERROR_CATEGORY_PRECONDITION_FAILED
    approved = call.allowed if stale else call.approved
    return _with_call(state, replace(call, attempt_open=False, approved=approved))


def tool_progress(state: SessionState, event: event_pb2.Event) -> SessionState:
    call = state.calls.get(event.tool_progress.call_id)
    if call is None or not call.attempt_open:
        raise Violation("tool/progress without open attempt")
    return state


def tool_result(state: SessionState, event: event_pb2.Event) -> SessionState:
    result = event.tool_result
    call = state.calls.get(result.call_id)
    if call is None:
        raise Violation("tool/result without open tool/call")
    outcome = _outcome(call, result)
    plan = state.plan
    if plan is not None:
        plan = tuple(replace(i, outcome=outcome) if i.call_id == call.call_id else i for i in plan)
    return state._replace(calls=state.calls.delete(call.call_id), plan=plan)


def plan_ready(state: SessionState, event: event_pb2.Event) -> SessionState:
    """A further plan of the same Step adds its items, and replaces those that it names again."""
    needs_step(state, event)
    items = event.plan_ready.items
    named = {item.call_id for item in items}
    kept = tuple(item for item in state.plan or () if item.call_id not in named)
    added = tuple(
        PlannedItem(item.call_id, item.decision, item.decided_by.kind, item.decided_by.name) for item in items
    )
    calls = state.calls
    for item in items:
        call = calls.get(item.call_id)
        if call is not None:
            allowed = item.decision == common.POLICY_ACTION_ALLOW
            calls = calls.set(item.call_id, replace(call, allowed=allowed, approved=allowed))
    return state._replace(plan=kept + added, calls=calls)


def plan_applied(state: SessionState, event: event_pb2.Event) -> SessionState:
    needs_step(state, event)
    return state._replace(plan=None)


def approval_request(state: SessionState, event: event_pb2.Event) -> SessionState:
    """Whoever asks no longer relies on what was allowed before."""
    needs_step(state, event)
    _not_stopping(state, event)
    request = event.approval_request
    call_id = request.item.call_id
    if request.request_id in state.requests:
        raise Violation("approval/request id already open")
    call = state.calls.get(call_id)
    if call is not None:
        state = _with_call(state, replace(call, allowed=False, approved=False))
    opened = OpenRequest(request.request_id, call_id, interactive=False)
    return state._replace(requests=state.requests.set(request.request_id, opened))


def approval_decided(state: SessionState, event: event_pb2.Event) -> SessionState:
    """A decision that is remembered allows the call also for a further attempt."""
    decided = event.approval_decided
    request = state.requests.get(decided.request_id)
    if request is None or request.interactive:
        raise Violation("approval/decided without open approval/request")
    call = state.calls.get(request.call_id)
    if call is not None:
        approved = decided.outcome == common.APPROVAL_OUTCOME_APPROVED
        remembered = approved and decided.scope in _REMEMBERED
        corrected = decided.corrected_input if approved else b""
        call = replace(call, approved=approved, allowed=remembered, corrected=corrected or call.corrected)
        state = _with_call(state, call)
    decision = _DECISIONS.get(decided.outcome)
    plan = state.plan
    if decision is not None and plan is not None:
        by = common.DECIDED_BY_KIND_CLIENT
        plan = tuple(
            replace(i, decision=decision, decided_by_kind=by, decided_by_name=decided.client)
            if i.call_id == request.call_id
            else i
            for i in plan
        )
    return state._replace(requests=state.requests.delete(request.request_id), plan=plan)


def interactive_request(state: SessionState, event: event_pb2.Event) -> SessionState:
    needs_step(state, event)
    _not_stopping(state, event)
    request = event.interactive_request
    if request.request_id in state.requests:
        raise Violation("interactive/request id already open")
    opened = OpenRequest(request.request_id, request.call_id, interactive=True)
    return state._replace(requests=state.requests.set(request.request_id, opened))


def interactive_answered(state: SessionState, event: event_pb2.Event) -> SessionState:
    request = state.requests.get(event.interactive_answered.request_id)
    if request is None or not request.interactive:
        raise Violation("interactive/answered without open interactive/request")
    return state._replace(requests=state.requests.delete(request.request_id))


def child_started(state: SessionState, event: event_pb2.Event) -> SessionState:
    started = event.child_started
    call = state.calls.get(started.call_id)
    if call is None or not call.attempt_open:
        raise Violation("child/started without open tool/call")
    _not_stopping(state, event)
    if started.child in state.children:
        raise Violation("child/started twice")
    opened = OpenChild(started.child, started.call_id)
    return state._replace(children=state.children.set(started.child, opened))


def child_ended(state: SessionState, event: event_pb2.Event) -> SessionState:
    child = event.child_ended.child
    if child not in state.children:
        raise Violation("child/ended without open child/started")
    return state._replace(children=state.children.delete(child))


def child_attention(state: SessionState, event: event_pb2.Event) -> SessionState:
    attention = event.child_attention
    known = attention.request_id in state.attentions
    if attention.state == event_pb2.ATTENTION_STATE_OPEN:
        interactive = attention.WhichOneof("request") == "interactive"
        asked = attention.interactive.call_id if interactive else attention.approval.item.call_id
        opened = OpenAttention(attention.request_id, asked, tuple(attention.path), interactive)
        return state._replace(attentions=state.attentions.set(attention.request_id, opened))
    if attention.state == event_pb2.ATTENTION_STATE_SETTLED and known:
        return state._replace(attentions=state.attentions.delete(attention.request_id))
    return state


_REMEMBERED: Final = (common.APPROVAL_SCOPE_SESSION, common.APPROVAL_SCOPE_ALWAYS)

_DECISIONS: Final = {
    common.APPROVAL_OUTCOME_APPROVED: common.POLICY_ACTION_ALLOW,
    common.APPROVAL_OUTCOME_DENIED: common.POLICY_ACTION_DENY,
}
"""What a person's answer makes of an item; one that was cancelled or expired stays as it was asked."""

_OUTCOMES: Final = {
    common.TOOL_ERROR_CATEGORY_DENIED: common.ITEM_OUTCOME_DENIED,
    common.TOOL_ERROR_CATEGORY_NOT_STARTED: common.ITEM_OUTCOME_NOT_STARTED,
    common.TOOL_ERROR_CATEGORY_INTERRUPTED: common.ITEM_OUTCOME_INTERRUPTED,
    common.TOOL_ERROR_CATEGORY_CANCELLED: common.ITEM_OUTCOME_INTERRUPTED,
}


def _outcome(call: OpenCall, result: event_pb2.ToolResult) -> common.ItemOutcome.ValueType:
    if not result.is_error:
        return common.ITEM_OUTCOME_APPLIED
    if result.category in _OUTCOMES:
        return _OUTCOMES[result.category]
    return common.ITEM_OUTCOME_FAILED if call.attempt else common.ITEM_OUTCOME_NOT_STARTED


def _of_step(purpose: common.RequestPurpose.ValueType) -> bool:
    return purpose in (common.REQUEST_PURPOSE_UNSPECIFIED, common.REQUEST_PURPOSE_STEP)


def _needs_turn(state: SessionState, event: event_pb2.Event) -> None:
    if state.open_turn is None:
        raise Violation(f"{event_type(event)} without open turn")


def _not_stopping(state: SessionState, event: event_pb2.Event) -> None:
    if state.stopping is not None:
        raise Violation(f"{event_type(event)} after turn/stopping")


def _with_call(state: SessionState, call: OpenCall) -> SessionState:
    return state._replace(calls=state.calls.set(call.call_id, call))
