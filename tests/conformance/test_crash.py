"""SIGKILL of the daemon: nothing that it started lives, and the log goes on where it was cut (S01, P05)."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.harness import RunningDaemon, prepared_daemon, running_daemon
from tests.marks import NEEDS_CELLS

from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2, sessions_pb2

pytestmark = pytest.mark.timeout(150)

ALLOW_ALL = """
[[policy]]
name = "everything may run"
match = { provider = "workspace" }
action = "allow"
"""
GONE_S = 10.0
"""How long the kernel may take to end killed processes before the test calls them survivors."""


def _descendants(pid: int) -> set[tuple[int, str]]:
    """All processes below one, with their start times, so that a reused pid is not taken for one of them."""
    children: dict[int, list[int]] = {}
    started: dict[int, str] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        number = int(stat.parent.name)
        children.setdefault(int(fields[1]), []).append(number)
        started[number] = fields[19]
    below: set[tuple[int, str]] = set()
    left = list(children.get(pid, []))
    while left:
        number = left.pop()
        below.add((number, started[number]))
        left += children.get(number, [])
    return below


def _alive(process: tuple[int, str]) -> bool:
    try:
        fields = Path(f"/proc/{process[0]}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[19] == process[1] and fields[0] != "Z"


async def _until_running(daemon: RunningDaemon, session: str) -> None:
    """The command really runs: it has written its mark."""
    await daemon.events(session, lambda event: event.HasField("tool_started"))
    async with asyncio.timeout(30):
        while not (daemon.workspace / "mark").exists():
            await asyncio.sleep(0.02)


@NEEDS_CELLS
@pytest.mark.req("LOG-08", "LOG-21", "LOG-20", "TOOL-04", "S01")
async def test_a_kill_between_start_and_result_leaves_nothing_running_and_a_log_that_goes_on() -> None:
    command = "touch mark; setsid sleep 600 & (sleep 600 &) ; sleep 600"
    async with running_daemon(ALLOW_ALL) as daemon:
        lines = (
            {
                "stream": [
                    {"tool": "run_command", "input": {"command": command}},
                    {"tool": "run_command", "input": {"command": "echo never"}},
                ]
            },
            {"stream": [{"text": "I see what happened."}], "expect": {"messages": 3}},
        )
        session = await daemon.client.create_session(str(daemon.workspace), model=daemon.replay(*lines))
        await daemon.client.send_message(session.id, "go")
        await _until_running(daemon, session.id)
        processes = _descendants(daemon.pid)
        assert len(processes) > 4, "the daemon, a provider and a command with children are there"
        await daemon.kill()
        async with asyncio.timeout(GONE_S):
            while any(_alive(process) for process in processes):
                await asyncio.sleep(0.02)

        listed = await daemon.turn("ls", "--json")
        assert listed.code == 0, listed.stderr
        try:
            found = [line for line in listed.json_lines if line["id"] == session.id]
            assert found[0]["status"] == "idle"
            await _check_repaired(daemon, session)
        finally:
            stopped = await daemon.turn("stop")
            assert stopped.code == 0, stopped.stderr


async def _check_repaired(daemon: RunningDaemon, session: sessions_pb2.Session) -> None:
    daemon._client = await daemon.connect()
    try:
        events = await daemon.events(session.id, lambda event: event.HasField("turn_end"))
        synthetic = [event for event in events if event.synthetic]
        results = {e.tool_result.call_id: e.tool_result for e in synthetic if e.HasField("tool_result")}
        calls = [e.tool_call.call_id for e in events if e.HasField("tool_call")]
        answered = [e.tool_result for e in events if e.HasField("tool_result")]
        assert sorted(result.call_id for result in answered) == sorted(calls), "each has one"
        assert all(result.is_error for result in answered)
        assert results[calls[0]].category == common.TOOL_ERROR_CATEGORY_INTERRUPTED
        assert b"outcome unknown, check before repeating" in results[calls[0]].content
        assert results[calls[1]].category == common.TOOL_ERROR_CATEGORY_NOT_STARTED
        end = events[-1]
        assert (end.turn_end.turn, end.turn_end.reason) == (0, common.TURN_END_REASON_INTERRUPTED)
        last_real = max(e.time.ToMicroseconds() for e in events if not e.synthetic)
        assert {e.time.ToMicroseconds() for e in synthetic} == {last_real}
        told = await daemon.turn("log", session.id)
        assert "interrupted" in told.stdout, told.stdout
        assert "outcome unknown" in told.stdout
        verified = await daemon.client.verify_session(session.id)
        assert not verified.faults
        again = await daemon.run(session.id, "go on")
        assert again[-1].turn_end.turn == 1
        assert again[-1].turn_end.reason == common.TURN_END_REASON_COMPLETED
    finally:
        await daemon.client.close()
        daemon._client = None


@NEEDS_CELLS
@pytest.mark.req("S09", "LOG-12", "LOG-20")
async def test_a_kill_in_the_first_tool_leaves_what_led_to_it_and_a_headless_run_fails() -> None:
    said = {
        "stream": [{"text": "Now."}, {"tool": "run_command", "input": {"command": "touch mark; sleep 600"}}],
        "usage": {"input_tokens": 20, "output_tokens": 5},
    }
    async with running_daemon(ALLOW_ALL) as daemon:
        run = await daemon.start_turn("run", "go", "--model", daemon.replay(said))
        async with asyncio.timeout(30):
            while not (listed := [session async for session in daemon.client.list_sessions()]):
                await asyncio.sleep(0.02)
        await _until_running(daemon, listed[0].id)
        await daemon.kill()
        # Before anybody starts a daemon that repairs it: what is in the file now was there when the tool ran.
        with closing(sqlite3.connect(f"file:{daemon.database}?mode=ro", uri=True)) as connection:
            blobs = connection.execute("SELECT event FROM events ORDER BY position").fetchall()
        stored = [event_pb2.Event.FromString(blob).WhichOneof("data") for (blob,) in blobs]
        started = stored.index("tool_started")
        assert {"usage", "assistant_message", "tool_call"} <= set(stored[:started])
        try:
            await asyncio.wait_for(run.communicate(), 60)
            assert run.returncode not in (0, None)
        finally:
            await daemon.turn("stop")


@pytest.mark.req("OPS-02")
async def test_a_second_daemon_says_who_is_running_and_changes_nothing() -> None:
    async with running_daemon() as daemon:
        before = (daemon.socket.stat().st_ino, daemon.token.read_text(), daemon.database.stat().st_ino)
        second = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "turnd.main", "serve"),
            stderr=asyncio.subprocess.PIPE,
            env=daemon.environment,
            cwd="/",
        )
        _, said = await asyncio.wait_for(second.communicate(), 30)
        assert second.returncode != 0
        assert b"already running" in said
        assert str(daemon.pid).encode() in said
        assert (
            daemon.socket.stat().st_ino,
            daemon.token.read_text(),
            daemon.database.stat().st_ino,
        ) == before
        assert (await daemon.client.status()).pid == daemon.pid


@pytest.mark.req("OPS-02", "V01")
async def test_a_stale_socket_and_a_stale_lock_stop_no_start() -> None:
    async with prepared_daemon() as daemon:
        await daemon.start()
        await daemon.kill()
        assert daemon.socket.exists(), "a killed daemon leaves its socket"
        (daemon.home / "state" / "turnd.lock").write_text('{"pid": 1, "version": "9", "socket": ""}')
        await daemon.start()
        assert (await daemon.client.status()).pid == daemon.pid
