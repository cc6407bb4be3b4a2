"""SIGKILL at every boundary of a rich session, and between writes: nothing is lost, everything goes on.

The long form kills at every one; the short form, which every run has, at some of each kind.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.faults.forge import End, Forge
from tests.faults.preload import NEEDS_SHIM, Action, Kind
from tests.faults.soak import in_soak
from tests.faults.survivors import check_survived, said_lines

pytestmark = pytest.mark.timeout(in_soak(1800, 240))

JOBS = "tests.faults.rich_session"
EVENT_STRIDE = in_soak(1, 3)
COMMIT_STRIDE = in_soak(1, 25)
WRITE_STRIDE = in_soak(1, 151)
REPAIR_STRIDE = in_soak(1, 9)
MAKING = in_soak(60, 12)
"""So many of the first writes make the file."""


async def kill_at_each(
    forge: Forge, directory: Path, job: str, arguments: Iterator[Mapping[str, int]]
) -> int:
    """Lets the session be killed at one place after another until it is not; how often it was.

    While one session plays, what the one before it left is checked.
    """
    before: Path | None = None
    for kills, place in enumerate(arguments):
        here = directory / f"{job}-{kills}"
        forge.begin(job, here, **place)
        if before is not None:
            await check(before)
        end: End = forge.end()
        if end.whole:
            await check(here)
            return kills
        before = here
    raise AssertionError("places without an end")


async def check(directory: Path) -> None:
    await check_survived(directory)
    shutil.rmtree(directory)


@pytest.mark.req("LOG-08", "LOG-11", "LOG-20", "LOG-21", "LOG-23", "S01", "S03", "S09")
async def test_after_each_published_event(memory_path: Path) -> None:
    """The daemon dies right when a client could have seen the event, before anything acts on it."""
    with Forge(JOBS) as forge:
        places = ({"published": number} for number in itertools.count(1, EVENT_STRIDE))
        kills = await kill_at_each(forge, memory_path, "to_the_end", places)
    assert kills * EVENT_STRIDE > 150, "the session is rich"


@pytest.mark.req("LOG-08", "LOG-20")
@pytest.mark.parametrize("side", ["before", "after"])
async def test_around_each_commit(memory_path: Path, side: str) -> None:
    """In the thread that commits: what is committed is there, published or not, and what is not is not."""
    with Forge(JOBS) as forge:
        places = ({side: number} for number in itertools.count(1, COMMIT_STRIDE))
        kills = await kill_at_each(forge, memory_path, "to_the_end", places)
    assert kills * COMMIT_STRIDE > 100


@NEEDS_SHIM
@pytest.mark.req("LOG-20", "LOG-23")
@pytest.mark.parametrize("action", [Action.KILL, Action.TEAR_AND_KILL])
async def test_at_each_write_into_the_files(memory_path: Path, shim: Path, action: Action) -> None:
    """Between two writes of one transaction, and in the middle of one."""
    with Forge(JOBS, shim) as forge:
        places = (
            {"kinds": Kind.WRITE, "first": number, "action": action}
            for number in itertools.chain(range(1, MAKING), itertools.count(MAKING, WRITE_STRIDE))
        )
        kills = await kill_at_each(forge, memory_path, "under_the_shim", places)
    assert (kills - MAKING) * WRITE_STRIDE > 500


@NEEDS_SHIM
@pytest.mark.req("LOG-08", "LOG-20")
async def test_at_each_write_of_the_repair(memory_path: Path, shim: Path) -> None:
    """A daemon that is killed while it repairs what another one left: the next start does it."""
    left = memory_path / "left"
    with Forge(JOBS, shim) as forge:
        assert forge.run("to_the_end", left, published=61).killed
        copies = memory_path / "copies"
        places = (
            {"kinds": Kind.WRITE | Kind.TRUNCATE | Kind.SYNC, "first": number, "action": Action.KILL}
            for number in itertools.count(1, REPAIR_STRIDE)
        )
        kills = 0
        for place in places:
            shutil.copytree(left, copies)
            end = forge.run("repaired", copies, **place)
            assert said_lines(copies), "there is something to lose"
            await check(copies)
            if end.whole:
                break
            kills += 1
    assert kills * REPAIR_STRIDE > 10
