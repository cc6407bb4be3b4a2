"""A log with many sessions: starting on it, and listing them, against one with few."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from bench.daemon import daemon
from bench.opened import opened, run
from bench.report import Row, Unit
from bench.samples import median_ms
from bench.scale import FEW_SESSIONS, Scale
from turnd.rules.event import Draft
from turnd.system import UlidIds
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

_GROUP = "Many sessions"
_APPENDED_AT_ONCE = 100


@dataclass(slots=True)
class _Times:
    """Seconds of each round, for one number of sessions."""

    log_start: list[float] = field(default_factory=list)
    log_page: list[float] = field(default_factory=list)
    daemon_start: list[float] = field(default_factory=list)
    session_listed: list[float] = field(default_factory=list)


def measure(directory: Path, scale: Scale) -> list[Row]:
    """Start and list, of the log alone and of the daemon through a client."""
    times = {FEW_SESSIONS: _Times(), scale.sessions: _Times()}
    for sessions in times:
        run(_fill(directory / f"sessions-{sessions}", sessions))
    for _ in range(scale.rounds):
        for sessions, taken in times.items():
            state = directory / f"sessions-{sessions}"
            run(_time_log(state, taken))
            run(_time_daemon(state, taken))
    few, many = times[FEW_SESSIONS], times[scale.sessions]
    return [
        _row("EventLog.start", many.log_start, few.log_start, scale),
        _row(f"a page of {FEW_SESSIONS} from the log", many.log_page, few.log_page, scale),
        _row("turnd, to its first answer", many.daemon_start, few.daemon_start, scale),
        _row("list sessions, all of them, for each", many.session_listed, few.session_listed, scale),
    ]


async def _fill(state: Path, sessions: int) -> None:
    # The daemon wants its state directory private.
    state.mkdir(mode=0o700)
    ids = UlidIds()
    async with opened(state) as log:
        for first in range(0, sessions, _APPENDED_AT_ONCE):
            now = min(_APPENDED_AT_ONCE, sessions - first)
            await asyncio.gather(*(log.append(*_session(ids.session())) for _ in range(now)))


async def _time_log(state: Path, times: _Times) -> None:
    begin = perf_counter()
    async with opened(state) as log:
        times.log_start.append(perf_counter() - begin)
        begin = perf_counter()
        await log.catalogue.sessions(page_size=FEW_SESSIONS)
        times.log_page.append(perf_counter() - begin)


async def _time_daemon(state: Path, times: _Times) -> None:
    async with daemon(state) as (client, took):
        times.daemon_start.append(took)
        begin = perf_counter()
        listed = [session async for session in client.list_sessions()]
        times.session_listed.append((perf_counter() - begin) / len(listed))


def _session(session: str) -> Sequence[Draft]:
    """One that has answered one message."""
    blocks = [common.ContentBlock(text=common.TextBlock(text="a few words " * 10))]
    reason = common.TURN_END_REASON_COMPLETED
    payloads = (
        event_pb2.SessionCreated(cwd="/w", profile=common.ProfileSnapshot(name="default", tools=["*"])),
        event_pb2.TurnStart(turn=0),
        event_pb2.UserMessage(blocks=blocks),
        event_pb2.StepStart(turn=0, step=1),
        event_pb2.AgentRequest(purpose=common.REQUEST_PURPOSE_STEP, model="m"),
        event_pb2.Usage(attempt=1, tokens=common.TokenCounts(input_tokens=1000, output_tokens=100)),
        event_pb2.AssistantMessage(blocks=blocks),
        event_pb2.StepEnd(turn=0, step=1),
        event_pb2.TurnStopping(reason=reason),
        event_pb2.TurnEnd(turn=0, reason=reason),
    )
    return [Draft(session, payload) for payload in payloads]


def _row(what: str, many: list[float], few: list[float], scale: Scale) -> Row:
    floor = f"with {FEW_SESSIONS} sessions"
    name = f"{what}, with {scale.sessions:,}"
    return Row(_GROUP, name, median_ms(many), Unit.MILLISECONDS, floor, median_ms(few))
