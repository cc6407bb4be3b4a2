"""Traces over OTLP, and the daemon's own log lines. Without an endpoint OpenTelemetry is not imported."""

from turnd.telemetry.logs import configure_logs
from turnd.telemetry.redact import Redactor
from turnd.telemetry.trace import ClosableTrace, NoTrace, open_trace

__all__ = ["ClosableTrace", "NoTrace", "Redactor", "configure_logs", "open_trace"]
