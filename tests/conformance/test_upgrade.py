"""An upgrade in the middle of work, and the way back: what is open is settled by the drain, nothing is lost (V09)."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.harness import RunningDaemon, running_daemon
from tests.marks import NEEDS_CELLS

from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

pytestmark = [NEEDS_CELLS, pytest.mark.timeout(120)]

WRITES = {"stream": [{"tool": "write_file", "input": {"path": "a.txt", "content": "x"}}]}
RUNS = {"stream": [{"tool": "run_command", "input": {"command": "sleep 600; touch a.txt"}}]}
DONE = {"stream": [{"text": "done"}]}
COMMANDS_MAY_RUN = """
[[policy]]
name = "commands may run"
match = { provider = "workspace", tool = "run_command" }
action = "allow"
"""


def digests(directory: Path) -> dict[str, str]:
    """What stands in the database and beside it, but for what SQLite makes by looking: an index, an empty WAL."""
    files = (p for p in directory.glob("turnd.db*") if not p.name.endswith("-shm") and p.stat().st_size)
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def set_version(database: Path, version: int) -> int:
    """Makes it a file of another version; gives the one that it had."""
    with closing(sqlite3.connect(database)) as connection:
        (before,) = connection.execute("PRAGMA user_version").fetchone()
        connection.execute(f"PRAGMA user_version = {version}")
        connection.commit()
    return int(before)


async def stopped_in(daemon: RunningDaemon, model: str, at: str) -> str:
    """A session whose Turn is open at an event, and a drain in the middle of it."""
    made = await daemon.client.create_session(str(daemon.workspace), model=model)
    await daemon.client.send_message(made.id, "go")
    await daemon.events(made.id, lambda event: event.WhichOneof("data") == at)
    stopped = await daemon.turn("stop", "--grace", "0")
    assert stopped.code == 0, stopped.stderr
    assert daemon.process is not None
    assert daemon.process.wait(30) == 0
    daemon.process = None
    return made.id


def settlements(events: list[event_pb2.Event]) -> list[common.ApprovalOutcome.ValueType]:
    return [e.approval_decided.outcome for e in events if e.HasField("approval_decided")]


@pytest.mark.req("V09", "OPS-05", "LOG-15", "LOOP-15")
@pytest.mark.parametrize(
    ("line", "at", "settled"),
    [
        (WRITES, "approval_request", [common.APPROVAL_OUTCOME_CANCELLED]),
        (RUNS, "tool_started", []),
    ],
    ids=["in an approval", "while a tool runs"],
)
async def test_what_is_open_at_an_upgrade_is_settled_and_an_older_daemon_touches_nothing(
    line: dict[str, object], at: str, settled: list[common.ApprovalOutcome.ValueType]
) -> None:
    async with running_daemon(COMMANDS_MAY_RUN) as daemon:
        asked = await stopped_in(daemon, daemon.replay(line, DONE, DONE), at)
        version = set_version(daemon.database, 999)
        before = digests(daemon.database.parent)
        with pytest.raises(AssertionError, match="999"):
            await daemon.start()
        daemon.process = None
        assert digests(daemon.database.parent) == before
        assert set_version(daemon.database, version) == 999

        await daemon.start()
        events = await daemon.events(asked, lambda event: event.HasField("turn_end"))
        assert events[-1].turn_end.reason == common.TURN_END_REASON_INTERRUPTED
        assert settlements(events) == settled
        (result,) = (event.tool_result for event in events if event.HasField("tool_result"))
        assert result.is_error
        assert not any(event.synthetic for event in events), "the drain has settled it, not the repair"
        assert not (daemon.workspace / "a.txt").exists()
        again = await daemon.run(asked, "go on")
        assert again[-1].turn_end.reason == common.TURN_END_REASON_COMPLETED
        assert not (await daemon.client.verify_session(asked)).faults
