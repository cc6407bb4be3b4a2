"""Prices as people write them, in transcripts."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnd.models.pricing import FREE, PricingError, pricing_of
from turnd.rules.price import PriceTier, Pricing
from turnd.v1 import common_pb2 as common

NEW_YEAR_US = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z
RATES = {"input_per_mtok": 3, "output_per_mtok": 15}


def test_rates_become_nano_usd() -> None:
    table = {
        "input_per_mtok": 3,
        "output_per_mtok": 0.6,
        "cache_read_per_mtok": "0.30",
        "cache_write_per_mtok": Decimal("3.75"),
    }
    assert pricing_of(table) == Pricing(
        (PriceTier("flat", 3_000_000_000, 600_000_000, 300_000_000, 3_750_000_000),)
    )


def test_cached_input_costs_as_input_where_nothing_is_said() -> None:
    (tier,) = pricing_of({"input_per_mtok": 2, "output_per_mtok": 8}).tiers
    assert (tier.cache_read, tier.cache_write, tier.free) == (2_000_000_000, 2_000_000_000, False)


def test_free_is_said() -> None:
    assert pricing_of({"free": True}) == FREE
    assert FREE.tiers[0].free


@pytest.mark.req("BOUND-08")
def test_tiers_by_time_and_input_size() -> None:
    pricing = pricing_of(
        {
            "tiers": [
                RATES | {"name": "old", "until": "2026-01-01T00:00:00Z"},
                {"free": True, "from": "2026-01-01T01:00:00+01:00", "until_tokens": 1000},
                {
                    "input_per_mtok": 6,
                    "output_per_mtok": 30,
                    "from": "2026-01-01T00:00:00Z",
                    "from_tokens": 1000,
                },
            ]
        }
    )

    def named(at_us: int, **tokens: int) -> str:
        return pricing.match(at_us, common.TokenCounts(**tokens)).name

    assert named(NEW_YEAR_US - 1, input_tokens=10**6) == "old"
    assert named(NEW_YEAR_US, input_tokens=500, cache_read_tokens=499) == "tiers[1]"
    assert named(NEW_YEAR_US, input_tokens=500, cache_write_tokens=500) == "tiers[2]"
    assert named(NEW_YEAR_US, output_tokens=10**6, reasoning_tokens=10**6) == "tiers[1]"


@given(st.integers(1, 10**15))
def test_nothing_is_rounded(nano: int) -> None:
    written = str(Decimal(nano).scaleb(-9))
    assert pricing_of({"input_per_mtok": written, "output_per_mtok": 0}).tiers[0].input == nano


@given(st.integers(1, 10**6))
def test_floats_mean_what_was_written(nano: int) -> None:
    """Such as 0.1, which as a binary fraction is no whole number of nano-USD."""
    assert pricing_of({"input_per_mtok": nano / 10**9, "output_per_mtok": 0}).tiers[0].input == nano


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({}, "input_per_mtok is missing; a model that costs nothing says free = true"),
        ({"free": False}, "input_per_mtok is missing"),
        ({"input_per_mtok": 1}, "output_per_mtok is missing"),
        ({"free": "yes"}, "free must be true or false, got 'yes'"),
        ({"free": True, "output_per_mtok": 1}, "free = true and output_per_mtok exclude each other"),
        ({"input": 1}, "unknown key 'input'; known are free, input_per_mtok"),
        ({"input_per_mtok": 0, "output_per_mtok": 0}, "costs nothing; say free = true"),
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
        (RATES | {"from_tokens": 1}, "unknown key 'from_tokens'"),
        (RATES | {"tiers": [RATES]}, "tiers and input_per_mtok exclude each other"),
        ({"tiers": RATES}, "tiers must be a list of objects"),
        ({"tiers": [RATES, 3]}, "tiers must be a list of objects"),
        ({"tiers": []}, "expected a price tier, found none"),
        ({"tiers": [{"input_per_mtok": 1}]}, "tiers[0].output_per_mtok is missing"),
        ({"tiers": [RATES | {"since": 1}]}, "tiers[0]: unknown key 'since'; known are free"),
        ({"tiers": [RATES | {"name": ""}]}, "tiers[0].name must be a text, got ''"),
        ({"tiers": [RATES | {"from": "2026-01-01"}]}, "tiers[0].from must be a time with its offset"),
        ({"tiers": [RATES | {"until": "soon"}]}, "tiers[0].until must be a time with its offset"),
        ({"tiers": [RATES | {"from": 2026}]}, "tiers[0].from must be a time with its offset"),
        ({"tiers": [RATES | {"from_tokens": -1}]}, "tiers[0].from_tokens must be a whole number of tokens"),
        ({"tiers": [RATES | {"until_tokens": True}]}, "tiers[0].until_tokens must be a whole number"),
        ({"tiers": [RATES | {"until_tokens": 0}]}, "'tiers[0]': expected its input size to end above"),
        ({"tiers": [RATES, RATES]}, "price tiers 'tiers[0]' and 'tiers[1]' overlap"),
        (
            {"tiers": [RATES | {"name": "a", "until_tokens": 5}, RATES | {"name": "b", "from_tokens": 6}]},
            "gap between price tiers 'a' and 'b': no price tier holds at 19",
        ),
        (
            {"tiers": [RATES | {"name": "a", "until": "2026-01-01T00:00:00Z"}]},
            "gap after price tier 'a': no price tier holds at 2026-01-01T00:00:00+00:00",
        ),
    ],
)
@pytest.mark.req("BOUND-08")
def test_errors_name_the_key_or_the_tiers(table: dict[str, Any], says: str) -> None:
    with pytest.raises(PricingError) as refused:
        pricing_of(table)
    assert says in str(refused.value)
