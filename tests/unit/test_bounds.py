"""Bounds: what fires, in which order, what is said, and which limits are refused when they are read."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnd.rules import bounds
from turnd.rules.bounds import LimitError, Spent
from turnd.v1 import common_pb2 as common
from turnd.v1 import sessions_pb2

DOOM = common.LimitHit(dimension=common.LIMIT_DIMENSION_DOOM_LOOP, limit=3, value=3, unit="calls")
ALL = common.Bounds(max_turns=5, max_cost_nano_usd=1_000, max_wall_clock_ms=2_000)
PARSERS = [bounds.parse_max_turns, bounds.parse_max_cost_usd, bounds.parse_max_wall_clock_s]


@pytest.mark.req("BOUND-01")
@pytest.mark.parametrize(
    ("spent", "dimension", "limit", "value", "unit"),
    [
        (Spent(steps=5), common.LIMIT_DIMENSION_MAX_TURNS, 5, 5, "steps"),
        (Spent(cost_nano_usd=1_700), common.LIMIT_DIMENSION_MAX_COST_USD, 1_000, 1_700, "nano_usd"),
        (Spent(wall_clock_ms=2_000), common.LIMIT_DIMENSION_MAX_WALL_CLOCK_S, 2_000, 2_000, "ms"),
    ],
)
def test_each_bound_fires_by_itself(
    spent: Spent, dimension: common.LimitDimension.ValueType, limit: int, value: int, unit: str
) -> None:
    assert bounds.hits(ALL, spent) == (
        common.LimitHit(dimension=dimension, limit=limit, value=value, unit=unit),
    )


@pytest.mark.req("BOUND-01")
def test_below_the_limit_nothing_fires() -> None:
    assert bounds.hits(ALL, Spent(4, 999, 1_999)) == ()


@pytest.mark.req("BOUND-01")
def test_several_at_once_come_in_their_order() -> None:
    reached = bounds.hits(ALL, Spent(9, 9_999, 9_999), DOOM)

    assert [hit.dimension for hit in reached] == [
        common.LIMIT_DIMENSION_DOOM_LOOP,
        common.LIMIT_DIMENSION_MAX_TURNS,
        common.LIMIT_DIMENSION_MAX_COST_USD,
        common.LIMIT_DIMENSION_MAX_WALL_CLOCK_S,
    ]
    assert bounds.hits(common.Bounds(), Spent(), DOOM) == (DOOM,)


@pytest.mark.req("BOUND-13")
def test_what_is_not_set_is_no_bound_and_zero_is_one() -> None:
    assert bounds.hits(common.Bounds(), Spent(10**6, 10**18, 10**9)) == ()
    zero = common.Bounds(max_turns=0, max_cost_nano_usd=0, max_wall_clock_ms=0)
    assert len(bounds.hits(zero, Spent())) == 3


def test_what_is_left_is_told_for_bounds_that_are_set_and_never_below_zero() -> None:
    assert bounds.left(ALL, Spent(2, 400, 5_000)) == sessions_pb2.BoundsLeft(
        turns=3, cost_nano_usd=600, wall_clock_ms=0
    )
    assert bounds.left(common.Bounds(max_turns=1), Spent(7)) == sessions_pb2.BoundsLeft(turns=0)


@pytest.mark.req("BOUND-02")
def test_every_dimension_has_a_status_of_its_own() -> None:
    dimensions = [value for value in common.LimitDimension.values() if value]
    statuses = [bounds.status_of(dimension) for dimension in dimensions]

    assert statuses == [
        common.SESSION_STATUS_ERROR_DOOM_LOOP,
        common.SESSION_STATUS_ERROR_MAX_TURNS,
        common.SESSION_STATUS_ERROR_MAX_BUDGET_USD,
        common.SESSION_STATUS_ERROR_MAX_WALL_CLOCK,
    ]
    with pytest.raises(ValueError, match="dimension"):
        bounds.status_of(common.LIMIT_DIMENSION_UNSPECIFIED)


@pytest.mark.req("BOUND-02", "M07")
def test_the_instruction_names_dimension_limit_and_value_with_units() -> None:
    limits = common.Bounds(max_turns=5, max_cost_nano_usd=1_250_000_000, max_wall_clock_ms=2_000)
    said = bounds.instruction(bounds.hits(limits, Spent(5, 1_300_000_001, 2_500), DOOM))

    assert "doom loop (limit 3 equal calls in a row, made 3)" in said
    assert "max_turns (limit 5 steps, used 5)" in said
    assert "max_cost_usd (limit 1.25 USD, spent 1.300000001 USD)" in said
    assert "max_wall_clock_s (limit 2 s, used 2.5 s)" in said
    assert "final answer" in said
    assert "No further tool calls" in said


@pytest.mark.req("BOUND-13")
@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize(
    "value",
    [
        -1,
        -0.5,
        Decimal("-0.1"),
        math.nan,
        math.inf,
        -math.inf,
        Decimal("NaN"),
        Decimal("sNaN"),
        Decimal("Infinity"),
        True,
        False,
        None,
        "5",
        "unlimited",
        "",
        b"5",
        [],
        2**64,
        10**5000,
        1e300,
        Decimal("1e999999999"),
        Decimal("1e-999999999"),
    ],
    ids=lambda value: str(value)[:20] if not isinstance(value, int) else f"{float(min(value, 2**64)):g}",
)
def test_what_is_no_limit_is_refused_with_its_name(parse: Callable[[object], int], value: object) -> None:
    with pytest.raises(LimitError, match=r"^max_\w+: expected .* from 0, found "):
        parse(value)


@pytest.mark.req("BOUND-13")
@pytest.mark.parametrize("parse", PARSERS)
def test_zero_is_a_limit(parse: Callable[[object], int]) -> None:
    assert [parse(zero) for zero in (0, 0.0, -0.0, Decimal("0.000"))] == [0, 0, 0, 0]


@pytest.mark.req("BOUND-13")
@pytest.mark.parametrize(
    ("parse", "value", "expected"),
    [
        (bounds.parse_max_turns, 200, 200),
        (bounds.parse_max_turns, 2**64 - 1, 2**64 - 1),
        (bounds.parse_max_cost_usd, 5, 5_000_000_000),
        (bounds.parse_max_cost_usd, 5.0, 5_000_000_000),
        (bounds.parse_max_cost_usd, 0.1, 100_000_000),
        (bounds.parse_max_cost_usd, 1e-9, 1),
        (bounds.parse_max_cost_usd, Decimal("18446744073.709551615"), 2**64 - 1),
        (bounds.parse_max_wall_clock_s, 3600, 3_600_000),
        (bounds.parse_max_wall_clock_s, 0.25, 250),
    ],
)
def test_limits_are_read_exactly(parse: Callable[[object], int], value: object, expected: int) -> None:
    assert parse(value) == expected


@pytest.mark.req("BOUND-13")
@pytest.mark.parametrize(
    ("parse", "value"),
    [
        (bounds.parse_max_turns, 1.5),
        (bounds.parse_max_turns, Decimal("0.5")),
        (bounds.parse_max_cost_usd, 1e-10),
        (bounds.parse_max_cost_usd, Decimal("1." + "0" * 600 + "1")),
        (bounds.parse_max_cost_usd, Decimal("18446744073.709551616")),
        (bounds.parse_max_wall_clock_s, 0.0005),
    ],
)
def test_what_cannot_be_kept_exactly_is_refused_not_rounded(
    parse: Callable[[object], int], value: object
) -> None:
    with pytest.raises(LimitError, match="expected"):
        parse(value)


@given(st.integers(0, 2**64 - 1))
def test_every_amount_that_can_be_kept_comes_back_from_its_text(nano: int) -> None:
    text = f"{nano // 10**9}.{nano % 10**9:09d}"

    assert bounds.parse_max_cost_usd(bounds.number_in(text)) == nano


@pytest.mark.req("BOUND-13")
@pytest.mark.parametrize(
    "text",
    ["", " 5", "5 ", "five", "nan", "inf", "1e3", "0x10", "1_000", "5,0", ".5", "5.", "٥", "9" * 41, "--5"],
)
def test_a_flag_that_is_no_plain_number_is_refused(text: str) -> None:
    with pytest.raises(LimitError, match="expected a plain decimal number"):
        bounds.number_in(text)


def test_a_flag_that_is_a_plain_number_is_one() -> None:
    assert bounds.parse_max_turns(bounds.number_in("12")) == 12
    assert bounds.parse_max_cost_usd(bounds.number_in("0.25")) == 250_000_000
    with pytest.raises(LimitError, match=r"max_turns: expected .*, found -3"):
        bounds.parse_max_turns(bounds.number_in("-3"))
