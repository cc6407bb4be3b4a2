"""What holds for every request, by its descriptors: known values of enums, no NUL, and fields that are not too long
(RPC-05)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from turnd.rpc.refusals import BadRequest

MAX_NAME: Final = 200
"""Characters of ids, names and titles that have no limit of their own."""
MAX_CHARACTERS: Final[Mapping[str, int]] = {
    "request_id": 100,
    "client": 100,
    "cwd": 4096,
}
MAX_BYTES: Final[Mapping[str, int]] = {
    "reason": 64 * 1024,
    "output": 1024 * 1024,
    "corrected_input": 1024 * 1024,
}
"""Of content that is written to the log as it came."""
_FREE_TEXT: Final = frozenset({"turnd.v1.TextBlock", "turnd.v1.ThinkingBlock", "turnd.v1.DocumentBlock"})
"""Messages whose strings are somebody's text: any length and any character; what they hold is bounded together."""


def check(request: Message) -> None:
    """Raises BadRequest, which names the first field that is wrong."""
    _check(request, "")


def _check(message: Message, prefix: str) -> None:
    for field, value in message.ListFields():
        path = f"{prefix}{field.name}"
        if _is_map(field):
            _check_map(field, value, path)
        elif field.is_repeated:
            for index, one in enumerate(value):
                _check_value(message, field, one, f"{path}[{index}]")
        else:
            _check_value(message, field, value, path)


def _check_map(field: FieldDescriptor, value: Mapping[object, object], path: str) -> None:
    for key, member in value.items():
        for text in (key, member):
            if isinstance(text, str) and "\0" in text:
                raise BadRequest(path, f"{path}: expected no NUL, found one in {str(key)[:40]!r}")


def _check_value(message: Message, field: FieldDescriptor, value: object, path: str) -> None:
    match value:
        case Message():
            _check(value, f"{path}.")
        case str():
            if message.DESCRIPTOR.full_name not in _FREE_TEXT:
                _check_text(field.name, value, path)
        case bytes():
            _check_bytes(field.name, len(value), path)
        case int() if field.enum_type is not None:
            if value not in field.enum_type.values_by_number:
                known = ", ".join(f"{each.number} {each.name}" for each in field.enum_type.values)
                raise BadRequest(path, f"{path}: expected one of {known}; found {value}")
        case _:  # numbers and truth values are judged by whoever uses them
            pass


def _check_text(name: str, text: str, path: str) -> None:
    if "\0" in text:
        raise BadRequest(
            path, f"{path}: expected text without NUL, found one at character {text.index(chr(0))}"
        )
    if name in MAX_BYTES:
        _check_bytes(name, len(text.encode()), path)
        return
    limit = MAX_CHARACTERS.get(name, MAX_NAME)
    if len(text) > limit:
        raise BadRequest(path, f"{path}: expected at most {limit} characters, found {len(text)}")


def _check_bytes(name: str, size: int, path: str) -> None:
    limit = MAX_BYTES.get(name)
    if limit is not None and size > limit:
        text = f"{path}: expected at most {limit} bytes, found {size}"
        raise BadRequest(path, text, grpc.StatusCode.RESOURCE_EXHAUSTED)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry
