"""Messages from JSON text: the reverse of `jsonwrite`.

Names that are not known here are kept (LOG-18); a known name with a wrong value is an error that names it.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from google.protobuf.message import DecodeError, Message
from google.protobuf.timestamp_pb2 import Timestamp

from turnd.v1 import jsonwire
from turnd.v1.jsonplan import ALIASES, UNKNOWN, FieldPlan, Kind, plan_of
from turnd.v1.jsontext import elements, end_of, members, value

_EXCERPT: Final = 40
"""Characters of a wrong value that an error shows."""
_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z")


class JsonFormError(ValueError):
    """A line is not the JSON form of an event, or an object not that of its message.

    `field` is the path of the value at fault, such as `data.input`; empty where the text is not JSON at all.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}" if field else problem)
        self.field = field
        self.problem = problem

    def within(self, outer: str) -> JsonFormError:
        """The same error, seen from the message around."""
        if not self.field:
            return JsonFormError(outer, self.problem)
        return JsonFormError(f"{outer}{'' if self.field.startswith('[') else '.'}{self.field}", self.problem)


Spans = dict[str, tuple[int, int]]
"""Where the value of each name begins and ends in the text."""


def spans(text: str, start: int) -> Spans:
    """The members of the object that begins there, old names replaced."""
    if text[start : start + 1] != "{":
        raise JsonFormError("", f"expected an object, found {_excerpt(text, start)}")
    found: Spans = {}
    for written, begin, end in members(text, start):
        name = ALIASES.get(written, written)
        if name in found:
            raise JsonFormError(written, "given twice")
        found[name] = (begin, end)
    return found


def read_object(text: str, start: int, message: Message) -> None:
    """Fills an empty message from the object that begins there."""
    plan = plan_of(message.DESCRIPTOR)
    found = spans(text, start)
    for name, (begin, end) in found.items():
        field = plan.by_name.get(name)
        if field is None or (text.startswith("null", begin) and field.kind is not Kind.JSON):
            continue
        try:
            read_field(text, begin, end, message, field)
        except JsonFormError as error:
            raise error.within(name) from None
    own = plan.by_name.keys() | plan.derived
    read_leftovers(text, {name: span for name, span in found.items() if name not in own}, message)


def read_leftovers(text: str, found: Mapping[str, tuple[int, int]], message: Message) -> None:
    """Keeps in the message what it has no fields for: foreign members, and the bytes under `unknown`."""
    foreign = [
        f"{json.dumps(name)}: {text[begin:end]}" for name, (begin, end) in found.items() if name != UNKNOWN
    ]
    if UNKNOWN in found:
        data = _base64(_text(value(text, found[UNKNOWN][0]), UNKNOWN), UNKNOWN)
        try:
            message.MergeFromString(data)
        except DecodeError:
            raise JsonFormError(UNKNOWN, "expected fields in the wire format") from None
    if foreign:
        message.MergeFromString(jsonwire.carry("{" + ", ".join(foreign) + "}"))


def read_field(text: str, start: int, end: int, message: Message, field: FieldPlan) -> None:
    """Sets one field of a message from the value between the two places."""
    if field.repeated:
        _read_repeated(text, start, getattr(message, field.name), field)
    elif field.kind is Kind.MAP:
        _read_map(text, start, getattr(message, field.name), field)
    elif field.kind is Kind.MESSAGE:
        inner = getattr(message, field.name)
        inner.SetInParent()
        read_object(text, start, inner)
    elif field.kind is Kind.TIME:
        getattr(message, field.name).SetInParent()
        read_time(text, start, getattr(message, field.name))
    else:
        setattr(message, field.name, _scalar(text, start, end, field))


def read_time(text: str, start: int, time: Timestamp) -> None:
    """Reads an RFC 3339 time in UTC, `2026-01-02T03:04:05.678901Z`."""
    written = _text(value(text, start))
    found = _TIME.fullmatch(written)
    try:
        moment = datetime.fromisoformat(found.group(1)) if found else None
    except ValueError:
        moment = None
    if found is None or moment is None:
        raise JsonFormError(
            "", f"expected a time such as 2026-01-02T03:04:05.678901Z, found {written[:40]!r}"
        )
    time.seconds = int(moment.replace(tzinfo=UTC).timestamp())
    time.nanos = int((found.group(2) or "").ljust(9, "0"))


def _read_repeated(text: str, start: int, target: Any, field: FieldPlan) -> None:
    if text[start : start + 1] != "[":
        raise JsonFormError("", f"expected a list, found {_excerpt(text, start)}")
    for index, (begin, end) in enumerate(elements(text, start)):
        try:
            match field.kind:
                case Kind.MESSAGE:
                    read_object(text, begin, target.add())
                case Kind.TIME:
                    read_time(text, begin, target.add())
                case _:
                    target.append(_scalar(text, begin, end, field))
        except JsonFormError as error:
            raise error.within(f"[{index}]") from None


def _read_map(text: str, start: int, target: Any, field: FieldPlan) -> None:
    values = field.values
    assert values is not None
    if text[start : start + 1] != "{":
        raise JsonFormError("", f"expected an object, found {_excerpt(text, start)}")
    for key, begin, end in members(text, start):
        try:
            if values.kind is Kind.MESSAGE:
                read_object(text, begin, target[key])
            else:
                target[_text(key)] = _scalar(text, begin, end, values)
        except JsonFormError as error:
            raise error.within(key) from None


def _scalar(text: str, start: int, end: int, field: FieldPlan) -> str | bytes | int | float:
    if field.kind is Kind.JSON:
        return text[start:end].encode()
    found = value(text, start)
    match field.kind, found:
        case Kind.TEXT, str():
            return _text(found)
        case Kind.BYTES, str():
            return _base64(found)
        case Kind.BOOL, bool():
            return found
        case Kind.INTEGER, int() if not isinstance(found, bool) and field.low <= found <= field.high:
            return found
        case Kind.NUMBER, int() | float() if not isinstance(found, bool):
            return float(found)
        case Kind.ENUM, str() | int() if not isinstance(found, bool):
            return _enum(found, field)
        case _:
            raise JsonFormError("", f"expected {_expected(field)}, found {_excerpt(text, start)}")


def _enum(found: str | int, field: FieldPlan) -> int:
    assert field.enum is not None
    number = field.enum.number.get(found) if isinstance(found, str) else found
    if number is None or not -(2**31) <= number < 2**31:
        words = ", ".join(field.enum.text.values())
        raise JsonFormError("", f"expected one of {words}, found {str(found)[:40]!r}")
    return number


def _expected(field: FieldPlan) -> str:
    match field.kind:
        case Kind.TEXT:
            return "a string"
        case Kind.BYTES:
            return "a string in base64"
        case Kind.BOOL:
            return "true or false"
        case Kind.INTEGER:
            return f"an integer from {field.low} to {field.high}"
        case Kind.NUMBER:
            return "a number"
        case _:
            return "a word"


def _text(found: object, field: str = "") -> str:
    if not isinstance(found, str):
        raise JsonFormError(field, f"expected a string, found {str(found)[:40]}")
    try:
        found.encode()
    except UnicodeEncodeError:
        raise JsonFormError(field, "expected Unicode text, found half of a surrogate pair") from None
    return found


def _base64(found: str, field: str = "") -> bytes:
    try:
        return base64.b64decode(found, validate=True)
    except (binascii.Error, ValueError):
        raise JsonFormError(field, "expected base64") from None


def _excerpt(text: str, start: int) -> str:
    """The value that begins there, and nothing of what follows it."""
    found = text[start : end_of(text, start)]
    return found if len(found) <= _EXCERPT else f"{found[:_EXCERPT]}..."
