"""The real loop over the real log, with a recorded model and tools that do nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from turnd.cells.instructions import DirectoryInstructions
from turnd.hooks import journal
from turnd.hooks.chain import Chain
from turnd.loop.settings import LoopSettings
from turnd.models.catalogue import Catalogue
from turnd.models.keys import Keys
from turnd.ports import (
    Emit,
    Invocation,
    Preview,
    Spawn,
    Tool,
    ToolFailure,
    ToolOutcome,
    ToolSession,
    ToolSet,
    World,
)
from turnd.rules.backoff import RetryPolicy
from turnd.rules.event import Draft
from turnd.rules.layer import WorkspaceLayer
from turnd.rules.policy import Match, Policy, PolicyRule
from turnd.sessions.approvals import Approvals
from turnd.sessions.live import LiveSessions
from turnd.sessions.locks import LockTable
from turnd.sessions.presence import Presence
from turnd.store.intake import Committed
from turnd.store.log import EventLog
from turnd.system import SystemClock, UlidIds
from turnd.telemetry import NoTrace
from turnd.tools.disk import HostDisk
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2, provider_pb2

DRAIN_S = 10.0
STEPS_OF_TURN = 10
"""The last one only says something."""
ANSWER = json.dumps("line of a file that was read\n" * 10).encode()
"""With it 10,000 events are a history that a large model still takes."""


class Layers:
    """Of workspaces without a file."""

    async def of(self, workspace: str) -> WorkspaceLayer:
        return WorkspaceLayer()


class Tools:
    """One that reads and one that changes something, both at once."""

    def __init__(self) -> None:
        self._tools = (
            Tool("bench", "1", _spec("look", common.TOOL_KIND_DATA_SOURCE, common.RISK_READ_ONLY)),
            Tool("bench", "1", _spec("change", common.TOOL_KIND_RESOURCE, common.RISK_MODERATE)),
        )

    async def open(self, session: ToolSession, emit: Emit, spawn: Spawn) -> ToolSet:
        return self

    def offered(self) -> tuple[Tool, ...]:
        return self._tools

    def find(self, provider: str, tool: str) -> Tool | None:
        return next((each for each in self._tools if each.full_name == f"{provider}.{tool}"), None)

    def check_input(self, provider: str, tool: str, data: bytes) -> ToolFailure | None:
        return None

    async def preview(self, call: Invocation) -> Preview:
        return Preview()

    async def invoke(self, call: Invocation) -> ToolOutcome | ToolFailure:
        return ToolOutcome(ANSWER)

    async def close(self) -> None:
        return None


class Driver:
    """Sessions that work through a transcript, and the seconds that each Step took."""

    def __init__(self, log: EventLog, transcript: Path) -> None:
        self._log = log
        self._transcript = transcript
        self._ids = UlidIds()
        clock = SystemClock()
        trace = NoTrace()
        world = World(
            clock=clock,
            ids=self._ids,
            log=log,
            models=Catalogue(clock, Keys({})),
            instructions=DirectoryInstructions("/"),
            disk=HostDisk(),
            layers=Layers(),
            tools=Tools(),
            hooks=Chain(journal.subscribers(), trace),
            people=Approvals(log, clock, Presence()),
            locks=LockTable(),
            trace=trace,
        )
        rule = PolicyRule("changes", "bench", Match.of(tool=["change"]), common.POLICY_ACTION_ALLOW)
        settings = LoopSettings(policy=Policy([rule]), retry=RetryPolicy(), jitter=lambda: 0.5)
        self._live = LiveSessions(world, lambda: settings, dict)
        self._started: dict[str, float] = {}
        self.step_times: dict[str, list[float]] = {}
        log.subscribe(self._committed)

    async def new_session(self) -> str:
        """A session that has done nothing."""
        session = self._ids.session()
        profile = common.ProfileSnapshot(name="default", model=f"replay:{self._transcript}", tools=["*"])
        await self._log.append(Draft(session, event_pb2.SessionCreated(cwd="/w", profile=profile)))
        self.step_times[session] = []
        return session

    async def turn(self, session: str) -> None:
        """One message, and every Step that follows from it."""
        block = common.ContentBlock(text=common.TextBlock(text="go on"))
        queued = event_pb2.InboxQueued(
            message_id=self._ids.message(), blocks=[block], delivery=common.DELIVERY_NEXT_TURN
        )
        await self._log.append(Draft(session, queued))
        live = await self._live.get(session)
        live.poke()
        await live.idle()

    async def until(self, session: str, seq: int) -> None:
        """Turns until the session has so many events."""
        while self._log.state(session).seq < seq:
            await self.turn(session)

    async def close(self) -> None:
        """Lets go of every session."""
        await self._live.drain(DRAIN_S)

    def _committed(self, committed: Sequence[Committed]) -> None:
        for one in committed:
            match one.event.WhichOneof("data"):
                case "step_start":
                    self._started[one.event.session] = perf_counter()
                case "step_end":
                    took = perf_counter() - self._started[one.event.session]
                    self.step_times[one.event.session].append(took)
                case _:
                    pass
        self._live.committed([one.event for one in committed])


def write_transcript(path: Path, steps: int) -> None:
    """A model that works in Turns of ten Steps, for so many Steps, with a window that no history of them fills."""
    with path.open("w") as file:
        file.write(json.dumps({"model": {"context_window": 100_000_000, "max_output_tokens": 32_000}}) + "\n")
        for number in range(steps):
            stream: list[dict[str, object]] = [
                {"text": f"Now module {number}. " + "It is like the others. " * 4}
            ]
            if number % STEPS_OF_TURN < STEPS_OF_TURN - 1:
                stream.append({"tool": "look", "input": {"path": f"src/module_{number}.py"}})
                stream.append({"tool": "change", "input": {"path": f"src/module_{number}.py", "new": "x"}})
            usage = {"input_tokens": 1000, "output_tokens": 100}
            file.write(json.dumps({"stream": stream, "usage": usage}) + "\n")


def _spec(name: str, kind: common.ToolKind.ValueType, risk: common.Risk.ValueType) -> provider_pb2.ToolSpec:
    return provider_pb2.ToolSpec(name=name, kind=kind, risk=risk, input_schema=b'{"type": "object"}')
