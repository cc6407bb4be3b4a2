"""Events, and any message of the contract, as JSON and back: the one translator (clients.md, JSON shapes).

An event is one line. Its JSON bytes stand in the line as they are, so that 9007199254740993 and 1.10 stay
what they were; only spaces may differ. What this version does not know survives both ways (LOG-18).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, Protocol, TypeVar

from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.message import Message

from turnd.v1 import event_pb2, jsonwire
from turnd.v1.jsonplan import UNKNOWN, enum_plan_of, plan_of
from turnd.v1.jsonread import JsonFormError, Spans, read_field, read_leftovers, read_object, spans
from turnd.v1.jsontext import NotJson, one_line, parse, quote, value, whole
from turnd.v1.jsonwrite import CannotSay, leftovers, object_text, time_text

__all__ = [
    "JsonFormError",
    "enum_text",
    "event_from_json",
    "event_to_json",
    "message_from_json",
    "message_to_json",
    "message_to_text",
]

AnyMessage = TypeVar("AnyMessage", bound=Message)


class EnumType(Protocol):
    """A generated enum, such as `common_pb2.StopReason`."""

    @property
    def DESCRIPTOR(self) -> EnumDescriptor:
        """Its values."""


_FIELDS: Final = event_pb2.Event.DESCRIPTOR.oneofs_by_name["data"].fields
_TYPE_OF_FIELD: Final = {field.name: field.name.replace("_", "/", 1) for field in _FIELDS}
_FIELD_OF_TYPE: Final = {name: field for field, name in _TYPE_OF_FIELD.items()}
_ENVELOPE: Final = plan_of(event_pb2.Event.DESCRIPTOR).by_name
_PLAIN: Final = ("session", "seq", "time", "turn", "step", "synthetic", "producer", "imported")
_REQUIRED: Final = ("session", "seq", "type")


def event_to_json(event: event_pb2.Event) -> str:
    """The event as one line of JSON, without the newline.

    An event whose type comes from a newer version has the type `unknown` and its bytes under `unknown`.
    """
    lost = b""
    time = "null"
    if event.HasField("time"):
        try:
            time = time_text(event.time)
        except CannotSay:
            lost = jsonwire.only(event, "time")
    parts = [
        f'"session": {quote(event.session)}',
        f'"seq": {event.seq}',
        f'"time": {time}',
        f'"turn": {event.turn if event.HasField("turn") else "null"}',
        f'"step": {event.step if event.HasField("step") else "null"}',
    ]
    rest = leftovers(event, lost)
    field = event.WhichOneof("data")
    if field is not None:
        parts.append(f'"type": {quote(_TYPE_OF_FIELD[field])}')
        parts.append(f'"data": {object_text(getattr(event, field))}')
    elif not any(part.startswith('"type": ') for part in rest):
        parts.append(f'"type": "{UNKNOWN}", "data": {{}}')
    if event.synthetic:
        parts.append('"synthetic": true')
    if event.HasField("producer"):
        parts.append(f'"producer": {object_text(event.producer)}')
    if event.HasField("imported"):
        parts.append(f'"imported": {object_text(event.imported)}')
    return one_line("{" + ", ".join(parts + rest) + "}")


def event_from_json(line: str) -> event_pb2.Event:
    """The event of one line. Raises JsonFormError, which names the field.

    A type that is not known here, its data, and fields that are not known are kept and come out again.
    """
    try:
        start, _ = whole(line)
        found = spans(line, start)
    except NotJson as error:
        raise JsonFormError("", f"expected one JSON object: {error}") from None
    for name in _REQUIRED:
        if name not in found:
            raise JsonFormError(name, "missing")
    event = event_pb2.Event()
    for name in _PLAIN:
        begin, end = found.get(name, (0, 0))
        if end and not line.startswith("null", begin):
            try:
                read_field(line, begin, end, event, _ENVELOPE[name])
            except JsonFormError as error:
                raise error.within(name) from None
    rest = {name: span for name, span in found.items() if name not in _PLAIN}
    _read_data(line, rest, event)
    read_leftovers(line, rest, event)
    return event


def message_to_json(message: Message) -> dict[str, object]:
    """The message as what `json.dumps` takes, integers exact; `message_to_text` keeps fractions exact too."""
    found = parse(message_to_text(message))
    assert isinstance(found, dict)
    return found


def message_to_text(message: Message) -> str:
    """The message as one line of JSON, its JSON bytes as they are."""
    return one_line(object_text(message))


def enum_text(kind: EnumType, value: int) -> str:
    """The word that the JSON form has for a value; `unspecified` for 0, the number for one not known here."""
    return "unspecified" if value == 0 else enum_plan_of(kind.DESCRIPTOR).text.get(value, str(value))


def message_from_json(kind: type[AnyMessage], data: Mapping[str, object]) -> AnyMessage:
    """The message of a JSON object. Raises JsonFormError, which names the field."""
    message = kind()
    try:
        text = json.dumps(data, ensure_ascii=False, allow_nan=False)
        whole(text)
        read_object(text, 0, message)
    except (TypeError, RecursionError, NotJson) as error:
        raise JsonFormError("", f"expected what JSON can say: {error}") from None
    except JsonFormError:
        raise
    except ValueError as error:
        raise JsonFormError("", f"expected what JSON can say: {error}") from None
    return message


def _read_data(line: str, rest: Spans, event: event_pb2.Event) -> None:
    """Reads type and data out of `rest`, where the type is known here."""
    type_name = value(line, rest["type"][0])
    if not isinstance(type_name, str):
        raise JsonFormError("type", "expected a string")
    field = _FIELD_OF_TYPE.get(type_name)
    if field is None and type_name != UNKNOWN:
        return
    del rest["type"]
    begin, end = rest.pop("data", (0, 0))
    if field is None:
        return
    if not end:
        raise JsonFormError("data", "missing")
    payload = getattr(event, field)
    payload.SetInParent()
    try:
        read_object(line, begin, payload)
    except JsonFormError as error:
        raise error.within("data") from None
