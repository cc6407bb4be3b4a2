"""What a run found: rows, each with its floor and the ratio, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby


class Unit(Enum):
    """What a figure counts, which says whether more of it is better."""

    EVENTS_PER_SECOND = "events/s"
    MILLISECONDS = "ms"
    CPU_MICROSECONDS = "us of CPU"


@dataclass(frozen=True, slots=True)
class Row:
    """One figure and its floor, measured in the same run on the same file system."""

    group: str
    what: str
    value: float
    unit: Unit
    floor: str
    floor_value: float

    @property
    def ratio(self) -> float:
        """What it costs in floors: 1 is as cheap as the floor, 2 costs twice as much."""
        match self.unit:
            case Unit.EVENTS_PER_SECOND:
                return self.floor_value / self.value
            case Unit.MILLISECONDS | Unit.CPU_MICROSECONDS:
                return self.value / self.floor_value


_HEAD = ("", "figure", "floor", "", "ratio")


def as_text(machine: Mapping[str, str], rows: Sequence[Row]) -> str:
    """A table in Markdown, which reads as well on a terminal."""
    lines = [f"{name}: {fact}" for name, fact in machine.items()]
    for group, members in groupby(rows, lambda row: row.group):
        lines += ["", f"{group}", ""]
        lines += _table([_cells(row) for row in members])
    return "\n".join(lines)


def as_json(machine: Mapping[str, str], rows: Sequence[Row]) -> dict[str, object]:
    """The same with every digit."""
    return {
        "machine": dict(machine),
        "rows": [
            {
                "group": row.group,
                "what": row.what,
                "value": row.value,
                "unit": row.unit.value,
                "floor": row.floor,
                "floor_value": row.floor_value,
                "ratio": row.ratio,
            }
            for row in rows
        ],
    }


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.what,
        f"{_number(row.value)} {row.unit.value}",
        row.floor,
        f"{_number(row.floor_value)} {row.unit.value}",
        f"{row.ratio:.2f}",
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _table(body: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(cells[column]) for cells in (_HEAD, *body)) for column in range(len(_HEAD))]
    rule = tuple("-" * width for width in widths)
    return [f"| {' | '.join(map(str.ljust, cells, widths))} |" for cells in (_HEAD, rule, *body)]
