"""Prices out of the table of the package `genai-prices`, which comes with them: nothing is fetched (BOUND-08).

The package is imported with the first look-up, which takes long: call from a thread where a loop is near.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, time, timedelta
from decimal import ROUND_HALF_UP, Decimal
from itertools import pairwise, product
from types import NoneType
from typing import TYPE_CHECKING, Final

from turnd.rules.price import DAY_US, PriceTier, Pricing

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice, TieredPrices

_NANO: Final = 10**9
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_INEXPRESSIBLE: Final = ("requests_kcount", "output_reasoning_mtok")
"""A fee for each request, and a rate of its own for reasoning: five token counts do not tell what these cost."""


def pricing_of(vendor: str, model: str) -> Pricing | None:
    """What a vendor such as `anthropic` asks for a model; None where the table does not know both."""
    from genai_prices import Usage, calc_price

    try:
        return pricing_from(calc_price(Usage(), model_ref=model, provider_id=vendor).model)
    except LookupError:
        return None


def pricing_at(api_url: str, model: str) -> Pricing | None:
    """What the vendor whose API is at a URL asks for a model; None where the table does not know both."""
    from genai_prices import Usage, calc_price

    try:
        return pricing_from(calc_price(Usage(), model_ref=model, provider_api_url=api_url).model)
    except LookupError:
        return None


def pricing_from(model: ModelInfo) -> Pricing | None:
    """The prices of an entry, as tiers by date, time of day (UTC) and input size.

    Cached input that has no rate costs as input does, as the table means it. None where a price is missing for some
    time, or is one that tiers cannot say: unknown is never zero.
    """
    ends = _ends(model)
    if ends is None:
        return None
    dates, times = ends
    tiers: list[PriceTier] = []
    for (from_us, until_us), (from_day_us, until_day_us) in product(
        _dates(dates), pairwise((*times, DAY_US))
    ):
        # Within one stretch nothing changes, so that its first moment stands for all of it.
        first_us = (dates[0] - DAY_US if dates else 0) if from_us is None else from_us
        prices = model.get_prices(_EPOCH + timedelta(microseconds=first_us + from_day_us))
        for from_tokens, until_tokens in pairwise((*_sizes(prices), None)):
            rates = _rates(prices, from_tokens or 0)
            if rates is None:
                return None
            tiers.append(
                PriceTier(
                    f"{model.id}[{len(tiers)}]",
                    *rates,
                    free=not any(rates),
                    from_us=from_us,
                    until_us=until_us,
                    from_tokens=from_tokens or 0,
                    until_tokens=until_tokens,
                    from_day_us=from_day_us,
                    until_day_us=until_day_us,
                )
            )
    return Pricing(tuple(tiers))


def _ends(model: ModelInfo) -> tuple[list[int], list[int]] | None:
    """The dates (from the epoch) and times of day (from midnight) at which prices change, in microseconds."""
    from genai_prices.types import ModelPrice, StartDateConstraint, TimeOfDateConstraint

    dated = [] if isinstance(model.prices, ModelPrice) else model.prices
    if {type(price.constraint) for price in dated} - {NoneType, StartDateConstraint, TimeOfDateConstraint}:
        return None  # a later version of the package has constraints of another kind
    dates, times = set[int](), {0}
    for price in dated:
        match price.constraint:
            case None:
                pass
            case StartDateConstraint(start_date=date):
                dates.add((datetime.combine(date, time(), UTC) - _EPOCH) // _MICROSECOND)
            case TimeOfDateConstraint(start_time=start, end_time=end):
                times |= {_day_us(start), _day_us(end)}
    return sorted(dates), sorted(times)


def _day_us(at: time) -> int:
    aware = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return ((datetime.combine(_EPOCH, aware) - _EPOCH) // _MICROSECOND) % DAY_US


def _dates(ends: Sequence[int]) -> Iterator[tuple[int | None, int | None]]:
    return pairwise((None, *ends, None))


def _sizes(prices: ModelPrice) -> list[int]:
    """The input sizes from which on a rate changes. The table's tiers begin above their start."""
    starts = {
        tier.start + 1
        for rate in (prices.input_mtok, prices.output_mtok, prices.cache_read_mtok, prices.cache_write_mtok)
        for tier in getattr(rate, "tiers", ())
    }
    return sorted({0} | starts)


def _rates(prices: ModelPrice, size: int) -> tuple[int, int, int, int] | None:
    """Input, output, cache read, cache write for an input of this size, in nano-USD for a million tokens."""
    if any(getattr(prices, key) is not None for key in _INEXPRESSIBLE):
        return None
    fresh, output = _rate(prices.input_mtok, size), _rate(prices.output_mtok, size)
    if fresh is None or output is None:
        return None
    read, written = _rate(prices.cache_read_mtok, size), _rate(prices.cache_write_mtok, size)
    return fresh, output, fresh if read is None else read, fresh if written is None else written


def _rate(price: Decimal | TieredPrices | None, size: int) -> int | None:
    if price is None:
        return None
    usd = price if isinstance(price, Decimal) else price.base
    for tier in () if isinstance(price, Decimal) else price.tiers:
        usd = tier.price if size > tier.start else usd
    # Some of the table's figures are binary fractions written out: past the ninth decimal they mean nothing.
    return int((usd * _NANO).to_integral_value(ROUND_HALF_UP))
