"""One session of the demo, and the proof that it did what it shows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from turnd.v1 import common_pb2, event_pb2
from turnd_client.client import Client
from turnd_client.demo.project import FIXED_FILE, FIXED_LINE, TEST_TOOL
from turnd_client.errors import Refused
from turnd_client.follow import follow
from turnd_client.outcome import Outcome


@dataclass(slots=True)
class Evidence:
    """What was seen in the events."""

    outcome: Outcome = field(default_factory=Outcome)
    diff_shown: bool = False
    approved: int = 0
    denied: str = ""
    """The tool whose call a person denied; empty where none was."""
    tests_passed: bool = False
    events: int = 0
    _asked: dict[str, str] = field(default_factory=dict)
    _calls: dict[str, str] = field(default_factory=dict)

    def advance(self, event: event_pb2.Event) -> None:
        """Takes the next event."""
        self.outcome.advance(event)
        self.events += 1
        match event.WhichOneof("data"):
            case "approval_request":
                self._asked[event.approval_request.request_id] = event.approval_request.item.tool
                self.diff_shown |= FIXED_LINE in event.approval_request.item.preview.replace("\n+", "\n")
            case "approval_decided":
                decided = event.approval_decided
                self.approved += decided.outcome == common_pb2.APPROVAL_OUTCOME_APPROVED
                if decided.outcome == common_pb2.APPROVAL_OUTCOME_DENIED:
                    self.denied = self._asked[decided.request_id]
            case "tool_call":
                self._calls[event.tool_call.call_id] = event.tool_call.tool
            case "tool_result" if self._calls.get(event.tool_result.call_id) == TEST_TOOL:
                self.tests_passed = not event.tool_result.is_error and _exit_code(event.tool_result) == 0
            case _:
                pass

    def missing(self, project: Path) -> list[str]:
        """What did not happen; empty where all of it did."""
        checks: Mapping[str, bool] = {
            "an approval that shows the diff": self.diff_shown,
            "two approvals": self.approved == 2,
            f"the change of {FIXED_FILE}": FIXED_LINE in (project / FIXED_FILE).read_text("utf-8"),
            "a test run that passes": self.tests_passed,
            "a completed turn": self.outcome.reason == common_pb2.TURN_END_REASON_COMPLETED,
            "an answer": bool(self.outcome.text),
        }
        return [name for name, seen in checks.items() if not seen]


def _exit_code(result: event_pb2.ToolResult) -> object:
    content = json.loads(result.content)
    return content.get("exit_code") if isinstance(content, dict) else None


async def approve_everything(client: Client, session: str) -> None:
    """The demo's second client, for where nobody sits: approves whatever is asked. Runs until it is cancelled."""
    async for update in follow(client, session):
        for event in update.events:
            if event.HasField("approval_request"):
                try:
                    await client.decide(session, event.approval_request.request_id, approve=True)
                except Refused:
                    # Somebody else was first, which is as good.
                    continue
