"""What a transcript of the replay format holds, and which of its completions answers a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from turnd.models.pricing import FREE
from turnd.rules.price import Pricing
from turnd.v1 import common_pb2 as common

DEFAULT_CONTEXT_WINDOW = 200_000
DEFAULT_MAX_OUTPUT_TOKENS = 32_000


@dataclass(frozen=True, slots=True)
class TextBlock:
    text: str


@dataclass(frozen=True, slots=True)
class ThinkingBlock:
    thinking: str
    signature: bytes


@dataclass(frozen=True, slots=True)
class ToolBlock:
    tool: str
    """Plain name or provider.tool."""
    arguments: str
    id: str | None


Block = TextBlock | ThinkingBlock | ToolBlock


@dataclass(frozen=True, slots=True)
class Failure:
    """The request fails like this after so many deltas."""

    error: common.ModelError
    after_deltas: int


@dataclass(frozen=True, slots=True)
class Expectation:
    """What must be true of the request; None is not checked."""

    tools: bool | None = None
    tools_include: tuple[str, ...] = ()
    tools_exclude: tuple[str, ...] = ()
    last_contains: str | None = None
    messages: int | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """One line: what the model answers."""

    line: int
    blocks: tuple[Block, ...]
    stop: common.StopReason.ValueType
    vendor_stop: str
    chunk: int | None
    delay_s: float
    hang_s: float
    tokens: common.TokenCounts | None
    failure: Failure | None
    expect: Expectation | None
    repeat: bool


@dataclass(frozen=True, slots=True)
class Row:
    """Which requests a completion answers: by purpose, of main sessions or of one profile's sub-agents."""

    purpose: common.RequestPurpose.ValueType
    profile: str | None

    def __str__(self) -> str:
        purpose = common.RequestPurpose.Name(self.purpose).removeprefix("REQUEST_PURPOSE_").lower()
        of_whom = "" if self.profile is None else f" of sub-agents with profile {self.profile!r}"
        return f"{purpose} requests{of_whom}"


@dataclass(frozen=True, slots=True)
class Transcript:
    """A whole file. Sizes in tokens."""

    context_window: int = DEFAULT_CONTEXT_WINDOW
    max_output_tokens: int = DEFAULT_MAX_OUTPUT_TOKENS
    parallel_tool_calls: bool = True
    pricing: Pricing = FREE
    rows: Mapping[Row, tuple[Completion, ...]] = field(default_factory=dict)

    def pick(self, row: Row, number: int) -> Completion | None:
        """The answer to a request, by its number from 0 within its row; None where the row is used up."""
        completions = self.rows.get(row, ())
        if number < len(completions) and not any(c.repeat for c in completions[:number]):
            return completions[number]
        return next((c for c in completions[:number] if c.repeat), None)
