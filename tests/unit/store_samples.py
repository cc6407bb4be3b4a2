"""Sessions of several kinds in a real log, and what another process finds in the file."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.unit.stored import (
    call,
    chunk,
    created,
    database,
    draft,
    note,
    result,
    started,
    status,
    step,
    turn,
    usage,
)

from turnd.rules.event import Draft
from turnd.store.checksum import define, row_checksum
from turnd.store.log import EventLog
from turnd.store.schema import DERIVED
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

RESOURCE = common.TOOL_KIND_RESOURCE
PRODUCER = common.Producer(kind=common.PRODUCER_KIND_PROVIDER, name="p", version="1.2")


async def fill(log: EventLog, session: str, *, turns: int = 2, blob: int = 20_000) -> None:
    """A root session with Turns that cost money, ask, change things and hold long texts; settled at its end."""
    await log.append(created(session, cwd=f"/{session}", producer=PRODUCER))
    for number in range(turns):
        await log.append(turn(session, number), step(session, number))
        await log.append(chunk(session, "ü" * (blob // 2)), usage(session, 3 + number, tokens=7))
        free, asked = f"{session}-{number}-free", f"{session}-{number}-asked"
        await log.append(call(session, free), call(session, asked, RESOURCE))
        await log.append(*_plan(session, asked))
        await log.append(started(session, free), result(session, free))
        await log.append(started(session, asked), result(session, asked))
        applied = common.AppliedItem(call_id=asked, outcome=common.ITEM_OUTCOME_APPLIED)
        await log.append(draft(session, event_pb2.PlanApplied(items=[applied])))
        await log.append(draft(session, event_pb2.StepEnd(turn=number, step=1, active_ms=5)))
        await log.append(
            draft(session, event_pb2.TurnStopping(reason=common.TURN_END_REASON_COMPLETED)),
            draft(session, event_pb2.TurnEnd(turn=number, reason=common.TURN_END_REASON_COMPLETED)),
            status(session, common.SESSION_STATUS_IDLE),
        )
    await log.append(note(session, "the end"))


def _plan(session: str, call_id: str) -> list[Draft]:
    item = common.PlanItem(
        call_id=call_id,
        provider="p",
        tool="t",
        kind=RESOURCE,
        decision=common.POLICY_ACTION_ASK,
        decided_by=common.DecidedBy(kind=common.DECIDED_BY_KIND_RULE, name="asks"),
        reason="it changes something",
    )
    decided = event_pb2.ApprovalDecided(
        request_id=f"r-{call_id}",
        call_id=call_id,
        outcome=common.APPROVAL_OUTCOME_APPROVED,
        client="terminal",
        reason="go on",
    )
    return [
        draft(session, event_pb2.PlanReady(items=[item])),
        draft(session, event_pb2.ApprovalRequest(request_id=f"r-{call_id}", item=item)),
        draft(session, decided),
    ]


def tables(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Every row that is derived from events."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return {
            table: sorted(connection.execute(f"SELECT * FROM {table}").fetchall(), key=repr)
            for table in (*DERIVED, "events")
        }


def row_of(position: int, key: int, seq: int, blob: bytes) -> tuple[int, int, int, bytes, int]:
    """A row of events as the writer makes it."""
    return position, key, seq, blob, row_checksum(position, key, seq, blob)


def forge(path: Path, key: int, seq: int, blob: bytes) -> None:
    """Puts another event in the place of one, with a checksum that fits: what no damage does."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        define(connection)
        connection.execute(
            "UPDATE events SET event = ?, checksum = row_checksum(position, session, seq, ?) "
            "WHERE session = ? AND seq = ?",
            (blob, blob, key, seq),
        )


def killed_copy(directory: Path, copy: Path) -> Path:
    """The files of an open log as a kill would leave them, in another directory."""
    copy.mkdir()
    for suffix in ("", "-wal"):
        shutil.copyfile(f"{database(directory)}{suffix}", f"{database(copy)}{suffix}")
    return copy
