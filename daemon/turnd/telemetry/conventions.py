"""How the daemon's spans are called in OpenTelemetry's semantic conventions for generative AI.

The loop names its spans after what it does. Those that the conventions know get the conventions' name, kind
and operation; the daemon's own name stays beside it as `turnd.span`.
"""

from __future__ import annotations

from dataclasses import dataclass

from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as gen_ai
from opentelemetry.trace import SpanKind

from turnd.ports import Attributes

SPAN = "turnd.span"


@dataclass(frozen=True, slots=True)
class Convention:
    """An operation, and the attribute whose value follows it in the span's name."""

    operation: str
    subject: str
    kind: SpanKind


CONVENTIONS = {
    "turnd.model": Convention("chat", gen_ai.GEN_AI_REQUEST_MODEL, SpanKind.CLIENT),
    "turnd.tool": Convention("execute_tool", gen_ai.GEN_AI_TOOL_NAME, SpanKind.INTERNAL),
}


def named(name: str, attributes: Attributes) -> tuple[str, SpanKind, Attributes]:
    """Name, kind and attributes under which a span is sent."""
    convention = CONVENTIONS.get(name)
    if convention is None:
        return name, SpanKind.INTERNAL, attributes
    subject = attributes.get(convention.subject, "")
    return (
        f"{convention.operation} {subject}".rstrip(),
        convention.kind,
        {gen_ai.GEN_AI_OPERATION_NAME: convention.operation, SPAN: name, **attributes},
    )
