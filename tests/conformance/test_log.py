"""The log as a file among processes: kills, a full disk, readers from outside."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.unit.stored import created, database, note, opened, payloads, query, stored_events

from turnd.store import writer
from turnd.store.transfer import export_lines, verify_lines
from turnd.v1 import common_pb2 as common

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 60


@contextmanager
def process(what: str, directory: Path) -> Iterator[subprocess.Popen[str]]:
    """One of `log_processes`, ended by its pid when the test is done."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.conformance.log_processes", what, str(directory)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate(timeout=TIMEOUT_S)


def lines_until(child: subprocess.Popen[str], count: int) -> list[str]:
    assert child.stdout is not None
    return [child.stdout.readline().strip() for _ in range(count)]


def kill_and_read(child: subprocess.Popen[str]) -> list[str]:
    """Ends it as a kill -9 does; everything that it said."""
    os.kill(child.pid, signal.SIGKILL)
    rest, _ = child.communicate(timeout=TIMEOUT_S)
    # The last line may be cut: that one was not said.
    return rest.split("\n")[:-1]


@pytest.mark.req("LOG-23", "LOG-08", "LOG-11")
async def test_text_that_was_committed_survives_kill_9(tmp_path: Path) -> None:
    with process("write", tmp_path) as child:
        said = lines_until(child, 200) + kill_and_read(child)
    last = dict.fromkeys(("S0", "S1", "S2", "S3"), 0)
    for line in said:
        session, seq = line.split()
        last[session] = int(seq)
    async with opened(tmp_path) as log:
        for session, seq in last.items():
            events = await stored_events(log, session)
            chunks = [event for event in events if event.HasField("assistant_chunk")]
            assert chunks[-1].seq >= seq > 3, "nothing that was said to be stored is missing"
            assert all(event.assistant_chunk.deltas[0].text == "text" for event in chunks)
            assert payloads(events)[-3:] == ["step_end", "turn_end", "session_status"]
            report = verify_lines([part async for part in export_lines(log, session)])
            assert (report.lawful, report.open) == (True, False)


@pytest.mark.req("LOG-12", "LOG-21")
async def test_a_commitment_that_was_acted_on_survives_kill_9(tmp_path: Path) -> None:
    with process("commit", tmp_path) as child:
        said = lines_until(child, 9)
        assert said[-1] == "tool_started 9"
        kill_and_read(child)
    async with opened(tmp_path) as log:
        events = await stored_events(log, "A")
        assert [f"{name} {event.seq}" for name, event in zip(payloads(events), events, strict=True)][
            :9
        ] == said
        (result,) = [event.tool_result for event in events if event.HasField("tool_result")]
        assert result.category == common.TOOL_ERROR_CATEGORY_INTERRUPTED
    assert query(tmp_path, "SELECT cost_nano_usd FROM usage_ledger") == [(5,)]


def check_full_disk(found: dict[str, int | str]) -> None:
    stored = found["stored"]
    assert isinstance(stored, int)
    assert stored > 0
    assert "nothing of this append was stored" in str(found["failure"])
    assert found["state"] == found["view"] == found["on_disk"] == stored + 1
    assert found["after"] == found["published"] == stored + 2


@pytest.mark.req("LOG-14")
async def test_an_io_error_is_reported_and_the_log_goes_on_afterwards(tmp_path: Path) -> None:
    with process("fill", tmp_path) as child:
        found = json.loads(lines_until(child, 1)[0])
    check_full_disk(found)
    assert "disk I/O error" in found["failure"]
    async with opened(tmp_path) as log:
        assert verify_lines([part async for part in export_lines(log, "A")]).lawful
        assert (await stored_events(log, "A"))[-1].note.text == "room again"


@pytest.mark.req("LOG-14")
def test_a_full_disk_is_reported_and_the_log_goes_on_when_there_is_room(tmp_path: Path) -> None:
    """On a file system of 3 MB, in a mount namespace of its own."""
    inside = ["unshare", "--user", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*inside, "true"], check=False).returncode:
        pytest.skip("no user namespaces here")
    mount = (
        'mount -t tmpfs -o size=3m tmpfs "$0" && exec "$1" -m tests.conformance.log_processes fill-small "$0"'
    )
    done = subprocess.run(
        [*inside, "sh", "-c", mount, str(tmp_path), sys.executable],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    found = json.loads(done.stdout)
    check_full_disk(found)
    assert "full" in found["failure"]


@pytest.mark.req("LOG-10")
async def test_a_reader_in_another_process_never_blocks_the_writer(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("A"))
        with process("read", tmp_path) as child:
            assert child.stdin is not None

            async def ask(word: str) -> int:
                assert child.stdin is not None
                print(word, file=child.stdin, flush=True)
                return int((await asyncio.to_thread(lines_until, child, 1))[0])

            assert await ask("hold") == 1
            for _ in range(50):
                await log.append(note("A", "x" * 200_000))
            assert await ask("again") == 1, "it sees what was there when its transaction began"
            assert await ask("release") == 1
            assert await ask("again") == 51
            writing = asyncio.gather(*(log.append(note("A")) for _ in range(300)))
            seen = [await ask("again") for _ in range(20)]
            await writing
            assert seen == sorted(seen), "events appear in order, and none disappears"
            assert await ask("again") == 351
    assert database(tmp_path).stat().st_size > 50 * 200_000


@pytest.mark.req("LOG-10")
async def test_emptying_the_wal_does_not_wait_for_a_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer tries it after every transaction here; each wait for the reader would take seconds."""
    monkeypatch.setattr(writer, "IDLE_S", 0)
    async with opened(tmp_path) as log:
        await log.append(created("A"))
        with closing(sqlite3.connect(f"file:{database(tmp_path)}?mode=ro", uri=True)) as reader:
            reader.isolation_level = None
            reader.execute("BEGIN")
            assert reader.execute("SELECT count(*) FROM events").fetchone() == (1,)
            async with asyncio.timeout(20):
                for _ in range(20):
                    await log.append(note("A"))
            assert reader.execute("SELECT count(*) FROM events").fetchone() == (1,)
