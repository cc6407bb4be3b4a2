"""A rich session on the real log: what has to stand in one transaction does (LOG-08, GATE-17)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.faults.rich_session import World, play
from tests.faults.stored_sim import started
from tests.sim.together import watched
from tests.unit.stored import query

from turnd.store.log import EventLog
from turnd.v1 import event_pb2

TOGETHER = {
    "assistant_message",
    "tool_call",
    "inbox_taken",
    "turn_start",
    "user_message",
    "turn_end",
    "session_status",
    "session_ended",
    "approval_request",
    "approval_decided",
    "interactive_request",
    "interactive_answered",
    "child_attention",
}


@pytest.mark.req("LOG-08", "LOG-20", "GATE-17", "A13")
async def test_what_belongs_together_is_in_one_transaction(memory_path: Path) -> None:
    with watched(EventLog):
        async with started(memory_path) as (log, _):
            await play(log, World(log), memory_path)
    stored = (event_pb2.Event.FromString(blob) for (blob,) in query(memory_path, "SELECT event FROM events"))
    assert {event.WhichOneof("data") for event in stored} >= TOGETHER
