"""Token counts of Chat Completions, which overlap, as the five counts, which do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from turnd.v1 import common_pb2 as common

MOST_TOKENS: Final = 10**12
"""No request comes near it; sums and weighted counts of what passes it would not fit into an event."""


def token_counts(usage: object) -> common.TokenCounts | None:
    """The five counts of a `usage` object; None where there is none or it counts nothing.

    Most servers count cached tokens inside `prompt_tokens` and reasoning inside `completion_tokens`. Some
    count one of them beside it, which their total or a part that is larger than its whole gives away.
    """
    if not isinstance(usage, dict):
        return None
    counts = cast(Mapping[str, object], usage)
    prompt = _count(counts, "prompt_tokens")
    completion = _count(counts, "completion_tokens")
    if prompt is None and completion is None:
        return None
    prompt, completion = prompt or 0, completion or 0
    of_prompt = _part(counts, "prompt_tokens_details")
    read = (
        _count(of_prompt, "cached_tokens")
        or _count(counts, "prompt_cache_hit_tokens")
        or _count(counts, "cache_read_input_tokens")
        or 0
    )
    written = (
        _count(of_prompt, "cache_write_tokens")
        or _count(of_prompt, "cache_creation_tokens")
        or _count(counts, "cache_creation_input_tokens")
        or 0
    )
    reasoning = _count(_part(counts, "completion_tokens_details"), "reasoning_tokens") or 0
    cached, total = read + written, _count(counts, "total_tokens")
    whole = prompt + completion
    reasoned_beside = reasoning > completion or (
        reasoning > 0 and total in (whole + reasoning, whole + reasoning + cached)
    )
    spoken = completion + reasoning if reasoned_beside else completion
    cached_beside = cached > prompt or (cached > 0 and total == prompt + cached + spoken)
    return common.TokenCounts(
        input_tokens=prompt if cached_beside else prompt - cached,
        output_tokens=spoken - reasoning,
        cache_read_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=reasoning,
    )


def _part(counts: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = counts.get(key)
    return cast(Mapping[str, object], value) if isinstance(value, dict) else {}


def _count(counts: Mapping[str, object], key: str) -> int | None:
    value = counts.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_TOKENS:
        return None
    return value
