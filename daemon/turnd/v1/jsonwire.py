"""What a message carries beyond its own fields, as bytes of the wire format (LOG-18).

A field that a newer version added arrives here as an unknown field and leaves as one. That version's JSON may
hold names that are not known here: their text travels in one unknown field of our own, and comes out again.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from turnd.v1.jsontext import embeddable

FOREIGN: Final = 536_870_911
"""The highest number a field can have; it holds a JSON object of members that this version does not know."""


def split(message: Message) -> tuple[bytes, str]:
    """The unknown fields as they came, and the text of the foreign JSON object; both empty as a rule."""
    fields = UnknownFieldSet(message)
    if not len(fields):
        return b"", ""
    foreign, rest = "", []
    for index in range(len(fields)):
        field = fields[index]
        ours = field.field_number == FOREIGN and field.wire_type == 2
        text = embeddable(field.data) if ours else None
        if text is not None and text.startswith("{"):
            foreign = text
        else:
            rest.append(_encode(field.field_number, field.wire_type, field.data))
    return b"".join(rest), foreign


def carry(members: str) -> bytes:
    """The wire form of a JSON object of foreign members, to be merged into its message."""
    data = members.encode()
    return _varint(FOREIGN << 3 | 2) + _varint(len(data)) + data


def only(message: Message, name: str) -> bytes:
    """The wire form of one field of the message."""
    for field, value in message.ListFields():
        if field.name == name:
            return type(message)(**{name: value}).SerializeToString()
    return b""


def _encode(number: int, wire_type: int, data: object) -> bytes:
    tag = _varint(number << 3 | wire_type)
    match wire_type, data:
        case 0, int():
            return tag + _varint(data)
        case 1, int():
            return tag + data.to_bytes(8, "little")
        case 2, bytes():
            return tag + _varint(len(data)) + data
        case 5, int():
            return tag + data.to_bytes(4, "little")
        case 3, UnknownFieldSet():
            inner = (data[index] for index in range(len(data)))
            body = b"".join(_encode(item.field_number, item.wire_type, item.data) for item in inner)
            return tag + body + _varint(number << 3 | 4)
        case _:
            raise ValueError(f"field {number} has wire type {wire_type}, which does not exist")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
