"""What is readable in the JSON of a tool's input and output."""

from __future__ import annotations

import json

_TEXT_KEYS = ("output", "text", "content", "stdout", "answer", "message", "error")


def readable(data: bytes) -> str:
    """The text in it where there is one, else the JSON itself, with what else it says in front."""
    try:
        value = json.loads(data) if data else ""
    except ValueError:
        return data.decode("utf-8", "replace")
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        for key in _TEXT_KEYS:
            if isinstance(value.get(key), str):
                rest = {name: other for name, other in value.items() if name != key and other is not None}
                head = ", ".join(f"{name}: {_short(other)}" for name, other in rest.items())
                return "\n".join(part for part in (head, value[key]) if part)
    return _short(value)


def fields(data: bytes) -> str:
    """An input on one line: `path: a.txt, limit: 3`."""
    try:
        value = json.loads(data) if data else {}
    except ValueError:
        return data.decode("utf-8", "replace")
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_short(each)}" for name, each in value.items())
    return _short(value)


def _short(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
