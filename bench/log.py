"""The event log: appends, replay, what a Step costs late in a session, start-up and lists of many sessions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench import appends, many_sessions, sessions_grow
from bench.report import Row
from bench.scale import Scale


def measure(directory: Path, scale: Scale) -> Sequence[Row]:
    """Every row of this benchmark; its files are made in the directory."""
    return [
        *appends.measure(directory, scale),
        *sessions_grow.measure(directory, scale),
        *many_sessions.measure(directory, scale),
    ]
