"""What the root of a tree is told of its descendants' requests: each in the transaction of its cause (GATE-17)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from turnd.rules.event import Draft
from turnd.rules.status_view import SessionView
from turnd.v1 import event_pb2


class ViewOf(Protocol):
    """Finds the view of a session."""

    def __call__(self, session: str) -> SessionView | None:
        """None where the session is not in memory."""


def with_attention(drafts: Iterable[Draft], view_of: ViewOf) -> list[Draft]:
    """The drafts, and behind each request or settlement of a sub-agent what its root is told of it.

    Repair tells nobody: it settles what the root shows by the root's own log.
    """
    told: list[Draft] = []
    for draft in drafts:
        told.append(draft)
        attention = None if draft.synthetic else _attention(draft)
        view = None if attention is None else view_of(draft.session)
        if attention is not None and view is not None and view.ancestors:
            attention.path.extend((*view.ancestors[1:], view.id))
            told.append(Draft(view.root, attention))
    return told


def _attention(draft: Draft) -> event_pb2.ChildAttention | None:
    match draft.payload:
        case event_pb2.ApprovalRequest() as asked:
            return _opened(event_pb2.ChildAttention(request_id=asked.request_id, approval=asked))
        case event_pb2.InteractiveRequest() as asked:
            return _opened(event_pb2.ChildAttention(request_id=asked.request_id, interactive=asked))
        case event_pb2.ApprovalDecided() as settled:
            return _settled(event_pb2.ChildAttention(request_id=settled.request_id, decided=settled))
        case event_pb2.InteractiveAnswered() as settled:
            return _settled(event_pb2.ChildAttention(request_id=settled.request_id, answered=settled))
        case _:
            return None


def _opened(attention: event_pb2.ChildAttention) -> event_pb2.ChildAttention:
    attention.state = event_pb2.ATTENTION_STATE_OPEN
    return attention


def _settled(attention: event_pb2.ChildAttention) -> event_pb2.ChildAttention:
    attention.state = event_pb2.ATTENTION_STATE_SETTLED
    return attention
