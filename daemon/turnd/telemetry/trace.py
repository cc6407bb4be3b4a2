"""The port `Trace`: spans over OTLP where an endpoint is set, nothing elsewhere."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from turnd.ports import Attributes, Span, Trace
from turnd.telemetry.redact import Redactor


class ClosableTrace(Trace, Protocol):
    """A trace that may have something left to send."""

    async def close(self, timeout_s: float) -> None:
        """Sends what is left, within so many seconds; then gives up what could not be sent."""


class NoTrace:
    """No telemetry: every span is the same one, which does nothing."""

    def span(self, name: str, attributes: Attributes | None = None) -> AbstractContextManager[Span]:
        """See `Trace`."""
        return _NO_SPAN

    async def close(self, timeout_s: float) -> None:
        """There is nothing to send."""


class _NoSpan:
    traceparent = ""

    def event(self, name: str, attributes: Attributes | None = None) -> None:
        """See `Span`."""

    def set(self, attributes: Attributes) -> None:
        """See `Span`."""


_NO_SPAN: AbstractContextManager[Span] = nullcontext(_NoSpan())


def open_trace(endpoint: str | None, version: str, redactor: Redactor) -> ClosableTrace:
    """Spans to the OTLP receiver (gRPC) at a URL; nothing where there is none."""
    if endpoint is None:
        return NoTrace()
    # 0.2 s and 20 MB that a daemon without telemetry does not pay.
    from turnd.telemetry.otlp import OtlpTrace

    return OtlpTrace(endpoint, version, redactor)
