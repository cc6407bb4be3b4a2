"""What runs in processes of its own in `test_log.py`: `python -m tests.conformance.log_processes WHAT DIRECTORY`."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import structlog
from tests.unit.stored import (
    call,
    chunk,
    created,
    database,
    draft,
    note,
    opened,
    started,
    step,
    stored_events,
    turn,
    usage,
)

from turnd.ports import LogFailed
from turnd.rules.event import Draft
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

WRITERS = 4
ROOM_BYTES = 300_000


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def write_until_killed(directory: Path) -> None:
    """Streams text into several sessions, and says each seq once its append has returned."""

    async def stream(session: str) -> None:
        await log.append(created(session), turn(session), step(session))
        while True:
            (event,) = await log.append(chunk(session, "text"))
            say(f"{session} {event.seq}")

    async with opened(directory) as log, asyncio.TaskGroup() as streams:
        for number in range(WRITERS):
            streams.create_task(stream(f"S{number}"))


async def commit_until_killed(directory: Path) -> None:
    """Makes commitments of each kind, and says each one once its append has returned."""

    async def commit(*drafts: Draft) -> None:
        for event in await log.append(*drafts):
            say(f"{event.WhichOneof('data')} {event.seq}")

    resource_call = common.TOOL_KIND_RESOURCE
    async with opened(directory) as log:
        await commit(created("A"), turn("A"), step("A"), usage("A", 5))
        await commit(call("A", "c", resource_call))
        item = common.PlanItem(call_id="c", decision=common.POLICY_ACTION_ASK)
        await commit(draft("A", event_pb2.PlanReady(items=[item])))
        await commit(draft("A", event_pb2.ApprovalRequest(request_id="r", item=item)))
        approved = common.APPROVAL_OUTCOME_APPROVED
        await commit(draft("A", event_pb2.ApprovalDecided(request_id="r", call_id="c", outcome=approved)))
        await commit(started("A", "c"))
        await asyncio.Event().wait()


class FileSizeLimit:
    """No file may grow by more than this: EFBIG, which SQLite takes for an I/O error."""

    def __init__(self) -> None:
        self._before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(self, directory: Path) -> None:
        largest = max(path.stat().st_size for path in directory.iterdir())
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest + ROOM_BYTES, self._before[1]))

    def empty(self, directory: Path) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._before)


class Ballast:
    """A small file system with a file that takes most of it: ENOSPC."""

    def fill(self, directory: Path) -> None:
        room = os.statvfs(directory)
        free = room.f_bavail * room.f_frsize
        (directory / "ballast").write_bytes(b"x" * (free - ROOM_BYTES))

    def empty(self, directory: Path) -> None:
        (directory / "ballast").unlink()


async def fill_the_disk(directory: Path, disk: FileSizeLimit | Ballast) -> None:
    """Appends until there is no room, then after there is room again; says what it found."""
    async with opened(directory) as log:
        await log.append(created("A"), created("B"))
        disk.fill(directory)
        published: list[int] = []
        log.subscribe(lambda committed: published.extend(one.position for one in committed))
        stored, failure = 0, ""
        while not failure:
            appends = [log.append(note("A", "x" * 50_000)) for _ in range(3)]
            outcomes = await asyncio.gather(*appends, return_exceptions=True)
            stored += sum(not isinstance(outcome, BaseException) for outcome in outcomes)
            failure = next((str(outcome) for outcome in outcomes if isinstance(outcome, LogFailed)), "")
        state, view = log.state("A").seq, log.view("A").last_seq
        on_disk = (await stored_events(log, "A"))[-1].seq
        disk.empty(directory)
        (after,) = await log.append(note("A", "room again"))
        await log.append(note("B"))
        found = {
            "stored": stored,
            "failure": failure,
            "state": state,
            "view": view,
            "on_disk": on_disk,
            "after": after.seq,
            "published": len(published),
        }
        say(json.dumps(found))


def read_until_told(directory: Path) -> None:
    """Reads the whole log again and again inside of a read transaction that stays open in between."""
    with closing(sqlite3.connect(f"file:{database(directory)}?mode=ro", uri=True)) as connection:
        connection.isolation_level = None
        for line in sys.stdin:
            if line == "hold\n":
                connection.execute("BEGIN")
            (count,) = connection.execute("SELECT count(*) FROM events").fetchone()
            if line == "release\n":
                connection.execute("COMMIT")
            say(str(count))


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.WriteLoggerFactory(sys.stderr))
    what, where = sys.argv[1], Path(sys.argv[2])
    match what:
        case "write":
            asyncio.run(write_until_killed(where))
        case "commit":
            asyncio.run(commit_until_killed(where))
        case "fill":
            asyncio.run(fill_the_disk(where, FileSizeLimit()))
        case "fill-small":
            asyncio.run(fill_the_disk(where, Ballast()))
        case "read":
            read_until_told(where)
        case _:
            sys.exit(f"no such thing to do: {what}")
