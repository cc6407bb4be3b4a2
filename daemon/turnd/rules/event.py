"""Events as messages: payload types, their names, drafts and envelopes.

An event's payload is one of the protobuf messages of `event.proto`; its type name (`tool/call`) is the name of the
field that holds it in `Event`, the first underscore written as a slash.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

from google.protobuf.message import Message

from turnd.v1 import common_pb2, event_pb2

_DATA = event_pb2.Event.DESCRIPTOR.oneofs_by_name["data"]
_FIELD_OF: Final[dict[str, str]] = {
    field.message_type.full_name: field.name for field in _DATA.fields if field.message_type is not None
}
_TYPE_OF_FIELD: Final[dict[str, str]] = {
    field.name: field.name.replace("_", "/", 1) for field in _DATA.fields
}
FIELD_OF_TYPE: Final[dict[str, str]] = {name: field for field, name in _TYPE_OF_FIELD.items()}
"""The oneof field of each type name: `tool/call` is in `tool_call`."""


@dataclass(frozen=True, slots=True)
class Draft:
    """An event that its producer wants in a session's log; the log gives it seq, time, Turn and Step.

    `time_us` is set by repair alone, which repeats the time of the last real event. Where the payload is an
    `Event` it is one of another log, kept as it is for history (LOG-22).
    """

    session: str
    payload: Message
    synthetic: bool = False
    producer: common_pb2.Producer | None = None
    time_us: int | None = None


def type_of(payload: Message) -> str:
    """The type name of a payload, such as `tool/call`. KeyError if it is not the payload of any event."""
    return _TYPE_OF_FIELD[_FIELD_OF[payload.DESCRIPTOR.full_name]]


def payload_of(event: event_pb2.Event) -> Message | None:
    """The payload of an event; None where its type comes from a newer version and is not known here."""
    field = event.WhichOneof("data")
    return None if field is None else cast(Message, getattr(event, field))


def event_type(event: event_pb2.Event) -> str:
    """The type name of an event; empty where its type is not known here."""
    field = event.WhichOneof("data")
    return "" if field is None else _TYPE_OF_FIELD[field]


def make_event(
    draft: Draft, *, seq: int, time_us: int, turn: int | None, step: int | None
) -> event_pb2.Event:
    """The event of a draft: its payload in an envelope with the numbers the log derived."""
    if isinstance(draft.payload, event_pb2.Event):
        return _imported(draft.payload, draft.session, seq)
    event = event_pb2.Event(session=draft.session, seq=seq, synthetic=draft.synthetic, turn=turn, step=step)
    event.time.FromMicroseconds(time_us)
    if draft.producer is not None:
        event.producer.CopyFrom(draft.producer)
    field = _FIELD_OF[draft.payload.DESCRIPTOR.full_name]
    getattr(event, field).CopyFrom(draft.payload)
    return event


def _imported(event: event_pb2.Event, session: str, seq: int) -> event_pb2.Event:
    """The event as this log has it. One that was history in its own log already keeps the mark it got there."""
    if event.session == session and event.seq == seq and event.HasField("imported"):
        return event
    kept = event_pb2.Event()
    kept.CopyFrom(event)
    if not event.HasField("imported"):
        kept.imported.session, kept.imported.seq = event.session, event.seq
    kept.session, kept.seq = session, seq
    return kept
