"""The error table of models.md: what is tried again, and after how long."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnd.rules.backoff import LONGEST_BACKOFF_MS, Reaction, RetryPolicy, reaction
from turnd.v1 import common_pb2 as common

RETRIED = (
    common.MODEL_ERROR_CATEGORY_RATE_LIMITED,
    common.MODEL_ERROR_CATEGORY_OVERLOADED,
    common.MODEL_ERROR_CATEGORY_STREAM_BROKEN,
)


def error(
    category: common.ModelErrorCategory.ValueType = common.MODEL_ERROR_CATEGORY_OVERLOADED,
    retry_after_ms: int | None = None,
) -> common.ModelError:
    return common.ModelError(category=category, retry_after_ms=retry_after_ms)


def almost_one() -> float:
    return 1 - 2**-53


@pytest.mark.req("MODEL-03")
@pytest.mark.parametrize(
    ("category", "expected"),
    [
        (common.MODEL_ERROR_CATEGORY_RATE_LIMITED, Reaction.RETRY),
        (common.MODEL_ERROR_CATEGORY_OVERLOADED, Reaction.RETRY),
        (common.MODEL_ERROR_CATEGORY_STREAM_BROKEN, Reaction.RETRY),
        (common.MODEL_ERROR_CATEGORY_EMPTY_ANSWER, Reaction.ASK_AGAIN),
        (common.MODEL_ERROR_CATEGORY_CONTEXT_LENGTH_EXCEEDED, Reaction.COMPACT),
        (common.MODEL_ERROR_CATEGORY_AUTH_ERROR, Reaction.FAIL),
        (common.MODEL_ERROR_CATEGORY_INVALID_REQUEST, Reaction.FAIL),
        (common.MODEL_ERROR_CATEGORY_CONTENT_FILTERED, Reaction.FAIL),
        (common.MODEL_ERROR_CATEGORY_QUOTA_EXHAUSTED, Reaction.FAIL),
        (common.MODEL_ERROR_CATEGORY_UNKNOWN, Reaction.FAIL),
        (common.MODEL_ERROR_CATEGORY_UNSPECIFIED, Reaction.FAIL),
    ],
)
def test_each_category_has_its_reaction(
    category: common.ModelErrorCategory.ValueType, expected: Reaction
) -> None:
    assert reaction(category) is expected
    delay = RetryPolicy().delay(1, error(category), almost_one)
    assert (delay is not None) == (expected is Reaction.RETRY)


def test_no_category_is_left_out() -> None:
    assert {c for c in common.ModelErrorCategory.values() if reaction(c) is Reaction.RETRY} == set(RETRIED)


def test_delays_grow_by_the_factor_and_end_after_the_retries() -> None:
    policy = RetryPolicy(base_delay_ms=500, backoff_factor=2, max_retries=5)
    delays = [policy.delay(attempt, error(), almost_one) for attempt in range(1, 8)]
    assert delays == [499, 999, 1999, 3999, 7999, None, None]


def test_the_jitter_is_full() -> None:
    policy = RetryPolicy(base_delay_ms=1000)
    assert policy.delay(1, error(), lambda: 0.0) == 0
    assert policy.delay(1, error(), lambda: 0.25) == 250


def test_no_retries_means_none() -> None:
    assert RetryPolicy(max_retries=0).delay(1, error(retry_after_ms=1), almost_one) is None


@pytest.mark.req("MODEL-04")
def test_retry_after_is_the_floor_and_the_rest_of_the_wall_clock_the_ceiling() -> None:
    policy = RetryPolicy(base_delay_ms=1000)
    assert policy.delay(1, error(retry_after_ms=86_400_000), almost_one) == 86_400_000
    assert policy.delay(1, error(retry_after_ms=10), almost_one) == 999
    assert policy.delay(1, error(retry_after_ms=86_400_000), almost_one, rest_ms=3_600_000) == 3_600_000
    assert policy.delay(1, error(), almost_one, rest_ms=200) == 200
    assert policy.delay(1, error(), almost_one, rest_ms=-5) == 0


@given(
    attempt=st.integers(1, 10_000),
    factor=st.floats(1, 1e6),
    base=st.integers(0, 10**9),
    retry_after=st.none() | st.integers(0, 10**9),
    rest=st.none() | st.integers(-1000, 10**9),
    seed=st.integers(0, 2**32),
)
def test_a_delay_is_between_floor_and_ceiling(
    attempt: int, factor: float, base: int, retry_after: int | None, rest: int | None, seed: int
) -> None:
    policy = RetryPolicy(base_delay_ms=base, backoff_factor=factor, max_retries=20_000)
    delay = policy.delay(attempt, error(retry_after_ms=retry_after), random.Random(seed).random, rest_ms=rest)
    assert delay is not None
    ceiling = max(LONGEST_BACKOFF_MS, retry_after or 0)
    assert 0 <= delay <= (ceiling if rest is None else min(ceiling, max(rest, 0)))
    if rest is None:
        assert delay >= (retry_after or 0)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"base_delay_ms": -1}, "base_delay_ms"),
        ({"backoff_factor": 0.5}, "backoff_factor"),
        ({"backoff_factor": float("nan")}, "backoff_factor"),
        ({"backoff_factor": float("inf")}, "backoff_factor"),
        ({"max_retries": -1}, "max_retries"),
    ],
)
def test_values_that_mean_nothing_are_refused_by_name(values: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        RetryPolicy(**values)  # type: ignore[arg-type]
