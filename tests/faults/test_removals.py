"""A daemon that is killed in a `gc`: what it had removed is recorded, and what it had not come to is whole."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest
from tests.faults.forge import Forge
from tests.faults.preload import NEEDS_SHIM, Action
from tests.faults.removals import ENDED, ORPHAN, housekeeping, request
from tests.faults.soak import in_soak
from tests.unit.stored import query, stored_events

from turnd.v1 import daemon_pb2

pytestmark = pytest.mark.timeout(120)


EVENTS = dict.fromkeys(ENDED, 4) | {"Z": 1}


async def what_is_left(directory: Path) -> int:
    """Compares the record with the file; how much was removed when the daemon was killed."""
    async with housekeeping(directory) as (log, keeping):
        left = {str(session) for (session,) in query(directory, "SELECT id FROM sessions")}
        gone = set(ENDED) - left
        stored = await log.answer_to("gc")
        if stored is None:
            assert not gone
            assert (directory / "spool" / ORPHAN).exists()
        else:
            answer = daemon_pb2.GcResponse.FromString(stored.answer)
            items = {item.name: item for item in answer.items}
            assert {name for name in ENDED if items[name].removed} == gone
            assert items[ORPHAN].removed or (directory / "spool" / ORPHAN).exists()
            assert all(item.removed or "run gc again" in item.problem for item in items.values())
            assert await keeping.gc(request("gc")) == answer, "it is not done a second time"
        for session in left:
            assert len(await stored_events(log, session)) == EVENTS[session]
        await keeping.gc(request("again"))
        assert query(directory, "SELECT id FROM sessions") == [("Z",)]
        assert not list((directory / "spool").iterdir())
    return len(gone)


@NEEDS_SHIM
@pytest.mark.req("LOG-19", "LOG-20", "RPC-04")
async def test_a_gc_that_is_killed_at_a_write(memory_path: Path, shim: Path) -> None:
    found = set()
    make_in = memory_path / "made"
    make_in.mkdir()
    with Forge("tests.faults.removals", shim) as forge:
        forge.run("make", make_in)
        for first in itertools.count(1, in_soak(1, 4)):
            here = memory_path / str(first)
            shutil.copytree(make_in, here)
            end = forge.run("gc", here, first=first, action=Action.KILL)
            found.add(await what_is_left(here))
            shutil.rmtree(here)
            if not end.killed:
                break
    assert found == {0, 1, 2, 3}, "it was killed between all removals"
