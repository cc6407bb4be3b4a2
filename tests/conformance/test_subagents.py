"""Sub-agents through the daemon: asked and answered at the root, found by their parent, ended with it."""

from __future__ import annotations

import json

import pytest
from tests.harness import RunningDaemon, running_daemon
from tests.marks import NEEDS_CELLS

from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2
from turnd_client.errors import Refused

pytestmark = [NEEDS_CELLS, pytest.mark.timeout(120)]

CONFIG = """
[[policy]]
name = "agents"
match = { tool = "spawn_agent" }
action = "allow"
"""
SPAWN = {"stream": [{"tool": "spawn_agent", "input": {"prompt": "write the file"}}]}
WRITE = {"tool": "write_file", "input": {"path": "made.txt", "content": "by the child\n"}}
CHILD_WRITES = {"profile": "default", "stream": [WRITE]}
CHILD_ANSWERS = {"profile": "default", "stream": [{"text": "it is written"}]}
DONE = {"stream": [{"text": "done"}], "expect": {"last_contains": "it is written"}}


async def asked_at_root(
    daemon: RunningDaemon, *lines: dict[str, object]
) -> tuple[str, event_pb2.ChildAttention]:
    made = await daemon.client.create_session(str(daemon.workspace), model=daemon.replay(*lines))
    await daemon.client.send_message(made.id, "go")
    events = await daemon.events(made.id, lambda e: e.HasField("child_attention"))
    return made.id, events[-1].child_attention


@pytest.mark.req("GATE-17", "SUB-01", "SUB-06", "SUB-07")
async def test_a_childs_request_is_answered_at_the_root() -> None:
    async with running_daemon(CONFIG) as daemon:
        root, attention = await asked_at_root(daemon, SPAWN, DONE, CHILD_WRITES, CHILD_ANSWERS)
        (child,) = attention.path
        listed = [s async for s in daemon.client.list_sessions(parent=root)]
        assert [(s.id, s.parent, s.depth) for s in listed] == [(child, root, 1)]
        with pytest.raises(Refused, match="a sub-agent has one turn"):
            await daemon.client.send_message(child, "and then")
        with pytest.raises(Refused, match="which nobody changes"):
            await daemon.client.update_session(child, profile="default")
        done = await daemon.turn("approve", root)
        assert done.code == 0, done.stderr
        events = await daemon.events(root, lambda e: e.HasField("turn_end"))
        assert events[-1].turn_end.reason == common.TURN_END_REASON_COMPLETED
        assert (daemon.workspace / "made.txt").read_text() == "by the child\n"
        late = await daemon.turn("deny", root, attention.request_id)
        assert late.code == 1
        assert "settled before: approved by" in late.stderr
        (result,) = [e.tool_result for e in events if e.HasField("tool_result")]
        told = json.loads(result.content)
        assert (told["status"], told["result"], told["session_id"]) == ("completed", "it is written", child)
        assert [s.id async for s in daemon.client.list_sessions(parent=root)] == [child]
        shown = json.loads((await daemon.turn("show", root, "--json")).stdout)
        assert [(c["id"], c["status"]) for c in shown["children"]] == [(child, "completed")]
        assert f"sub-agent    {child} completed" in (await daemon.turn("show", root)).stdout
        tree = (await daemon.turn("ls", "--children")).lines
        assert [line.split()[0] for line in tree] == ["ID", root, child]
        rows = json.loads((await daemon.turn("cost", root, "--json")).stdout)["rows"]
        assert [row["session"] for row in rows] == [root, child]
        by_step = await daemon.turn("cost", root, "--by", "step,purpose", "--json")
        steps = [(row["session"], row["step"], row["purpose"]) for row in json.loads(by_step.stdout)["rows"]]
        assert steps == [(root, 1, "step"), (child, 1, "step"), (child, 2, "step"), (root, 2, "step")]
        assert (await daemon.turn("cost", "--by", "colour")).code == 2


@pytest.mark.req("SUB-05", "LOG-08", "LOG-21")
async def test_a_killed_daemon_leaves_no_child_open() -> None:
    async with running_daemon(CONFIG) as daemon:
        root, attention = await asked_at_root(daemon, SPAWN, DONE, CHILD_WRITES)
        (child,) = attention.path
        await daemon.kill()
        await daemon.start()
        shown = {s: await daemon.client.get_session(s) for s in (root, child)}
        assert shown[child].session.status == common.SESSION_STATUS_CANCELLED
        assert shown[root].session.status == common.SESSION_STATUS_IDLE
        assert not shown[root].session.open_requests
        for session in (root, child):
            assert not (await daemon.client.verify_session(session)).faults
        ended = await daemon.events(root, lambda e: e.HasField("child_ended"))
        assert ended[-1].child_ended.status == common.SESSION_STATUS_CANCELLED


@pytest.mark.req("SUB-05", "OPS-05")
async def test_a_drain_ends_the_child_before_its_parent() -> None:
    async with running_daemon(CONFIG) as daemon:
        root, attention = await asked_at_root(daemon, SPAWN, DONE, CHILD_WRITES)
        (child,) = attention.path
        assert await daemon.stop() == 0
        await daemon.start()
        for session in (root, child):
            shown = await daemon.client.get_session(session)
            assert shown.session.last_reason == common.TURN_END_REASON_INTERRUPTED
            assert not (await daemon.client.verify_session(session)).faults
        events = await daemon.events(child, lambda e: e.HasField("session_ended"))
        assert not any(e.synthetic for e in events)
