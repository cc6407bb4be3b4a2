"""The model that plays a transcript: what a vendor would stream, without a vendor (MODEL-11).

It keeps no place of its own: the number of a request comes from the session's log, so a restart goes on
where it was.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator

from turnd.models.invalid import invalid_request
from turnd.models.replay_expect import mismatches, named
from turnd.models.transcript import Completion, Row, TextBlock, ThinkingBlock, ToolBlock, Transcript
from turnd.ports import (
    Clock,
    ModelFailure,
    ModelRequest,
    ModelSpec,
    Stop,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ThinkingSignature,
    ToolCallDelta,
    ToolCallDone,
    ToolCallStart,
    UsageReport,
    WireTool,
)
from turnd.rules.price import PriceTier
from turnd.v1 import common_pb2 as common


class ReplayModel:
    """One transcript as a model. It takes every block, since it reads none."""

    def __init__(self, path: str, transcript: Transcript, clock: Clock) -> None:
        self._path = path
        self._transcript = transcript
        self._clock = clock
        self._spec = ModelSpec(
            id=f"replay:{path}",
            context_window=transcript.context_window,
            max_output_tokens=transcript.max_output_tokens,
            parallel_tool_calls=transcript.parallel_tool_calls,
            vision=True,
            documents=True,
            thinking=True,
        )

    @property
    def spec(self) -> ModelSpec:
        """As the transcript's first line describes it."""
        return self._spec

    async def prepare(self) -> None:
        """It is ready when it is opened."""

    def price(self, at_us: int, tokens: common.TokenCounts) -> PriceTier | None:
        """The tier of the transcript for this time and size; free where it states no price."""
        return self._transcript.pricing.match(at_us, tokens)

    def answers(self, purpose: common.RequestPurpose.ValueType, profile: str | None) -> bool:
        """Only where the transcript has lines for it: most are written without a thought of titles and summaries."""
        return Row(purpose, profile) in self._transcript.rows

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent, None]:
        """Plays the line that answers this request.

        Raises ModelFailure: the one that the line asks for, or `invalid_request` where the transcript is used
        up or the request is not what the line expects.
        """
        completion = self._pick(request)
        if completion.expect is not None and (wrong := mismatches(completion.expect, request)):
            raise invalid_request(
                f"{self._path} line {completion.line}: the request is not as expected: {'; '.join(wrong)}"
            )
        failure = completion.failure
        deltas_left = None if failure is None else failure.after_deltas
        events = self._events(completion, request)
        while deltas_left != 0 and (event := next(events, None)) is not None:
            if isinstance(event, TextDelta | ThinkingDelta | ToolCallDelta):
                if completion.delay_s:
                    await self._clock.sleep(completion.delay_s)
                deltas_left = None if deltas_left is None else deltas_left - 1
            yield event
        if completion.hang_s:
            await self._clock.sleep(completion.hang_s)
        if completion.tokens is not None:
            yield UsageReport(completion.tokens)
        if failure is not None:
            raise ModelFailure(failure.error)
        yield Stop(completion.stop, completion.vendor_stop)

    def _pick(self, request: ModelRequest) -> Completion:
        row = Row(request.purpose, request.profile if request.depth > 0 else None)
        completion = self._transcript.pick(row, request.number)
        if completion is not None:
            return completion
        lines = len(self._transcript.rows.get(row, ()))
        if not lines:
            raise invalid_request(f"{self._path} has no line for {row}")
        raise invalid_request(
            f"{self._path} is used up: it has {lines} {'line' if lines == 1 else 'lines'} for {row}, and "
            f'this is request {request.number + 1}; add a line, or "repeat": true to the last'
        )

    def _events(self, completion: Completion, request: ModelRequest) -> Iterator[StreamEvent]:
        for index, block in enumerate(completion.blocks):
            match block:
                case TextBlock(text):
                    yield from (TextDelta(piece) for piece in _pieces(text, completion.chunk))
                case ThinkingBlock(thinking, signature):
                    yield from (ThinkingDelta(piece) for piece in _pieces(thinking, completion.chunk))
                    if signature:
                        yield ThinkingSignature(signature)
                case ToolBlock(tool, arguments, vendor_id):
                    call_id = f"replay_{request.number}_{index}" if vendor_id is None else vendor_id
                    yield ToolCallStart(index, call_id, self._wire_name(tool, request.tools, completion.line))
                    yield from (ToolCallDelta(index, piece) for piece in _pieces(arguments, completion.chunk))
                    yield ToolCallDone(index)

    def _wire_name(self, written: str, offered: tuple[WireTool, ...], line: int) -> str:
        """The name under which the request offers a tool; one that it does not offer keeps its plain name."""
        meant = [tool for tool in offered if named(tool, written)]
        if len(meant) > 1:
            which = ", ".join(f"{tool.provider}.{tool.tool}" for tool in meant)
            raise invalid_request(
                f"{self._path} line {line}: tool {written!r} may be any of {which}: write which one"
            )
        if meant:
            return meant[0].wire_name
        plain = written.rpartition(".")[2] or written
        taken = any(plain == tool.wire_name for tool in offered)
        return written if taken else plain


def _pieces(text: str, size: int | None) -> list[str]:
    """The text in deltas of so many characters; an empty text is one empty delta."""
    if size is None or not text:
        return [text]
    return [text[start : start + size] for start in range(0, len(text), size)]
