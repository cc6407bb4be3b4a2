"""Prices: the one tier of every time and size, and exact arithmetic."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from turnd.rules import price
from turnd.rules.price import PriceError, PriceTier, Pricing
from turnd.v1 import common_pb2 as common

PLAIN = PriceTier(
    "plain", input=3_000_000_000, output=15_000_000_000, cache_read=300_000_000, cache_write=3_750_000_000
)
HOUR_US = 3_600_000_000
SPLIT_US = 1_767_225_600_000_000  # 2026-01-01

COUNTS = st.builds(
    common.TokenCounts,
    input_tokens=st.integers(0, 10**9),
    output_tokens=st.integers(0, 10**9),
    cache_read_tokens=st.integers(0, 10**9),
    cache_write_tokens=st.integers(0, 10**9),
    reasoning_tokens=st.integers(0, 10**9),
)


@pytest.mark.req("BOUND-05")
def test_a_million_of_each_costs_its_rate_and_reasoning_that_of_output() -> None:
    million = 1_000_000

    assert price.cost(PLAIN, common.TokenCounts(input_tokens=million)) == 3_000_000_000
    assert price.cost(PLAIN, common.TokenCounts(output_tokens=million)) == 15_000_000_000
    assert price.cost(PLAIN, common.TokenCounts(reasoning_tokens=million)) == 15_000_000_000
    assert price.cost(PLAIN, common.TokenCounts(cache_read_tokens=million)) == 300_000_000
    assert price.cost(PLAIN, common.TokenCounts(cache_write_tokens=million)) == 3_750_000_000
    assert price.cost(PLAIN, common.TokenCounts()) == 0


@pytest.mark.req("BOUND-05", "M01")
@given(COUNTS, st.lists(st.integers(1, 10**12), min_size=4, max_size=4))
def test_the_cost_is_the_exact_sum_rounded_up_once(tokens: common.TokenCounts, rates: list[int]) -> None:
    tier = PriceTier("t", *rates)
    exact = Fraction(
        tokens.input_tokens * tier.input
        + tokens.output_tokens * tier.output
        + tokens.reasoning_tokens * tier.output
        + tokens.cache_read_tokens * tier.cache_read
        + tokens.cache_write_tokens * tier.cache_write,
        1_000_000,
    )

    assert exact <= price.cost(tier, tokens) < exact + 1


@pytest.mark.req("BOUND-05")
def test_what_was_used_is_never_booked_as_nothing() -> None:
    cheapest = PriceTier("t", input=1, output=1, cache_read=1, cache_write=1)

    assert price.cost(cheapest, common.TokenCounts(input_tokens=1)) == 1
    assert price.cost(cheapest, common.TokenCounts(input_tokens=1, output_tokens=1)) == 1


@pytest.mark.req("BOUND-08", "M05")
def test_free_is_said_and_costs_nothing() -> None:
    free = PriceTier("free", 0, 0, 0, 0, free=True)

    assert price.cost(free, common.TokenCounts(input_tokens=10**9)) == 0
    with pytest.raises(PriceError, match=r"'t' costs nothing; say free = true"):
        PriceTier("t", 0, 0, 0, 0)
    with pytest.raises(PriceError, match="'t' is free and has a price"):
        PriceTier("t", 1, 0, 0, 0, free=True)
    with pytest.raises(PriceError, match="expected a price tier, found none"):
        Pricing(())


@pytest.mark.req("BOUND-08")
@pytest.mark.parametrize(
    "wrong",
    [
        {"input": -1},
        {"from_us": 5, "until_us": 5},
        {"from_us": 6, "until_us": 5},
        {"from_tokens": -1},
        {"from_tokens": 5, "until_tokens": 5},
    ],
)
def test_a_tier_that_makes_no_sense_is_refused_by_name(wrong: dict[str, int]) -> None:
    with pytest.raises(PriceError, match="price tier 'plain'"):
        replace(PLAIN, **wrong)


@pytest.mark.req("BOUND-08")
def test_the_size_that_counts_is_input_with_cache_reads_and_writes() -> None:
    tiers = Pricing(
        (replace(PLAIN, name="short", until_tokens=200_000), replace(PLAIN, name="long", from_tokens=200_000))
    )
    below = common.TokenCounts(
        input_tokens=100_000, cache_read_tokens=50_000, cache_write_tokens=49_999, output_tokens=10**6
    )
    at = common.TokenCounts(input_tokens=100_000, cache_read_tokens=50_000, cache_write_tokens=50_000)

    assert tiers.match(0, below).name == "short"
    assert tiers.match(0, at).name == "long"


@pytest.mark.req("BOUND-08")
def test_a_price_changes_at_its_time() -> None:
    tiers = Pricing(
        (replace(PLAIN, name="old", until_us=SPLIT_US), replace(PLAIN, name="new", from_us=SPLIT_US))
    )

    assert tiers.match(SPLIT_US - 1, common.TokenCounts()).name == "old"
    assert tiers.match(SPLIT_US, common.TokenCounts()).name == "new"
    assert tiers.match(-(10**18), common.TokenCounts()).name == "old"


@pytest.mark.req("BOUND-08")
def test_a_price_can_depend_on_the_time_of_day() -> None:
    night, day = (
        replace(PLAIN, name="night", until_day_us=6 * HOUR_US),
        replace(PLAIN, name="day", from_day_us=6 * HOUR_US),
    )
    tiers = Pricing((night, day))

    for midnight in (0, SPLIT_US, -price.DAY_US):
        assert tiers.match(midnight, common.TokenCounts()).name == "night"
        assert tiers.match(midnight + 6 * HOUR_US - 1, common.TokenCounts()).name == "night"
        assert tiers.match(midnight + 6 * HOUR_US, common.TokenCounts()).name == "day"
        assert tiers.match(midnight - 1, common.TokenCounts()).name == "day"
    with pytest.raises(PriceError, match=r"gap after price tier 'night': no price tier holds at .*T06:00:00"):
        Pricing((night,))
    with pytest.raises(PriceError, match="'night' and 'all' overlap"):
        Pricing((night, replace(PLAIN, name="all")))
    with pytest.raises(PriceError, match="'plain': expected its hours to begin and end within a day"):
        replace(PLAIN, until_day_us=25 * HOUR_US)


@pytest.mark.req("BOUND-08")
def test_tiers_that_overlap_are_refused_naming_both_and_where() -> None:
    with pytest.raises(PriceError, match=r"'a' and 'b' overlap: both hold at 2026-01-01T00:00:00\+00:00 for"):
        Pricing((replace(PLAIN, name="a", until_us=SPLIT_US + 1), replace(PLAIN, name="b", from_us=SPLIT_US)))
    with pytest.raises(PriceError, match=r"'a' and 'b' overlap: both hold .* for an input of 100 tokens"):
        Pricing((replace(PLAIN, name="a"), replace(PLAIN, name="b", from_tokens=100)))


@pytest.mark.req("BOUND-08")
@pytest.mark.parametrize(
    ("tiers", "where"),
    [
        (({"until_us": 5}, {"from_us": 6}), "between price tiers 'a' and 'b'"),
        (({"until_tokens": 5}, {"from_tokens": 6}), "between price tiers 'a' and 'b'"),
        (({"until_tokens": 5}, {"from_tokens": 5, "until_tokens": 9}), "after price tier 'b'"),
        (({"from_tokens": 2},), "before price tier 'a'"),
        (({"from_us": 2},), "before price tier 'a'"),
        (({"until_us": 2},), "after price tier 'a'"),
        (
            ({"until_us": 5, "until_tokens": 7}, {"from_us": 5}),
            "after price tier 'a'",
        ),
        (({"until_us": 5, "until_tokens": 5}, {"from_us": 5, "from_tokens": 5}), "after price tier 'a'"),
    ],
)
def test_a_gap_is_refused_naming_the_tiers_beside_it(tiers: tuple[dict[str, int], ...], where: str) -> None:
    with pytest.raises(PriceError, match=f"gap {where}: no price tier holds at .* for an input of"):
        Pricing(tuple(replace(PLAIN, name=name, **each) for name, each in zip("ab", tiers, strict=False)))


ENDS = st.none() | st.integers(0, 4)


@pytest.mark.req("BOUND-08")
@given(st.lists(st.tuples(ENDS, ENDS, ENDS, ENDS), min_size=1, max_size=4))
def test_tiers_pass_exactly_if_one_of_them_holds_everywhere(
    ranges: list[tuple[int | None, int | None, int | None, int | None]],
) -> None:
    assume(all(low is None or high is None or low < high for low, high, _, _ in ranges))
    assume(all(high is None or (low or 0) < high for _, _, low, high in ranges))
    tiers = [
        replace(PLAIN, name=str(i), from_us=a, until_us=b, from_tokens=c or 0, until_tokens=d)
        for i, (a, b, c, d) in enumerate(ranges)
    ]
    points = [(at_us, size) for at_us in range(-1, 6) for size in range(6)]
    exact = all(sum(tier.holds(*point) for tier in tiers) == 1 for point in points)

    try:
        price.validate(tiers)
    except PriceError:
        assert not exact
    else:
        assert exact
        for at_us, size in points:
            found = price.match(tiers, at_us, common.TokenCounts(input_tokens=size))
            assert found.holds(at_us, size)


@pytest.mark.req("BOUND-12")
def test_weighted_tokens_leave_cache_reads_out() -> None:
    tokens = common.TokenCounts(
        input_tokens=100, output_tokens=20, cache_read_tokens=10_000, cache_write_tokens=7, reasoning_tokens=3
    )

    assert price.weighted_tokens(tokens, 5, 1) == 23 * 5 + 107
    assert price.weighted_tokens(tokens, Fraction(1, 2), Fraction(1, 4)) == 39  # 38.25, rounded up
    assert price.weighted_tokens(common.TokenCounts()) == 0


def test_a_time_beyond_the_calendar_can_be_named() -> None:
    with pytest.raises(PriceError, match=f"at {10**18} microseconds after 1970"):
        Pricing((replace(PLAIN, name="a", until_us=10**18),))
