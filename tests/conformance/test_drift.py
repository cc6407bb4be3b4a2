"""What changes between a person's decision and the run is asked about again (GATE-16)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.harness import RunningDaemon, running_daemon
from tests.marks import NEEDS_CELLS

from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

pytestmark = [NEEDS_CELLS, pytest.mark.timeout(120)]

DONE = {"stream": [{"text": "done"}]}
WRITE = {"tool": "write_file", "input": {"path": "dir/a.txt", "content": "new\n"}}


def other_content(workspace: Path) -> None:
    (workspace / "dir" / "a.txt").write_text("changed\n")


def gone(workspace: Path) -> None:
    (workspace / "dir" / "a.txt").unlink()


def link_to_another_file(workspace: Path) -> None:
    (workspace / "dir" / "a.txt").unlink()
    (workspace / "dir" / "a.txt").symlink_to(workspace / "other" / "a.txt")


def link_to_another_directory(workspace: Path) -> None:
    (workspace / "dir").rename(workspace / "was")
    (workspace / "dir").symlink_to("other")


def another_directory(workspace: Path) -> None:
    (workspace / "dir").rename(workspace / "was")
    (workspace / "other").rename(workspace / "dir")


async def next_request(daemon: RunningDaemon, session: str, after: int) -> event_pb2.Event:
    events = await daemon.events(
        session, lambda e: e.HasField("approval_request") or e.HasField("turn_end"), after_seq=after
    )
    assert events[-1].HasField("approval_request"), "the Turn ended instead"
    return events[-1]


@pytest.mark.req("GATE-16", "GATE-10")
@pytest.mark.parametrize(
    "change", [other_content, gone, link_to_another_file, link_to_another_directory, another_directory]
)
async def test_a_file_or_its_way_that_changed_after_the_decision_is_asked_about_again(
    change: Callable[[Path], None],
) -> None:
    async with running_daemon() as daemon:
        for name, text in (("dir", "old\n"), ("other", "theirs\n")):
            (daemon.workspace / name).mkdir()
            (daemon.workspace / name / "a.txt").write_text(text)
        made = await daemon.client.create_session(
            str(daemon.workspace), model=daemon.replay({"stream": [WRITE]}, DONE)
        )
        await daemon.client.send_message(made.id, "go")
        first = await next_request(daemon, made.id, 0)
        assert "-old\n+new\n" in first.approval_request.item.preview
        change(daemon.workspace)
        before = {path: path.read_bytes() for path in daemon.workspace.rglob("*.txt")}
        await daemon.client.decide(made.id, first.approval_request.request_id, approve=True)

        second = await next_request(daemon, made.id, first.seq)
        assert {path: path.read_bytes() for path in daemon.workspace.rglob("*.txt")} == before
        assert second.approval_request.digest != first.approval_request.digest
        assert "-old\n" not in second.approval_request.item.preview
        await daemon.client.decide(made.id, second.approval_request.request_id, approve=True)
        events = await daemon.events(made.id, lambda e: e.HasField("turn_end"))
        (result,) = [e.tool_result for e in events if e.HasField("tool_result")]
        assert not result.category, result
        assert events[-1].turn_end.reason == common.TURN_END_REASON_COMPLETED
        assert (daemon.workspace / "dir" / "a.txt").read_text() == "new\n"
