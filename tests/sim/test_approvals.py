"""Approvals over a log that takes nothing for a while (V05)."""

from __future__ import annotations

import asyncio

import pytest
from tests.sim.world import MemoryLog, SimClock

from turnd.rules.event import Draft
from turnd.sessions.approvals import Approvals
from turnd.sessions.presence import Presence
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2


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
    for payload in (
        event_pb2.SessionCreated(cwd="/nowhere"),
        event_pb2.TurnStart(turn=0),
        event_pb2.StepStart(turn=0, step=1),
        call,
        event_pb2.PlanReady(items=[item]),
        request,
    ):
        await log.append(Draft("S", payload))
    log.failing = True
    for _ in range(20):
        await asyncio.sleep(0)
    assert "r" in log.view("S").open_requests
    log.failing = False
    decided = await asyncio.wait_for(approvals.decision("S", "r"), 10)
    assert decided.outcome == common.APPROVAL_OUTCOME_EXPIRED
    await approvals.close()
