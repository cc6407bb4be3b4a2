"""What a person may answer to a question: one JSON text that every reader takes for the same value (GATE-17)."""

from __future__ import annotations

import json
import math

import jsonschema_rs

from turnd.rules import canon
from turnd.sessions.refusal import invalid

_FIELD = "output"


def check_answer(output: bytes, schema: bytes) -> None:
    """Raises CommandRefused where the answer is no such text, or does not fit the question's schema."""
    value = _value(output)
    if not schema:
        return
    fault = next(iter(jsonschema_rs.validator_for(json.loads(schema)).iter_errors(value)), None)
    if fault is not None:
        raise invalid(
            _FIELD, f"the answer does not fit the question: {fault.message[:1000]}; the question stays open"
        )


def _value(output: bytes) -> object:
    if not canon.is_json(output):
        raise invalid(
            _FIELD,
            f"the answer is not valid JSON in UTF-8 of at most {canon.MAX_DEPTH} levels; the question stays open",
        )
    try:
        value = json.loads(output, object_pairs_hook=_members, parse_float=_finite)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise invalid(
            _FIELD,
            "the answer holds half of a surrogate pair, which is no character; the question stays open",
        ) from None
    except ValueError as wrong:
        raise invalid(_FIELD, f"the answer is not valid JSON: {wrong}; the question stays open") from None
    return value


def _members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:100]!r} is there twice")
    return members


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:40]} is too large")
    return number
