"""Model requests beside the Steps: for summaries and titles. What they say is not part of the conversation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from turnd.loop import ledger
from turnd.loop.run import Run
from turnd.ports import (
    Message,
    Model,
    ModelFailure,
    ModelRequest,
    Stop,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    UsageReport,
)
from turnd.rules.assemble import Assembler
from turnd.v1 import common_pb2 as common
from turnd.v1.jsonform import enum_text

MAX_ANSWER_BYTES = 256 * 1024
"""No summary comes near it."""


@dataclass(frozen=True, slots=True)
class Aside:
    """What is asked."""

    purpose: common.RequestPurpose.ValueType
    system: str
    question: Message
    max_output_tokens: int


@dataclass(frozen=True, slots=True)
class Said:
    """What was answered."""

    text: str
    cut: bool
    """The model did not come to its end."""


async def ask(run: Run, model: Model, aside: Aside) -> Said:
    """One attempt. The log has the request and its usage with their purpose, the answer is the caller's.

    Raises ModelFailure, LogFailed, Violation. Cancelled, it books what was received first (BOUND-14).
    """
    view = run.view
    request = ModelRequest(
        session=run.session,
        purpose=aside.purpose,
        number=0,
        depth=view.depth,
        profile=view.profile.name,
        system=aside.system,
        messages=(aside.question,),
        tools=(),
        tools_withheld=False,
        parameters={"max_output_tokens": min(aside.max_output_tokens, model.spec.max_output_tokens)},
    )
    await run.append(ledger.agent_request(model.spec.id, request))
    number = run.view.requests_made[aside.purpose] - 1
    listening = _Listening(run, model, replace(request, number=number))
    attributes: dict[str, str | int | float | bool] = {
        "gen_ai.request.model": model.spec.id,
        "gen_ai.conversation.id": run.session,
        "turnd.purpose": enum_text(common.RequestPurpose, aside.purpose),
    }
    with run.world.trace.span("turnd.aside", attributes):
        return await listening.said()


class _Listening:
    """The mutable state is what has arrived of the answer."""

    def __init__(self, run: Run, model: Model, request: ModelRequest) -> None:
        self._run = run
        self._model = model
        self._request = request
        self._assembler = Assembler()
        self._bytes = 0
        self._reasoning_bytes = 0
        self._tokens: common.TokenCounts | None = None
        self._began = False

    async def said(self) -> Said:
        try:
            await self._listen()
        except ModelFailure:
            if self._began:
                await self._book()
            raise
        except asyncio.CancelledError:
            await self._book()
            raise
        await self._book()
        message = self._assembler.message()
        text = "".join(block.text.text for block in message.blocks if block.HasField("text"))
        return Said(text.strip(), cut=message.stop_reason == common.STOP_REASON_MAX_TOKENS)

    async def _listen(self) -> None:
        stream = self._model.stream(self._request)
        try:
            while not self._take(await _next(stream, self._run.settings.stream_idle_s)):
                pass
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()

    def _take(self, event: StreamEvent) -> bool:
        """True if it was the last. Only text is kept: nothing else was asked for."""
        self._began = True
        match event:
            case TextDelta(text):
                self._bytes += len(text.encode(errors="surrogatepass"))
                if self._bytes > MAX_ANSWER_BYTES:
                    raise _failure(
                        common.MODEL_ERROR_CATEGORY_UNKNOWN,
                        f"the answer is longer than {MAX_ANSWER_BYTES} bytes",
                    )
                self._assembler.text(text)
            case ThinkingDelta(text):
                self._reasoning_bytes += len(text.encode(errors="surrogatepass"))
            case UsageReport(tokens):
                self._tokens = tokens
            case Stop(reason, vendor_reason):
                self._assembler.stop(reason, vendor_reason)
                return True
            case _:
                pass
        return False

    async def _book(self) -> None:
        await self._run.append(
            ledger.usage(
                self._run,
                self._model,
                self._request,
                1,
                self._tokens,
                self._bytes,
                self._reasoning_bytes,
            )
        )


async def _next(stream: AsyncIterator[StreamEvent], idle_s: float) -> StreamEvent:
    try:
        async with asyncio.timeout(idle_s):
            return await anext(stream)
    except TimeoutError:
        why = f"the stream was silent for {idle_s:g} s"
    except StopAsyncIteration:
        why = "the stream ended without saying that it was complete"
    raise _failure(common.MODEL_ERROR_CATEGORY_STREAM_BROKEN, why)


def _failure(category: common.ModelErrorCategory.ValueType, message: str) -> ModelFailure:
    return ModelFailure(common.ModelError(category=category, message=message))
