"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes of one run. What is compared has the same size on both sides."""

    rounds: int
    """Each round measures floors and subjects one after the other; figures are medians over the rounds."""
    ordinary_events: int
    """Appended in each round for each number of appenders."""
    commitment_events: int
    long_session: int
    """Events of the session that is replayed, and after which a Step is measured."""
    measured_turns: int
    """Turns of ten Steps, in the long session and in as many short ones."""
    sessions: int
    """In the file whose start and list are measured."""


SHORT_SESSION: Final = 100
"""Events after which the Step is measured that is the floor of the one in the long session."""
FEW_SESSIONS: Final = 20

FULL: Final = Scale(
    rounds=3,
    ordinary_events=2000,
    commitment_events=300,
    long_session=10_000,
    measured_turns=4,
    sessions=2000,
)
QUICK: Final = Scale(
    rounds=1,
    ordinary_events=400,
    commitment_events=100,
    long_session=1000,
    measured_turns=1,
    sessions=100,
)
