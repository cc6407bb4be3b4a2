"""From what a person types to the JSON that answers a question."""

from __future__ import annotations

import json
from collections.abc import Mapping


class NotAnAnswer(ValueError):
    """The text cannot be made to fit; the message says which form the question wants."""


def answer_json(text: str, schema: bytes) -> bytes:
    """The answer as JSON, by the question's output schema.

    Words answer a question that wants a string, or an object with one text in it; a question that wants
    anything else is answered in JSON. Whether it fits in all details is the daemon's to check.
    """
    wanted = _schema(schema)
    kind = wanted.get("type")
    if kind == "string" or not wanted:
        return _dump(text)
    field = _only_text_field(wanted)
    given = _json(text)
    if field and not (isinstance(given, dict) and field in given):
        return _dump({field: text})
    if given is None and text.strip() != "null":
        example = json.dumps(wanted, ensure_ascii=False)
        raise NotAnAnswer(f"this question wants JSON of this schema: {example}")
    return text.encode()


def _schema(schema: bytes) -> Mapping[str, object]:
    wanted = _json(schema.decode("utf-8", "replace")) if schema else {}
    return wanted if isinstance(wanted, dict) else {}


def _only_text_field(schema: Mapping[str, object]) -> str:
    properties = schema.get("properties")
    if schema.get("type") != "object" or not isinstance(properties, dict):
        return ""
    required = schema.get("required")
    names = [str(name) for name in required] if isinstance(required, list) and required else list(properties)
    if len(names) != 1 or not isinstance(properties.get(names[0]), dict):
        return ""
    return names[0] if properties[names[0]].get("type") == "string" else ""


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _dump(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
