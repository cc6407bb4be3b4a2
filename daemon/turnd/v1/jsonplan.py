"""How each message is written as JSON, worked out once from its descriptor.

The general rules: names as in the protobuf file, enum values in lower case without their prefix, numbers as
numbers. `options.proto` says where a field or a value differs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from typing import Final

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from turnd.v1 import options_pb2

UNKNOWN: Final = "unknown"
"""The key that holds, in base64, what a message carries beyond its own fields."""
ALIASES: Final[Mapping[str, str]] = {"stepSeq": "step"}
"""Names that are read and never written (LOG-07)."""
_ALIASES_OF_VALUES: Final[Mapping[str, Mapping[str, str]]] = {
    "turnd.v1.TurnEndReason": {"finished": "completed"}
}


class Kind(Enum):
    """What a value looks like in JSON."""

    TEXT = auto()
    BYTES = auto()
    JSON = auto()
    BOOL = auto()
    INTEGER = auto()
    NUMBER = auto()
    ENUM = auto()
    TIME = auto()
    MESSAGE = auto()
    MAP = auto()


@dataclass(frozen=True, slots=True)
class EnumPlan:
    """The words of an enum. A value that is not known here is its number."""

    name: str
    text: Mapping[int, str]
    number: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class FieldPlan:
    """One field. `usd` is the name of the derived amount where the field counts nano-USD."""

    name: str
    kind: Kind
    repeated: bool
    presence: bool
    low: int
    high: int
    usd: str | None
    enum: EnumPlan | None
    values: FieldPlan | None
    """Of a map: how its values are written. Its keys are strings."""


@dataclass(frozen=True, slots=True)
class MessagePlan:
    """All fields in the order of the protobuf file, and the names that reading passes over."""

    fields: tuple[FieldPlan, ...]
    by_name: Mapping[str, FieldPlan]
    derived: frozenset[str]


_INTEGERS: Final[Mapping[int, tuple[int, int]]] = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_SINT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_SFIXED32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_FIXED32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_SINT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_SFIXED64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.TYPE_FIXED64: (0, 2**64 - 1),
}


@cache
def plan_of(descriptor: Descriptor) -> MessagePlan:
    """The plan of a message type. ValueError where a field has a name that the JSON form needs itself."""
    fields = tuple(_field(field) for field in descriptor.fields)
    names = {field.name for field in fields}
    derived = {field.usd for field in fields if field.usd is not None}
    clashes = names & (derived | {UNKNOWN} | ALIASES.keys())
    if clashes:
        raise ValueError(f"{descriptor.full_name}: the JSON form uses {', '.join(sorted(clashes))} itself")
    return MessagePlan(fields, {field.name: field for field in fields}, frozenset(derived))


@cache
def enum_plan_of(descriptor: EnumDescriptor) -> EnumPlan:
    """The plan of an enum: `TURN_END_REASON_MAX_TOKENS` is `max_tokens`, or what its option says."""
    prefix = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", descriptor.name).upper() + "_"
    text = {
        value.number: value.GetOptions().Extensions[options_pb2.text]
        or value.name.removeprefix(prefix).lower()
        for value in reversed(descriptor.values)
        if value.number != 0
    }
    number = {word: value for value, word in text.items()}
    aliases = _ALIASES_OF_VALUES.get(descriptor.full_name, {})
    number.update({alias: number[word] for alias, word in aliases.items()})
    return EnumPlan(descriptor.name, text, number)


def _field(field: FieldDescriptor) -> FieldPlan:
    entry = _map_entry(field)
    kind = Kind.MAP if entry is not None else _kind(field)
    low, high = _INTEGERS.get(field.type, (0, 0))
    counts_nano_usd = kind is Kind.INTEGER and not field.is_repeated and field.name.endswith("_nano_usd")
    return FieldPlan(
        name=field.name,
        kind=kind,
        repeated=field.is_repeated and entry is None,
        presence=field.has_presence,
        low=low,
        high=high,
        usd=field.name.removesuffix("_nano_usd") + "_usd" if counts_nano_usd else None,
        enum=enum_plan_of(field.enum_type) if kind is Kind.ENUM else None,
        values=None if entry is None else _field(entry.fields_by_name["value"]),
    )


def _map_entry(field: FieldDescriptor) -> Descriptor | None:
    entry = field.message_type
    if entry is None or not entry.GetOptions().map_entry:
        return None
    if entry.fields_by_name["key"].type != FieldDescriptor.TYPE_STRING:
        raise ValueError(f"{field.full_name}: the JSON form knows maps with string keys only")
    return entry


def _kind(field: FieldDescriptor) -> Kind:
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            return Kind.TEXT
        case FieldDescriptor.TYPE_BYTES:
            return Kind.JSON if field.GetOptions().Extensions[options_pb2.json] else Kind.BYTES
        case FieldDescriptor.TYPE_BOOL:
            return Kind.BOOL
        case FieldDescriptor.TYPE_DOUBLE | FieldDescriptor.TYPE_FLOAT:
            return Kind.NUMBER
        case FieldDescriptor.TYPE_ENUM:
            return Kind.ENUM
        case FieldDescriptor.TYPE_MESSAGE | FieldDescriptor.TYPE_GROUP:
            inner = field.message_type
            is_time = inner is not None and inner.full_name == "google.protobuf.Timestamp"
            return Kind.TIME if is_time else Kind.MESSAGE
        case _:
            return Kind.INTEGER
