"""JSON as text: where each value of an object begins and ends, so that what is embedded keeps every digit."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final, NoReturn

MAX_DEPTH: Final = 200
"""Levels of nesting that a value may have inside a line; most readers can do as many."""

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_NAME: Final = re.compile(r'[ \t\n\r]*"((?:[^"\\]|\\.)*)"[ \t\n\r]*:[ \t\n\r]*')
_COMMA: Final = re.compile(r"[ \t\n\r]*,")
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_LINE_BREAKS: Final = re.compile("[\x85\u2028\u2029]")


class NotJson(ValueError):
    """The text is not JSON; the message says where and why."""


def _refuse(constant: str) -> NoReturn:
    raise NotJson(f"{constant} is not JSON")


def _integer(digits: str) -> int | str:
    # Python refuses to convert more digits than this; then the digits themselves are what is left.
    return int(digits) if len(digits) <= 4300 else digits


_SPANS: Final = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse)
_VALUES: Final = json.JSONDecoder(parse_int=_integer, parse_constant=_refuse)
quote: Final = json.encoder.encode_basestring
"""A JSON string, in quotes, with only those characters escaped that must be."""


def embeddable(data: bytes) -> str | None:
    """The JSON text as it can stand in a line, equal in value; None where it is not JSON or too deep."""
    try:
        text = data.decode()
        start = _SPACE.match(text).end()  # type: ignore[union-attr]  # matches the empty string
        _, end = _SPANS.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    if _SPACE.fullmatch(text, end) is None or _depth(text) > MAX_DEPTH:
        return None
    # Line breaks are lawful between values only; there a space is as good.
    return text[start:end].replace("\n", " ").replace("\r", " ")


def one_line(text: str) -> str:
    """The same JSON without the characters beyond ASCII that some readers take for the end of a line."""
    if text.isascii():
        return text
    return _LINE_BREAKS.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def value(text: str, start: int) -> object:
    """The value that begins there, integers exact."""
    return _VALUES.raw_decode(text, start)[0]


def parse(text: str) -> object:
    """The value of a whole text, integers exact. NotJson where it is not one."""
    try:
        return _VALUES.decode(text)
    except RecursionError:
        raise NotJson("nested too deeply") from None
    except NotJson:
        raise
    except ValueError as error:
        raise NotJson(str(error)) from None


def whole(text: str) -> tuple[int, int]:
    """Where the one value of a text begins and ends. NotJson where there is none, or more."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise NotJson("half of a surrogate pair is not Unicode text") from None
    start = _skip(text, 0)
    end = end_of(text, start)
    if _skip(text, end) != len(text):
        raise NotJson(f"expected the end at character {end}, found more")
    return start, end


def members(text: str, start: int) -> Iterator[tuple[str, int, int]]:
    """Name, begin and end of each member of the object that begins there, in a text that is JSON."""
    at = start + 1
    while found := _NAME.match(text, at):
        name = found.group(1)
        if "\\" in name:
            name = json.loads(f'"{name}"')
        end = end_of(text, found.end())
        yield name, found.end(), end
        at = _comma(text, end)


def elements(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Begin and end of each element of the array that begins there, in a text that is JSON."""
    at = _skip(text, start + 1)
    while text[at] != "]":
        end = end_of(text, at)
        yield at, end
        at = _skip(text, _comma(text, end))


def end_of(text: str, start: int) -> int:
    """Where the value that begins there ends. NotJson where there is none."""
    try:
        return _SPANS.raw_decode(text, start)[1]
    except RecursionError:
        raise NotJson("nested too deeply") from None
    except NotJson:
        raise
    except ValueError as error:
        raise NotJson(str(error)) from None


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def _comma(text: str, at: int) -> int:
    found = _COMMA.match(text, at)
    return at if found is None else found.end()


def _depth(text: str) -> int:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return 0
    depth = deepest = 0
    for character in _STRING.sub("", text):
        if character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest
