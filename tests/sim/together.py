"""What has to stand in one transaction, looked for in every append of a world (LOG-08, LOG-20).

A kill between two transactions leaves the first one alone: a message whose calls nobody will answer, a message that
was taken out of the queue and never reached a Turn, a Turn that ended and left its session running.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pytest

from turnd.rules.event import event_type
from turnd.rules.lifecycle import is_ended
from turnd.rules.status import SessionView
from turnd.v1 import event_pb2

ViewOf = Callable[[str], SessionView]

_TOLD: Final = {
    "approval_request": event_pb2.ATTENTION_STATE_OPEN,
    "interactive_request": event_pb2.ATTENTION_STATE_OPEN,
    "approval_decided": event_pb2.ATTENTION_STATE_SETTLED,
    "interactive_answered": event_pb2.ATTENTION_STATE_SETTLED,
}
"""What the root of a tree is told of its descendants' requests, by field of Event.data."""


def apart(transaction: Sequence[event_pb2.Event], view_of: ViewOf) -> list[str]:
    """What is missing from these events of one transaction, or stands in it alone; empty where all is together.

    Events of another log are history, and not looked at.
    """
    events = [event for event in transaction if not event.HasField("imported")]
    found: list[str] = []
    for session in dict.fromkeys(event.session for event in events):
        own = [event for event in events if event.session == session]
        for problem in (*_calls(own), *_messages(own), *_ends(own), *_attentions(own, events, view_of)):
            found.append(f"{session}: {problem} in {[event_type(event) for event in own]}")
    return found


@contextmanager
def watched(log_type: type[Any]) -> Iterator[None]:
    """Looks at every append of every log of this type inside; fails at the end."""
    found: list[str] = []
    append = log_type.append

    async def looked_at(log: Any, *drafts: Any, **more: Any) -> list[event_pb2.Event]:
        made: list[event_pb2.Event] = await append(log, *drafts, **more)
        found.extend(apart(made, log.view))
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_type, "append", looked_at)
        yield
    assert not found, "not in one transaction:\n" + "\n".join(found)


def _calls(own: Sequence[event_pb2.Event]) -> Iterator[str]:
    """assistant/message and its tool/calls."""
    used = [
        block.tool_use.call_id
        for event in own
        for block in event.assistant_message.blocks
        if block.HasField("tool_use")
    ]
    called = [event.tool_call.call_id for event in own if event.HasField("tool_call")]
    if used != called:
        yield f"assistant/message uses {used}, tool/call has {called}"


def _messages(own: Sequence[event_pb2.Event]) -> Iterator[str]:
    """inbox/taken, the turn/start that it opens, and user/message."""
    taken = [message for event in own for message in event.inbox_taken.message_ids]
    said = [event.user_message for event in own if event.HasField("user_message")]
    opened = any(event.HasField("turn_start") for event in own)
    if taken != [message.message_id for message in said if message.message_id]:
        yield f"inbox/taken has {taken}, and not so user/message"
    if opened and not said:
        yield "turn/start without its user/message"
    if taken and not opened and not all(message.steering for message in said):
        yield "inbox/taken without the turn/start that it opens"


def _ends(own: Sequence[event_pb2.Event]) -> Iterator[str]:
    """turn/end, session/status and, where the session ends with it, session/ended."""
    status = [event.session_status.status for event in own if event.HasField("session_status")]
    ends = [event.session_ended.status for event in own if event.HasField("session_ended")]
    if any(event.HasField("turn_end") for event in own) and not status:
        yield "turn/end without session/status"
    if ends != [value for value in status if is_ended(value)]:
        yield f"session/status says {status}, session/ended {ends}"


def _attentions(
    own: Sequence[event_pb2.Event], events: Sequence[event_pb2.Event], view_of: ViewOf
) -> Iterator[str]:
    """A sub-agent's request or settlement, and what its root is told; repair tells nobody."""
    caused = [event for event in own if event.WhichOneof("data") in _TOLD and not event.synthetic]
    if not caused:
        return
    view = view_of(own[0].session)
    if not view.ancestors:
        return
    told = [
        (event.child_attention.request_id, event.child_attention.state)
        for event in events
        if event.session == view.root and event.HasField("child_attention")
    ]
    for event in caused:
        field = event.WhichOneof("data")
        assert field is not None
        request_id: str = getattr(event, field).request_id
        if (request_id, _TOLD[field]) not in told:
            yield f"{event_type(event)} {request_id} without child/attention"
