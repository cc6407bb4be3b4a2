"""One canonical form of a JSON text, and the hashes that are made of it.

Two texts have the same form exactly if they are the same value: the order of keys, white space, the spelling
of numbers (`1`, `1.0`, `1e0`) and of strings (`\\u0041`, `A`) do not matter, and numbers are never rounded:
9007199254740993 differs from 9007199254740992. An object that repeats a key keeps every member, so that it
never passes for one of the ways in which it can be read. What is not JSON, or passes a bound below, counts as
its bytes (BOUND-09).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NoReturn

from turnd.v1 import common_pb2 as common

MAX_DEPTH: Final = 128
"""Arrays and objects inside one another; a text that goes deeper is not looked into."""
MAX_EXPONENT_DIGITS: Final = 18
"""Digits of a number's exponent; a text with a longer one is not looked into."""
PLAIN_DIGITS: Final = 40
"""A whole number of up to this many digits is written out, a longer one with an exponent."""

_BRACKETS: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)
_NUMBER: Final = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([-+]?)([0-9]+))?")


class NotJson(ValueError):
    """The bytes are not JSON in UTF-8, or pass a bound of this module."""


class _Number(str):
    """The canonical text of a number."""

    __slots__ = ()


class _Object(tuple[tuple[str, object], ...]):
    """The members of an object in canonical order; a repeated key keeps its values in the order of the
    text.
    """

    __slots__ = ()


def canonical(data: bytes) -> bytes:
    """The canonical form of a JSON text; the bytes themselves where they are not one. Never raises."""
    try:
        return _written(_parsed(data))
    except NotJson:
        return data


def is_json(data: bytes) -> bool:
    """Whether the bytes are one JSON text within the bounds of this module. `NaN` and `Infinity` are not
    JSON.
    """
    try:
        _parsed(data)
    except NotJson:
        return False
    return True


def members(data: bytes) -> Mapping[str, bytes] | None:
    """The members of an object, each value in canonical form.

    None where the bytes are not an object, or repeat one of its own keys: readers would differ on what it
    says.
    """
    try:
        value = _parsed(data)
        if not isinstance(value, _Object):
            return None
        found = {key: _written(member) for key, member in value}
    except NotJson:
        return None
    return found if len(found) == len(value) else None


def text_member(data: bytes, name: str) -> str | None:
    """The string that a member of an object holds; None where there is none, or not for certain."""
    value = (members(data) or {}).get(name, b"")
    return text_of(value) if value.startswith(b'"') else None


def text_of(value: bytes) -> str:
    """The string that a canonical form spells."""
    text = json.loads(value)
    assert isinstance(text, str), "the canonical form of a string is a string"
    return text


def call_hash(provider: str, tool: str, data: bytes) -> str:
    """What tells calls apart that do the same from calls that do not: SHA-256 in hex (BOUND-09). Never
    raises.
    """
    return _sha256((_bytes(provider), _bytes(tool), canonical(data)))


def digest(provider: str, tool: str, data: bytes, preconditions: Iterable[common.Precondition]) -> str:
    """What an approval is bound to: SHA-256 in hex over the call and the states that it was planned on
    (GATE-16).
    """
    states = sorted((_bytes(each.target), _bytes(each.state)) for each in preconditions)
    return _sha256(
        (_bytes(provider), _bytes(tool), canonical(data), *(part for pair in states for part in pair))
    )


def request_digest(
    model: str,
    system: str,
    messages: Iterable[bytes],
    tools: Iterable[tuple[str, str, bytes]],
    tools_withheld: bool,
    parameters: bytes,
) -> str:
    """What a model was asked: SHA-256 in hex.

    `messages` are the digests of the messages; `tools` are wire name, description and input schema.
    """

    def parts() -> Iterator[bytes]:
        yield _bytes(model)
        yield _bytes(system)
        yield canonical(parameters)
        yield b"tools withheld" if tools_withheld else b"tools offered"
        for name, description, schema in tools:
            yield b"tool"
            yield _bytes(name)
            yield _bytes(description)
            yield canonical(schema)
        for message in messages:
            yield b"message"
            yield message

    return _sha256(parts())


def message_digest(role: str, blocks: Sequence[common.ContentBlock]) -> bytes:
    """SHA-256 over one message."""
    parts = (_bytes(role), *(block.SerializeToString(deterministic=True) for block in blocks))
    return bytes.fromhex(_sha256(parts))


def _sha256(parts: Iterable[bytes]) -> str:
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(len(part).to_bytes(8, "big"))
        hashed.update(part)
    return hashed.hexdigest()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _parsed(data: bytes) -> object:
    try:
        text = data.decode("utf-8")
        if _depth(text) > MAX_DEPTH:
            raise NotJson(f"expected at most {MAX_DEPTH} levels of nesting")
        return json.loads(
            text,
            parse_int=_number,
            parse_float=_number,
            parse_constant=_no_constant,
            object_pairs_hook=_object,
        )
    except NotJson:
        raise
    except (ValueError, RecursionError) as error:
        raise NotJson(str(error)) from error


def _depth(text: str) -> int:
    deepest = depth = 0
    for found in _BRACKETS.finditer(text):
        match found.group():
            case "[" | "{":
                depth += 1
                deepest = max(deepest, depth)
            case "]" | "}":
                depth -= 1
            case _:  # a string, whose brackets count for nothing
                pass
    return deepest


def _no_constant(name: str) -> NoReturn:
    raise NotJson(f"{name} is no JSON number")


def _number(text: str) -> _Number:
    # The digits are never made into a number: that would cost quadratic time, or all memory for 1e999999999.
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise NotJson(f"{text!r} is no JSON number")
    sign, whole, fraction, exponent_sign, exponent_digits = found.groups(default="")
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return _Number("0")
    exponent_digits = exponent_digits.lstrip("0")
    if len(exponent_digits) > MAX_EXPONENT_DIGITS:
        raise NotJson(f"expected an exponent of at most {MAX_EXPONENT_DIGITS} digits")
    significant = digits.rstrip("0")
    exponent = int(f"{exponent_sign}{exponent_digits or 0}") - len(fraction) + len(digits) - len(significant)
    if exponent == 0:
        return _Number(sign + significant)
    if 0 < exponent <= PLAIN_DIGITS - len(significant):
        return _Number(sign + significant + "0" * exponent)
    return _Number(f"{sign}{significant}e{exponent}")


def _object(pairs: list[tuple[str, object]]) -> _Object:
    return _Object(sorted(pairs, key=lambda pair: pair[0]))


def _written(value: object) -> bytes:
    written: list[str] = []
    try:
        _write(value, written)
    except RecursionError as error:
        raise NotJson("expected room on the stack for every level of nesting") from error
    return "".join(written).encode("ascii")


def _write(value: object, out: list[str]) -> None:
    match value:
        case _Number():
            out.append(value)
        case _Object():
            for index, (key, member) in enumerate(value):
                out.append("," if index else "{")
                out.append(json.dumps(key))
                out.append(":")
                _write(member, out)
            out.append("}" if value else "{}")
        case list():
            for index, element in enumerate(value):
                out.append("," if index else "[")
                _write(element, out)
            out.append("]" if value else "[]")
        case _:
            # A lone surrogate is written as its escape, so the form is ASCII whatever the string holds.
            out.append(json.dumps(value))
