"""A real log in a directory, in the loop that the daemon has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from turnd.store.hold import Hold
from turnd.store.log import EventLog
from turnd.system import SystemClock

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs it in a loop of its own."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def database(directory: Path) -> Path:
    """The log's file in its directory."""
    return directory / "turnd.db"


@asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[EventLog]:
    """The log, started, and closed at the end."""
    directory.mkdir(parents=True, exist_ok=True)
    hold = Hold.take(database(directory), version="bench", socket="")
    log = EventLog(hold, SystemClock())
    try:
        await log.start()
        yield log
    finally:
        await log.close()
        hold.release()
