"""A world that is not there: clock, ids, log, tools, hooks, people and trace, for the loop alone.

Rules, history, policy and the replay model are the real ones; what is simulated is time, the disk, the
processes of tools, and whoever answers.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from turnd.hooks.chain import Chain
from turnd.loop.session import LiveSession
from turnd.loop.settings import LoopSettings
from turnd.models.catalogue import Catalogue
from turnd.models.keys import Keys
from turnd.ports import (
    MAX_EVENT_BYTES,
    AnsweredRequest,
    Attributes,
    ChildRefused,
    ChildRequest,
    Correct,
    Emit,
    EventTooLarge,
    Invocation,
    LogFailed,
    Preview,
    RememberedRule,
    Spawn,
    Subtree,
    Tool,
    ToolFailure,
    ToolOutcome,
    ToolSession,
    ToolSet,
    UnknownSession,
    World,
)
from turnd.rules.attention import with_attention
from turnd.rules.backoff import RetryPolicy
from turnd.rules.closing import after_history
from turnd.rules.event import Draft, event_type, make_event
from turnd.rules.layer import WorkspaceLayer
from turnd.rules.opening import InstructionFile
from turnd.rules.policy import Policy
from turnd.rules.state import SessionState, apply, position
from turnd.rules.status import SessionView, advance
from turnd.sessions.live import LiveSessions
from turnd.sessions.locks import LockTable
from turnd.tools.disk import HostDisk
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2, provider_pb2
from turnd.v1.jsonform import enum_text


class SimClock:
    """Time passes only where somebody sleeps."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now_us(self) -> int:
        return 1_700_000_000_000_000 + round(self.seconds * 1_000_000)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        if seconds == math.inf:
            await asyncio.Event().wait()
        self.seconds += seconds
        await asyncio.sleep(0)


class SimIds:
    def __init__(self) -> None:
        self._next = 0

    def _mint(self, prefix: str) -> str:
        self._next += 1
        return f"{prefix}{self._next}"

    def session(self) -> str:
        return self._mint("S")

    def call(self) -> str:
        return self._mint("c")

    def request(self) -> str:
        return self._mint("r")

    def message(self) -> str:
        return self._mint("m")


class MemoryLog:
    """A log whose commits always succeed, unless a test sets `failing`."""

    def __init__(self, clock: SimClock) -> None:
        self._clock = clock
        self.events: dict[str, list[event_pb2.Event]] = {}
        self._folded: dict[str, tuple[SessionState, SessionView]] = {}
        self.subscribers: list[Callable[[Sequence[event_pb2.Event]], None]] = []
        self.answers: dict[str, bytes] = {}
        self.failing = False

    async def load(self, session: str) -> None:
        if session not in self._folded:
            raise UnknownSession(session)

    def state(self, session: str) -> SessionState:
        return self._folded.get(session, (SessionState(), SessionView()))[0]

    def view(self, session: str) -> SessionView:
        return self._folded[session][1]

    async def committed(self, session: str) -> tuple[SessionState, SessionView]:
        return self._folded[session]

    async def append(self, *drafts: Draft, answered: AnsweredRequest | None = None) -> list[event_pb2.Event]:
        if self.failing:
            await asyncio.sleep(0)
            raise LogFailed("no space left on device")
        folded = dict(self._folded)
        made = []
        for draft in with_attention(drafts, lambda session: self._folded.get(session, (None, None))[1]):
            state, view = folded.get(draft.session, (SessionState(), SessionView()))
            turn, step = position(state, draft.payload)
            time_us = self._clock.now_us() if draft.time_us is None else draft.time_us
            event = make_event(draft, seq=state.seq + 1, time_us=time_us, turn=turn, step=step)
            if event.ByteSize() > MAX_EVENT_BYTES:
                raise EventTooLarge(event_type(event), event.ByteSize())
            folded[draft.session] = (apply(state, event), advance(view, event))
            made.append(event)
        self._folded = folded
        if answered is not None:
            self.answers[answered.request_id] = answered.answer(made)
        for event in made:
            self.events.setdefault(event.session, []).append(event)
        for subscriber in self.subscribers:
            subscriber(made)
        await asyncio.sleep(0)
        return made

    async def begin(
        self,
        session: str,
        history: deque[event_pb2.Event],
        created: event_pb2.SessionCreated,
        answered: Callable[[SessionView], AnsweredRequest | None],
    ) -> SessionView:
        state = SessionState()
        drafts = [Draft(session, event) for event in history]
        for seq, draft in enumerate(drafts, 1):
            state = apply(state, make_event(draft, seq=seq, time_us=0, turn=None, step=None))
        assert answered(SessionView()) is None, "no test of this world asks for an answer"
        await self.append(*drafts, Draft(session, created), *after_history(state, session))
        return self.view(session)

    async def read(self, session: str, after_seq: int = 0) -> AsyncIterator[Sequence[event_pb2.Event]]:
        yield self.events[session][after_seq:]

    async def remembered_rules(self) -> list[RememberedRule]:
        decided = [
            (event.session, event.approval_decided)
            for events in self.events.values()
            for event in events
            if event.approval_decided.HasField("stored")
        ]
        return [
            RememberedRule(
                name=each.stored.name,
                workspace=each.stored.workspace,
                profile=each.stored.profile,
                cwd=each.stored.cwd,
                rule=each.grant,
                session=session,
                client=each.client,
                at_us=0,
            )
            for session, each in decided
        ]

    async def subtree(self, session: str) -> Subtree:
        members = [v for _, v in self._folded.values() if session == v.id or session in v.ancestors]
        return Subtree(
            sessions=len(members),
            cost_nano_usd=sum(v.cost_nano_usd for v in members),
            input_tokens=sum(v.tokens.input for v in members),
            output_tokens=sum(v.tokens.output for v in members),
        )


Work = Callable[[Invocation], "ToolOutcome | ToolFailure | None"]


@dataclass
class SimTool:
    """A tool whose calls last until the test lets them end, or end at once."""

    spec: provider_pb2.ToolSpec
    provider: str = "sim"
    answer: Callable[[Invocation], ToolOutcome | ToolFailure] = lambda call: ToolOutcome(b'"done"')
    preview: Callable[[Invocation], Preview] = lambda call: Preview()
    hold: bool = False


@dataclass
class SimTools:
    """The tools of every session, and a record of what ran when."""

    tools: list[SimTool]
    running: set[str] = field(default_factory=set)
    most_running: int = 0
    overlaps: set[frozenset[str]] = field(default_factory=set)
    started: list[str] = field(default_factory=list)
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    cancelled: list[str] = field(default_factory=list)
    opened: int = 0
    closed: int = 0
    begun: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def open(self, session: ToolSession, emit: Emit, spawn: Spawn) -> ToolSet:
        self.opened += 1
        return _Set(self, session.tools, spawn)

    def get(self, provider: str, tool: str) -> SimTool | None:
        return next((t for t in self.tools if (t.provider, t.spec.name) == (provider, tool)), None)

    async def until_running(self, count: int) -> None:
        """Waits until so many calls run at once."""
        async with self.begun:
            await self.begun.wait_for(lambda: len(self.running) >= count)

    def release(self, name: str) -> None:
        """Lets the held call whose input has this name end."""
        self.gates.setdefault(name, asyncio.Event()).set()


class _Set:
    def __init__(self, world: SimTools, globs: Sequence[str], spawn: Spawn) -> None:
        self._world = world
        self._globs = globs
        self._spawn = spawn

    def offered(self) -> tuple[Tool, ...]:
        tools = (Tool(t.provider, "1", t.spec) for t in self._world.tools)
        return tuple(t for t in tools if any(fnmatchcase(t.full_name, glob) for glob in self._globs))

    def find(self, provider: str, tool: str) -> Tool | None:
        return next((t for t in self.offered() if (t.provider, t.spec.name) == (provider, tool)), None)

    def check_input(self, provider: str, tool: str, data: bytes) -> ToolFailure | None:
        if isinstance(json.loads(data), dict):
            return None
        return ToolFailure(common.TOOL_ERROR_CATEGORY_INVALID_ARGUMENTS, "not an object")

    async def preview(self, call: Invocation) -> Preview:
        tool = self._world.get(call.provider, call.tool)
        assert tool is not None
        return tool.preview(call)

    async def invoke(self, call: Invocation) -> ToolOutcome | ToolFailure:
        world = self._world
        tool = world.get(call.provider, call.tool)
        assert tool is not None
        if tool.spec.spawns:
            return await self._spawned(call)
        name = str(json.loads(call.input).get("name", call.call_id))
        world.overlaps |= {frozenset((name, other)) for other in world.running}
        async with world.begun:
            world.running.add(name)
            world.begun.notify_all()
        world.started.append(name)
        world.most_running = max(world.most_running, len(world.running))
        try:
            if tool.hold:
                await world.gates.setdefault(name, asyncio.Event()).wait()
            else:
                await asyncio.sleep(0)
            return tool.answer(call)
        except asyncio.CancelledError:
            world.cancelled.append(name)
            raise
        finally:
            world.running.discard(name)

    async def _spawned(self, call: Invocation) -> ToolOutcome | ToolFailure:
        asked = json.loads(call.input)
        tools = tuple(asked["tools"]) if "tools" in asked else None
        try:
            result = await self._spawn(
                ChildRequest(call.call_id, asked.get("profile", ""), asked["prompt"], tools)
            )
        except ChildRefused as refused:
            return ToolFailure(common.TOOL_ERROR_CATEGORY_PERMISSION_DENIED, str(refused))
        status = enum_text(common.SessionStatus, result.status)
        content = {"session_id": result.session, "status": status, "result": result.text}
        return ToolOutcome(json.dumps(content).encode(), is_error=status != "completed")

    async def close(self) -> None:
        self._world.closed += 1


class SimPeople:
    """Answers requests as the test says; whatever it does not say stays open until it does."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self._settled: dict[str, asyncio.Future[Any]] = {}
        self.decide: Callable[[event_pb2.ApprovalRequest], bool | None] = lambda request: True
        self.reply: Callable[[event_pb2.InteractiveRequest], object] = lambda request: {"answer": "yes"}
        self.asked: list[event_pb2.ApprovalRequest] = []
        self.scope: common.ApprovalScope.ValueType = common.APPROVAL_SCOPE_ONCE
        self.granted: set[str] = set()
        self.arrived = asyncio.Condition()
        log.subscribers.append(self._committed)

    def _committed(self, events: Sequence[event_pb2.Event]) -> None:
        for event in events:
            match event.WhichOneof("data"):
                case "approval_decided":
                    self._future(event.approval_decided.request_id).set_result(event.approval_decided)
                case "interactive_answered":
                    self._future(event.interactive_answered.request_id).set_result(event.interactive_answered)
                case _:
                    pass

    def _future(self, request_id: str) -> asyncio.Future[Any]:
        return self._settled.setdefault(request_id, asyncio.get_running_loop().create_future())

    async def until_asked(self, count: int) -> None:
        """Waits until so many approvals were asked for."""
        async with self.arrived:
            await self.arrived.wait_for(lambda: len(self.asked) >= count)

    async def settle(self, session: str, request: event_pb2.ApprovalRequest, approve: bool) -> None:
        await self._log.append(
            Draft(
                session,
                event_pb2.ApprovalDecided(
                    request_id=request.request_id,
                    call_id=request.item.call_id,
                    outcome=common.APPROVAL_OUTCOME_APPROVED if approve else common.APPROVAL_OUTCOME_DENIED,
                    scope=self.scope,
                    grant=None if self.scope == common.APPROVAL_SCOPE_ONCE else request.grant,
                    client="test",
                ),
            )
        )

    @contextmanager
    def correctable(self, session: str, request_id: str, correct: Correct) -> Iterator[None]:
        yield

    async def decision(self, session: str, request_id: str) -> event_pb2.ApprovalDecided:
        request = self._log.view(session).open_requests[request_id].approval
        async with self.arrived:
            self.asked.append(request)
            self.arrived.notify_all()
        answer = self.decide(request)
        if answer is not None:
            await self.settle(session, request, answer)
        return await asyncio.shield(self._future(request_id))

    async def answer(self, session: str, request_id: str) -> event_pb2.InteractiveAnswered:
        request = self._log.view(session).open_requests[request_id].interactive
        await self._log.append(
            Draft(
                session,
                event_pb2.InteractiveAnswered(
                    request_id=request_id,
                    call_id=request.call_id,
                    outcome=common.ANSWER_OUTCOME_ANSWERED,
                    client="test",
                    output=json.dumps(self.reply(request)).encode(),
                ),
            )
        )
        return await asyncio.shield(self._future(request_id))


@dataclass
class SimSpan:
    name: str
    attributes: dict[str, Any]
    parent: SimSpan | None
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    traceparent: str = ""

    def event(self, name: str, attributes: Attributes | None = None) -> None:
        self.events.append((name, dict(attributes or {})))

    def set(self, attributes: Attributes) -> None:
        self.attributes |= attributes


class SimLayers:
    """Files of workspaces, by directory."""

    def __init__(self) -> None:
        self.layers: dict[str, WorkspaceLayer] = {}

    async def of(self, workspace: str) -> WorkspaceLayer:
        return self.layers.get(workspace, WorkspaceLayer())


class SimTrace:
    """Keeps every span."""

    def __init__(self) -> None:
        self.spans: list[SimSpan] = []

    @contextmanager
    def span(self, name: str, attributes: Attributes | None = None) -> Iterator[SimSpan]:
        span = SimSpan(name, dict(attributes or {}), None)
        self.spans.append(span)
        yield span


@dataclass
class SimInstructions:
    """Files that a test puts into the session's directory, and how often they were read."""

    files: list[InstructionFile] = field(default_factory=list)
    reads: int = 0

    async def read(self, directory: str, names: Sequence[str]) -> tuple[InstructionFile, ...]:
        self.reads += 1
        return tuple(self.files)


class Sim:
    """One daemon's loop in this world."""

    def __init__(
        self,
        tools: Sequence[SimTool] = (),
        *,
        policy: Policy | None = None,
        subscribers: Sequence[Any] = (),
        **settings: Any,
    ) -> None:
        self.clock = SimClock()
        self.log = MemoryLog(self.clock)
        self.tools = SimTools(list(tools))
        self.people = SimPeople(self.log)
        self.instructions = SimInstructions()
        self.trace = SimTrace()
        self.layers = SimLayers()
        self.world = World(
            clock=self.clock,
            ids=SimIds(),
            log=self.log,
            models=Catalogue(self.clock, Keys({})),
            instructions=self.instructions,
            tools=self.tools,
            disk=HostDisk(),
            layers=self.layers,
            hooks=Chain(subscribers, self.trace),
            people=self.people,
            locks=LockTable(),
            trace=self.trace,
        )
        given = {"idle_s": math.inf} | settings
        self.settings = LoopSettings(
            policy=policy or Policy(), retry=RetryPolicy(), jitter=lambda: 0.5, **given
        )
        self.profiles: dict[str, common.ProfileSnapshot] = {}
        self.live = self.make_live()

    def make_live(self) -> LiveSessions:
        """The live sessions over the world as it is now."""
        live = LiveSessions(self.world, lambda: self.settings, lambda: self.profiles)
        self.log.subscribers.append(live.committed)
        return live

    async def session(
        self,
        model: Path,
        *,
        bounds: common.Bounds | None = None,
        unattended: bool = False,
        threshold: int = 3,
        polling: Sequence[str] = (),
        plan_mode: bool = False,
        **profile_fields: Any,
    ) -> LiveSession:
        """A new session under a replay transcript; further fields are those of its profile."""
        session = self.world.ids.session()
        profile = common.ProfileSnapshot(
            name="default",
            model=f"replay:{model}",
            tools=profile_fields.pop("tools", ["*"]),
            bounds=bounds or common.Bounds(),
            doom_loop=common.DoomLoop(threshold=threshold, window_size=10, polling=polling),
            **profile_fields,
        )
        await self.log.append(
            Draft(
                session,
                event_pb2.SessionCreated(
                    cwd="/nowhere", profile=profile, unattended=unattended, plan_mode=plan_mode
                ),
            )
        )
        return await self.live.get(session)

    async def send(
        self, live: LiveSession, text: str, delivery: common.Delivery.ValueType = common.DELIVERY_NEXT_TURN
    ) -> None:
        """Queues a message and wakes the session."""
        block = common.ContentBlock(text=common.TextBlock(text=text))
        await self.log.append(
            Draft(
                live.session,
                event_pb2.InboxQueued(
                    message_id=self.world.ids.message(), blocks=[block], delivery=delivery, client="test"
                ),
            )
        )
        live.poke()

    async def turn(self, live: LiveSession, text: str = "go") -> None:
        """One message and everything that follows from it."""
        await self.send(live, text)
        await asyncio.wait_for(live.idle(), 20)

    def types(self, live: LiveSession) -> list[str]:
        """The types of the session's events, in order."""
        return [event_type(event) for event in self.log.events[live.session]]

    def of(self, live: LiveSession, kind: str) -> list[Any]:
        """The payloads of one type, in order."""
        field_name = kind.replace("/", "_", 1)
        return [
            getattr(event, field_name)
            for event in self.log.events[live.session]
            if event.WhichOneof("data") == field_name
        ]


def transcript(directory: Path, *lines: Mapping[str, object]) -> Path:
    """A replay file of these lines."""
    path = directory / "model.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def spec(
    name: str,
    kind: common.ToolKind.ValueType = common.TOOL_KIND_DATA_SOURCE,
    risk: common.Risk.ValueType | None = None,
    **more: Any,
) -> provider_pb2.ToolSpec:
    """A tool of any input; reads are safe, as their providers would declare them."""
    if risk is None:
        risk = common.RISK_MODERATE if kind == common.TOOL_KIND_RESOURCE else common.RISK_READ_ONLY
    if kind == common.TOOL_KIND_DATA_SOURCE and "concurrency" not in more:
        more["concurrency"] = common.ConcurrencySpec(safe=True)
    return provider_pb2.ToolSpec(name=name, kind=kind, risk=risk, input_schema=b'{"type": "object"}', **more)
