"""A real log in a file, and drafts to fill it with."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

from google.protobuf.message import Message

from turnd.rules.event import Draft
from turnd.store.admission import Admission
from turnd.store.hold import Hold
from turnd.store.log import EventLog
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

START_US = 1_700_000_000_000_000


class TickingClock:
    """A second passes with each look at it, backwards where a test says so."""

    def __init__(self, step_us: int = 1_000_000) -> None:
        self.us = START_US
        self.step_us = step_us

    def now_us(self) -> int:
        self.us += self.step_us
        return self.us

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def database(directory: Path) -> Path:
    return directory / "turnd.db"


@asynccontextmanager
async def opened(
    directory: Path, clock: TickingClock | None = None, admission: Admission | None = None
) -> AsyncIterator[EventLog]:
    """The log of this directory, started and closed again."""
    hold = Hold.take(database(directory), version="0", socket="")
    log = EventLog(hold, clock or TickingClock(), admission=admission)
    try:
        await log.start()
        try:
            yield log
        finally:
            await log.close()
    finally:
        hold.release()


def query(directory: Path, sql: str, *values: object) -> list[tuple[object, ...]]:
    """What another process would see: a connection of its own."""
    with closing(sqlite3.connect(f"file:{database(directory)}?mode=ro", uri=True)) as connection:
        return connection.execute(sql, values).fetchall()


def created(
    session: str,
    *,
    parent: str = "",
    depth: int = 0,
    cwd: str = "/w",
    producer: common.Producer | None = None,
) -> Draft:
    payload = event_pb2.SessionCreated(cwd=cwd, parent=parent, depth=depth)
    return Draft(session, payload, producer=producer)


def turn(session: str, number: int = 0) -> Draft:
    return Draft(session, event_pb2.TurnStart(turn=number))


def step(session: str, turn_number: int = 0, number: int = 1) -> Draft:
    return Draft(session, event_pb2.StepStart(turn=turn_number, step=number))


def note(session: str, text: str = "x") -> Draft:
    return Draft(session, event_pb2.Note(text=text))


def chunk(session: str, text: str = "x") -> Draft:
    return Draft(session, event_pb2.AssistantChunk(attempt=1, deltas=[event_pb2.Delta(text=text)]))


def usage(session: str, cost_nano_usd: int = 0, tokens: int = 0) -> Draft:
    counts = common.TokenCounts(input_tokens=tokens, output_tokens=2 * tokens)
    return Draft(session, event_pb2.Usage(attempt=1, tokens=counts, cost_nano_usd=cost_nano_usd))


def call(session: str, call_id: str, kind: common.ToolKind.ValueType = common.TOOL_KIND_DATA_SOURCE) -> Draft:
    payload = event_pb2.ToolCall(call_id=call_id, provider="p", tool="t", kind=kind, input=b"{}")
    return Draft(session, payload)


def started(session: str, call_id: str) -> Draft:
    return Draft(session, event_pb2.ToolStarted(call_id=call_id, attempt=1, input=b"{}"))


def result(session: str, call_id: str) -> Draft:
    return Draft(session, event_pb2.ToolResult(call_id=call_id, content=b'"done"'))


def status(session: str, value: common.SessionStatus.ValueType) -> Draft:
    return Draft(session, event_pb2.SessionStatusChanged(status=value))


def ended(session: str, value: common.SessionStatus.ValueType) -> Draft:
    return Draft(session, event_pb2.SessionEnded(status=value))


async def stored_events(log: EventLog, session: str) -> list[event_pb2.Event]:
    return [event async for page in log.read(session) for event in page]


def payloads(events: list[event_pb2.Event]) -> list[str]:
    """The fields that are set: `turn_start`."""
    return [event.WhichOneof("data") or "" for event in events]


def draft(session: str, payload: Message) -> Draft:
    return Draft(session, payload)
