"""A `gc` over a log with sessions that have ended and with spools; jobs of the forge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from tests.faults.preload import Kind, Shim
from tests.faults.stored_sim import started
from tests.unit.stored import TickingClock, created, ended, note, status

from turnd.sessions.housekeeping import Housekeeping
from turnd.sessions.requests import Requests
from turnd.store.log import EventLog
from turnd.tools.spool import Spool
from turnd.upkeep import Upkeep
from turnd.v1 import common_pb2 as common
from turnd.v1 import daemon_pb2
from turnd.v1.paths import Paths

ENDED: Final = ("A", "B", "C")
ORPHAN: Final = "nobody"


class _Resting:
    """No session is at work."""

    async def forget(self, session: str) -> bool:
        return True


def make(directory: Path) -> None:
    """Sessions that have ended, each with a spool; a spool of no session; and a session that stays."""
    asyncio.run(_make(directory))


def gc(directory: Path, first: int, action: int) -> None:
    """Removes all of it, killed at a write."""
    asyncio.run(_gc(directory, first, action))


@asynccontextmanager
async def housekeeping(directory: Path) -> AsyncIterator[tuple[EventLog, Housekeeping]]:
    """Over the log of this directory."""
    nothing: Any = None
    resting: Any = _Resting()
    clock = TickingClock()
    clock.us += 86400 * 1_000_000
    async with started(directory, clock) as (log, _):
        paths = Paths(directory, directory, directory)
        upkeep = Upkeep(paths, log, Spool(paths.spool), nothing)
        yield log, Housekeeping(upkeep, resting, clock, Requests(log))


def request(request_id: str) -> daemon_pb2.GcRequest:
    """All that could be removed."""
    return daemon_pb2.GcRequest(remove=True, request_id=request_id)


async def _make(directory: Path) -> None:
    async with started(directory) as (log, _):
        for session in ENDED:
            await log.append(created(session), note(session, "x" * 20_000))
            await log.append(status(session, common.SESSION_STATUS_COMPLETED))
            await log.append(ended(session, common.SESSION_STATUS_COMPLETED))
        await log.append(created("Z"))
    for session in (*ENDED, ORPHAN):
        (directory / "spool" / session).mkdir(parents=True)
        (directory / "spool" / session / "c").write_bytes(b"x")


async def _gc(directory: Path, first: int, action: int) -> None:
    async with housekeeping(directory) as (_, keeping):
        shim = Shim()
        shim.arm(Kind.WRITE, first, action)
        await keeping.gc(request("gc"))
        shim.count(Kind.WRITE)
