"""Which calls really overlap, through the real daemon, provider and cells; read from the order of events."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.harness import RunningDaemon, running_daemon
from tests.marks import NEEDS_CELLS

from turnd.v1 import event_pb2

pytestmark = [NEEDS_CELLS, pytest.mark.timeout(120)]

ALLOW_ALL = """
[[policy]]
name = "everything may run"
match = { provider = "workspace" }
action = "allow"
"""
DONE = {"stream": [{"text": "done"}]}


def _calls(tool: str, inputs: Sequence[dict[str, object]]) -> dict[str, object]:
    return {"stream": [{"tool": tool, "input": data} for data in inputs]}


def _most_at_once(events: Sequence[event_pb2.Event]) -> int:
    """How many calls had started and not ended at the same time, by seq."""
    running: set[str] = set()
    most = 0
    for event in events:
        if event.HasField("tool_started"):
            running.add(event.tool_started.call_id)
        elif event.HasField("tool_result"):
            running.discard(event.tool_result.call_id)
        most = max(most, len(running))
    return most


def _contents(events: Sequence[event_pb2.Event]) -> list[event_pb2.ToolResult]:
    return [event.tool_result for event in events if event.HasField("tool_result")]


async def _turn(daemon: RunningDaemon, *lines: dict[str, object]) -> list[event_pb2.Event]:
    session = await daemon.client.create_session(str(daemon.workspace), model=daemon.replay(*lines))
    return await daemon.run(session.id, "go")


@pytest.mark.req("SCHED-01", "SCHED-04")
async def test_inspections_overlap() -> None:
    async with running_daemon(ALLOW_ALL) as daemon:
        commands = [{"command": f"sleep 0.5; echo {i}"} for i in range(8)]
        events = await _turn(daemon, _calls("inspect_command", commands), DONE)
    assert _most_at_once(events) == 8
    assert not any(result.is_error for result in _contents(events))


@pytest.mark.req("SCHED-03")
async def test_commands_that_may_write_run_one_by_one_in_order() -> None:
    async with running_daemon(ALLOW_ALL) as daemon:
        commands = [{"command": f"sleep 0.1; echo {i} >> order"} for i in range(3)]
        events = await _turn(daemon, _calls("run_command", commands), DONE)
        written = (daemon.workspace / "order").read_text()
    assert _most_at_once(events) == 1
    assert written.split() == ["0", "1", "2"]


@pytest.mark.req("SCHED-02", "SCHED-06")
async def test_writes_of_one_path_do_not_overlap_however_it_is_spelt() -> None:
    async with running_daemon(ALLOW_ALL) as daemon:
        (daemon.workspace / "sub").mkdir()
        (daemon.workspace / "f").write_text("0\n")
        (daemon.workspace / "link").symlink_to("f")
        edits = [
            {"path": path, "old_text": f"{i}\n", "new_text": f"{i + 1}\n"}
            for i, path in enumerate(["f", "./f", "sub/../f", "link", "f"])
        ]
        events = await _turn(daemon, _calls("edit_file", edits), DONE)
        text = (daemon.workspace / "f").read_text()
    assert _most_at_once(events) == 1
    assert not any(result.is_error for result in _contents(events)), _contents(events)
    assert text == "5\n"


@pytest.mark.req("SCHED-01", "SCHED-02")
async def test_writes_of_two_paths_overlap() -> None:
    async with running_daemon(ALLOW_ALL) as daemon:
        big = "x" * 200_000
        writes = [{"path": f"f{i}", "content": big} for i in range(6)]
        events = await _turn(daemon, _calls("write_file", writes), DONE)
    assert not any(result.is_error for result in _contents(events)), _contents(events)
    assert _most_at_once(events) > 1
