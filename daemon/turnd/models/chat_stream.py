"""Chunks of a streamed Chat Completion as canonical events, whatever dialect its server speaks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, cast

from turnd.models.chat_usage import token_counts
from turnd.ports import (
    Stop,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolCallDone,
    ToolCallStart,
    UsageReport,
)
from turnd.v1 import common_pb2 as common

_STOP_REASONS: Final[Mapping[str, common.StopReason.ValueType]] = {
    "stop": common.STOP_REASON_END_TURN,
    "length": common.STOP_REASON_MAX_TOKENS,
    "tool_calls": common.STOP_REASON_TOOL_USE,
    "function_call": common.STOP_REASON_TOOL_USE,
    "content_filter": common.STOP_REASON_CONTENT_FILTERED,
}
_NO_INDEX = -1


class ChatFormError(Exception):
    """A stream is not what Chat Completions look like, or ended before it was complete."""


@dataclass(slots=True)
class _Call:
    key: int
    vendor_id: str
    name: str
    pieces: list[str] = field(default_factory=list)
    """Its arguments so far."""


class ChatStream:
    """Translates one stream. Feed it each chunk as decoded JSON, then ask for its end."""

    def __init__(self) -> None:
        # The mutable state: calls in the order of their start, and the last one of each index.
        self._calls: list[_Call] = []
        self._at_index: dict[int, _Call] = {}
        self._chunks = 0
        self._finish = ""
        self._refused = False
        self._counted = False

    @property
    def complete(self) -> bool:
        """The finish reason and the usage after it have come: nothing that matters can follow."""
        return bool(self._finish) and self._counted

    def feed(self, chunk: object) -> Iterator[StreamEvent]:
        """The events of one chunk. Raises ChatFormError."""
        self._chunks += 1
        values = _object(chunk, "a chunk")
        for item in _list(values.get("choices"), "choices"):
            choice = _object(item, "a choice")
            if choice.get("index") in (None, 0):
                yield from self._choice(choice)
        tokens = token_counts(values.get("usage"))
        if tokens is not None:
            self._counted = bool(self._finish)
            yield UsageReport(tokens)

    def end(self) -> Iterator[StreamEvent]:
        """The events that end the message. Raises ChatFormError where the stream ended too early."""
        if not self._finish:
            raise ChatFormError(
                f"the stream ended after {self._chunks} chunks without a finish reason: the answer is cut"
            )
        for call in self._calls:
            if not call.name:
                raise ChatFormError("the stream holds a tool call without a name")
            yield ToolCallDone(call.key)
        yield Stop(self._stop_reason(), self._finish)

    def _stop_reason(self) -> common.StopReason.ValueType:
        if self._refused:
            return common.STOP_REASON_REFUSAL
        reason = _STOP_REASONS.get(self._finish, common.STOP_REASON_UNKNOWN)
        if reason == common.STOP_REASON_END_TURN and self._calls:
            return common.STOP_REASON_TOOL_USE
        return reason

    def _choice(self, choice: Mapping[str, object]) -> Iterator[StreamEvent]:
        delta = choice.get("delta")
        if delta is not None:
            yield from self._delta(_object(delta, "a delta"))
        finish = choice.get("finish_reason")
        if finish is not None:
            self._finish = _text(finish, "finish_reason")

    def _delta(self, delta: Mapping[str, object]) -> Iterator[StreamEvent]:
        # Some servers send both names with the same text.
        thinking = delta.get("reasoning_content") or delta.get("reasoning")
        if isinstance(thinking, str) and thinking:
            yield ThinkingDelta(thinking)
        content = _text(delta.get("content"), "content")
        if content:
            yield TextDelta(content)
        refusal = _text(delta.get("refusal"), "refusal")
        if refusal:
            self._refused = True
            yield TextDelta(refusal)
        for item in _list(delta.get("tool_calls"), "tool_calls"):
            yield from self._tool_call(_object(item, "a tool call"))

    def _tool_call(self, item: Mapping[str, object]) -> Iterator[StreamEvent]:
        function = _object(item.get("function") or {}, "a function")
        name = _text(function.get("name"), "a function's name")
        vendor_id = _text(item.get("id"), "a tool call's id")
        arguments = _arguments(function.get("arguments"))
        index = item.get("index")
        slot = index if isinstance(index, int) else _NO_INDEX
        call = self._continued(slot, vendor_id, name, arguments)
        if call is None:
            call = _Call(key=len(self._calls), vendor_id=vendor_id, name=name)
            self._calls.append(call)
            self._at_index[slot] = call
            started = bool(name)
        else:
            started = bool(name) and not call.name
            call.name = call.name or name
            call.vendor_id = call.vendor_id or vendor_id
        call.pieces.append(arguments)
        if started:
            yield ToolCallStart(call.key, call.vendor_id, call.name)
            arguments = "".join(call.pieces)
        if call.name and arguments:
            yield ToolCallDelta(call.key, arguments)

    def _continued(self, slot: int, vendor_id: str, name: str, arguments: str) -> _Call | None:
        """The call that a delta goes on with; None where it begins one.

        Servers leave out indexes or give every call the same, repeat a call's id and name in each delta, or
        give no ids: only what contradicts the call of that index begins another.
        """
        call = self._at_index.get(slot)
        if call is None or not name or not call.name:
            return call
        another = (
            (bool(vendor_id) and bool(call.vendor_id) and vendor_id != call.vendor_id)
            or name != call.name
            or (bool(arguments.strip()) and _is_whole("".join(call.pieces)))
        )
        return None if another else call


def _is_whole(arguments: str) -> bool:
    try:
        json.loads(arguments)
    except (ValueError, RecursionError):
        return False
    return True


def _arguments(value: object) -> str:
    """Arguments are a text; some servers send the object itself."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else _text(value, "arguments")


def _object(value: object, what: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise ChatFormError(f"{what} must be an object, got {type(value).__name__}")
    return cast(Mapping[str, object], value)


def _list(value: object, what: str) -> list[object]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ChatFormError(f"{what} must be a list, got {type(value).__name__}")
    return cast(list[object], value)


def _text(value: object, what: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ChatFormError(f"{what} must be a text, got {type(value).__name__}")
    return value
