"""Limits of the daemon. Each says what 0 means, and none means "unlimited" by accident (BOUND-13)."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from turnd.config.kinds import Fraction, Number, Record, Whole, key

_SECONDS = Fraction(Number(unit="seconds"))
_HEAVIEST = Decimal(1000)


@dataclass(frozen=True, slots=True)
class Retry:
    """How failed model requests are tried again."""

    base_delay_ms: int = key(Whole(0, "milliseconds"), "the first delay, before jitter; 0: none", default=500)
    backoff_factor: float = key(Fraction(Number(Decimal(1))), "each delay by the one before", default=2.0)
    max_retries: int = key(Whole(0), "for one request; 0: it is tried once", default=5)
    per_session: int = key(Whole(0), "for all requests of a session; 0: each is tried once", default=50)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of every session of the daemon."""

    approval_timeout_s: float = key(
        _SECONDS, "a request expires when it is so old; 0: at once", default=86400.0
    )
    default_hook_timeout_ms: int = key(
        Whole(1, "milliseconds"), "time of a hook that states none", default=5000
    )
    tool_timeout_s: float = key(
        Fraction(Number(above=True, unit="seconds")),
        "time of a tool call whose tool states none",
        default=120.0,
    )
    calls_in_flight: int = key(Whole(1), "tool calls of one session that run at once", default=16)
    max_consecutive_denials: int = key(
        Whole(1), "Steps in a row with every call denied that end a Turn", default=3
    )
    provider_idle_s: float = key(
        _SECONDS, "a provider without calls is stopped after; 0: at once", default=600.0
    )
    retry: Retry = key(Record(Retry), "failed model requests", default=Retry())
    context_share: float = key(
        Fraction(Number(above=True, most=Decimal(1))),
        "share of the model's window that the history may fill before it is compacted",
        default=0.8,
    )
    sampling_token_weight: Decimal = key(
        Number(most=_HEAVIEST),
        "of an output token in weighted_tokens; 0: it is not counted",
        default=Decimal(5),
    )
    prefill_token_weight: Decimal = key(
        Number(most=_HEAVIEST),
        "the same of an input token that was not read from a cache",
        default=Decimal(1),
    )
