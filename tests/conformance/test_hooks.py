"""Hooks of the configuration in a real daemon: a veto, a transform, what fails, and a reload (HOOK-01 to HOOK-08)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.harness import RunningDaemon, running_daemon
from tests.marks import NEEDS_CELLS

from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

pytestmark = [NEEDS_CELLS, pytest.mark.timeout(120)]

DOCUMENT = Path(__file__).parents[2] / "docs" / "hooks.md"
ALLOWED = """
[[policy]]
name = "writes"
match = { tool = "write_file" }
action = "allow"
"""
DONE = {"stream": [{"text": "done"}]}


def hook(daemon: RunningDaemon, point: str, mode: str, text: str, name: str) -> str:
    """A program, and the table that declares it."""
    path = daemon.home / name
    path.write_text(text)
    path.chmod(0o755)
    return f'[[hooks]]\npoint = "{point}"\nmode = "{mode}"\ncommand = ["{path}"]\ntimeout_ms = 10000\n'


def of(events: list[event_pb2.Event], kind: str) -> list[event_pb2.Event]:
    return [event for event in events if event.WhichOneof("data") == kind]


def documented_veto() -> str:
    found = re.search(r"```sh\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert found is not None
    return found.group(1)


def writes(path: str) -> dict[str, object]:
    return {"stream": [{"tool": "write_file", "input": {"path": path, "content": "x"}}]}


@pytest.mark.req("HOOK-01", "HOOK-05", "HOOK-08", "OPS-03")
async def test_a_veto_denies_what_policy_allows_and_a_reload_takes_it_away() -> None:
    async with running_daemon(ALLOWED) as daemon:
        table = hook(daemon, "plan-ready", "veto", documented_veto(), "veto")
        daemon.configure(ALLOWED + table)
        assert (await daemon.turn("reload")).code == 0
        model = daemon.replay(writes("prod.db"), writes("notes.txt"), DONE, writes("prod.db"), DONE)
        made = await daemon.client.create_session(str(daemon.workspace), model=model)
        events = await daemon.run(made.id, "go")
        denied, applied = (event.tool_result for event in of(events, "tool_result"))
        assert denied.category == common.TOOL_ERROR_CATEGORY_DENIED
        assert "nothing touches prod.db" in json.loads(denied.content)
        assert not applied.is_error
        assert not (daemon.workspace / "prod.db").exists()
        (item,) = of(events, "plan_ready")[0].plan_ready.items
        assert item.decided_by.kind == common.DECIDED_BY_KIND_HOOK
        daemon.configure(ALLOWED)
        assert (await daemon.turn("reload")).code == 0
        await daemon.run(made.id, "again")
        assert (daemon.workspace / "prod.db").exists()


@pytest.mark.req("HOOK-01", "HOOK-04", "HOOK-07")
async def test_a_transform_changes_what_the_model_is_sent_and_one_that_fails_ends_the_turn() -> None:
    async with running_daemon() as daemon:
        change = '#!/bin/sh\nsed \'s/secret word/[cut]/g; s/^{.*"payload": /{"payload": /\'\n'
        table = hook(daemon, "context-assemble", "transform", change, "change")
        daemon.configure(table)
        assert (await daemon.turn("reload")).code == 0
        model = daemon.replay(DONE | {"expect": {"last_contains": "the [cut] is"}}, DONE)
        made = await daemon.client.create_session(str(daemon.workspace), model=model)
        events = await daemon.run(made.id, "the secret word is")
        assert events[-1].turn_end.reason == common.TURN_END_REASON_COMPLETED, of(events, "turn_stopping")
        (daemon.home / "change").write_text("#!/bin/sh\necho broken >&2\nexit 4\n")
        events = await daemon.run(made.id, "again")
        assert events[-1].turn_end.reason == common.TURN_END_REASON_ERROR
        (error,) = of(events, "hook_error")
        assert (error.hook_error.failure, error.hook_error.mode) == ("error", common.HOOK_MODE_TRANSFORM)
        assert "broken" in error.hook_error.message
        assert not of(events, "agent_request"), "nothing was sent"


@pytest.mark.req("HOOK-03", "HOOK-01", "LOOP-06")
async def test_observers_of_every_point_are_called_in_order_and_break_nothing() -> None:
    async with running_daemon(ALLOWED) as daemon:
        seen = daemon.home / "seen"
        points = [
            "session-start",
            "context-assemble",
            "pre-model-call",
            "post-model-response",
            "pre-tool-call",
            "plan-ready",
            "post-tool-call",
            "post-apply",
            "session-end",
        ]
        look = f"#!/bin/sh\ncat >> {seen}\nexit 5\n"
        tables = [hook(daemon, point, "observe", look, f"see-{point}") for point in points]
        daemon.configure(ALLOWED + "".join(tables))
        assert (await daemon.turn("reload")).code == 0
        done = await daemon.turn("run", "go", "--model", daemon.replay(writes("a.txt"), DONE), "--json")
        told = [json.loads(line) for line in seen.read_text().splitlines()]
    assert done.code == 0, done.stderr
    step = ["context-assemble", "pre-model-call", "post-model-response"]
    calls = ["pre-tool-call", "plan-ready", "post-tool-call", "post-apply"]
    assert [each["point"] for each in told] == ["session-start", *step, *calls, *step, "session-end"]
    (applied,) = [each["payload"]["items"] for each in told if each["point"] == "post-apply"]
    assert [item["outcome"] for item in applied] == ["applied"]
    assert told[0]["payload"]["directory"]
    assert told[-1]["payload"]["status"] == "completed"
    failures = [event for event in done.json_lines if event["type"] == "hook/error"]
    assert len(failures) == len(told)
