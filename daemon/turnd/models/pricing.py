"""Prices as people write them, as integer nano-USD."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Final

from turnd.ports import Price

FREE: Final = Price(input=0, output=0, cache_read=0, cache_write=0, free=True)
"""Declared to cost nothing; not the same as a price that is not known."""

_NANO = 10**9
_RATES = ("input_per_mtok", "output_per_mtok", "cache_read_per_mtok", "cache_write_per_mtok")


class PricingError(ValueError):
    """A pricing table means nothing; the text names the key."""


def price_of(table: Mapping[str, object]) -> Price:
    """The price that a table states: `free = true`, or USD for a million tokens.

    `input_per_mtok` and `output_per_mtok` are required; `cache_read_per_mtok` and `cache_write_per_mtok` are
    as `input_per_mtok` where they are left out. Numbers may be int, float, Decimal or text; each must be a
    whole number of nano-USD, so nothing is rounded. Raises PricingError.
    """
    if unknown := sorted(set(table) - {*_RATES, "free"}):
        raise PricingError(f"unknown key {unknown[0]!r}; known are free, {', '.join(_RATES)}")
    free = table.get("free", False)
    if not isinstance(free, bool):
        raise PricingError(f"free must be true or false, got {free!r}")
    if free:
        if rates := sorted(set(table) & set(_RATES)):
            raise PricingError(f"free = true and {rates[0]} exclude each other")
        return FREE
    for required in _RATES[:2]:
        if required not in table:
            raise PricingError(f"{required} is missing; a model that costs nothing says free = true")
    input_rate = _nano_usd(table, "input_per_mtok")
    return Price(
        input=input_rate,
        output=_nano_usd(table, "output_per_mtok"),
        cache_read=_nano_usd(table, "cache_read_per_mtok") if "cache_read_per_mtok" in table else input_rate,
        cache_write=_nano_usd(table, "cache_write_per_mtok")
        if "cache_write_per_mtok" in table
        else input_rate,
    )


def _nano_usd(table: Mapping[str, object], key: str) -> int:
    written = table[key]
    if isinstance(written, bool) or not isinstance(written, int | float | Decimal | str):
        raise PricingError(f"{key} must be a number of USD, got {written!r}")
    try:
        # The text of a float is the shortest that reads back as it: what its author wrote.
        nano = Decimal(str(written)) * _NANO
    except InvalidOperation:
        raise PricingError(f"{key} must be a number of USD, got {written!r}") from None
    if not nano.is_finite() or nano < 0:
        raise PricingError(f"{key} must be 0 or more USD, got {written}")
    if nano != nano.to_integral_value():
        raise PricingError(f"{key} has more than nine decimals: {written}")
    return int(nano)
