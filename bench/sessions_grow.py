"""A session that has become long: what a Step costs in it, and how fast it is read back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from bench import log_share
from bench.floors import select
from bench.opened import database, opened, run
from bench.report import Row, Unit
from bench.samples import median_ms, percentile
from bench.scale import SHORT_SESSION, Scale
from bench.world import STEPS_OF_TURN, Driver, write_transcript
from turnd.store.log import EventLog

_STEP = "A Step late in a session"
_REPLAY = "Replay"


@dataclass(slots=True)
class _Steps:
    """Seconds for each Step, at one length of session."""

    whole: list[float] = field(default_factory=list)
    log_share: list[float] = field(default_factory=list)
    request: list[float] = field(default_factory=list)


def measure(directory: Path, scale: Scale) -> list[Row]:
    """What one more Step costs in a long session against a short one; then how fast the long one is replayed."""
    place = directory / "long"
    place.mkdir()
    session, rows = run(_steps(place, scale))
    return rows + _replay(place, session, scale)


async def _steps(place: Path, scale: Scale) -> tuple[str, list[Row]]:
    transcript = place / "model.jsonl"
    # A Step makes more than ten events.
    write_transcript(transcript, scale.long_session // 10 + scale.measured_turns * STEPS_OF_TURN)
    late, early = _Steps(), _Steps()
    async with opened(place) as log:
        driver = Driver(log, transcript)
        session = await driver.new_session()
        await driver.until(session, scale.long_session)
        for _ in range(scale.measured_turns):
            short = await driver.new_session()
            await driver.until(short, SHORT_SESSION)
            await _measure(log, driver, short, early)
            await _measure(log, driver, session, late)
        await driver.close()
    return session, [
        _step_row("by the loop, with a recorded model", late.whole, early.whole, scale),
        _step_row("its events appended and taken by History", late.log_share, early.log_share, scale),
        _step_row("the request made of the whole history", late.request, early.request, scale),
    ]


async def _measure(log: EventLog, driver: Driver, session: str, steps: _Steps) -> None:
    """One Turn by the loop; then, on the same session, the two parts of it alone."""
    done = len(driver.step_times[session])
    await driver.turn(session)
    steps.whole += driver.step_times[session][done : done + STEPS_OF_TURN - 1]
    history = await log_share.read_history(log, session)
    steps.request.append(log_share.request_time(history))
    steps.log_share += await log_share.step_times(log, session, history, STEPS_OF_TURN)


def _step_row(what: str, late: list[float], early: list[float], scale: Scale) -> Row:
    return Row(
        _STEP,
        f"{what}, after {scale.long_session:,} events",
        median_ms(late),
        Unit.MILLISECONDS,
        f"after {SHORT_SESSION}",
        median_ms(early),
    )


def _replay(place: Path, session: str, scale: Scale) -> list[Row]:
    ways = {
        "EventLog.read: pages, decoded": _read,
        "EventLog.load: rules and projections": _load,
        "History: what the model is told": _history,
    }
    floors: list[float] = []
    times: dict[str, list[float]] = {what: [] for what in ways}
    events = 0
    for _ in range(scale.rounds):
        for what, way in ways.items():
            floors.append(select(database(place)))
            took, events = run(_timed(place, session, way))
            times[what].append(took)
    floor = events / percentile(floors, 0.5)
    return [
        Row(
            _REPLAY,
            what,
            events / percentile(taken, 0.5),
            Unit.EVENTS_PER_SECOND,
            "SELECT event, not decoded",
            floor,
        )
        for what, taken in times.items()
    ]


async def _timed(
    place: Path, session: str, way: Callable[[EventLog, str], Awaitable[None]]
) -> tuple[float, int]:
    async with opened(place) as log:
        begin = perf_counter()
        await way(log, session)
        return perf_counter() - begin, await log.head(session)


async def _read(log: EventLog, session: str) -> None:
    async for _ in log.read(session):
        pass


async def _load(log: EventLog, session: str) -> None:
    await log.load(session)


async def _history(log: EventLog, session: str) -> None:
    (await log_share.read_history(log, session)).messages()
