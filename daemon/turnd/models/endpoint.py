"""One server that speaks Chat Completions, as the configuration names it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from turnd.models.keys import KeySource
from turnd.ports import ModelSpec
from turnd.rules.price import Pricing

DEFAULT_CONTEXT_WINDOW: Final = 32_768


@dataclass(frozen=True, slots=True)
class CompatibleEndpoint:
    """`[models.NAME]` with kind `openai-compatible`. Raises ValueError at construction, naming the key."""

    name: str
    base_url: str
    """With its path, such as `http://127.0.0.1:8080/v1`."""
    pricing: Pricing | None = None
    """Of all its models; None: looked up for each in the table of prices."""
    prices: Mapping[str, Pricing] = field(default_factory=dict)
    """Of single models, by their ids at the server; these win."""
    api_key: KeySource | None = None
    """None: no key is sent."""
    context_window: int = DEFAULT_CONTEXT_WINDOW
    max_output_tokens: int | None = None
    """None: a quarter of the window."""
    tool_use: bool = True
    parallel_tool_calls: bool = True
    vision: bool = False
    documents: bool = False
    thinking: bool = False
    """The server takes `reasoning_effort`."""
    needs_tools_with_history: bool = False
    """The server refuses a history with tool calls where the request offers no tools."""
    max_tokens_field: str = "max_tokens"
    """The field for the output limit; newer models of some vendors want `max_completion_tokens`."""
    reasoning_field: str | None = None
    """The field of messages in which thinking is sent back, such as `reasoning_content`; None: it is not."""
    idle_timeout_s: float = 300.0
    """A connection on which nothing comes for so long is given up."""

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name:
            raise ValueError(
                f"the name of a model server must be without slashes and not empty, got {self.name!r}"
            )
        _check_url(self.base_url)
        if self.context_window < 1:
            raise ValueError(f"context_window must be 1 or more tokens, got {self.context_window}")
        if self.max_output_tokens is not None and not 1 <= self.max_output_tokens <= self.context_window:
            raise ValueError(
                f"max_output_tokens must be from 1 to the context_window of {self.context_window}, "
                f"got {self.max_output_tokens}"
            )
        if not (math.isfinite(self.idle_timeout_s) and self.idle_timeout_s > 0):
            raise ValueError(f"idle_timeout_s must be more than 0 seconds, got {self.idle_timeout_s}")

    @property
    def output_limit(self) -> int:
        """Most tokens that a model of this server puts out."""
        return self.max_output_tokens or max(1, self.context_window // 4)

    def pricing_of(self, model: str) -> Pricing | None:
        """What is configured for a model; None where nothing is."""
        return self.prices.get(model, self.pricing)

    def spec(self, model: str) -> ModelSpec:
        """What a model of this server can do, as far as the configuration says."""
        return ModelSpec(
            id=f"openai-compatible/{self.name}/{model}",
            context_window=self.context_window,
            max_output_tokens=self.output_limit,
            tool_use=self.tool_use,
            parallel_tool_calls=self.parallel_tool_calls,
            vision=self.vision,
            documents=self.documents,
            thinking=self.thinking,
            needs_tools_with_history=self.needs_tools_with_history,
        )


def _check_url(written: str) -> None:
    try:
        url = urlsplit(written)
        host, _port = url.hostname, url.port
    except ValueError as wrong:
        raise ValueError(f"base_url is not a URL: {wrong}") from None
    if url.username is not None or url.password is not None:
        raise ValueError("base_url must not hold a user or a password: its key belongs under api_key")
    if url.scheme not in ("http", "https") or not host:
        raise ValueError(f"base_url must begin with http:// or https:// and a host, got {written!r}")
    if url.query or url.fragment:
        raise ValueError(f"base_url must end with its path, without ? and #, got {written!r}")
