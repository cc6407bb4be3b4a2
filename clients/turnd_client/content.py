"""What is readable in the JSON of a tool's input and output."""

from __future__ import annotations

import json

_TEXT_KEYS = ("output", "text", "content", "stdout", "question", "answer", "message", "error")


def readable(data: bytes) -> tuple[str, str]:
    """The text in it, and in front of it in short what else it says; for JSON without a text only the latter."""
    try:
        value = json.loads(data) if data else ""
    except ValueError:
        return "", data.decode("utf-8", "replace")
    if isinstance(value, str):
        return "", value
    if isinstance(value, dict):
        for key in _TEXT_KEYS:
            if isinstance(value.get(key), str):
                # What is empty or does not apply is left out; an exit code of 0 says something.
                rest = {
                    name: other
                    for name, other in value.items()
                    if name != key and (other or name == "exit_code")
                }
                return _pairs(rest), value[key]
        return _pairs(value), ""
    return _short(value), ""


def fields(data: bytes) -> str:
    """An input on one line: `path: a.txt, limit: 3`."""
    try:
        value = json.loads(data) if data else {}
    except ValueError:
        return data.decode("utf-8", "replace")
    return _pairs(value) if isinstance(value, dict) else _short(value)


def _pairs(value: dict[str, object]) -> str:
    return ", ".join(f"{name}: {_short(each)}" for name, each in value.items())


def _short(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
