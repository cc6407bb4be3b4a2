"""Lines 3 and 4 of a Step: the model streams, and the stream becomes one canonical message.

A failed attempt is retried within its Step (LOOP-08); what it had streamed stays in the log only. Each attempt
that was begun is paid for, so each has its usage event (BOUND-05), estimated where the stream was cut (BOUND-14).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from turnd.loop import ledger
from turnd.loop.compact import shorten
from turnd.loop.context import Request, assemble_context, prepare_request
from turnd.loop.run import LimitFired, Run, StepFailed
from turnd.ports import (
    ModelFailure,
    RedactedThinking,
    Stop,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ThinkingSignature,
    ToolCallDelta,
    ToolCallDone,
    ToolCallStart,
    UsageReport,
)
from turnd.rules.assemble import AssembledCall, AssembledMessage, Assembler
from turnd.rules.backoff import Reaction, reaction
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2
from turnd.v1.jsonform import enum_text

COALESCE_S = 0.05
"""Deltas of this span become one assistant/chunk; a kill loses no more streamed text than this."""
COALESCE_BYTES = 4096
MAX_ANSWER_BYTES = 2 * 2**20
"""No model's output limit comes near it; what passes it is no answer, and would hold up every other session."""
CALL_BYTES = 256
"""What a call counts for beside its arguments: ids and names stand in the message, and in its own event."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What the model said, as it is in the log."""

    message: event_pb2.AssistantMessage
    usage: event_pb2.Usage
    """Of the attempt that it came from."""
    calls: tuple[event_pb2.ToolCall, ...]
    offered: frozenset[tuple[str, str]]
    """The tools that the request offered, by provider and name: no other one may be called."""
    cut_calls: frozenset[str]
    """Ids of calls whose arguments are not whole: they never run, whatever the stop reason claims (MODEL-13)."""
    truncated: bool
    """The output limit cut it: no call of it may run (MODEL-13)."""


async def complete(run: Run, request: Request, *, final: bool) -> Completion:
    """Streams the completion, retries what may be retried, and logs message and calls in one transaction.

    Raises StepFailed where the model cannot be had, LimitFired where a bound fired before a retry. Cancelled, it
    first logs what had arrived, marked partial and without its calls (LOOP-07).
    """
    ledger.refuse_unpriced(run)
    await run.append(_agent_request(request))
    attempt, empties, shortened = 1, 0, False
    while True:
        received = await _receive(run, request, attempt)
        if isinstance(received, _Received):
            if not received.message.empty:
                return await _log_message(run, request, received, attempt)
            empties += 1
            received = common.ModelError(
                category=common.MODEL_ERROR_CATEGORY_EMPTY_ANSWER,
                message=f"the model answered nothing, {empties} times in this step",
            )
        if reaction(received.category) is Reaction.COMPACT and not (shortened or final):
            request, shortened = await _shorter(run, received), True
            attempt += 1
            await run.append(_agent_request(request))
            continue
        delay_ms = None if final else _retry_delay_ms(run, received, attempt, empties)
        if delay_ms is None:
            raise StepFailed(_error_stop(run, received))
        await run.append(event_pb2.AgentRetry(attempt=attempt, error=received, delay_ms=delay_ms))
        await run.world.clock.sleep(delay_ms / 1000)
        if reached := run.limits_reached():
            raise LimitFired(reached)
        attempt += 1


async def _shorter(run: Run, refused: common.ModelError) -> Request:
    """The request made anew, lines 1 and 2 with their hooks, after a compaction: the vendor refused it as too long.

    Raises StepFailed where nothing could be left out.
    """
    if not await shorten(run):
        raise StepFailed(_error_stop(run, refused))
    if reached := run.limits_reached():
        raise LimitFired(reached)
    return await prepare_request(run, await assemble_context(run), final=False)


@dataclass(frozen=True, slots=True)
class _Received:
    message: AssembledMessage
    usage: event_pb2.Usage


async def _receive(run: Run, request: Request, attempt: int) -> _Received | common.ModelError:
    """One attempt: the message, or how it failed."""
    streaming = _Attempt(run, request, attempt)
    try:
        with run.meter.active(), run.world.trace.span("turnd.model", _span_attributes(run, attempt)) as span:
            received = await streaming.receive()
            span.set(
                {
                    "gen_ai.response.finish_reasons": enum_text(
                        common.StopReason, received.message.stop_reason
                    ),
                    "gen_ai.usage.input_tokens": received.usage.tokens.input_tokens,
                    "gen_ai.usage.output_tokens": received.usage.tokens.output_tokens,
                }
            )
            return received
    except ModelFailure as failed:
        return failed.error
    except asyncio.CancelledError:
        await streaming.settle_cancelled()
        raise


def _span_attributes(run: Run, attempt: int) -> dict[str, str | int | float | bool]:
    return {
        "gen_ai.request.model": run.model.spec.id,
        "gen_ai.conversation.id": run.session,
        "turnd.attempt": attempt,
    }


class _Attempt:
    """One attempt at the request: its buffers belong to it alone (MODEL-05)."""

    def __init__(self, run: Run, request: Request, attempt: int) -> None:
        self._run = run
        self._request = request
        self._attempt = attempt
        # The mutable state: what has arrived, what of it is not in the log yet.
        self._assembler = Assembler()
        self._pending: list[event_pb2.Delta] = []
        self._pending_bytes = 0
        self._received_bytes = 0
        self._reasoning_bytes = 0
        self._message_bytes = 0
        self._tokens: common.TokenCounts | None = None
        self._began = False
        self._booked: event_pb2.Usage | None = None

    async def receive(self) -> _Received:
        """Streams to the end. Raises ModelFailure; whatever happens, usage and chunks are logged."""
        number = self._run.view.requests_made.get(self._request.request.purpose, 1) - 1
        stream = self._run.model.stream(replace(self._request.request, number=number))
        try:
            await self._pump(stream)
        except ModelFailure:
            await self._flush()
            if self._began:
                await self._book_usage()
            raise
        await self._flush()
        usage = await self._book_usage()
        return _Received(self._assembler.message(output_at_limit=self._at_output_limit()), usage)

    def _at_output_limit(self) -> bool:
        """The counts say that the output was cut, whatever the stop reason claims (MODEL-13)."""
        if self._tokens is None:
            return False
        asked = self._request.request.parameters.get("max_output_tokens")
        most = asked if isinstance(asked, int) else self._run.model.spec.max_output_tokens
        return self._tokens.output_tokens + self._tokens.reasoning_tokens >= most

    async def settle_cancelled(self) -> None:
        """After a cancel: the rest of the text, the usage so far, and what had arrived as a partial message."""
        await self._flush()
        await self._book_usage()
        partial = self._assembler.partial()
        if partial.blocks:
            await self._run.append(
                event_pb2.AssistantMessage(
                    blocks=partial.blocks,
                    stop_reason=common.STOP_REASON_CANCELLED,
                    model=self._run.model.spec.id,
                    attempt=self._attempt,
                    partial=True,
                )
            )

    async def _pump(self, stream: AsyncIterator[StreamEvent]) -> None:
        upcoming: asyncio.Future[StreamEvent] | None = None
        idle_s = self._run.settings.stream_idle_s
        try:
            while True:
                if upcoming is None:
                    upcoming = asyncio.ensure_future(anext(stream))
                wait_s = COALESCE_S if self._pending else idle_s
                done, _ = await asyncio.wait({upcoming}, timeout=wait_s)
                if not done:
                    if not self._pending:
                        raise _broken(f"the stream was silent for {idle_s:g} s")
                    await self._flush()
                    continue
                try:
                    received = upcoming.result()
                except StopAsyncIteration:
                    raise _broken("the stream ended without saying that it was complete") from None
                finally:
                    upcoming = None
                self._began = True
                if self._take(received):
                    return
                if self._pending_bytes >= COALESCE_BYTES:
                    await self._flush()
        finally:
            if upcoming is not None:
                upcoming.cancel()
                await asyncio.wait({upcoming})
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()

    def _take(self, received: StreamEvent) -> bool:
        """Feeds one event to the assembler; true if it was the last."""
        assembler = self._assembler
        match received:
            case TextDelta(text):
                self._delta(assembler.text(text), text)
            case ThinkingDelta(text):
                self._reasoning_bytes += _size(text)
                self._delta(assembler.thinking(text), text)
            case ThinkingSignature(signature):
                self._count(len(signature))
                assembler.signature(signature)
            case RedactedThinking(data):
                self._received_bytes += len(data)
                self._reasoning_bytes += len(data)
                self._count(len(data))
                assembler.redacted(data)
            case ToolCallStart(key, vendor_call_id, wire_name):
                self._count(CALL_BYTES + _size(vendor_call_id))
                self._delta(assembler.tool_start(key, vendor_call_id, wire_name), wire_name)
            case ToolCallDelta(key, arguments):
                self._delta(assembler.tool_arguments(key, arguments), arguments)
            case ToolCallDone(key):
                assembler.tool_done(key)
            case UsageReport(tokens):
                self._tokens = tokens
            case Stop(reason, vendor_reason):
                assembler.stop(reason, vendor_reason)
                return True
        return False

    def _delta(self, delta: event_pb2.Delta | None, text: str) -> None:
        size = _size(text)
        self._received_bytes += size
        self._count(size)
        if delta is not None:
            self._pending.append(delta)
            self._pending_bytes += size

    def _count(self, size: int) -> None:
        """Bounds what the message comes to, so that its event is never too large."""
        self._message_bytes += size
        if self._message_bytes > MAX_ANSWER_BYTES:
            raise ModelFailure(
                common.ModelError(
                    category=common.MODEL_ERROR_CATEGORY_UNKNOWN,
                    message=f"the answer is longer than {MAX_ANSWER_BYTES} bytes, and was cut off",
                )
            )

    async def _flush(self) -> None:
        if not self._pending:
            return
        deltas, self._pending, self._pending_bytes = self._pending, [], 0
        await self._run.append(event_pb2.AssistantChunk(attempt=self._attempt, deltas=merged(deltas)))

    async def _book_usage(self) -> event_pb2.Usage:
        """Books what the attempt cost, once; an estimate where the vendor's counts never came (BOUND-14)."""
        if self._booked is None:
            self._booked = self._usage()
            await self._run.append(self._booked)
        return self._booked

    def _usage(self) -> event_pb2.Usage:
        return ledger.usage(
            self._run,
            self._run.model,
            self._request.request,
            self._attempt,
            self._tokens,
            self._received_bytes - self._reasoning_bytes,
            self._reasoning_bytes,
        )


async def _log_message(run: Run, request: Request, received: _Received, attempt: int) -> Completion:
    """Commits the message and its calls together."""
    assembled = received.message
    calls: list[event_pb2.ToolCall] = []

    def identify(called: AssembledCall) -> tuple[str, str, str]:
        provider, tool = request.names.resolve(called.wire_name) or ("", called.wire_name)
        calls.append(_tool_call(run, called, provider, tool, len(calls)))
        return calls[-1].call_id, provider, tool

    message = event_pb2.AssistantMessage(
        blocks=assembled.bound(identify),
        stop_reason=assembled.stop_reason,
        model=run.model.spec.id,
        attempt=attempt,
        vendor_stop_reason=assembled.vendor_stop_reason,
    )
    await run.append(message, *calls)
    cut = frozenset(c.call_id for c, called in zip(calls, assembled.calls, strict=True) if called.truncated)
    offered = frozenset((tool.provider, tool.tool) for tool in request.offered)
    return Completion(message, received.usage, tuple(calls), offered, cut, assembled.at_output_limit)


def _tool_call(run: Run, called: AssembledCall, provider: str, tool: str, index: int) -> event_pb2.ToolCall:
    found = run.tools.find(provider, tool)
    return event_pb2.ToolCall(
        call_id=run.world.ids.call(),
        provider=provider,
        tool=tool,
        kind=common.TOOL_KIND_UNSPECIFIED if found is None else found.spec.kind,
        risk=common.RISK_UNSPECIFIED if found is None else found.spec.risk,
        input=called.input,
        vendor_call_id=called.vendor_call_id,
        raw_arguments=called.raw_arguments,
        index=index,
    )


def _agent_request(request: Request) -> event_pb2.AgentRequest:
    return ledger.agent_request(request.model, request.request, request.offered, request.whole)


def merged(deltas: list[event_pb2.Delta]) -> list[event_pb2.Delta]:
    """Neighbouring deltas of one block and kind as one; the order stays."""
    out: list[event_pb2.Delta] = []
    for delta in deltas:
        kind = delta.WhichOneof("delta")
        last = out[-1] if out else None
        if last is None or last.index != delta.index or last.WhichOneof("delta") != kind:
            copy = event_pb2.Delta()
            copy.CopyFrom(delta)
            out.append(copy)
        elif kind == "text":
            last.text += delta.text
        elif kind == "thinking":
            last.thinking += delta.thinking
        else:
            last.tool_call.arguments += delta.tool_call.arguments
    return out


def _retry_delay_ms(run: Run, error: common.ModelError, attempt: int, empties: int) -> int | None:
    """How long to wait before the next attempt; None where there is none."""
    if run.view.retries >= run.settings.retries_per_session:
        return None
    if error.category == common.MODEL_ERROR_CATEGORY_EMPTY_ANSWER:
        return 0 if empties <= run.settings.empty_answers else None
    return run.settings.retry.delay(attempt, error, run.settings.jitter, rest_ms=run.wall_clock_left_ms())


def _error_stop(run: Run, error: common.ModelError) -> event_pb2.ErrorStop:
    code = f" ({error.vendor_code})" if error.vendor_code else ""
    return event_pb2.ErrorStop(
        source="model",
        category=enum_text(common.ModelErrorCategory, error.category),
        message=f"{run.model.spec.id}: {error.message}{code}",
    )


def _size(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))


def _broken(message: str) -> ModelFailure:
    return ModelFailure(
        common.ModelError(category=common.MODEL_ERROR_CATEGORY_STREAM_BROKEN, message=message)
    )
