"""Replacing a piece of text in a file's bytes, and saying what is wrong where it cannot be done."""

from __future__ import annotations

import re
from typing import Final

from turnd_provider.errors import ToolError

_PLACES_SHOWN: Final = 5


def replaced(shown: str, data: bytes, old_text: str, new_text: str, *, everywhere: bool) -> bytes:
    """The bytes with `old_text` replaced, once or everywhere. Raises ToolError that tells the model what to
    change.

    Bytes outside of the replaced text stay as they are, whatever their encoding. In a file with Windows line
    ends, texts with plain ones are understood to mean those.
    """
    if old_text == new_text:
        raise ToolError.invalid_arguments("old_text and new_text are the same: there is nothing to change")
    old, new = old_text.encode("utf-8", "replace"), new_text.encode("utf-8", "replace")
    if old not in data and b"\r\n" in data:
        old, new = _windows(old), _windows(new)
    count = data.count(old)
    if count == 0:
        raise ToolError.invalid_arguments(_not_there(shown, data, old_text))
    if count > 1 and not everywhere:
        lines = ", ".join(str(number) for number in _line_numbers(data, old)[:_PLACES_SHOWN])
        more = ", ..." if count > _PLACES_SHOWN else ""
        raise ToolError.invalid_arguments(
            f"old_text is in {shown} {count} times (lines {lines}{more}); "
            "give more of the text around it, or set replace_all"
        )
    return data.replace(old, new)


def _windows(text: bytes) -> bytes:
    return text.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def _line_numbers(data: bytes, text: bytes) -> list[int]:
    numbers: list[int] = []
    at = data.find(text)
    while at >= 0 and len(numbers) <= _PLACES_SHOWN:
        numbers.append(data.count(b"\n", 0, at) + 1)
        at = data.find(text, at + len(text))
    return numbers


def _not_there(shown: str, data: bytes, old_text: str) -> str:
    words = old_text.split()
    text = data.decode("utf-8", "replace")
    loose = re.search(r"\s+".join(map(re.escape, words)), text) if words else None
    if loose is not None:
        line = text.count("\n", 0, loose.start()) + 1
        return (
            f"old_text is not in {shown} as given, but line {line} has it with other white space; "
            "give it exactly as read_file shows it"
        )
    first = next((line.strip() for line in old_text.splitlines() if line.strip()), "")
    at = text.find(first) if first else -1
    if at >= 0:
        line = text.count("\n", 0, at) + 1
        return f"old_text is not in {shown}; its first line is at line {line}, but what follows there differs"
    return f"old_text is not in {shown}; read the file again"
