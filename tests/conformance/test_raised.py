"""A tool that the configuration takes more seriously than its provider does, over the real daemon (GATE-05)."""

from __future__ import annotations

import json

import pytest
from tests.harness import RunningDaemon, running_daemon
from tests.marks import NEEDS_CELLS

from turnd.v1 import common_pb2 as common

pytestmark = [NEEDS_CELLS, pytest.mark.timeout(120), pytest.mark.req("GATE-05")]

RAISED = '[tools."workspace.list_*"]\nkind = "resource"\nrisk = "critical"\n'
ASKED = {"stream": [{"tool": "list_dir", "input": {"path": "."}}]}
DONE = {"stream": [{"text": "done"}], "repeat": True}


async def test_a_read_that_is_raised_is_asked_about_and_shown_as_what_it_is_taken_for() -> None:
    async with running_daemon(RAISED) as daemon:
        made = await daemon.client.create_session(
            str(daemon.workspace), model=daemon.replay(ASKED, ASKED, DONE)
        )
        await daemon.client.send_message(made.id, "go")
        events = await daemon.events(made.id, lambda e: e.HasField("approval_request"))
        item = events[-1].approval_request.item
        assert (item.tool, item.kind, item.risk) == (
            "list_dir",
            common.TOOL_KIND_RESOURCE,
            common.RISK_CRITICAL,
        )
        call = next(e.tool_call for e in events if e.HasField("tool_call"))
        assert (call.kind, call.risk) == (common.TOOL_KIND_RESOURCE, common.RISK_CRITICAL)
        assert await decision(daemon) == "ask"

        daemon.configure("")
        await daemon.client.reload()
        assert await decision(daemon) == "allow"
        await daemon.client.decide(made.id, events[-1].approval_request.request_id, approve=True)
        events = await daemon.events(made.id, lambda e: e.HasField("turn_end"))
        assert events[-1].turn_end.reason == common.TURN_END_REASON_COMPLETED
        kinds = [e.tool_call.kind for e in events if e.HasField("tool_call")]
        assert kinds == [common.TOOL_KIND_RESOURCE, common.TOOL_KIND_DATA_SOURCE]
        assert not [e for e in events if e.tool_result.is_error]


async def decision(daemon: RunningDaemon) -> str:
    done = await daemon.turn("policy", "explain", "workspace.list_dir", '{"path": "."}', "--json")
    return str(json.loads(done.stdout)["decision"])


async def test_plan_mode_does_not_offer_it() -> None:
    async with running_daemon(RAISED) as daemon:
        model = daemon.replay(
            DONE | {"expect": {"tools_exclude": ["list_dir"], "tools_include": ["read_file"]}}
        )
        done = await daemon.turn("run", "go", "--plan", "--model", model)
        assert done.code == 0, done.stderr


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ('[tools."workspace.run_command"]\nkind = "data_source"\n', "kind"),
        ('[tools."workspace.run_command"]\nrisk = "read_only"\n', "risk"),
        ('[tools.run_command]\nrisk = "high"\n', "provider.tool"),
    ],
)
@pytest.mark.req("OPS-03")
async def test_nothing_can_be_lowered_and_a_mistake_is_named(toml: str, said: str) -> None:
    async with running_daemon() as daemon:
        daemon.configure(toml)
        done = await daemon.turn("reload")
        assert done.code == 1
        assert "config.toml:" in done.stderr
        assert said in done.stderr
