"""How cells end: by themselves, by the daemon, and with it. Nothing of them is left (TOOL-04)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop
from tests.security.fort import Fort

from turnd.cells import CellExit, Limits

OWNERS = """
import asyncio, os, sys
from pathlib import Path
from tests.security.fort import Fort
from turnd.cells import Bubblewrap

async def own():
    fort = Fort(Bubblewrap.find(), Path(sys.argv[1]))
    print("starting", os.getpid(), flush=True)
    cell = await fort.cells.start(fort.command(["/bin/sh", "-c", sys.argv[2]]))
    print((await cell.stdout.readline()).decode(), end="", flush=True)
    await cell.wait()

for _ in sys.stdin:
    if (owner := os.fork()) == 0:
        asyncio.run(own())
        os._exit(0)
    os.waitpid(owner, 0)
    print("ended", flush=True)
"""
"""One process that owns a cell after another, one for each line of its input."""

GONE_S = 10.0
MIB = 1 << 20


def processes(marker: str) -> list[int]:
    """The host's processes with the marker in their arguments, but for the owners of cells."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                words = (path / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if marker.encode() in words and OWNERS.encode() not in words:
                found.append(int(path.name))
    return found


async def gone(marker: str) -> list[int]:
    """What is left once the kernel had time: the end of processes that are nobody's child here tells no one."""
    deadline = time.monotonic() + GONE_S
    while (left := processes(marker)) and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    return left


@pytest.fixture
def marker() -> str:
    return f"marker-{uuid.uuid4()}"


def detaching(marker: str) -> str:
    """A script that leaves processes of its own session, double-forked, and says when they are there."""
    return (
        f"(setsid /bin/sh -c 'sleep 1000; : {marker}' &) ; (setsid setsid -f /bin/sh -c 'sleep 1001; : {marker}') ; "
        f"/bin/sh -c 'sleep 1002; : {marker}' & echo up {marker}"
    )


def children() -> set[int]:
    """This process's own children, zombies among them."""
    found = set()
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                fields = (path / "stat").read_text().rpartition(") ")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[1]) == os.getpid():
                found.add(int(path.name))
    return found


async def test_the_exit_code_and_signal_are_the_programs(fort: Fort) -> None:
    for script, code, number in (
        ("exit 0", 0, None),
        ("exit 7", 7, None),
        ("exit 255", 255, None),
        ("kill -SEGV $$", 139, signal.SIGSEGV),
        ("kill -KILL $$", 137, signal.SIGKILL),
    ):
        result = await fort.shell(script)
        assert result.end == CellExit(code, number, left_behind=False, limit=None)
        assert (result.out, result.err) == ("", ""), "nobody speaks in the program's name"


@pytest.mark.req("TOOL-04", "TOOL-12")
async def test_what_a_command_leaves_in_the_background_ends_with_it_and_is_told(
    fort: Fort, marker: str
) -> None:
    before = children()
    result = await fort.shell(detaching(marker))
    assert result.end == CellExit(0, None, left_behind=True, limit=None)
    assert result.out == f"up {marker}\n"
    assert processes(marker) == []
    assert children() == before
    assert (await fort.shell("sleep 0 & wait")).end.left_behind is False


@pytest.mark.req("TOOL-04")
async def test_output_held_open_in_the_background_delays_nothing(fort: Fort) -> None:
    spec = fort.command(["/bin/sh", "-c", "echo said; sleep 1000 & exit 3"])
    async with await fort.cells.start(spec) as cell, asyncio.timeout(30):
        assert (await cell.wait()).code == 3
        assert await cell.stdout.read() == b"said\n"


async def test_a_flood_waits_in_the_program_and_stop_does_not_wait_for_it(fort: Fort) -> None:
    async with (
        await fort.cells.start(fort.command(["/bin/sh", "-c", "exec yes"])) as cell,
        asyncio.timeout(30),
    ):
        assert await cell.stdout.readexactly(4) == b"y\ny\n"
        end = await cell.stop(grace_s=20)
    assert end.signal == signal.SIGTERM


@pytest.mark.req("TOOL-04")
async def test_stop_gives_the_program_its_grace(fort: Fort, marker: str) -> None:
    script = f"trap 'echo cleaned; exit 9' TERM; echo ready; while :; do sleep 0.01; done; : {marker}"
    async with await fort.cells.start(fort.command(["/bin/sh", "-c", script])) as cell:
        assert await cell.stdout.readline() == b"ready\n"
        assert (await cell.stop(grace_s=30)).code == 9
        assert await cell.stdout.read() == b"cleaned\n"
    assert processes(marker) == []


@pytest.mark.req("TOOL-04")
async def test_stop_kills_what_ignores_it(fort: Fort, marker: str) -> None:
    script = f"trap '' TERM; {detaching(marker)}; while :; do sleep 0.01; done"
    before = children()
    async with await fort.cells.start(fort.command(["/bin/sh", "-c", script])) as cell:
        assert await cell.stdout.readline() == f"up {marker}\n".encode()
        end = await cell.stop(grace_s=0.05)
        assert end == CellExit(137, signal.SIGKILL, left_behind=False, limit=None)
        assert processes(marker) == []
        assert children() == before
        cell.kill()
        assert await cell.wait() == end


@pytest.mark.req("TOOL-04")
async def test_leaving_the_block_or_being_cancelled_ends_the_cell(fort: Fort, marker: str) -> None:
    before = children()
    async with await fort.cells.start(
        fort.command(["/bin/sh", "-c", f"{detaching(marker)}; sleep 1000"])
    ) as cell:
        await cell.stdout.readline()
    assert processes(marker) == []

    async def owner() -> None:
        async with await fort.cells.start(
            fort.command(["/bin/sh", "-c", f"{detaching(marker)}; sleep 1000"])
        ) as cell:
            await cell.stdout.readline()
            up.set()
            await cell.wait()

    up = asyncio.Event()
    task = asyncio.create_task(owner())
    await up.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert processes(marker) == []
    assert children() == before


@pytest.mark.req("TOOL-04")
async def test_a_start_that_is_cancelled_leaves_nothing(fort: Fort, marker: str) -> None:
    before, open_before = children(), len(list(Path("/proc/self/fd").iterdir()))
    for turns in range(12):
        task = asyncio.create_task(
            fort.cells.start(fort.command(["/bin/sh", "-c", f"sleep 1000; : {marker}"]))
        )
        for _ in range(turns):
            await asyncio.sleep(0.003)
        if task.done():
            await task.result().close()
            continue
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await gone(marker) == []
    assert children() == before
    await asyncio.sleep(0)
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before


@pytest.mark.req("TOOL-04")
async def test_a_killed_owner_takes_its_cell_with_it(fort: Fort, marker: str) -> None:
    async with owners(fort, f"{detaching(marker)}; sleep 1000; : {marker}") as (ask, answers):
        ask.write(b"\n")
        owner = int((await answers.readline()).removeprefix(b"starting "))
        assert await answers.readline() == f"up {marker}\n".encode()
        assert len(processes(marker)) > 4
        os.kill(owner, signal.SIGKILL)
        assert await answers.readline() == b"ended\n"
        assert await gone(marker) == []


@pytest.mark.req("TOOL-04")
async def test_an_owner_killed_at_any_moment_of_a_start_leaves_nothing(fort: Fort, marker: str) -> None:
    ups = 0
    async with owners(fort, f"{detaching(marker)}; sleep 1000; : {marker}") as (ask, answers):
        for delay_ms in range(0, 75, 3):
            ask.write(b"\n")
            owner = int((await answers.readline()).removeprefix(b"starting "))
            await asyncio.sleep(delay_ms / 1000)
            os.kill(owner, signal.SIGKILL)
            while (line := await answers.readline()) != b"ended\n":
                assert line.startswith(b"up "), line
                ups += 1
            assert await gone(marker) == [], f"killed after {delay_ms} ms"
    assert ups < 25, "every cell was up before its owner was killed: nothing was shown about starts"


@pytest.mark.req("TOOL-04")
async def test_a_killed_launcher_is_the_end_of_the_cell_and_told(fort: Fort, marker: str) -> None:
    async with await fort.cells.start(
        fort.command(["/bin/sh", "-c", f"{detaching(marker)}; sleep 1000"])
    ) as cell:
        await cell.stdout.readline()
        os.kill(cell.pid, signal.SIGKILL)
        assert (await cell.wait()).signal == signal.SIGKILL
        assert await gone(marker) == []


async def test_a_program_that_kills_all_it_can_only_ends_itself(fort: Fort) -> None:
    result = await fort.shell("kill -KILL -1; exit 0")
    assert result.end.signal == signal.SIGKILL
    assert (await fort.shell("echo still here")).out == "still here\n"


async def test_many_processes_or_threads_are_stopped_and_told(fort: Fort) -> None:
    bomb = "f() { f & f; }; f"
    result = await fort.shell(bomb, Limits(processes=40))
    assert result.end.code != 0
    if os.getuid() == 0:
        assert result.end == CellExit(137, signal.SIGKILL, left_behind=False, limit="processes")
    else:
        assert result.end.limit == "processes" or "fork" in result.err.lower()


async def test_memory_of_many_processes_is_counted_together(fort: Fort) -> None:
    hog = (
        "import os, time\n"
        "for _ in range(4):\n"
        "    if os.fork() == 0:\n"
        "        break\n"
        "x = b'x' * (60 << 20)\n"
        "time.sleep(1000)\n"
    )
    python = [sys.executable, "-I", "-S", "-c", hog]
    result = await fort.run(fort.command(python, Limits(memory=150 * MIB)))
    assert result.end == CellExit(137, signal.SIGKILL, left_behind=False, limit="memory")


async def test_memory_of_one_process_and_the_size_of_a_file_are_limited(fort: Fort) -> None:
    python = [sys.executable, "-I", "-S", "-c", "b'x' * (400 << 20)"]
    result = await fort.run(fort.command(python, Limits(memory=200 * MIB)))
    assert "MemoryError" in result.err
    written = await fort.shell("head -c 3000000 /dev/zero > file", Limits(file_size=1 * MIB))
    assert written.end.code != 0
    assert (fort.workspace / "file").stat().st_size == 1 * MIB


def test_cells_work_under_uvloop(fort: Fort, marker: str) -> None:
    async def main() -> None:
        result = await fort.shell(f"echo out; echo err >&2; sleep 1000 & : {marker}")
        assert (result.out, result.err, result.end.left_behind) == ("out\n", "err\n", True)
        async with await fort.cells.start(fort.command(["sleep", "1000"])) as cell:
            assert (await cell.stop(grace_s=30)).signal == signal.SIGTERM
        results = await asyncio.gather(*(fort.shell(f"echo {number}") for number in range(8)))
        assert [result.out for result in results] == [f"{number}\n" for number in range(8)]

    uvloop.run(main())
    assert processes(marker) == []


@asynccontextmanager
async def owners(fort: Fort, script: str) -> AsyncIterator[tuple[asyncio.StreamWriter, asyncio.StreamReader]]:
    """The process of OWNERS; a cell's owner is its child, not the test's."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", OWNERS, str(fort.base), script),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdin, process.stdout
    finally:
        process.stdin.close()
        await process.wait()
