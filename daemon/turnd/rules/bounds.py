"""The three bounds of a session, and the doom loop beside them: what has fired, what is left, what the model
is told.

Money is integer nano-USD, time is milliseconds. A bound that is not set is no bound; 0 lets only the final
Step run.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Final

from turnd.v1 import common_pb2 as common
from turnd.v1 import sessions_pb2

MAX_LIMIT: Final = 2**64 - 1
"""The largest limit that the log can hold, in steps, nano-USD or milliseconds."""

_NANO: Final = 9
_MILLI: Final = 3
_PLAIN_NUMBER: Final = re.compile(r"[-+]?[0-9]{1,40}(\.[0-9]{1,40})?")


class LimitError(ValueError):
    """A limit cannot be meant as it was given; the text names it, what is expected and what was found
    (BOUND-13).
    """


@dataclass(frozen=True, slots=True)
class Spent:
    """What a session has used up: Steps, nano-USD (descendants included), active milliseconds."""

    steps: int = 0
    cost_nano_usd: int = 0
    wall_clock_ms: int = 0


def hits(
    bounds: common.Bounds, spent: Spent, doom: common.LimitHit | None = None
) -> tuple[common.LimitHit, ...]:
    """Every limit that has been reached, in the order doom loop, turns, cost, wall clock (BOUND-01).

    The first one gives the session its status. A bound fires when what was spent is at least the limit.
    """
    found = () if doom is None else (doom,)
    return (*found, *(hit for hit in _measured(bounds, spent) if hit.value >= hit.limit))


def left(bounds: common.Bounds, spent: Spent) -> sessions_pb2.BoundsLeft:
    """What is left of each bound that is set; never below zero."""
    rest = sessions_pb2.BoundsLeft()
    if bounds.HasField("max_turns"):
        rest.turns = max(0, bounds.max_turns - spent.steps)
    if bounds.HasField("max_cost_nano_usd"):
        rest.cost_nano_usd = max(0, bounds.max_cost_nano_usd - spent.cost_nano_usd)
    if bounds.HasField("max_wall_clock_ms"):
        rest.wall_clock_ms = max(0, bounds.max_wall_clock_ms - spent.wall_clock_ms)
    return rest


def status_of(dimension: common.LimitDimension.ValueType) -> common.SessionStatus.ValueType:
    """The status of a session that this dimension ended. Raises ValueError for an unspecified one."""
    match dimension:
        case common.LIMIT_DIMENSION_DOOM_LOOP:
            return common.SESSION_STATUS_ERROR_DOOM_LOOP
        case common.LIMIT_DIMENSION_MAX_TURNS:
            return common.SESSION_STATUS_ERROR_MAX_TURNS
        case common.LIMIT_DIMENSION_MAX_COST_USD:
            return common.SESSION_STATUS_ERROR_MAX_BUDGET_USD
        case common.LIMIT_DIMENSION_MAX_WALL_CLOCK_S:
            return common.SESSION_STATUS_ERROR_MAX_WALL_CLOCK
        case _:
            raise ValueError(f"expected a dimension of a limit, found {dimension}")


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


def parse_max_turns(value: object) -> int:
    """Steps, from an integer. Raises LimitError, as all of these do, for anything that is not a number from
    0.
    """
    return _scaled(value, "max_turns", 0, "a whole number of steps")


def parse_max_cost_usd(value: object) -> int:
    """Nano-USD, exactly, from dollars (integer, float as it is written, or Decimal)."""
    return _scaled(value, "max_cost_usd", _NANO, "US dollars with at most 9 decimal places")


def parse_max_wall_clock_s(value: object) -> int:
    """Milliseconds, exactly, from seconds (integer, float as it is written, or Decimal)."""
    return _scaled(value, "max_wall_clock_s", _MILLI, "seconds with at most 3 decimal places")


def number_in(text: str) -> int | Decimal:
    """The number that a command-line flag spells, for one of the functions above. Raises LimitError.

    Only a plain decimal number is one: no exponent, no separators, no `inf`.
    """
    if _PLAIN_NUMBER.fullmatch(text) is None:
        raise LimitError(f"expected a plain decimal number such as 5 or 0.25, found {text!r}")
    return Decimal(text) if "." in text else int(text)


def _scaled(value: object, name: str, places: int, expected: str) -> int:
    # A float counts as the shortest decimal that reads as it, which is how it was written.
    wrong = LimitError(
        f"{name}: expected {expected}, from 0, found {_shown(value)}; for no bound leave it out"
    )
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise wrong
    number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    if not number.is_finite() or number < 0 or number > MAX_LIMIT:
        raise wrong
    # The exponent is looked at first: 1e-999999999 as a fraction would take all memory.
    if number != 0 and number.adjusted() < -places:
        raise wrong
    exact = Fraction(number) * 10**places
    if exact.denominator != 1 or exact > MAX_LIMIT:
        raise wrong
    return int(exact)


def _shown(value: object) -> str:
    # Python refuses to write out the digits of an integer that has thousands of them.
    if isinstance(value, int) and abs(value) > MAX_LIMIT:
        return "an integer beyond 64 bits"
    return reprlib.repr(value)


def _measured(bounds: common.Bounds, spent: Spent) -> Iterator[common.LimitHit]:
    if bounds.HasField("max_turns"):
        yield common.LimitHit(
            dimension=common.LIMIT_DIMENSION_MAX_TURNS,
            limit=bounds.max_turns,
            value=spent.steps,
            unit="steps",
        )
    if bounds.HasField("max_cost_nano_usd"):
        yield common.LimitHit(
            dimension=common.LIMIT_DIMENSION_MAX_COST_USD,
            limit=bounds.max_cost_nano_usd,
            value=spent.cost_nano_usd,
            unit="nano_usd",
        )
    if bounds.HasField("max_wall_clock_ms"):
        yield common.LimitHit(
            dimension=common.LIMIT_DIMENSION_MAX_WALL_CLOCK_S,
            limit=bounds.max_wall_clock_ms,
            value=spent.wall_clock_ms,
            unit="ms",
        )


def _places(units: int, places: int) -> str:
    whole, rest = divmod(units, 10**places)
    return f"{whole}.{rest:0{places}d}".rstrip("0").removesuffix(".")
