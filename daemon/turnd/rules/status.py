"""What a session is, for lists, clients and the loop: a projection of its log.

It is carried forward event by event: `advance` costs the same however long the log is (LOG-13). It takes
every event that the rules of the log accept, and is no judge of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import immutables

from turnd.rules.status_view import SessionView
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2, sessions_pb2

__all__ = ["SessionView", "advance", "merged_bounds", "to_session"]


def advance(view: SessionView, event: event_pb2.Event) -> SessionView:
    """The view after `event`. Of what is history only how its last Turn ended is the session's (LOG-22)."""
    kind = event.WhichOneof("data")
    if event.HasField("imported"):
        reason = event.turn_end.reason if kind == "turn_end" else view.last_reason
        return view._replace(last_seq=event.seq, last_reason=reason, history=view.history + 1)
    change = None if kind is None else _CHANGES.get(kind)
    if change is not None:
        view = change(view, event)
    return view._replace(last_seq=event.seq)


def to_session(view: SessionView, *, descendants_cost_nano_usd: int = 0) -> sessions_pb2.Session:
    """The session as clients see it, its cost with that of its descendants."""
    session = sessions_pb2.Session(
        id=view.id,
        status=view.status,
        title=view.title,
        cwd=view.cwd,
        profile=view.profile.name,
        parent=view.parent,
        depth=view.depth,
        turns=view.turns,
        steps=view.steps,
        cost_nano_usd=view.cost_nano_usd + descendants_cost_nano_usd,
        last_seq=view.last_seq,
        open_requests=sorted(view.open_requests.values(), key=_asked),
        queued=view.queue,
        tokens=view.tokens.counts(),
        weighted_tokens=view.weighted_tokens,
        model=view.profile.model,
        unattended=view.unattended,
        plan_mode=view.plan_mode,
        last_reason=view.last_reason,
        history=view.history,
        forked_from=view.forked_from,
    )
    session.created.FromMicroseconds(view.created_us)
    return session


def merged_bounds(bounds: common.Bounds, allowance: common.Bounds) -> common.Bounds:
    """The bounds with those that the allowance sets in their place; what it does not set stays as it is."""
    merged = common.Bounds()
    merged.CopyFrom(bounds)
    merged.MergeFrom(allowance)
    return merged


def _asked(request: sessions_pb2.OpenRequest) -> tuple[int, str]:
    which = request.approval if request.HasField("approval") else request.interactive
    return request.asked.ToMicroseconds(), which.request_id


def _session_created(view: SessionView, event: event_pb2.Event) -> SessionView:
    created = event.session_created
    return view._replace(
        id=event.session,
        status=common.SESSION_STATUS_IDLE,
        title=created.title,
        cwd=created.cwd,
        workspace=created.workspace or created.cwd,
        profile=created.profile,
        parent=created.parent,
        parent_call_id=created.parent_call_id,
        ancestors=tuple(created.ancestors) or ((created.parent,) if created.parent else ()),
        depth=created.depth,
        environment=immutables.Map(dict(created.environment)),
        sandbox=created.sandbox,
        unenforced=tuple(created.unenforced),
        created_us=event.time.ToMicroseconds(),
        bounds=created.profile.bounds,
        unattended=created.unattended,
        plan_mode=created.plan_mode,
        forked_from=created.forked_from if created.HasField("forked_from") else None,
    )


def _session_changed(view: SessionView, event: event_pb2.Event) -> SessionView:
    changed = event.session_changed
    if changed.HasField("profile"):
        view = view._replace(profile=changed.profile, bounds=changed.profile.bounds)
    if changed.HasField("allowance"):
        view = view._replace(bounds=merged_bounds(view.bounds, changed.allowance))
    if changed.HasField("environment"):
        view = view._replace(environment=immutables.Map(dict(changed.environment.environment)))
    if changed.HasField("title"):
        view = view._replace(title=changed.title)
    if changed.HasField("plan_mode"):
        view = view._replace(plan_mode=changed.plan_mode)
    return view


def _session_status(view: SessionView, event: event_pb2.Event) -> SessionView:
    return view._replace(status=event.session_status.status)


def _session_ended(view: SessionView, event: event_pb2.Event) -> SessionView:
    return view._replace(status=event.session_ended.status, grants=())


def _session_reopened(view: SessionView, event: event_pb2.Event) -> SessionView:
    return view._replace(status=common.SESSION_STATUS_IDLE, begun=False)


def _turn_start(view: SessionView, event: event_pb2.Event) -> SessionView:
    return view._replace(
        status=common.SESSION_STATUS_RUNNING,
        turns=view.turns + 1,
        steps_of_turn=0,
        last_cause=common.CANCEL_CAUSE_UNSPECIFIED,
    )


def _turn_stopping(view: SessionView, event: event_pb2.Event) -> SessionView:
    return view._replace(last_cause=event.turn_stopping.cancel.cause)


def _turn_end(view: SessionView, event: event_pb2.Event) -> SessionView:
    return view._replace(
        status=common.SESSION_STATUS_IDLE,
        last_reason=event.turn_end.reason,
        turn_plan_mode=False,
    )


def _step_start(view: SessionView, event: event_pb2.Event) -> SessionView:
    return view._replace(
        steps=view.steps + 1,
        steps_of_turn=view.steps_of_turn + 1,
        begun=True,
    )


def _limit_reached(view: SessionView, event: event_pb2.Event) -> SessionView:
    return view._replace(begun=True)


def _step_end(view: SessionView, event: event_pb2.Event) -> SessionView:
    return view._replace(active_ms=view.active_ms + event.step_end.active_ms)


def _user_message(view: SessionView, event: event_pb2.Event) -> SessionView:
    return view._replace(turn_plan_mode=view.turn_plan_mode or event.user_message.plan_mode)


def _inbox_queued(view: SessionView, event: event_pb2.Event) -> SessionView:
    queued = event.inbox_queued
    message = sessions_pb2.QueuedMessage(
        message_id=queued.message_id, blocks=queued.blocks, delivery=queued.delivery, client=queued.client
    )
    planned = view.queued_plan_mode
    if queued.plan_mode:
        planned |= {queued.message_id}
    return view._replace(queue=(*view.queue, message), queued_plan_mode=planned)


def _inbox_taken(view: SessionView, event: event_pb2.Event) -> SessionView:
    return _unqueued(view, event.inbox_taken.message_ids)


def _inbox_cleared(view: SessionView, event: event_pb2.Event) -> SessionView:
    return _unqueued(view, event.inbox_cleared.message_ids)


def _unqueued(view: SessionView, message_ids: Iterable[str]) -> SessionView:
    gone = frozenset(message_ids)
    return view._replace(
        queue=tuple(message for message in view.queue if message.message_id not in gone),
        queued_plan_mode=view.queued_plan_mode - gone,
    )


def _agent_request(view: SessionView, event: event_pb2.Event) -> SessionView:
    purpose = event.agent_request.purpose or common.REQUEST_PURPOSE_STEP
    if purpose != common.REQUEST_PURPOSE_TITLE:
        view = view._replace(requesting=purpose)
    return _one_more_request(view, purpose)


def _agent_retry(view: SessionView, event: event_pb2.Event) -> SessionView:
    return _one_more_request(view._replace(retries=view.retries + 1), view.requesting)


def _one_more_request(view: SessionView, purpose: common.RequestPurpose.ValueType) -> SessionView:
    made = view.requests_made
    return view._replace(requests_made=made.set(purpose, made.get(purpose, 0) + 1))


def _assistant_message(view: SessionView, event: event_pb2.Event) -> SessionView:
    texts = [block.text.text for block in event.assistant_message.blocks if block.HasField("text")]
    return view._replace(final_text="".join(texts))


def _usage(view: SessionView, event: event_pb2.Event) -> SessionView:
    usage = event.usage
    return view._replace(
        cost_nano_usd=view.cost_nano_usd + usage.cost_nano_usd,
        tokens=view.tokens.plus(usage.tokens),
        weighted_tokens=view.weighted_tokens + usage.weighted_tokens,
    )


def _approval_request(view: SessionView, event: event_pb2.Event) -> SessionView:
    request = sessions_pb2.OpenRequest(
        session=event.session, asked=event.time, approval=event.approval_request
    )
    return _with_request(view, event.approval_request.request_id, request)


def _interactive_request(view: SessionView, event: event_pb2.Event) -> SessionView:
    request = sessions_pb2.OpenRequest(
        session=event.session, asked=event.time, interactive=event.interactive_request
    )
    return _with_request(view, event.interactive_request.request_id, request)


def _approval_decided(view: SessionView, event: event_pb2.Event) -> SessionView:
    decided = event.approval_decided
    remembered = (
        decided.outcome == common.APPROVAL_OUTCOME_APPROVED
        and decided.scope == common.APPROVAL_SCOPE_SESSION
        and decided.HasField("grant")
    )
    if remembered:
        view = view._replace(grants=(*view.grants, decided.grant))
    return _without_request(view, decided.request_id)


def _interactive_answered(view: SessionView, event: event_pb2.Event) -> SessionView:
    return _without_request(view, event.interactive_answered.request_id)


def _child_attention(view: SessionView, event: event_pb2.Event) -> SessionView:
    attention = event.child_attention
    if attention.state != event_pb2.ATTENTION_STATE_OPEN:
        return _without_request(view, attention.request_id)
    request = sessions_pb2.OpenRequest(
        session=attention.path[-1] if attention.path else "", path=attention.path, asked=event.time
    )
    if attention.HasField("interactive"):
        request.interactive.CopyFrom(attention.interactive)
    else:
        request.approval.CopyFrom(attention.approval)
    return _with_request(view, attention.request_id, request)


def _with_request(view: SessionView, request_id: str, request: sessions_pb2.OpenRequest) -> SessionView:
    return view._replace(open_requests=view.open_requests.set(request_id, request))


def _without_request(view: SessionView, request_id: str) -> SessionView:
    if request_id not in view.open_requests:
        return view
    return view._replace(open_requests=view.open_requests.delete(request_id))


_CHANGES: Final[dict[str, Callable[[SessionView, event_pb2.Event], SessionView]]] = {
    "session_created": _session_created,
    "session_changed": _session_changed,
    "session_status": _session_status,
    "session_ended": _session_ended,
    "session_reopened": _session_reopened,
    "turn_start": _turn_start,
    "turn_stopping": _turn_stopping,
    "turn_end": _turn_end,
    "step_start": _step_start,
    "step_end": _step_end,
    "limit_reached": _limit_reached,
    "user_message": _user_message,
    "inbox_queued": _inbox_queued,
    "inbox_taken": _inbox_taken,
    "inbox_cleared": _inbox_cleared,
    "agent_request": _agent_request,
    "agent_retry": _agent_retry,
    "assistant_message": _assistant_message,
    "usage": _usage,
    "approval_request": _approval_request,
    "approval_decided": _approval_decided,
    "interactive_request": _interactive_request,
    "interactive_answered": _interactive_answered,
    "child_attention": _child_attention,
}
"""By field of Event.data; what is not here changes nothing that the view shows."""
