"""Spans, sent over OTLP by a thread of their own.

Whatever the receiver does, a Step never waits for it: a span that ends is put into a queue with a bound, from
which the oldest is dropped when it is full (OBS-02).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from opentelemetry import trace as api
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from turnd.ports import Attributes, Span
from turnd.telemetry.conventions import named
from turnd.telemetry.redact import Redactor

QUEUED_SPANS = 2048
SPANS_IN_A_BATCH = 512
SEND_EVERY_MS = 1000
SEND_TIMEOUT_S = 5
LIMITS = SpanLimits(
    max_span_attributes=64,
    max_events=128,
    max_event_attributes=16,
    max_links=8,
    max_span_attribute_length=1024,
    max_attribute_length=1024,
)
"""With the queue's bound these bound the memory that telemetry can take (OBS-02)."""


class OtlpTrace:
    """See `Trace`. It may live beside grpc.aio: the exporter's channel belongs to a thread of its own."""

    def __init__(self, endpoint: str, version: str, redactor: Redactor) -> None:
        exporter = OTLPSpanExporter(
            endpoint=endpoint, insecure=endpoint.startswith("http://"), timeout=SEND_TIMEOUT_S
        )
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": "turnd", "service.version": version}),
            span_limits=LIMITS,
            # Else a dead receiver holds up the end of the process; `close` waits for a stated time.
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(
                exporter,
                max_queue_size=QUEUED_SPANS,
                max_export_batch_size=SPANS_IN_A_BATCH,
                schedule_delay_millis=SEND_EVERY_MS,
            )
        )
        self._tracer = self._provider.get_tracer("turnd", version)
        self._redactor = redactor

    @contextmanager
    def span(self, name: str, attributes: Attributes | None = None) -> Iterator[Span]:
        """See `Trace`."""
        sent_name, kind, sent_attributes = named(name, attributes or {})
        with self._tracer.start_as_current_span(
            sent_name,
            kind=kind,
            attributes=_clean(self._redactor, sent_attributes),
            # What they would record, message and traceback, can hold content and secrets (OBS-04).
            record_exception=False,
            set_status_on_exception=False,
        ) as inner:
            try:
                yield _OtlpSpan(inner, self._redactor)
            except BaseException as error:
                inner.set_attribute("error.type", type(error).__name__)
                if not isinstance(error, asyncio.CancelledError):
                    inner.set_status(api.StatusCode.ERROR)
                raise

    async def close(self, timeout_s: float) -> None:
        """See `ClosableTrace`."""
        loop = asyncio.get_running_loop()
        closed = asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            # The loop is closed when the receiver kept this thread past the time-out and the daemon went on.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(closed.set)

        # A daemon thread: a receiver that never answers cannot keep the process from ending.
        threading.Thread(target=shut_down, name="turnd-telemetry-close", daemon=True).start()
        try:
            async with asyncio.timeout(timeout_s):
                await closed.wait()
        except TimeoutError:
            return


class _OtlpSpan:
    def __init__(self, inner: api.Span, redactor: Redactor) -> None:
        self._inner = inner
        self._redactor = redactor

    @property
    def traceparent(self) -> str:
        context = self._inner.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def event(self, name: str, attributes: Attributes | None = None) -> None:
        self._inner.add_event(name, _clean(self._redactor, attributes or {}))

    def set(self, attributes: Attributes) -> None:
        self._inner.set_attributes(_clean(self._redactor, attributes))


def _clean(redactor: Redactor, attributes: Attributes) -> dict[str, str | int | float | bool]:
    return {name: redactor.named(name, value) for name, value in attributes.items()}
