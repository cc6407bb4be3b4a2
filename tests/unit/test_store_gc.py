"""What a removal leaves in the file: nothing of the session, and room for what comes next."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.stored import START_US, created, database, ended, note, opened, query, status

from turnd.store.gc import ended_before
from turnd.store.log import EventLog
from turnd.store.pages import event_rows
from turnd.v1 import common_pb2 as common

FAR_US = START_US + 10**12
SECRET = "what nobody is to find again "


async def ended_session(log: EventLog, session: str) -> None:
    await log.append(created(session))
    for _ in range(30):
        await log.append(note(session, SECRET * 2000))
    await log.append(status(session, common.SESSION_STATUS_COMPLETED))
    await log.append(ended(session, common.SESSION_STATUS_COMPLETED))


async def remove(log: EventLog, directory: Path) -> None:
    (tree,) = ended_before(database(directory), FAR_US)
    await log.remove(tree)


@pytest.mark.req("LOG-16")
async def test_what_is_removed_is_not_in_the_file_any_more(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await ended_session(log, "GONE")
        await log.append(created("Z"))
    assert SECRET.encode() in database(tmp_path).read_bytes()
    async with opened(tmp_path) as log:
        await remove(log, tmp_path)
    assert SECRET.encode() not in database(tmp_path).read_bytes()
    assert {row.session for row in event_rows(database(tmp_path))} == {"Z"}


async def test_the_room_of_what_was_removed_is_used_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await ended_session(log, "FIRST")
        await log.append(created("Z"))
    full = database(tmp_path).stat().st_size
    async with opened(tmp_path) as log:
        await remove(log, tmp_path)
        await ended_session(log, "SECOND")
    assert query(tmp_path, "SELECT id FROM sessions ORDER BY id") == [("SECOND",), ("Z",)]
    assert database(tmp_path).stat().st_size <= full + 10 * 4096
