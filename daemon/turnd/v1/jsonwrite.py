"""Messages as JSON text.

A message writes all its fields, so that its shape is stable; what has presence (messages, optional fields,
members of a oneof) only where it is set, and JSON bytes only where there are any. What JSON cannot say (bytes
that should be JSON and are not, NaN, a time beyond year 9999) is left out and travels in `unknown` with the
fields of newer versions.
"""

from __future__ import annotations

import base64
import json
import math
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from turnd.v1 import jsonwire
from turnd.v1.jsonplan import UNKNOWN, FieldPlan, Kind, plan_of
from turnd.v1.jsontext import embeddable, members, quote

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_SECOND: Final = int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp())
_FIRST_SECOND: Final = int(datetime(1, 1, 1, tzinfo=UTC).timestamp())


class CannotSay(ValueError):
    """JSON has no words for the value."""


def object_text(message: Message) -> str:
    """The JSON object of a message."""
    parts, lost = [], b""
    for field in plan_of(message.DESCRIPTOR).fields:
        try:
            text = _field_text(message, field)
        except CannotSay:
            lost += jsonwire.only(message, field.name)
        else:
            if text:
                parts.append(text)
    parts.extend(leftovers(message, lost))
    return "{" + ", ".join(parts) + "}"


def leftovers(message: Message, lost: bytes = b"") -> list[str]:
    """The last members of an object: what a newer version wrote beyond what is known here."""
    unknown, foreign = jsonwire.split(message)
    parts = []
    if foreign:
        parts = [f"{json.dumps(name)}: {foreign[start:end]}" for name, start, end in members(foreign, 0)]
    if unknown or lost:
        parts.append(f'"{UNKNOWN}": "{base64.b64encode(lost + unknown).decode()}"')
    return parts


def time_text(time: Timestamp) -> str:
    """RFC 3339 in UTC with microseconds, and nanoseconds where there are any. Raises CannotSay."""
    if not (_FIRST_SECOND <= time.seconds <= _LAST_SECOND and 0 <= time.nanos < 10**9):
        raise CannotSay
    micros, nanos = divmod(time.nanos, 1000)
    moment = _EPOCH + timedelta(seconds=time.seconds, microseconds=micros)
    rest = f"{nanos:03d}" if nanos else ""
    return f'"{moment:%H:%M:%S.%f}'.replace('"', f'"{moment.date().isoformat()}T', 1) + f'{rest}Z"'


def usd_text(nano_usd: int) -> str:
    """The exact amount in USD: 1500 is 0.0000015."""
    sign, amount = ("-", -nano_usd) if nano_usd < 0 else ("", nano_usd)
    whole, rest = divmod(amount, 10**9)
    return f"{sign}{whole}.{f'{rest:09d}'.rstrip('0') or '0'}"


def _field_text(message: Message, field: FieldPlan) -> str:
    if field.presence and not message.HasField(field.name):
        return ""
    value: Any = getattr(message, field.name)
    if field.kind is Kind.JSON and not field.repeated and not field.presence and not value:
        return ""
    name = f'"{field.name}": '
    if field.repeated:
        return name + "[" + ", ".join([_value_text(field, item) for item in value]) + "]"
    text = name + _value_text(field, value)
    return text if field.usd is None else f'{text}, "{field.usd}": {usd_text(value)}'


def _value_text(field: FieldPlan, value: Any) -> str:
    match field.kind:
        case Kind.TEXT:
            return quote(value)
        case Kind.INTEGER:
            return str(value)
        case Kind.BOOL:
            return "true" if value else "false"
        case Kind.ENUM:
            return _enum_text(field, value)
        case Kind.MESSAGE:
            return object_text(value)
        case Kind.JSON:
            return _json_text(value)
        case Kind.BYTES:
            return f'"{base64.b64encode(value).decode()}"'
        case Kind.NUMBER:
            return _number_text(value)
        case Kind.TIME:
            return time_text(value)
        case Kind.MAP:
            values = field.values
            assert values is not None
            entries = [f"{quote(key)}: {_value_text(values, value[key])}" for key in sorted(value)]
            return "{" + ", ".join(entries) + "}"


def _enum_text(field: FieldPlan, value: int) -> str:
    assert field.enum is not None
    word = field.enum.text.get(value)
    if word is not None:
        return quote(word)
    # Where unset and unspecified differ, null would say unset.
    return "null" if value == 0 and not field.presence and not field.repeated else str(value)


def _json_text(value: bytes) -> str:
    text = embeddable(value)
    if text is None:
        raise CannotSay
    return text


def _number_text(value: float) -> str:
    if not math.isfinite(value):
        raise CannotSay
    return repr(value)
