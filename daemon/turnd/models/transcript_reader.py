"""Reads the replay format of models.md: JSON Lines, checked as a whole before anything is played."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Final, cast

from turnd.models.json_object import FormError, JsonObject
from turnd.models.pricing import FREE, PricingError, pricing_of
from turnd.models.transcript import (
    DEFAULT_CONTEXT_WINDOW,
    DEFAULT_MAX_OUTPUT_TOKENS,
    Block,
    Completion,
    Expectation,
    Failure,
    Row,
    TextBlock,
    ThinkingBlock,
    ToolBlock,
    Transcript,
)
from turnd.rules.price import Pricing
from turnd.v1 import common_pb2 as common

_MODEL_KEYS = ("context_window", "max_output_tokens", "parallel_tool_calls", "pricing")
_COMPLETION_KEYS = (
    "stream",
    "chunk",
    "delay_s",
    "usage",
    "stop",
    "error",
    "hang_s",
    "expect",
    "repeat",
    "profile",
    "purpose",
)
_BLOCK_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "text": ("text",),
    "thinking": ("thinking", "signature"),
    "tool": ("tool", "input", "arguments", "id"),
}
_USAGE_KEYS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")
_ERROR_KEYS = ("category", "message", "retry_after_s", "after_deltas")
_EXPECT_KEYS = ("tools", "tools_include", "tools_exclude", "last_contains", "messages")
_PURPOSES: Final = {
    "compaction": common.REQUEST_PURPOSE_COMPACTION,
    "title": common.REQUEST_PURPOSE_TITLE,
    "doom_check": common.REQUEST_PURPOSE_DOOM_CHECK,
}
_CATEGORIES: Final = {
    name.removeprefix("MODEL_ERROR_CATEGORY_").lower(): number
    for name, number in common.ModelErrorCategory.items()
    if number != common.MODEL_ERROR_CATEGORY_UNSPECIFIED
}
_STOP_REASONS: Final = {
    name.removeprefix("STOP_REASON_").lower(): number
    for name, number in common.StopReason.items()
    if number != common.STOP_REASON_UNSPECIFIED
}


class TranscriptError(ValueError):
    """A transcript breaks its format; the text names the line and the key."""


def parse_transcript(data: bytes) -> Transcript:
    """Reads a transcript. Raises TranscriptError."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as wrong:
        line = data.count(b"\n", 0, wrong.start) + 1
        raise TranscriptError(f"line {line}: not valid UTF-8: {wrong.reason}") from None
    transcript = Transcript()
    rows: dict[Row, list[Completion]] = {}
    first = True
    # Not splitlines(): it also cuts at characters that JSON allows inside of a string.
    for number, written in enumerate(text.split("\n"), start=1):
        if not written.strip():
            continue
        try:
            value = _read_json(written)
            if isinstance(value, dict) and "model" in value:
                if not first:
                    raise FormError("model: only the first line may describe the model")
                transcript = _model(json.loads(written, parse_float=Decimal))
            else:
                row, completion = _completion(value, number)
                rows.setdefault(row, []).append(completion)
        except (FormError, PricingError) as wrong:
            raise TranscriptError(f"line {number}: {wrong}") from None
        first = False
    if not rows:
        raise TranscriptError("there is no completion in it")
    return Transcript(
        context_window=transcript.context_window,
        max_output_tokens=transcript.max_output_tokens,
        parallel_tool_calls=transcript.parallel_tool_calls,
        pricing=transcript.pricing,
        rows={row: tuple(completions) for row, completions in rows.items()},
    )


def _read_json(line: str) -> object:
    try:
        return cast(
            object,
            json.loads(
                line, object_pairs_hook=_without_duplicates, parse_constant=_no_number, parse_float=_finite
            ),
        )
    except json.JSONDecodeError as wrong:
        raise FormError(f"not valid JSON: {wrong.msg} at column {wrong.colno}") from None
    except FormError:
        raise
    except ValueError as wrong:
        raise FormError(f"not valid JSON: {wrong}") from None
    except RecursionError:
        raise FormError("nested too deeply") from None


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values: dict[str, object] = {}
    for key, value in pairs:
        if key in values:
            raise FormError(f"{key}: given twice")
        values[key] = value
    return values


def _no_number(name: str) -> float:
    raise FormError(f"not valid JSON: {name} is no number")


def _finite(written: str) -> float:
    number = float(written)
    if not math.isfinite(number):
        raise FormError(f"the number {written} is too large; integers have no such limit")
    return number


def _model(value: object) -> Transcript:
    model = JsonObject(JsonObject(value, "", ("model",)).raw("model"), "model", _MODEL_KEYS)
    window = model.whole("context_window", 1) if "context_window" in model else DEFAULT_CONTEXT_WINDOW
    output = (
        model.whole("max_output_tokens", 1)
        if "max_output_tokens" in model
        else max(1, min(DEFAULT_MAX_OUTPUT_TOKENS, window // 4))
    )
    if output > window:
        raise model.wrong("max_output_tokens", f"at most the context_window of {window}")
    return Transcript(
        context_window=window,
        max_output_tokens=output,
        parallel_tool_calls=model.flag("parallel_tool_calls") if "parallel_tool_calls" in model else True,
        pricing=_pricing(model) if "pricing" in model else FREE,
    )


def _pricing(model: JsonObject) -> Pricing:
    table = model.raw("pricing")
    if not isinstance(table, dict):
        raise model.wrong("pricing", "an object")
    try:
        return pricing_of(cast(Mapping[str, object], table))
    except PricingError as wrong:
        raise FormError(f"{model.named('pricing')}: {wrong}") from None


def _completion(value: object, number: int) -> tuple[Row, Completion]:
    line = JsonObject(value, "", _COMPLETION_KEYS)
    if not any(key in line for key in ("stream", "error", "hang_s")):
        raise FormError("stream: missing; a completion needs stream, error or hang_s")
    blocks = tuple(
        _block(item, f"stream[{index}]")
        for index, item in enumerate(line.items("stream") if "stream" in line else [])
    )
    stop, vendor_stop = _stop(line, blocks)
    row = Row(
        purpose=_purpose(line) if "purpose" in line else common.REQUEST_PURPOSE_STEP,
        profile=line.text("profile") if "profile" in line else None,
    )
    return row, Completion(
        line=number,
        blocks=blocks,
        stop=stop,
        vendor_stop=vendor_stop,
        chunk=line.whole("chunk", 1) if "chunk" in line else None,
        delay_s=line.seconds("delay_s") if "delay_s" in line else 0.0,
        hang_s=line.seconds("hang_s") if "hang_s" in line else 0.0,
        tokens=_tokens(line.raw("usage")) if "usage" in line else None,
        failure=_failure(line.raw("error")) if "error" in line else None,
        expect=_expectation(line.raw("expect")) if "expect" in line else None,
        repeat=line.flag("repeat") if "repeat" in line else False,
    )


def _block(value: object, where: str) -> Block:
    kinds = [kind for kind in _BLOCK_KEYS if isinstance(value, dict) and kind in value]
    if len(kinds) != 1:
        raise FormError(f"{where} must be an object with one of text, thinking or tool")
    block = JsonObject(value, where, _BLOCK_KEYS[kinds[0]])
    match kinds[0]:
        case "text":
            return TextBlock(block.text("text"))
        case "thinking":
            signature = block.text("signature") if "signature" in block else ""
            return ThinkingBlock(block.text("thinking"), signature.encode("utf-8", "surrogatepass"))
        case _:
            return _tool(block)


def _tool(block: JsonObject) -> ToolBlock:
    if not block.text("tool"):
        raise block.wrong("tool", "a name")
    if ("input" in block) == ("arguments" in block):
        raise FormError(f"{block.named('tool')} needs either input or arguments")
    arguments = (
        block.text("arguments")
        if "arguments" in block
        else json.dumps(block.raw("input"), ensure_ascii=False, separators=(",", ":"))
    )
    return ToolBlock(block.text("tool"), arguments, block.text("id") if "id" in block else None)


def _stop(line: JsonObject, blocks: tuple[Block, ...]) -> tuple[common.StopReason.ValueType, str]:
    """A reason that is not known here arrives as a vendor's own would."""
    if "stop" in line:
        written = line.text("stop")
        known = _STOP_REASONS.get(written)
        return (common.STOP_REASON_UNKNOWN, written) if known is None else (known, "")
    if any(isinstance(block, ToolBlock) for block in blocks):
        return common.STOP_REASON_TOOL_USE, ""
    return common.STOP_REASON_END_TURN, ""


def _purpose(line: JsonObject) -> common.RequestPurpose.ValueType:
    purpose = _PURPOSES.get(line.text("purpose"))
    if purpose is None:
        raise line.wrong("purpose", f"one of {', '.join(_PURPOSES)}")
    return purpose


def _tokens(value: object) -> common.TokenCounts:
    usage = JsonObject(value, "usage", _USAGE_KEYS)
    for key in _USAGE_KEYS[:2]:
        if key not in usage:
            raise FormError(f"{usage.named(key)} is missing")
    counts = {key: usage.whole(key, 0) if key in usage else 0 for key in _USAGE_KEYS}
    return common.TokenCounts(**counts)


def _failure(value: object) -> Failure:
    error = JsonObject(value, "error", _ERROR_KEYS)
    if "category" not in error:
        raise FormError(f"{error.named('category')} is missing")
    category = _CATEGORIES.get(error.text("category"))
    if category is None:
        raise error.wrong("category", f"one of {', '.join(_CATEGORIES)}")
    message = error.text("message") if "message" in error else f"the transcript says {error.text('category')}"
    failure = common.ModelError(
        category=category, message=message.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    )
    if "retry_after_s" in error:
        failure.retry_after_ms = math.ceil(error.seconds("retry_after_s") * 1000)
    return Failure(failure, error.whole("after_deltas", 0) if "after_deltas" in error else 0)


def _expectation(value: object) -> Expectation:
    expect = JsonObject(value, "expect", _EXPECT_KEYS)
    return Expectation(
        tools=expect.flag("tools") if "tools" in expect else None,
        tools_include=expect.texts("tools_include") if "tools_include" in expect else (),
        tools_exclude=expect.texts("tools_exclude") if "tools_exclude" in expect else (),
        last_contains=expect.text("last_contains") if "last_contains" in expect else None,
        messages=expect.whole("messages", 0) if "messages" in expect else None,
    )
