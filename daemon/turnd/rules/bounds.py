"""The three bounds of a session, and the doom loop beside them: what has fired, what is left, what the model
is told.

Money is integer nano-USD, time is milliseconds. A bound that is not set is no bound; 0 lets only the final
Step run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from turnd.v1 import common_pb2 as common
from turnd.v1 import sessions_pb2

_NANO: Final = 9
_MILLI: Final = 3


@dataclass(frozen=True, slots=True)
class Spent:
    """What a session has used up: Steps, nano-USD (descendants included), active milliseconds."""

    steps: int = 0
    cost_nano_usd: int = 0
    wall_clock_ms: int = 0


Shared = Sequence[tuple[common.Bounds, int]]
"""The bounds of each session above, and what its tree has spent in nano-USD (BOUND-06)."""


def hits(
    bounds: common.Bounds, spent: Spent, doom: common.LimitHit | None = None, above: Shared = ()
) -> tuple[common.LimitHit, ...]:
    """Every limit that has been reached, in the order doom loop, turns, cost, wall clock (BOUND-01).

    The first one gives the session its status. A bound fires when what was spent is at least the limit. Of the cost
    bounds of a session and those above it the one that is exceeded by most is told.
    """
    found = [] if doom is None else [doom]
    measured = [hit for hit in _measured(bounds, spent) if hit.value >= hit.limit]
    costs = [hit for hit in measured if hit.dimension == common.LIMIT_DIMENSION_MAX_COST_USD]
    for shared, tree_spent in above:
        if shared.HasField("max_cost_nano_usd") and tree_spent >= shared.max_cost_nano_usd:
            costs.append(_cost(shared.max_cost_nano_usd, tree_spent))
    measured = [hit for hit in measured if hit.dimension != common.LIMIT_DIMENSION_MAX_COST_USD]
    measured += sorted(costs, key=lambda hit: hit.limit - hit.value)[:1]
    return (*found, *sorted(measured, key=lambda hit: hit.dimension))


def left(bounds: common.Bounds, spent: Spent, above: Shared = ()) -> sessions_pb2.BoundsLeft:
    """What is left of each bound that is set; never below zero. Of money no more than every session above has."""
    rest = sessions_pb2.BoundsLeft()
    if bounds.HasField("max_turns"):
        rest.turns = max(0, bounds.max_turns - spent.steps)
    shared = [(bounds, spent.cost_nano_usd), *above]
    money = [b.max_cost_nano_usd - used for b, used in shared if b.HasField("max_cost_nano_usd")]
    if money:
        rest.cost_nano_usd = max(0, min(money))
    if bounds.HasField("max_wall_clock_ms"):
        rest.wall_clock_ms = max(0, bounds.max_wall_clock_ms - spent.wall_clock_ms)
    return rest


def instruction(reached: Sequence[common.LimitHit]) -> str:
    """What the model is told in the final Step: each limit with its value, and what is wanted now
    (BOUND-02).
    """
    said = "; ".join(describe(hit) for hit in reached)
    return (
        f"A limit of this session was reached: {said}. No further tool calls are possible. "
        "Give your final answer now, from what you already have: say what was done, what was found, "
        "and what is left undone."
    )


def describe(hit: common.LimitHit) -> str:
    """One limit in words: the dimension, the limit and the value, with their units."""
    match hit.dimension:
        case common.LIMIT_DIMENSION_DOOM_LOOP:
            return f"doom loop (limit {hit.limit} equal calls in a row, made {hit.value})"
        case common.LIMIT_DIMENSION_MAX_TURNS:
            return f"max_turns (limit {hit.limit} steps, used {hit.value})"
        case common.LIMIT_DIMENSION_MAX_COST_USD:
            limit, value = _places(hit.limit, _NANO), _places(hit.value, _NANO)
            return f"max_cost_usd (limit {limit} USD, spent {value} USD)"
        case common.LIMIT_DIMENSION_MAX_WALL_CLOCK_S:
            limit, value = _places(hit.limit, _MILLI), _places(hit.value, _MILLI)
            return f"max_wall_clock_s (limit {limit} s, used {value} s)"
        case _:
            raise ValueError(f"expected a dimension of a limit, found {hit.dimension}")


def _measured(bounds: common.Bounds, spent: Spent) -> Iterator[common.LimitHit]:
    if bounds.HasField("max_turns"):
        yield common.LimitHit(
            dimension=common.LIMIT_DIMENSION_MAX_TURNS,
            limit=bounds.max_turns,
            value=spent.steps,
            unit="steps",
        )
    if bounds.HasField("max_cost_nano_usd"):
        yield _cost(bounds.max_cost_nano_usd, spent.cost_nano_usd)
    if bounds.HasField("max_wall_clock_ms"):
        yield common.LimitHit(
            dimension=common.LIMIT_DIMENSION_MAX_WALL_CLOCK_S,
            limit=bounds.max_wall_clock_ms,
            value=spent.wall_clock_ms,
            unit="ms",
        )


def _cost(limit: int, value: int) -> common.LimitHit:
    return common.LimitHit(
        dimension=common.LIMIT_DIMENSION_MAX_COST_USD, limit=limit, value=value, unit="nano_usd"
    )


def _places(units: int, places: int) -> str:
    whole, rest = divmod(units, 10**places)
    return f"{whole}.{rest:0{places}d}".rstrip("0").removesuffix(".")
