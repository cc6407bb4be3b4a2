"""What the loop is told once: limits of the daemon, and the policy of a workspace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from turnd.rules.backoff import RetryPolicy
from turnd.rules.policy import Policy
from turnd.rules.price import PREFILL_TOKEN_WEIGHT, SAMPLING_TOKEN_WEIGHT


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Limits of every session of the daemon. Times in seconds."""

    policy: Policy
    retry: RetryPolicy
    jitter: Callable[[], float]
    """Uniform in [0, 1); where the full jitter of the back-off comes from."""
    tool_timeout_s: float = 120.0
    approval_timeout_s: float = 86400.0
    calls_in_flight: int = 16
    max_consecutive_denials: int = 3
    stream_idle_s: float = 300.0
    """A model stream that is silent for so long is given up."""
    retries_per_session: int = 50
    empty_answers: int = 2
    """How often an empty answer is asked for again within a Step."""
    tool_result_bytes: int = 131072
    """A tool result is capped to this when it is written."""
    context_share: float = 0.8
    sampling_token_weight: Decimal = Decimal(SAMPLING_TOKEN_WEIGHT)
    prefill_token_weight: Decimal = Decimal(PREFILL_TOKEN_WEIGHT)
    """What weighted_tokens takes an output token and a fresh input token for (BOUND-12)."""
    idle_s: float = 600.0
    """A session without a Turn for so long lets go of its providers and of its history in memory."""
