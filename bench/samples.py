"""Times that were taken, and the one that stands for them."""

from __future__ import annotations

import math
from collections.abc import Sequence

MS_IN_S = 1e3
US_IN_S = 1e6


def percentile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that so large a share of them does not exceed."""
    return sorted(samples)[max(math.ceil(share * len(samples)) - 1, 0)]


def median_ms(seconds: Sequence[float]) -> float:
    """Of times in seconds."""
    return percentile(seconds, 0.5) * MS_IN_S
