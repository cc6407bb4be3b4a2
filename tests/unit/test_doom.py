"""The row of equal calls."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnd.rules import doom
from turnd.rules.doom import DoomLoop
from turnd.v1 import common_pb2 as common


def fed(*calls: tuple[str, bytes | None], polling: bool = False, row: DoomLoop | None = None) -> DoomLoop:
    row = row or DoomLoop()
    for call_hash, result in calls:
        row = row.seen(call_hash, result, polling=polling)
    return row


@pytest.mark.req("BOUND-09")
@pytest.mark.parametrize("threshold", [2, 3, 5])
def test_the_row_fires_at_the_threshold_and_not_before(threshold: int) -> None:
    row = fed(*[("a", b"r")] * (threshold - 1))
    assert row.fired(threshold) is None

    assert fed(("a", None), row=row).fired(threshold) == common.LimitHit(
        dimension=common.LIMIT_DIMENSION_DOOM_LOOP, limit=threshold, value=threshold, unit="calls"
    )


@pytest.mark.req("BOUND-09")
def test_nothing_fires_without_a_call_and_the_default_threshold_is_three() -> None:
    assert DoomLoop().fired(0) is None
    assert fed(*[("a", b"")] * 2).fired(0) is None
    assert fed(*[("a", b"")] * 3).fired(0) is not None


@pytest.mark.req("BOUND-09")
@given(st.lists(st.sampled_from("ab")), st.integers(2, 5))
def test_only_equal_calls_in_a_row_count(hashes: list[str], threshold: int) -> None:
    row = fed(*((each, b"") for each in hashes))
    last = hashes[-threshold:]

    assert (row.fired(threshold) is not None) == (len(last) == threshold and len(set(last)) == 1)


@pytest.mark.req("BOUND-09")
def test_changed_results_are_no_progress_unless_the_tool_polls() -> None:
    assert fed(("a", b"1"), ("a", b"2"), ("a", b"3")).fired(3) is not None
    assert fed(("a", b"1"), ("a", b"2"), ("a", b"3"), polling=True).fired(3) is None


@pytest.mark.req("BOUND-09")
def test_the_row_starts_anew() -> None:
    row = fed(("a", b"1"), ("a", b"1")).restarted()

    assert fed(("a", b"1"), row=row).fired(2) is None
    assert row == DoomLoop()


@pytest.mark.req("BOUND-09", "L01")
def test_a_poll_that_brings_news_may_go_on_to_twenty() -> None:
    row = fed(*(("poll", b"%d" % i) for i in range(20)), polling=True)
    assert row.fired(3) is None

    hit = fed(("poll", b"more"), row=row, polling=True).fired(3)
    assert hit is not None
    assert (hit.limit, hit.value, hit.unit) == (20, 21, "calls")


@pytest.mark.req("BOUND-09", "L01")
@pytest.mark.parametrize("stale", [b"5", None], ids=["unchanged", "no result"])
def test_a_poll_that_brings_nothing_new_fires_at_the_threshold(stale: bytes | None) -> None:
    row = fed(*(("poll", b"%d" % i) for i in range(6)), polling=True)
    assert row.fired(3) is None
    row = fed(("poll", stale), row=row, polling=True)
    assert row.fired(3) is None
    row = fed(("poll", stale), row=row, polling=True)

    assert row.fired(3) is not None


def test_a_result_after_denied_polls_is_compared_with_the_last_one_that_came() -> None:
    row = fed(("poll", b"same"), ("poll", None), ("poll", b"same"), polling=True)
    assert row.fired(3) is not None
    assert fed(("poll", b"same"), ("poll", None), ("poll", b"new"), polling=True).fired(3) is None
    assert fed(("poll", None), ("poll", b"first"), ("poll", b"second"), polling=True).fired(3) is None


def test_another_call_breaks_the_row_of_polls() -> None:
    row = fed(*(("poll", b"%d" % i) for i in range(20)), polling=True)
    row = row.seen("other", b"", polling=False)

    assert row.seen("poll", b"x", polling=True).fired(3) is None


def test_naming_a_tool_as_polling_never_makes_it_stricter() -> None:
    moving = fed(*(("poll", b"%d" % i) for i in range(30)), polling=True)

    assert moving.fired(30) is None
    assert fed(("poll", b"more"), row=moving, polling=True).fired(30) is not None


def test_polling_is_by_provider_and_tool() -> None:
    config = common.DoomLoop(polling=["mine.job_status"])

    assert doom.polls(config, "mine", "job_status")
    assert not doom.polls(config, "other", "job_status")
    assert not doom.polls(config, "mine", "job")


# --- the second tier ------------------------------------------------------------------------------------------


def second_tier(window_size: int = 10, threshold: int = 3) -> common.DoomLoop:
    return common.DoomLoop(threshold=threshold, window_size=window_size, second_tier=True)


@pytest.mark.req("BOUND-11")
@pytest.mark.parametrize("period", [2, 3, 4])
def test_a_cycle_is_suspect_when_it_has_gone_round_often_enough(period: int) -> None:
    cycle = [(f"call {n}", b"") for n in range(period)]
    rounds = min(3, 10 // period)
    row = fed(*(cycle * rounds)[:-1])
    assert row.suspected(second_tier()) is None
    suspicion = fed((cycle * rounds)[-1], row=row).suspected(second_tier())
    assert suspicion is not None
    assert str(period) in suspicion.why
    assert len(suspicion.calls) == period * rounds
    assert fed(*(cycle * rounds)).suspected(common.DoomLoop(threshold=3, window_size=10)) is None


@pytest.mark.req("BOUND-11")
@given(st.lists(st.integers(0, 10**6), unique=True, min_size=1, max_size=30))
def test_calls_that_all_differ_are_never_suspect(numbers: list[int]) -> None:
    assert fed(*((str(n), b"") for n in numbers)).suspected(second_tier()) is None


@pytest.mark.req("BOUND-11")
def test_the_same_error_under_varying_input_is_suspect_at_the_sixth() -> None:
    row = DoomLoop()
    for n in range(5):
        row = row.seen(f"c{n}", b"no such file: 'a%d' (line %d)" % (n, n), tool="x.open", failed=True)
    assert row.suspected(second_tier()) is None
    other = row.seen("c5", b"permission denied", tool="x.open", failed=True)
    assert other.suspected(second_tier()) is None
    worked = row.seen("c5", b"fine", tool="x.open")
    assert worked.suspected(second_tier()) is None
    row = row.seen("c5", b"no such file: 'a5' (line 5)", tool="x.open", failed=True)
    assert row.suspected(second_tier()) is not None
    assert row.restarted().suspected(second_tier()) is None
    assert row.cleared().suspected(second_tier()) is None


@pytest.mark.req("BOUND-11")
def test_what_the_second_tier_found_fires_until_the_row_starts_anew() -> None:
    row = fed(*[("a", b""), ("b", b"")] * 3)
    suspicion = row.suspected(second_tier())
    assert suspicion is not None
    assert row.fired(3) is None
    assert row.convict(suspicion.hit).fired(3) == suspicion.hit
    assert row.convict(suspicion.hit).restarted().fired(3) is None
