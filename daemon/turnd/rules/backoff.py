"""When a failed model request is tried again, and after how long: the error table of models.md (MODEL-03)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from turnd.v1 import common_pb2 as common

LONGEST_BACKOFF_MS = 60_000
"""No back-off of our own is longer; only a vendor's retry-after can be."""


class Reaction(Enum):
    """What a failed model request leads to."""

    RETRY = "retry"
    """The same request again, after a back-off."""
    ASK_AGAIN = "ask_again"
    """The same request again, at once: nothing was wrong but the answer."""
    COMPACT = "compact"
    """Compaction once, then the request again."""
    FAIL = "fail"
    """The Turn ends `error`."""


def reaction(category: common.ModelErrorCategory.ValueType) -> Reaction:
    """The reaction to an error of this category. A category that is not known here fails."""
    match category:
        case (
            common.MODEL_ERROR_CATEGORY_RATE_LIMITED
            | common.MODEL_ERROR_CATEGORY_OVERLOADED
            | common.MODEL_ERROR_CATEGORY_STREAM_BROKEN
        ):
            return Reaction.RETRY
        case common.MODEL_ERROR_CATEGORY_EMPTY_ANSWER:
            return Reaction.ASK_AGAIN
        case common.MODEL_ERROR_CATEGORY_CONTEXT_LENGTH_EXCEEDED:
            return Reaction.COMPACT
        case _:
            return Reaction.FAIL


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential back-off with full jitter, between a vendor's retry-after and the rest of the wall clock.

    Raises ValueError at construction, naming the field, for values that mean nothing.
    """

    base_delay_ms: int = 500
    backoff_factor: float = 2.0
    max_retries: int = 5
    """Retries of one request; 0 for none."""

    def __post_init__(self) -> None:
        if self.base_delay_ms < 0:
            raise ValueError(f"base_delay_ms must be 0 or more, got {self.base_delay_ms}")
        if not (math.isfinite(self.backoff_factor) and self.backoff_factor >= 1):
            raise ValueError(f"backoff_factor must be a number from 1, got {self.backoff_factor}")
        if self.max_retries < 0:
            raise ValueError(f"max_retries must be 0 or more, got {self.max_retries}")

    def delay(
        self,
        attempt: int,
        error: common.ModelError,
        random: Callable[[], float],
        *,
        rest_ms: int | None = None,
    ) -> int | None:
        """Milliseconds to wait before the attempt after this one; None where there is no other attempt.

        `attempt` counts from 1 and is the one that failed. `random` gives numbers in [0, 1). A retry-after is
        the floor (MODEL-04). `rest_ms`, what is left of the wall clock, is the ceiling: whoever waited for
        all of it finds the bound reached, so a retry-after of a day cannot hold a session with an hour left.
        """
        if reaction(error.category) is not Reaction.RETRY or attempt > self.max_retries:
            return None
        delay = math.floor(self._longest(attempt) * random())
        if error.HasField("retry_after_ms"):
            delay = max(delay, error.retry_after_ms)
        return delay if rest_ms is None else min(delay, max(rest_ms, 0))

    def _longest(self, attempt: int) -> float:
        """The upper end of the jitter after the given attempt, in milliseconds."""
        try:
            return min(self.base_delay_ms * self.backoff_factor ** (attempt - 1), LONGEST_BACKOFF_MS)
        except OverflowError:
            return LONGEST_BACKOFF_MS
