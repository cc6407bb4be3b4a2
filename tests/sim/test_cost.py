"""What is booked, when and by which price; and what a model without a price means (BOUND-05, -08, -12, -14)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import structlog
from tests.faults.stored_sim import StoredSim, started
from tests.sim.test_subagents import children_of, root_of, sim_with, spawns
from tests.sim.world import Sim, SimTool, spec, transcript

from turnd.loop.session import LiveSession
from turnd.models.catalogue import Catalogue
from turnd.models.keys import Keys
from turnd.ports import Model
from turnd.v1 import common_pb2 as common

USD = 10**9
FLAT = {
    "input_per_mtok": 3.0,
    "output_per_mtok": 15.0,
    "cache_read_per_mtok": 0.3,
    "cache_write_per_mtok": 3.75,
}


def priced(**pricing: Any) -> Mapping[str, object]:
    return {"model": {"pricing": pricing}}


def says(text: str, usage: Mapping[str, int] | None = None, **more: object) -> dict[str, object]:
    counted = {} if usage is None else {"usage": {"input_tokens": 0, "output_tokens": 0, **usage}}
    return {"stream": [{"text": text}], **counted, **more}


def costs(sim: Sim, live: LiveSession) -> list[int]:
    return [usage.cost_nano_usd for usage in sim.of(live, "usage")]


class Unpriced(Catalogue):
    """Of the transcripts whose names say so no price is known."""

    def open(self, name: str) -> Model:
        model = super().open(name)
        if "unpriced" in name:
            model.price = lambda at_us, tokens: None  # type: ignore[method-assign]
        return model


def unpriced(sim: Sim) -> None:
    sim.world = replace(sim.world, models=Unpriced(sim.clock, Keys({})))
    sim.log.subscribers.remove(sim.live.committed)
    sim.live = sim.make_live()


def named(path: Path, name: str) -> Path:
    return path.rename(path.with_name(name))


@pytest.mark.req("M01", "BOUND-01", "BOUND-05")
@pytest.mark.parametrize("usage", [{"cache_read_tokens": 2_000_000}, {"cache_write_tokens": 160_000}])
async def test_reads_from_and_writes_to_a_cache_are_paid_for_and_fire_the_cap(
    tmp_path: Path, usage: dict[str, int]
) -> None:
    sim = Sim([SimTool(spec("read"))])
    looks = {
        "stream": [{"tool": "read", "input": {}}],
        "usage": {"input_tokens": 10, "output_tokens": 10, **usage},
    }
    model = transcript(tmp_path, priced(**FLAT), looks, says("the last", expect={"tools": False}))
    live = await sim.session(model, bounds=common.Bounds(max_cost_nano_usd=600_100_000))
    await sim.turn(live)
    assert costs(sim, live)[0] == 600_000_000 + 10 * 3_000 + 10 * 15_000
    view = sim.log.view(live.session)
    assert (view.status, view.final_text) == (common.SESSION_STATUS_ERROR_MAX_BUDGET_USD, "the last")


@pytest.mark.req("M02", "BOUND-14")
async def test_a_cancelled_stream_of_reasoning_is_estimated_counted_and_fires_the_cap(tmp_path: Path) -> None:
    sim = Sim()
    thinks = {"stream": [{"thinking": "x" * 300_000}], "chunk": 1000, "hang_s": 3600}
    model = transcript(tmp_path, priced(**FLAT), thinks, says("the last", expect={"tools": False}))
    live = await sim.session(model, bounds=common.Bounds(max_cost_nano_usd=USD))
    hangs = asyncio.Event()

    async def sleep(seconds: float) -> None:
        hangs.set()
        await asyncio.Event().wait()

    sim.clock.sleep = sleep  # type: ignore[method-assign]
    await sim.send(live, "go")
    await asyncio.wait_for(hangs.wait(), 20)
    await live.cancel(common.CANCEL_CAUSE_USER, "test")
    (usage,) = sim.of(live, "usage")
    assert usage.estimated
    assert not usage.unpriced
    assert (usage.tokens.reasoning_tokens, usage.tokens.output_tokens) == (75_000, 0)
    assert usage.tokens.input_tokens > 0
    assert usage.cost_nano_usd == 75_000 * 15_000 + usage.tokens.input_tokens * 3_000
    assert usage.weighted_tokens == 75_000 * 5 + usage.tokens.input_tokens
    assert sim.live.tree.spent_nano_usd(live.session) == usage.cost_nano_usd
    await sim.turn(live, "again")
    view = sim.log.view(live.session)
    assert (view.status, view.final_text) == (common.SESSION_STATUS_ERROR_MAX_BUDGET_USD, "the last")


@pytest.mark.req("M06", "BOUND-05", "BOUND-14")
async def test_each_attempt_that_began_is_in_the_ledger_with_its_purpose(tmp_path: Path) -> None:
    lost = {"error": {"category": "overloaded", "message": "busy", "after_deltas": 1}}
    refused = {"error": {"category": "rate_limited", "message": "slow down"}}
    lines = [
        says("billed", {"input_tokens": 1000, "output_tokens": 100}, **lost),
        refused,
        says("cut off before its usage", **lost),
        says("done", {"input_tokens": 1000, "output_tokens": 20}),
        says("No title", {"input_tokens": 200, "output_tokens": 10}, purpose="title", **lost),
    ]
    async with started(tmp_path) as (log, _):
        sim = StoredSim(log, [])
        live = await sim.session(transcript(tmp_path, priced(**FLAT), *lines))
        await sim.turn(live)
        async with asyncio.timeout(10):
            while len(sim.of(live, "usage")) < 4:
                await asyncio.sleep(0)
        steps = [use for use in sim.of(live, "usage") if use.purpose == common.REQUEST_PURPOSE_STEP]
        assert [(usage.attempt, usage.estimated) for usage in steps] == [(1, False), (3, True), (4, False)]
        rows = {row.purpose: row for row in await log.catalogue.costs(live.session, ["purpose"])}
        assert {purpose: (row.requests, row.estimated) for purpose, row in rows.items()} == {
            "step": (3, True),
            "title": (1, False),
        }
        assert rows["title"].cost_nano_usd == 200 * 3_000 + 10 * 15_000
        assert rows["step"].cost_nano_usd == sum(usage.cost_nano_usd for usage in steps)
        assert steps[0].cost_nano_usd == 4_500_000
        assert steps[1].cost_nano_usd > 0
        spent = await log.subtree(live.session)
        assert spent.cost_nano_usd == sum(row.cost_nano_usd for row in rows.values())
        assert (spent.estimated, spent.unpriced) == (True, False)


@pytest.mark.req("BOUND-08", "BOUND-05")
async def test_the_tier_is_that_of_the_time_of_arrival_and_of_the_size(tmp_path: Path) -> None:
    sim = Sim()
    split = "2023-11-14T22:14:00Z"  # 40 s after the simulated world began
    tiers = [
        FLAT | {"until": split, "until_tokens": 1000},
        FLAT | {"until": split, "from_tokens": 1000, "input_per_mtok": 6},
        {"free": True, "from": split},
    ]
    lines = [
        says("small", {"input_tokens": 999}),
        says("large", {"input_tokens": 400, "cache_read_tokens": 600}),
        says("late", {"input_tokens": 999}, delay_s=50),
    ]
    live = await sim.session(transcript(tmp_path, priced(tiers=tiers), *lines))
    for _ in lines:
        await sim.turn(live)
    assert costs(sim, live) == [999 * 3_000, 400 * 6_000 + 600 * 300, 0]
    assert [usage.free for usage in sim.of(live, "usage")] == [False, False, True]


@pytest.mark.req("BOUND-05")
async def test_other_prices_leave_what_was_booked_as_it_is(tmp_path: Path) -> None:
    sim = Sim()
    lines = [says("one", {"input_tokens": 1000}), says("two", {"input_tokens": 1000})]
    model = transcript(tmp_path, priced(**FLAT), *lines)
    live = await sim.session(model)
    await sim.turn(live)
    assert costs(sim, live) == [3_000_000]
    transcript(tmp_path, priced(**FLAT | {"input_per_mtok": 300}), *lines)
    os.utime(model, ns=(1, 1))
    await sim.turn(live)
    assert costs(sim, live) == [3_000_000, 300_000_000]
    assert sim.log.view(live.session).cost_nano_usd == 303_000_000


@pytest.mark.req("BOUND-12")
async def test_weighted_tokens_go_by_the_weights_and_bound_nothing(tmp_path: Path) -> None:
    sim = Sim(sampling_token_weight=Decimal("2.5"), prefill_token_weight=Decimal("0.5"))
    usage = {
        "input_tokens": 100,
        "output_tokens": 10,
        "cache_read_tokens": 10**9,
        "cache_write_tokens": 300,
        "reasoning_tokens": 30,
    }
    lines = [says("one", usage), says("two", usage)]
    live = await sim.session(transcript(tmp_path, *lines), bounds=common.Bounds(max_cost_nano_usd=1))
    await sim.turn(live)
    await sim.turn(live)
    assert [one.weighted_tokens for one in sim.of(live, "usage")] == [300, 300]
    view = sim.log.view(live.session)
    assert (view.weighted_tokens, view.status) == (600, common.SESSION_STATUS_IDLE)


@pytest.mark.req("M05", "BOUND-08")
async def test_a_free_model_costs_nothing_and_says_so(tmp_path: Path) -> None:
    sim = Sim()
    live = await sim.session(
        transcript(tmp_path, priced(free=True), says("one", {"input_tokens": 10**6})),
        bounds=common.Bounds(max_cost_nano_usd=1),
    )
    await sim.turn(live)
    (usage,) = sim.of(live, "usage")
    assert (usage.cost_nano_usd, usage.free, usage.unpriced, usage.estimated) == (0, True, False, False)


@pytest.mark.req("M05", "BOUND-08")
async def test_without_a_price_and_without_a_cap_every_turn_is_warned_of(tmp_path: Path) -> None:
    sim = Sim([SimTool(spec("read"))])
    unpriced(sim)
    reads = {"stream": [{"tool": "read", "input": {}}]}
    lines = [reads, says("one", {"input_tokens": 10**6}), says("two")]
    live = await sim.session(named(transcript(tmp_path, *lines), "unpriced.jsonl"))
    with structlog.testing.capture_logs() as logged:
        await sim.turn(live)
        await sim.turn(live)
    warnings = [line for line in logged if "no price is known" in line["event"]]
    assert [(line["log_level"], line["turn"]) for line in warnings] == [("warning", 0), ("warning", 1)]
    assert {line["model"] for line in warnings} == {f"replay:{tmp_path}/unpriced.jsonl"}
    assert [(usage.unpriced, usage.free) for usage in sim.of(live, "usage")] == [(True, False)] * 3
    assert sim.log.view(live.session).cost_nano_usd == 0


@pytest.mark.req("M05", "BOUND-08")
async def test_without_a_price_a_cap_refuses_before_anything_is_spent(tmp_path: Path) -> None:
    sim = Sim()
    unpriced(sim)
    model = named(transcript(tmp_path, says("never asked")), "unpriced.jsonl")
    live = await sim.session(model, bounds=common.Bounds(max_cost_nano_usd=USD))
    with structlog.testing.capture_logs() as logged:
        await sim.turn(live)
    assert not [line for line in logged if "no price is known" in line["event"]], (
        "it is refused, not warned of"
    )
    assert sim.of(live, "agent/request") == []
    (stopping,) = sim.of(live, "turn/stopping")
    assert stopping.error.category == "unpriced"
    message = stopping.error.message
    assert f"no price is known for replay:{model}" in message
    assert f'[prices."replay:{model}"] with input_per_mtok and output_per_mtok' in message
    assert "leave max_cost_usd out" in message


@pytest.mark.req("M05", "BOUND-08")
async def test_the_cap_of_a_parent_refuses_a_sub_agent_without_a_price(tmp_path: Path) -> None:
    sim = sim_with(model=f"replay:{tmp_path}/unpriced.jsonl")
    unpriced(sim)
    named(transcript(tmp_path, says("never asked", profile="worker")), "unpriced.jsonl")
    model = transcript(tmp_path, priced(**FLAT), spawns("help"), says("done"))
    live = await root_of(sim, model, bounds=common.Bounds(max_cost_nano_usd=USD))
    await sim.turn(live)
    (child,) = children_of(sim, live.session)
    assert sim.log.view(child).status == common.SESSION_STATUS_FAILED
    assert not [e for e in sim.log.events[child] if e.WhichOneof("data") == "agent_request"]
    assert sim.log.view(live.session).final_text == "done"
