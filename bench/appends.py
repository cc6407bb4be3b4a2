"""Appends: how many a second, and how long each takes, for few and many appenders in both grades."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from time import perf_counter, process_time
from typing import Final

from bench.floors import Grade, in_one_each, in_one_transaction, stored_rows
from bench.opened import database, opened, run
from bench.report import Row, Unit
from bench.samples import MS_IN_S, US_IN_S, percentile
from bench.scale import Scale
from turnd.rules.event import Draft
from turnd.store.log import EventLog
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

APPENDERS: Final = (1, 10, 100)
CHUNK_CHARACTERS: Final = 200
"""What a fast model says between two flushes of the stream."""
_GROUPS: Final = {
    Grade.ORDINARY: "Appends, ordinary grade (assistant/chunk)",
    Grade.COMMITMENT: "Appends, commitments (usage)",
}


@dataclass(slots=True)
class _Samples:
    """Of all rounds of one number of appenders; times in seconds."""

    rates: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    together_rates: list[float] = field(default_factory=list)
    together_cpu: list[float] = field(default_factory=list)
    each_rates: list[float] = field(default_factory=list)
    each_latencies: list[float] = field(default_factory=list)


def measure(directory: Path, scale: Scale) -> list[Row]:
    """Five rows for each number of appenders, for each grade."""
    numbers = count()
    rows = []
    for grade in Grade:
        samples = {appenders: _Samples() for appenders in APPENDERS}
        for _ in range(scale.rounds):
            for appenders in APPENDERS:
                _round(directory / f"appends-{next(numbers)}", scale, grade, appenders, samples[appenders])
        for appenders in APPENDERS:
            rows += _rows(grade, appenders, samples[appenders])
    return rows


def _round(directory: Path, scale: Scale, grade: Grade, appenders: int, samples: _Samples) -> None:
    events = scale.ordinary_events if grade is Grade.ORDINARY else scale.commitment_events
    took, cpu, latencies = run(_append(directory, grade, appenders, events // appenders))
    rows = stored_rows(database(directory))[-events:]
    each = in_one_each(directory / "each.db", rows, grade)
    samples.rates.append(events / took)
    samples.latencies += latencies
    samples.cpu.append(cpu / events)
    together, together_cpu = in_one_transaction(directory / "together.db", rows, grade)
    samples.together_rates.append(events / together)
    samples.together_cpu.append(together_cpu / events)
    samples.each_rates.append(events / sum(each))
    samples.each_latencies += each


async def _append(
    directory: Path, grade: Grade, appenders: int, events: int
) -> tuple[float, float, list[float]]:
    """Seconds for all appends together, seconds of CPU, and seconds for each append.

    Every appender has a session and waits for each of its appends.
    """
    async with opened(directory) as log:
        sessions = [f"S{number:03}" for number in range(appenders)]
        for session in sessions:
            await log.append(*_opening(session))
        latencies: list[float] = []
        begin, cpu_begin = perf_counter(), process_time()
        async with asyncio.TaskGroup() as tasks:
            for session in sessions:
                tasks.create_task(_appender(log, _drafts(session, grade, events), latencies))
        return perf_counter() - begin, process_time() - cpu_begin, latencies


async def _appender(log: EventLog, drafts: Iterator[Draft], latencies: list[float]) -> None:
    for draft in drafts:
        begin = perf_counter()
        await log.append(draft)
        latencies.append(perf_counter() - begin)


def _opening(session: str) -> tuple[Draft, ...]:
    return (
        Draft(session, event_pb2.SessionCreated(cwd="/w", profile=common.ProfileSnapshot(name="default"))),
        Draft(session, event_pb2.TurnStart(turn=0)),
        Draft(session, event_pb2.StepStart(turn=0, step=1)),
    )


def _drafts(session: str, grade: Grade, events: int) -> Iterator[Draft]:
    text = "x" * CHUNK_CHARACTERS
    for _ in range(events):
        match grade:
            case Grade.ORDINARY:
                yield Draft(session, event_pb2.AssistantChunk(attempt=1, deltas=[event_pb2.Delta(text=text)]))
            case Grade.COMMITMENT:
                tokens = common.TokenCounts(input_tokens=1000, output_tokens=100)
                yield Draft(session, event_pb2.Usage(attempt=1, tokens=tokens, cost_nano_usd=4_500_000))


def _rows(grade: Grade, appenders: int, samples: _Samples) -> list[Row]:
    group = _GROUPS[grade]
    who = f"{appenders} appender{'s' if appenders > 1 else ''}"
    together = f"executemany, one transaction, {grade.value}"
    each = f"one transaction each, {grade.value}"

    def rate(floor: str, floor_rates: list[float]) -> Row:
        value = percentile(samples.rates, 0.5)
        unit = Unit.EVENTS_PER_SECOND
        return Row(group, f"{who}: rate", value, unit, floor, percentile(floor_rates, 0.5))

    def latency(name: str, share: float) -> Row:
        return Row(
            group,
            f"{who}: {name}",
            percentile(samples.latencies, share) * MS_IN_S,
            Unit.MILLISECONDS,
            f"{each}, {name}",
            percentile(samples.each_latencies, share) * MS_IN_S,
        )

    cpu = Row(
        group,
        f"{who}: for each event",
        percentile(samples.cpu, 0.5) * US_IN_S,
        Unit.CPU_MICROSECONDS,
        together,
        percentile(samples.together_cpu, 0.5) * US_IN_S,
    )
    return [
        rate(together, samples.together_rates),
        rate(each, samples.each_rates),
        latency("p50", 0.5),
        latency("p99", 0.99),
        cpu,
    ]
