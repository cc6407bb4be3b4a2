"""What a subscriber outside of the daemon has said, as an answer; anything else is nonsense (HOOK-05, HOOK-07)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, cast

from turnd.hooks.subscriber import Answer, Observed, SubscriberFailed, Transformed, Verdict
from turnd.rules import pairing
from turnd.rules.history import HistoryMessage
from turnd.v1 import common_pb2 as common
from turnd.v1.jsonform import JsonFormError, message_from_json

CHANGEABLE: Final = {
    common.HOOK_POINT_CONTEXT_ASSEMBLE: "history",
    common.HOOK_POINT_PRE_MODEL_CALL: "messages",
}
"""The one field of a point's payload that a transform may change."""


def answer_of(
    mode: common.HookMode.ValueType,
    point: common.HookPoint.ValueType,
    said: bytes,
    payload: Mapping[str, object],
) -> Answer:
    """The answer of a subscriber that was told `payload`. Raises SubscriberFailed `nonsense`."""
    match mode:
        case common.HOOK_MODE_TRANSFORM:
            return _transformed(point, _object(said), payload)
        case common.HOOK_MODE_VETO:
            return _verdict(_object(said))
        case _:
            return Observed()


def check_messages(point: common.HookPoint.ValueType, payload: Mapping[str, object]) -> None:
    """What a transform made of the messages must be a history that vendors take. Raises SubscriberFailed `nonsense`."""
    field = CHANGEABLE[point]
    try:
        messages = [
            HistoryMessage(
                role=str(entry["role"]),
                blocks=tuple(message_from_json(common.ContentBlock, block) for block in entry["blocks"]),
            )
            for entry in cast(Sequence[Mapping[str, Sequence[Mapping[str, object]]]], payload[field])
        ]
    except (KeyError, TypeError, JsonFormError) as wrong:
        raise _nonsense(f"its {field} is no list of messages: {wrong!r}") from wrong
    if fault := pairing.fault(messages):
        raise _nonsense(f"its {field} is nothing that a model takes: {fault}")


def _object(said: bytes) -> Mapping[str, object]:
    try:
        found = json.loads(said.decode("utf-8"), parse_constant=_no_number)
    except UnicodeDecodeError as error:
        raise _nonsense(f"its answer is not UTF-8: {error.reason} at byte {error.start}") from error
    except (ValueError, RecursionError) as error:
        raise _nonsense(f"its answer is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise _nonsense(f"expected a JSON object, found {_kind(found)}")
    return cast(Mapping[str, object], found)


def _transformed(
    point: common.HookPoint.ValueType, said: Mapping[str, object], payload: Mapping[str, object]
) -> Transformed:
    field = CHANGEABLE[point]
    after = said.get("payload")
    if not isinstance(after, dict):
        raise _nonsense(f'expected {{"payload": {{"{field}": [...]}}}}, found {_kind(after)} as the payload')
    if not isinstance(after.get(field), list):
        raise _nonsense(f"expected a list as {field}, found {_kind(after.get(field))}")
    for name, value in after.items():
        if name != field and (name not in payload or payload[name] != value):
            raise _nonsense(f"it changed {name}; here a transform may change {field} alone")
    return Transformed({**payload, field: after[field]})


def _verdict(said: Mapping[str, object]) -> Verdict:
    allow, reason, denied = said.get("allow"), said.get("reason", ""), said.get("denied_call_ids", [])
    if not isinstance(allow, bool):
        raise _nonsense(f"expected true or false as allow, found {_kind(allow)}")
    if not isinstance(reason, str):
        raise _nonsense(f"expected text as reason, found {_kind(reason)}")
    if not isinstance(denied, list) or not all(isinstance(each, str) for each in denied):
        raise _nonsense("expected a list of call ids as denied_call_ids")
    if allow and denied:
        raise _nonsense("it allows, and names calls that it denies")
    return Verdict(allow, reason, tuple(cast(Sequence[str], denied)))


def _no_number(text: str) -> object:
    raise ValueError(f"{text} is no number of JSON")


def _kind(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
        case _:
            return "an object"


def _nonsense(message: str) -> SubscriberFailed:
    return SubscriberFailed("nonsense", message)
