"""Prices of models, flat or in tiers by time and input size (BOUND-08)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from turnd.config.kinds import Flag, Many, Number, Record, Scaled, Text, Whole, key, keys_of
from turnd.config.problems import KeyPath, Problem, Refused, expected
from turnd.rules import price

NANO_USD = 10**9
FLAT = "flat"

_RATE = Scaled(Number(unit="USD for a million tokens"), NANO_USD)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Instant:
    """A time that means the same everywhere, as microseconds since the epoch."""

    name: str = "a time with its offset such as 2026-01-01T00:00:00Z"

    def read(self, value: object, path: KeyPath) -> int:
        if not isinstance(value, datetime) or value.tzinfo is None:
            raise Refused([Problem(path, expected(self.name, value))])
        return (value - _EPOCH) // timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Rates:
    """What tokens cost, in nano-USD for a million of them; or `free`, which has to be said."""

    free: bool = key(Flag(), "it costs nothing", default=False)
    input: int | None = key(
        _RATE, "input, neither read from nor written to a cache", default=None, name="input_per_mtok"
    )
    output: int | None = key(_RATE, "output, reasoning included", default=None, name="output_per_mtok")
    cache_read: int | None = key(
        _RATE, "input that was read from a cache; omitted: as input", default=None, name="cache_read_per_mtok"
    )
    cache_write: int | None = key(
        _RATE,
        "input that was written to a cache; omitted: as input",
        default=None,
        name="cache_write_per_mtok",
    )


@dataclass(frozen=True, slots=True)
class Tier(Rates):
    """Rates within a time and a range of input sizes."""

    name: str | None = key(Text(), "what messages call it; omitted: tiers[0] and so on", default=None)
    from_us: int | None = key(
        Instant(), "it holds from then on; omitted: since ever", default=None, name="from"
    )
    until_us: int | None = key(
        Instant(),
        "it holds until just before then; omitted: until further notice",
        default=None,
        name="until",
    )
    from_tokens: int = key(
        Whole(0, "tokens"), "smallest input: plain, cache read and cache write together", default=0
    )
    until_tokens: int | None = key(
        Whole(1, "tokens"), "it holds below this input size; omitted: for all above", default=None
    )


def _check_rates(rates: Rates) -> dict[str, str]:
    written = {name: getattr(rates, found.field) for name, found in keys_of(Rates).items() if name != "free"}
    if rates.free:
        return {
            name: "the model is free, so it has no rates"
            for name, rate in written.items()
            if rate is not None
        }
    missing = [name for name in ("input_per_mtok", "output_per_mtok") if written[name] is None]
    if missing:
        return dict.fromkeys(missing, f"missing; expected {_RATE.name}, or free = true")
    if not any(written.values()):
        return {"input_per_mtok": "nothing costs anything; say free = true instead, if that is meant"}
    return {}


def _check_tier(tier: Tier) -> Mapping[str, str]:
    problems = _check_rates(tier)
    if tier.from_us is not None and tier.until_us is not None and tier.from_us >= tier.until_us:
        problems["until"] = "expected a time after from"
    if tier.until_tokens is not None and tier.from_tokens >= tier.until_tokens:
        problems["until_tokens"] = "expected more than from_tokens"
    return problems


@dataclass(frozen=True, slots=True)
class Pricing(Rates):
    """Rates for all times and input sizes, or tiers."""

    tiers: tuple[Tier, ...] | None = key(
        Many(Record(Tier, "a table", _check_tier), least=1),
        "instead of the keys above: prices by time and input size, exactly one for each",
        default=None,
    )

    def pricing(self) -> price.Pricing:
        """As the rules take it. Raises PriceError where two tiers hold at once, or none does."""
        if self.tiers is None:
            return price.Pricing((_price_tier(FLAT, self),))
        tiers = enumerate(self.tiers)
        return price.Pricing(
            tuple(
                _price_tier(
                    tier.name or f"tiers[{index}]",
                    tier,
                    from_us=tier.from_us,
                    until_us=tier.until_us,
                    from_tokens=tier.from_tokens,
                    until_tokens=tier.until_tokens,
                )
                for index, tier in tiers
            )
        )


def _price_tier(
    name: str,
    rates: Rates,
    *,
    from_us: int | None = None,
    until_us: int | None = None,
    from_tokens: int = 0,
    until_tokens: int | None = None,
) -> price.PriceTier:
    input_rate = rates.input or 0
    return price.PriceTier(
        name=name,
        input=input_rate,
        output=rates.output or 0,
        cache_read=input_rate if rates.cache_read is None else rates.cache_read,
        cache_write=input_rate if rates.cache_write is None else rates.cache_write,
        free=rates.free,
        from_us=from_us,
        until_us=until_us,
        from_tokens=from_tokens,
        until_tokens=until_tokens,
    )


def _check_pricing(pricing: Pricing) -> Mapping[str, str]:
    if pricing.tiers is None:
        return _check_rates(pricing)
    beside = [
        name for name, found in keys_of(Rates).items() if getattr(pricing, found.field) != found.default
    ]
    if beside:
        return dict.fromkeys(beside, "stands beside tiers, and each tier has its own")
    try:
        pricing.pricing()
    except price.PriceError as wrong:
        return {"tiers": str(wrong)}
    return {}


PRICING = Record(Pricing, "a table", _check_pricing)
