"""What tokens cost: tiers by time and input size, and integer arithmetic in nano-USD (BOUND-05, BOUND-08,
BOUND-12).

A rate is nano-USD for a million tokens: 3 USD for a million is 3_000_000_000.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import product
from math import ceil
from typing import Final, NamedTuple, Protocol

from turnd.v1 import common_pb2 as common

SAMPLING_TOKEN_WEIGHT: Final = 5
"""What the weighted count takes an output token for, unless told otherwise: vendors ask about five times as
much for one as for an input token that they had not cached.
"""
PREFILL_TOKEN_WEIGHT: Final = 1
"""The same for an input token that was not read from a cache."""

_TOKENS_OF_RATE: Final = 1_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
DAY_US: Final = 86_400 * 1_000_000


class PriceError(ValueError):
    """Prices that leave a case open, or answer it twice; the text names the tiers."""


class Rates(Protocol):
    """What tokens cost, in nano-USD for a million of them; reasoning costs what output costs."""

    @property
    def input(self) -> int: ...
    @property
    def output(self) -> int: ...
    @property
    def cache_read(self) -> int: ...
    @property
    def cache_write(self) -> int: ...
    @property
    def free(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class PriceTier:
    """Rates, and the times and input sizes that they hold for: from the lower end on, up to but without the
    upper.

    Raises PriceError where a range is empty, a rate is negative, or nothing costs anything and `free` is not
    said.
    """

    name: str
    input: int
    output: int
    cache_read: int
    cache_write: int
    free: bool = False
    from_us: int | None = None
    """Microseconds since the epoch; None: since ever."""
    until_us: int | None = None
    """None: until further notice."""
    from_tokens: int = 0
    """Size of the input: plain, cache read and cache write together."""
    until_tokens: int | None = None
    from_day_us: int = 0
    """Microseconds since midnight, UTC, of every day: some vendors ask less at night."""
    until_day_us: int = DAY_US

    def __post_init__(self) -> None:
        rates = (self.input, self.output, self.cache_read, self.cache_write)
        if min(rates) < 0:
            raise PriceError(f"price tier {self.name!r}: expected rates from 0, found {min(rates)}")
        if self.free and any(rates):
            raise PriceError(f"price tier {self.name!r} is free and has a price; leave one of them out")
        if not self.free and not any(rates):
            raise PriceError(f"price tier {self.name!r} costs nothing; say free = true if that is meant")
        if self.from_us is not None and self.until_us is not None and self.from_us >= self.until_us:
            raise PriceError(f"price tier {self.name!r}: expected its time to end after it begins")
        if self.from_tokens < 0:
            raise PriceError(f"price tier {self.name!r}: expected its input size to begin at 0 or above")
        if self.until_tokens is not None and self.from_tokens >= self.until_tokens:
            raise PriceError(f"price tier {self.name!r}: expected its input size to end above its beginning")
        if not 0 <= self.from_day_us < self.until_day_us <= DAY_US:
            raise PriceError(f"price tier {self.name!r}: expected its hours to begin and end within a day")

    def holds(self, at_us: int, size: int) -> bool:
        """Whether it is the tier of a time and an input size."""
        return self.holds_in(_Case(at_us, at_us % DAY_US, size))

    def holds_in(self, case: _Case) -> bool:
        """The same for a date and a time of day apart."""
        return (
            (self.from_us is None or self.from_us <= case.at_us)
            and (self.until_us is None or case.at_us < self.until_us)
            and self.from_day_us <= case.day_us < self.until_day_us
            and self.from_tokens <= case.size
            and (self.until_tokens is None or case.size < self.until_tokens)
        )


class _Case(NamedTuple):
    """A time, its time of day, and an input size. In proofs of coverage the first two are independent."""

    at_us: int
    day_us: int
    size: int


@dataclass(frozen=True, slots=True)
class Pricing:
    """The tiers of one model. Raises PriceError unless exactly one of them holds for any time and size
    (BOUND-08).
    """

    tiers: tuple[PriceTier, ...]

    def __post_init__(self) -> None:
        validate(self.tiers)

    def match(self, at_us: int, tokens: common.TokenCounts) -> PriceTier:
        """The one tier of a request whose usage arrived at this time."""
        return match(self.tiers, at_us, tokens)


def validate(tiers: Sequence[PriceTier]) -> None:
    """Raises PriceError, naming the tiers, where two of them hold at once or none does (BOUND-08)."""
    if not tiers:
        raise PriceError("expected a price tier, found none; say free = true if the model costs nothing")
    # Between two neighbouring ends nothing changes, so that one point of each stretch stands for all of it.
    ends = {end for tier in tiers for end in (tier.from_us, tier.until_us) if end is not None}
    axes = (
        sorted(ends | {min(ends, default=0) - 1}),
        sorted({begin for tier in tiers for begin in (tier.from_day_us, tier.until_day_us % DAY_US)}),
        sorted({0} | {end for tier in tiers for end in (tier.from_tokens, tier.until_tokens or 0)}),
    )
    for case in (_Case(*point) for point in product(*axes)):
        holding = [tier for tier in tiers if tier.holds_in(case)]
        if len(holding) > 1:
            raise PriceError(
                f"price tiers {holding[0].name!r} and {holding[1].name!r} overlap: both hold {_at(case)}"
            )
        if not holding:
            raise PriceError(f"gap {_beside(tiers, case, axes)}: no price tier holds {_at(case)}")


def match(tiers: Iterable[PriceTier], at_us: int, tokens: common.TokenCounts) -> PriceTier:
    """Of validated tiers, the one for a time (microseconds since the epoch) and the size of this input."""
    size = input_size(tokens)
    return next(tier for tier in tiers if tier.holds(at_us, size))


def input_size(tokens: common.TokenCounts) -> int:
    """What tiers by size go by: input, cache read and cache write together."""
    return tokens.input_tokens + tokens.cache_read_tokens + tokens.cache_write_tokens


def cost(rates: Rates, tokens: common.TokenCounts) -> int:
    """Nano-USD, rounded up once on the sum, so that what was used is never booked as less (BOUND-05)."""
    if rates.free:
        return 0
    total = (
        tokens.input_tokens * rates.input
        + (tokens.output_tokens + tokens.reasoning_tokens) * rates.output
        + tokens.cache_read_tokens * rates.cache_read
        + tokens.cache_write_tokens * rates.cache_write
    )
    return -(-total // _TOKENS_OF_RATE)


def weighted_tokens(
    tokens: common.TokenCounts,
    sampling_token_weight: int | Decimal | Fraction = SAMPLING_TOKEN_WEIGHT,
    prefill_token_weight: int | Decimal | Fraction = PREFILL_TOKEN_WEIGHT,
) -> int:
    """Output and non-cached input by weight, rounded up; reported beside the dollars, no bound (BOUND-12).

    Reasoning is output; input that was written to a cache was not read from one.
    """
    output = tokens.output_tokens + tokens.reasoning_tokens
    fresh = tokens.input_tokens + tokens.cache_write_tokens
    return ceil(output * Fraction(sampling_token_weight) + fresh * Fraction(prefill_token_weight))


def _at(case: _Case) -> str:
    at_us, day_us, size = case
    if at_us % DAY_US != day_us and day_us:
        at_us += day_us - at_us % DAY_US
    try:
        time = (_EPOCH + timedelta(microseconds=at_us)).isoformat()
    except OverflowError:
        time = f"{at_us} microseconds after 1970"
    return f"at {time} for an input of {size} tokens"


def _beside(tiers: Sequence[PriceTier], case: _Case, axes: Sequence[Sequence[int]]) -> str:
    """Where a gap lies: between which tiers of that time, or else of that size."""
    for field in ("size", "at_us", "day_us"):
        here = getattr(case, field)
        line = [
            (_named(tiers, case._replace(**{field: each})), each) for each in axes[_Case._fields.index(field)]
        ]
        below = [name for name, each in line if name and each < here]
        above = [name for name, each in line if name and each > here]
        if below and above:
            return f"between price tiers {below[-1]} and {above[0]}"
        if below or above:
            return f"after price tier {below[-1]}" if below else f"before price tier {above[0]}"
    return f"beside price tier {tiers[0].name!r}"


def _named(tiers: Sequence[PriceTier], case: _Case) -> str:
    return next((repr(tier.name) for tier in tiers if tier.holds_in(case)), "")
