"""What a tree of sessions spends is bounded together, and `turn cost` adds up (BOUND-06, M03)."""

from __future__ import annotations

import json

import pytest
from tests.harness import running_daemon
from tests.marks import NEEDS_CELLS

pytestmark = [NEEDS_CELLS, pytest.mark.timeout(120)]

CONFIG = """
[profiles.default]
tools = ["workspace.*", "core.*"]
may_spawn = ["default"]
max_concurrent_subagents = 4

[[policy]]
name = "agents"
match = { tool = "spawn_agent" }
action = "allow"
"""
PRICES = {"model": {"pricing": {"input_per_mtok": 0.0, "output_per_mtok": 1000.0}}}
BUDGET, PARENT, CHILD, FINAL = 1.00, 0.30, 0.50, 0.02


def costs(usd: float) -> dict[str, object]:
    return {"usage": {"input_tokens": 1, "output_tokens": round(usd * 1000)}}


@pytest.mark.req("BOUND-06", "BOUND-01", "SUB-06", "M03")
async def test_four_children_that_each_want_more_than_is_left_stay_within_the_overshoot() -> None:
    spawn = [{"tool": "spawn_agent", "input": {"prompt": name}} for name in "abcd"]
    final = {"stream": [{"text": "final"}], "expect": {"tools": False}}
    # Each child goes on until it is stopped, and says the same in its final Step; however they fall, the sums hold.
    work = {"stream": [{"tool": "list_dir", "input": {"path": "."}}], "delay_s": 1.0, "repeat": True}
    async with running_daemon(CONFIG) as daemon:
        model = daemon.replay(
            PRICES,
            {"stream": spawn, **costs(PARENT)},
            final | costs(FINAL),
            work | {"profile": "default"} | costs(CHILD),
        )
        done = await daemon.turn("run", "go", "--model", model, "--json", "--max-cost", str(BUDGET))
        assert done.code == 4, done.stderr
        root = str(done.json_lines[-1]["session"])
        cost = json.loads((await daemon.turn("cost", root, "--json")).stdout)
        by_step = json.loads((await daemon.turn("cost", root, "--by", "step", "--json")).stdout)
        shown = json.loads((await daemon.turn("show", root, "--json")).stdout)
        statuses = {
            child["id"]: json.loads((await daemon.turn("show", child["id"], "--json")).stdout)["status"]
            for child in shown["children"]
        }
    assert shown["status"] == "error_max_budget_usd"
    assert list(statuses.values()) == ["error_max_budget_usd"] * 4
    rows = {row["session"]: nano(row["cost_usd"]) for row in cost["rows"]}
    assert rows.keys() == {root, *statuses}
    assert rows[root] == nano(PARENT + FINAL)
    total = sum(rows.values())
    assert total == nano(cost["total_cost_usd"]) == sum(nano(row["cost_usd"]) for row in by_step["rows"])
    assert total == nano(done.json_lines[-1]["cost_usd"])
    in_flight, last = 4 * CHILD, 4 * CHILD + FINAL
    assert nano(BUDGET) <= total < nano(BUDGET + in_flight + last)


def nano(usd: float) -> int:
    return round(usd * 10**9)
