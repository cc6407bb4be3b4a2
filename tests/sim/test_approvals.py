"""Approvals: over a log that takes nothing for a while (V05), and what is shown in them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.sim.world import MemoryLog, Sim, SimClock, SimTool, spec, transcript

from turnd.ports import Preview
from turnd.rules.event import Draft
from turnd.sessions.approvals import Approvals
from turnd.sessions.presence import Presence
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

DONE = {"stream": [{"text": "done"}]}


@pytest.mark.req("V05")
async def test_a_request_that_expires_while_the_log_fails_expires_once_it_takes_events_again() -> None:
    clock = SimClock()
    log = MemoryLog(clock)
    approvals = Approvals(log, clock, Presence())
    log.subscribers.append(approvals.committed)
    call = event_pb2.ToolCall(call_id="c", tool="write", kind=common.TOOL_KIND_RESOURCE, input=b"{}")
    item = common.PlanItem(call_id="c", tool="write", decision=common.POLICY_ACTION_ASK)
    request = event_pb2.ApprovalRequest(request_id="r", item=item)
    request.expires.FromMicroseconds(clock.now_us() + 6_000_000)
    says = event_pb2.AssistantMessage(blocks=[common.ContentBlock(tool_use=common.ToolUseBlock(call_id="c"))])
    for together in (
        [event_pb2.SessionCreated(cwd="/nowhere")],
        [event_pb2.TurnStart(turn=0), event_pb2.UserMessage()],
        [event_pb2.StepStart(turn=0, step=1)],
        [says, call],
        [event_pb2.PlanReady(items=[item])],
        [request],
    ):
        await log.append(*(Draft("S", payload) for payload in together))
    log.failing = True
    for _ in range(20):
        await asyncio.sleep(0)
    assert "r" in log.view("S").open_requests
    log.failing = False
    decided = await asyncio.wait_for(approvals.decision("S", "r"), 10)
    assert decided.outcome == common.APPROVAL_OUTCOME_EXPIRED
    await approvals.close()


@pytest.mark.req("GATE-10", "A09")
async def test_what_a_decision_rests_on_has_nothing_unseen_in_it(tmp_path: Path) -> None:
    """On the wire, whoever shows it: an editor does not spell out what a file hides."""
    hidden = "+x = 1 \u202e# \u2066 fine\u200b\x1b[8m\n"
    write = SimTool(
        spec("write", common.TOOL_KIND_RESOURCE, description="writes\u2028 files"),
        preview=lambda _: Preview(hidden),
    )
    sim = Sim([write])
    live = await sim.session(transcript(tmp_path, {"stream": [{"tool": "write", "input": {}}]}, DONE))
    await sim.turn(live)
    (request,) = sim.of(live, "approval/request")
    (item,) = sim.of(live, "plan/ready")[0].items
    assert item == request.item
    assert item.preview == "+x = 1 <U+202E># <U+2066> fine<U+200B><U+001B>[8m\n"
    assert item.description == "writes<U+2028> files"
