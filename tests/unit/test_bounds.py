"""Bounds: what fires, in which order, what is said, and which limits are refused when they are read."""

from __future__ import annotations

import pytest

from turnd.rules import bounds
from turnd.rules.bounds import Spent
from turnd.v1 import common_pb2 as common
from turnd.v1 import sessions_pb2

DOOM = common.LimitHit(dimension=common.LIMIT_DIMENSION_DOOM_LOOP, limit=3, value=3, unit="calls")
ALL = common.Bounds(max_turns=5, max_cost_nano_usd=1_000, max_wall_clock_ms=2_000)


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


@pytest.mark.req("M07")
@pytest.mark.parametrize(
    "dimension", [n for n in common.LimitDimension.values() if n != common.LIMIT_DIMENSION_UNSPECIFIED]
)
def test_every_dimension_is_told_with_its_limit_and_value(dimension: common.LimitDimension.ValueType) -> None:
    scale = {common.LIMIT_DIMENSION_MAX_COST_USD: 10**9, common.LIMIT_DIMENSION_MAX_WALL_CLOCK_S: 1000}
    unit = scale.get(dimension, 1)
    name = common.LimitDimension.Name(dimension).removeprefix("LIMIT_DIMENSION_").lower()
    hit = common.LimitHit(dimension=dimension, limit=41 * unit, value=97 * unit)

    said = bounds.describe(hit)

    assert said.replace(" ", "_").startswith(name)
    assert "limit 41 " in said
    assert " 97" in said
    assert said in bounds.instruction([hit])


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
