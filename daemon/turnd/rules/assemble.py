"""The one place where a model's stream becomes a message (MODEL-02, MODEL-13, MODEL-14).

Whatever the pieces in which a stream arrives, the message is the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from turnd.rules import canon
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_PAIR: Final = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_HIGH_AT_END: Final = re.compile("[\ud800-\udbff]\\Z")
# Every escape of a JSON string as a unit, so that an escaped backslash never looks like the start of one.
_ESCAPE: Final = re.compile(
    r"(?P<pair>\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|(?P<lone>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
    r"|\\.",
    re.DOTALL,
)
_STRUCTURE: Final = re.compile(r'(?P<string>"(?:[^"\\]++|\\.)*+(?P<closed>")?)|[\[\]{}]', re.DOTALL)


@dataclass(frozen=True, slots=True)
class AssembledCall:
    """A tool call as the model wrote it."""

    block: int
    """Index of its block in the message."""
    vendor_call_id: str
    """The vendor's id; vendors repeat them, and leave them empty."""
    wire_name: str
    input: bytes
    """The arguments as the model wrote them, where they are complete and JSON (nothing at all counts as
    `{}`); else empty.
    """
    raw_arguments: str
    """The arguments as the model wrote them, where `input` is empty."""
    truncated: bool
    """Cut off, or of a message that was: never run, never repaired (MODEL-13)."""
    cleaned: bool
    """Characters that are not valid Unicode were replaced."""


@dataclass(frozen=True, slots=True)
class AssembledMessage:
    """What a stream came to. Its tool_use blocks have no call id and no tool yet: `bound` gives them
    theirs.
    """

    blocks: tuple[common.ContentBlock, ...]
    calls: tuple[AssembledCall, ...]
    """In declaration order."""
    stop_reason: common.StopReason.ValueType
    vendor_stop_reason: str
    at_output_limit: bool
    """The model was stopped by its output limit, whatever the stop reason claims: none of the calls may
    run.
    """

    @property
    def empty(self) -> bool:
        """Neither a tool call nor a visible character: an answer that is no answer, and is never stored."""
        return not self.calls and not any(block.text.text.strip() for block in self.blocks)

    def bound(
        self, identify: Callable[[AssembledCall], tuple[str, str, str]]
    ) -> tuple[common.ContentBlock, ...]:
        """The blocks with the call id, provider and tool that `identify` gives for each call, in their
        order.
        """
        blocks = list(self.blocks)
        for call in self.calls:
            block = common.ContentBlock()
            block.CopyFrom(blocks[call.block])
            use = block.tool_use
            use.call_id, use.provider, use.tool = identify(call)
            blocks[call.block] = block
        return tuple(blocks)


class StreamUnfinished(Exception):
    """The stream has ended without a stop: it is broken, and what came of it is `partial`."""


class Assembler:
    """Puts one attempt's stream together. Each method takes one event of it.

    What it gives is the delta to be shown, if there is one. The deltas of a block, put together, are its
    text, but for half a character at its end whose other half never came: the message has a replacement
    for that.
    """

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._call_of: dict[int, int] = {}
        self._stop: tuple[common.StopReason.ValueType, str] | None = None

    @property
    def stopped(self) -> bool:
        """Whether the stream has said that it is complete."""
        return self._stop is not None

    def text(self, piece: str) -> event_pb2.Delta | None:
        """A piece of the answer."""
        return self._prose(piece, thinking=False)

    def thinking(self, piece: str) -> event_pb2.Delta | None:
        """A piece of reasoning."""
        return self._prose(piece, thinking=True)

    def signature(self, token: bytes) -> None:
        """The vendor's token for the reasoning so far, whole; reasoning after it is another block."""
        last = self._blocks[-1] if self._blocks else None
        if isinstance(last, _Prose) and last.thinking and not last.signature:
            last.signature = token
        else:
            self._blocks.append(_Prose(thinking=True, signature=token))

    def redacted(self, token: bytes) -> None:
        """Reasoning that the vendor hides, whole."""
        self._blocks.append(_Redacted(token))

    def tool_start(self, key: int, vendor_call_id: str, wire_name: str) -> event_pb2.Delta:
        """A call begins. A key that was in use is the new call's from now on."""
        call = _Call(_clean(vendor_call_id), _clean(wire_name))
        self._call_of[key] = len(self._blocks)
        self._blocks.append(call)
        return event_pb2.Delta(
            index=self._call_of[key], tool_call=event_pb2.ToolCallDelta(wire_name=call.wire_name)
        )

    def tool_arguments(self, key: int, piece: str) -> event_pb2.Delta | None:
        """A piece of a call's arguments. Those of a call that has not begun make one without a name."""
        if key not in self._call_of:
            self.tool_start(key, "", "")
        shown = self._call(key).arguments.add(piece)
        if not shown:
            return None
        return event_pb2.Delta(index=self._call_of[key], tool_call=event_pb2.ToolCallDelta(arguments=shown))

    def tool_done(self, key: int) -> None:
        """The call's arguments are complete."""
        if key in self._call_of:
            self._call(key).done = True

    def stop(self, reason: common.StopReason.ValueType, vendor_reason: str = "") -> None:
        """The stream is complete."""
        self._stop = (reason, _clean(vendor_reason))

    def message(self, *, output_at_limit: bool = False) -> AssembledMessage:
        """The message of a complete stream. Raises StreamUnfinished before the stop.

        `output_at_limit` says that the output tokens of the usage have reached the most that was asked
        for, which cuts calls off whatever the stop reason claims.
        """
        if self._stop is None:
            raise StreamUnfinished("expected a stop at the end of the stream, found none")
        reason, vendor_reason = self._stop
        cut = reason == common.STOP_REASON_MAX_TOKENS or (output_at_limit and bool(self._call_of))
        calls = tuple(
            _assembled(index, block, cut)
            for index, block in enumerate(self._blocks)
            if isinstance(block, _Call)
        )
        of_block = {call.block: call for call in calls}
        blocks = tuple(
            _prose_content(block) if not isinstance(block, _Call) else _call_content(of_block[index])
            for index, block in enumerate(self._blocks)
        )
        return AssembledMessage(blocks, calls, reason, vendor_reason, cut)

    def partial(self) -> AssembledMessage:
        """What has arrived of a stream that was cut: without its tool calls, which never run."""
        blocks = tuple(_prose_content(block) for block in self._blocks if not isinstance(block, _Call))
        return AssembledMessage(blocks, (), common.STOP_REASON_CANCELLED, "", at_output_limit=False)

    def _prose(self, piece: str, *, thinking: bool) -> event_pb2.Delta | None:
        if not piece:
            return None
        last = self._blocks[-1] if self._blocks else None
        if not isinstance(last, _Prose) or last.thinking is not thinking or last.signature:
            last = _Prose(thinking)
            self._blocks.append(last)
        shown = last.text.add(piece)
        if not shown:
            return None
        index = len(self._blocks) - 1
        return (
            event_pb2.Delta(index=index, thinking=shown)
            if thinking
            else event_pb2.Delta(index=index, text=shown)
        )

    def _call(self, key: int) -> _Call:
        call = self._blocks[self._call_of[key]]
        assert isinstance(call, _Call), "keys are of calls only"
        return call


class _Text:
    """A text whose pieces may be cut between the two halves of a character."""

    __slots__ = ("_half", "_pieces", "cleaned")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._half = ""
        self.cleaned = False

    def add(self, piece: str) -> str:
        """Takes a piece, and gives what is certain of the text since the last one."""
        piece = _PAIR.sub(_joined, self._half + piece)
        cut = _HIGH_AT_END.search(piece)
        self._half = cut.group() if cut else ""
        certain = piece[: cut.start()] if cut else piece
        clean = _clean(certain)
        self.cleaned = self.cleaned or clean != certain
        self._pieces.append(clean)
        return clean

    def end(self) -> str:
        """The whole text; half a character at its end is replaced."""
        if self._half:
            self._half, self.cleaned = "", True
            self._pieces.append(REPLACEMENT)
        return "".join(self._pieces)


@dataclass(slots=True)
class _Prose:
    thinking: bool
    text: _Text = field(default_factory=_Text)
    signature: bytes = b""


@dataclass(slots=True)
class _Redacted:
    data: bytes


@dataclass(slots=True)
class _Call:
    vendor_call_id: str
    wire_name: str
    arguments: _Text = field(default_factory=_Text)
    done: bool = False


_Block = _Prose | _Redacted | _Call


def _assembled(index: int, block: _Call, cut: bool) -> AssembledCall:
    raw = block.arguments.end()
    # A lone surrogate may also hide behind an escape, which is JSON and kills whoever decodes it.
    text = _ESCAPE.sub(lambda found: r"\ufffd" if found["lone"] else found.group(), raw)
    data = text.encode() if text.strip() else b"{}"
    # What never ended is not taken for whole, however it reads: it might run.
    valid = block.done and canon.is_json(data)
    return AssembledCall(
        block=index,
        vendor_call_id=block.vendor_call_id,
        wire_name=block.wire_name,
        input=data if valid else b"",
        raw_arguments="" if valid else raw,
        truncated=cut or not block.done or (not valid and _unbalanced(text)),
        cleaned=block.arguments.cleaned or text != raw,
    )


def _unbalanced(text: str) -> bool:
    """Whether a string, an array or an object is still open at the end."""
    open_brackets: list[str] = []
    for found in _STRUCTURE.finditer(text):
        match found.group():
            case "[" | "{" as bracket:
                open_brackets.append(bracket)
            case "]" | "}" as bracket:
                if not open_brackets or open_brackets.pop() + bracket not in ("[]", "{}"):
                    return False  # wrong in itself, wherever it was cut
            case _:
                if not found["closed"]:
                    return True
    return bool(open_brackets)


def _prose_content(block: _Prose | _Redacted) -> common.ContentBlock:
    if isinstance(block, _Redacted):
        return common.ContentBlock(redacted_thinking=common.RedactedThinkingBlock(data=block.data))
    whole, cleaned = block.text.end(), block.text.cleaned
    if block.thinking:
        return common.ContentBlock(
            thinking=common.ThinkingBlock(thinking=whole, signature=block.signature, cleaned=cleaned)
        )
    return common.ContentBlock(text=common.TextBlock(text=whole, cleaned=cleaned))


def _call_content(call: AssembledCall) -> common.ContentBlock:
    return common.ContentBlock(
        tool_use=common.ToolUseBlock(
            vendor_call_id=call.vendor_call_id,
            wire_name=call.wire_name,
            input=call.input,
            raw_arguments=call.raw_arguments,
        )
    )


def _clean(text: str) -> str:
    return _SURROGATE.sub(REPLACEMENT, text)


def _joined(pair: re.Match[str]) -> str:
    return pair.group().encode("utf-16-le", "surrogatepass").decode("utf-16-le")
