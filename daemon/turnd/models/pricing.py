"""Prices as people write them, as integer nano-USD (BOUND-08)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Final, cast

from turnd.rules.price import PriceError, PriceTier, Pricing

_FLAT = "flat"
FREE: Final = Pricing((PriceTier(_FLAT, 0, 0, 0, 0, free=True),))
"""Declared to cost nothing; not the same as a price that is not known."""

_NANO = 10**9
_RATES = ("input_per_mtok", "output_per_mtok", "cache_read_per_mtok", "cache_write_per_mtok")
_RANGES = ("from", "until", "from_tokens", "until_tokens")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class PricingError(ValueError):
    """A pricing table means nothing; the text names the key."""


def pricing_of(table: Mapping[str, object]) -> Pricing:
    """The prices that a table states: `free = true`, or USD for a million tokens, or `tiers`, a list of such tables.

    `input_per_mtok` and `output_per_mtok` are required; `cache_read_per_mtok` and `cache_write_per_mtok` are
    as `input_per_mtok` where they are left out. Numbers may be int, float, Decimal or text; each must be a
    whole number of nano-USD, so nothing is rounded. A tier may have a `name`, a time (`from` and `until`, ISO 8601
    with an offset) and an input size (`from_tokens`, `until_tokens`). Raises PricingError, also where two tiers hold
    at once or none does.
    """
    if "tiers" not in table:
        return _checked([_tier(table, _FLAT, "", ())])
    if beside := sorted(set(table) - {"tiers"}):
        raise PricingError(f"tiers and {beside[0]} exclude each other: each tier has its own")
    tiers = table["tiers"]
    if not isinstance(tiers, list) or not all(isinstance(tier, dict) for tier in tiers):
        raise PricingError(f"tiers must be a list of objects, got {tiers!r}")
    return _checked(
        [
            _tier(cast(Mapping[str, object], tier), f"tiers[{index}]", f"tiers[{index}].", ("name", *_RANGES))
            for index, tier in enumerate(tiers)
        ]
    )


def _checked(tiers: list[PriceTier]) -> Pricing:
    try:
        return Pricing(tuple(tiers))
    except PriceError as wrong:
        raise PricingError(str(wrong)) from None


def _tier(table: Mapping[str, object], name: str, where: str, more: tuple[str, ...]) -> PriceTier:
    if unknown := sorted(set(table) - {*_RATES, "free", *more}):
        prefix = f"{name}: " if where else ""
        raise PricingError(
            f"{prefix}unknown key {unknown[0]!r}; known are {', '.join(('free', *_RATES, *more))}"
        )
    free = table.get("free", False)
    if not isinstance(free, bool):
        raise PricingError(f"{where}free must be true or false, got {free!r}")
    if free and (rates := sorted(set(table) & set(_RATES))):
        raise PricingError(f"{where}free = true and {rates[0]} exclude each other")
    for required in () if free else _RATES[:2]:
        if required not in table:
            raise PricingError(f"{where}{required} is missing; a model that costs nothing says free = true")
    named = table.get("name", name)
    if not isinstance(named, str) or not named:
        raise PricingError(f"{where}name must be a text, got {named!r}")
    input_rate = 0 if free else _nano_usd(table, "input_per_mtok", where)
    try:
        return PriceTier(
            name=named,
            input=input_rate,
            output=0 if free else _nano_usd(table, "output_per_mtok", where),
            cache_read=_nano_usd(table, _RATES[2], where) if _RATES[2] in table else input_rate,
            cache_write=_nano_usd(table, _RATES[3], where) if _RATES[3] in table else input_rate,
            free=free,
            from_us=_time_us(table, "from", where),
            until_us=_time_us(table, "until", where),
            from_tokens=_tokens(table, "from_tokens", where) or 0,
            until_tokens=_tokens(table, "until_tokens", where),
        )
    except PriceError as wrong:
        raise PricingError(str(wrong)) from None


def _nano_usd(table: Mapping[str, object], key: str, where: str) -> int:
    written = table[key]
    if isinstance(written, bool) or not isinstance(written, int | float | Decimal | str):
        raise PricingError(f"{where}{key} must be a number of USD, got {written!r}")
    try:
        # The text of a float is the shortest that reads back as it: what its author wrote.
        nano = Decimal(str(written)) * _NANO
    except InvalidOperation:
        raise PricingError(f"{where}{key} must be a number of USD, got {written!r}") from None
    if not nano.is_finite() or nano < 0:
        raise PricingError(f"{where}{key} must be 0 or more USD, got {written}")
    if nano != nano.to_integral_value():
        raise PricingError(f"{where}{key} has more than nine decimals: {written}")
    return int(nano)


def _time_us(table: Mapping[str, object], key: str, where: str) -> int | None:
    if key not in table:
        return None
    written = table[key]
    try:
        time = datetime.fromisoformat(written) if isinstance(written, str) else None
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise PricingError(
            f"{where}{key} must be a time with its offset such as 2026-01-01T00:00:00Z, got {written!r}"
        )
    return (time - _EPOCH) // timedelta(microseconds=1)


def _tokens(table: Mapping[str, object], key: str, where: str) -> int | None:
    if key not in table:
        return None
    written = table[key]
    if isinstance(written, bool) or not isinstance(written, int) or written < 0:
        raise PricingError(f"{where}{key} must be a whole number of tokens from 0, got {written!r}")
    return written
