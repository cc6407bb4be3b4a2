"""Prices as people write them."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnd.models.pricing import FREE, PricingError, price_of
from turnd.ports import Price


def test_rates_become_nano_usd() -> None:
    table = {
        "input_per_mtok": 3,
        "output_per_mtok": 0.6,
        "cache_read_per_mtok": "0.30",
        "cache_write_per_mtok": Decimal("3.75"),
    }
    assert price_of(table) == Price(
        input=3_000_000_000, output=600_000_000, cache_read=300_000_000, cache_write=3_750_000_000
    )


def test_cached_input_costs_as_input_where_nothing_is_said() -> None:
    price = price_of({"input_per_mtok": 2, "output_per_mtok": 8})
    assert (price.cache_read, price.cache_write, price.free) == (2_000_000_000, 2_000_000_000, False)


def test_free_is_said() -> None:
    assert price_of({"free": True}) == FREE
    assert FREE.free
    assert not price_of({"input_per_mtok": 0, "output_per_mtok": 0}).free


@given(st.integers(0, 10**15))
def test_nothing_is_rounded(nano: int) -> None:
    written = str(Decimal(nano).scaleb(-9))
    assert price_of({"input_per_mtok": written, "output_per_mtok": 0}).input == nano


@given(st.integers(0, 10**6))
def test_floats_mean_what_was_written(nano: int) -> None:
    """Such as 0.1, which as a binary fraction is no whole number of nano-USD."""
    assert price_of({"input_per_mtok": nano / 10**9, "output_per_mtok": 0}).input == nano


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({}, "input_per_mtok is missing; a model that costs nothing says free = true"),
        ({"free": False}, "input_per_mtok is missing"),
        ({"input_per_mtok": 1}, "output_per_mtok is missing"),
        ({"free": "yes"}, "free must be true or false, got 'yes'"),
        ({"free": True, "output_per_mtok": 1}, "free = true and output_per_mtok exclude each other"),
        ({"input": 1}, "unknown key 'input'; known are free, input_per_mtok"),
        ({"input_per_mtok": -1, "output_per_mtok": 1}, "input_per_mtok must be 0 or more USD, got -1"),
        (
            {"input_per_mtok": float("nan"), "output_per_mtok": 1},
            "input_per_mtok must be 0 or more USD, got nan",
        ),
        (
            {"input_per_mtok": float("inf"), "output_per_mtok": 1},
            "input_per_mtok must be 0 or more USD, got inf",
        ),
        ({"input_per_mtok": True, "output_per_mtok": 1}, "input_per_mtok must be a number of USD, got True"),
        ({"input_per_mtok": "3 USD", "output_per_mtok": 1}, "input_per_mtok must be a number of USD"),
        ({"input_per_mtok": [3], "output_per_mtok": 1}, "input_per_mtok must be a number of USD"),
        ({"input_per_mtok": "0.0000000005", "output_per_mtok": 1}, "has more than nine decimals"),
    ],
)
def test_errors_name_the_key(table: dict[str, object], says: str) -> None:
    with pytest.raises(PricingError) as refused:
        price_of(table)
    assert says in str(refused.value)
