"""`turn import` as people use it, and what is left of imports that are cut off (LOG-17)."""

from __future__ import annotations

import asyncio
import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conformance.import_process import EVENTS
from tests.harness import running_daemon
from tests.marks import NEEDS_CELLS
from tests.unit.going_on import file_of
from tests.unit.session_log import SessionLog
from tests.unit.stored import opened, query

from turnd_client.errors import Refused

pytestmark = [pytest.mark.req("LOG-17"), pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]
SAID = {"stream": [{"text": "done"}]}
SMALL = file_of(SessionLog().turn().answer("a").end_turn().events)


@NEEDS_CELLS
@pytest.mark.req("RPC-05")
async def test_what_is_wrong_with_a_file_is_told_with_its_name_and_line_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    lines = SMALL.splitlines(keepends=True)
    files = {
        "cut.jsonl": (
            SMALL[:-9],
            f"cut.jsonl: line {len(lines)} is no event of a log: the file ends in the middle",
        ),
        "notes.txt": (lines[0] + b"dear diary\n", "notes.txt: line 2 is no event of a log"),
        "log.gz": (
            gzip.compress(SMALL)[:-9],
            "log.gz: line 1 is no event of a log: not UTF-8: it is compressed",
        ),
        "empty.jsonl": (b"", "empty.jsonl: "),
    }
    async with running_daemon() as daemon:
        model = daemon.replay(SAID)
        for name, (content, told) in files.items():
            (tmp_path / name).write_bytes(content)
            done = await daemon.turn("import", str(tmp_path / name), "--model", model)
            assert (done.code, done.stdout) == (1, ""), name
            assert told in done.stderr
            assert "\n" not in done.stderr.strip()
        done = await daemon.turn("import", "-", "--model", model, stdin="nothing\n")
        assert "standard input: line 1 is no event" in done.stderr
        for path, told in ((tmp_path, "is a directory"), (tmp_path / "none.jsonl", "does not exist")):
            done = await daemon.turn("import", str(path), "--model", model)
            assert (done.code, done.stdout) == (2, "")
            assert told in done.stderr
        assert (await daemon.turn("ls", "--json")).stdout == ""

        # A named pipe is read once somebody writes into it.
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        process = await daemon.start_turn("import", str(pipe), "--model", model)
        assert process.stderr is not None
        assert b"reading the pipe" in await process.stderr.readline()
        await asyncio.to_thread(pipe.write_bytes, SMALL)
        stdout, stderr = await process.communicate()
        assert (process.returncode, stderr) == (0, b"")
        assert (await daemon.client.get_session(stdout.decode().strip())).session.turns == 0


@NEEDS_CELLS
@pytest.mark.req("RPC-04")
async def test_a_request_id_stands_for_one_content() -> None:
    other = file_of(SessionLog().turn().answer("b").end_turn().events)
    async with running_daemon() as daemon:
        model = daemon.replay(SAID)

        async def import_(*parts: bytes) -> str:
            made = await daemon.client.import_session(
                parts, str(daemon.workspace), model=model, request_id="import-1"
            )
            return made.session.id

        first = await import_(SMALL)
        fork = (await daemon.client.fork(first, 3, request_id="fork-1")).id
        for _ in range(2):
            assert await import_(SMALL[:50], SMALL[50:]) == first, "the pieces it comes in are no content"
            assert (await daemon.client.fork(first, 3, request_id="fork-1")).id == fork
            with pytest.raises(Refused, match="used before, for another ImportStart"):
                await import_(other)
            with pytest.raises(Refused, match="used before, for another Fork"):
                await daemon.client.fork(first, 2, request_id="fork-1")
            with pytest.raises(Refused, match="used before, for a Fork"):
                await daemon.client.import_session(
                    [SMALL], str(daemon.workspace), model=model, request_id="fork-1"
                )
            await daemon.stop()
            await daemon.start()
        listed = [session.id async for session in daemon.client.list_sessions()]
        assert sorted(listed) == sorted([first, fork])


@pytest.mark.req("LOG-08")
async def test_a_kill_in_the_middle_of_an_import_leaves_no_half_session(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.conformance.import_process", str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = [await asyncio.to_thread(process.stdout.readline) for _ in range(2)]
    finally:
        process.kill()
        rest, _ = await asyncio.to_thread(process.communicate)
    said += rest.splitlines(keepends=True)
    whole = {tuple(line.split()) for line in said if line.endswith("\n")}
    async with opened(tmp_path) as log:
        stored = query(
            tmp_path, "SELECT id, count(*) FROM sessions JOIN events ON events.session = key GROUP BY id"
        )
        assert all(count > EVENTS for _, count in stored)
        assert whole <= {(session, str(count)) for session, count in stored}
        assert len(stored) == await log.catalogue.count()
        assert query(
            tmp_path, "SELECT count(*) FROM events WHERE session NOT IN (SELECT key FROM sessions)"
        ) == [(0,)]
