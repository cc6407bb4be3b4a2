"""What was spent, by whatever rows are to be told apart: sums over the ledger (M06, BOUND-05)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from turnd.v1 import common_pb2 as common
from turnd.v1 import daemon_pb2

DIMENSIONS: Final = ("session", "model", "day", "step", "purpose")

_COLUMNS: Final = {
    "session": "sessions.id",
    "model": "model",
    "day": "date(time_us / 1000000, 'unixepoch')",
    "turn": "turn",
    "step": "step",
    "purpose": "purpose",
}
_TREE: Final = """
    WITH RECURSIVE tree (key, id) AS (
        SELECT key, id FROM sessions WHERE id = ?
        UNION
        SELECT sessions.key, sessions.id FROM tree
        JOIN sessions ON sessions.parent = tree.id AND sessions.parent <> ''
    )
"""
_SUMS: Final = (
    "sum(usage_ledger.input_tokens), sum(usage_ledger.output_tokens), sum(cache_read_tokens), "
    "sum(cache_write_tokens), sum(reasoning_tokens), sum(usage_ledger.cost_nano_usd), max(estimated), "
    "max(unpriced), count(*)"
)


def statement(by: Sequence[str], *, of_tree: bool) -> str:
    """The statement whose rows are told apart by some of DIMENSIONS; with `of_tree` its parameter is a session."""
    columns = ", ".join(_COLUMNS[name] for name in _names(by)) or "''"
    tree, member = (_TREE, "WHERE usage_ledger.session IN (SELECT key FROM tree)") if of_tree else ("", "")
    return (
        f"{tree} SELECT {columns}, {_SUMS} FROM usage_ledger JOIN sessions ON sessions.key = usage_ledger.session "  # noqa: S608
        f"{member} GROUP BY {columns} ORDER BY min(usage_ledger.position)"
    )


def row(by: Sequence[str], values: Sequence[Any]) -> daemon_pb2.CostRow:
    """One row of the statement as clients get it."""
    names = _names(by) or ("nothing",)
    told = {name: value for name, value in zip(names, values, strict=False) if name != "nothing"}
    inputs, outputs, read, write, reasoning, cost, estimated, unpriced, requests = values[len(names) :]
    return daemon_pb2.CostRow(
        **{name: value for name, value in told.items() if value is not None},
        tokens=common.TokenCounts(
            input_tokens=inputs,
            output_tokens=outputs,
            cache_read_tokens=read,
            cache_write_tokens=write,
            reasoning_tokens=reasoning,
        ),
        cost_nano_usd=cost,
        estimated=bool(estimated),
        unpriced=bool(unpriced),
        requests=requests,
    )


def _names(by: Sequence[str]) -> tuple[str, ...]:
    """The columns; Steps are numbered within a Turn, and Turns within a session."""
    names = dict.fromkeys(name for name in DIMENSIONS if name in by)
    if "step" in names:
        names = dict.fromkeys(
            ("session", *(n for n in names if n not in ("session", "step")), "turn", "step")
        )
    return tuple(names)
