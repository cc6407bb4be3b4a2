"""A registry of real providers in real cells, and a session that calls their tools."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import structlog
from google.protobuf.message import Message

from turnd.cells import Access, Bubblewrap, CellSpec
from turnd.ports import (
    ChildRefused,
    ChildRequest,
    ChildResult,
    Invocation,
    ToolFailure,
    ToolOutcome,
    ToolSession,
    ToolSet,
)
from turnd.rules.raised import Raise
from turnd.tools.core import Core
from turnd.tools.definition import ProviderDefinition, workspace_provider
from turnd.tools.registry import ToolPaths, ToolRegistry
from turnd.tools.spool import Spool
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2, provider_pb2

SCRIPT = Path(__file__).with_name("scripted_provider.py").resolve()
ANY_OBJECT = b'{"type": "object"}'
OK_OBJECT = b'{"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}'


def tool(name: str = "act", **changes: Any) -> provider_pb2.ToolSpec:
    """A sound tool, changed as told."""
    spec = provider_pb2.ToolSpec(
        name=name,
        kind=common.TOOL_KIND_DATA_SOURCE,
        risk=common.RISK_READ_ONLY,
        description="Does as it is told.",
        input_schema=ANY_OBJECT,
        output_schema=OK_OBJECT,
        concurrency=common.ConcurrencySpec(safe=True),
    )
    spec.MergeFrom(provider_pb2.ToolSpec(**changes))
    return spec


def scripted(
    name: str,
    *tools: provider_pb2.ToolSpec,
    registers_as: str | None = None,
    version: str = "1",
    config_schema: bytes = b"",
    config: Mapping[str, Any] | None = None,
    secrets: Mapping[str, str] | None = None,
) -> ProviderDefinition:
    """The scripted provider, which registers these tools."""
    register = provider_pb2.Register(
        name=name if registers_as is None else registers_as,
        version=version,
        protocol=1,
        config_schema=config_schema,
        tools=tools,
    )
    python = workspace_provider()
    return ProviderDefinition(
        name=name,
        command=(
            python.command[0],
            "-I",
            str(SCRIPT),
            base64.b64encode(register.SerializeToString()).decode(),
        ),
        column=partial(CellSpec.third_party, access=Access.READ),
        read=(*python.read, str(SCRIPT)),
        config=config or {},
        secrets=secrets or {},
    )


@dataclass
class Session:
    """One session's tools, and what was put into its log."""

    facts: ToolSession
    log: list[Message] = field(default_factory=list)
    children: list[ChildRequest] = field(default_factory=list)
    tools: ToolSet = field(init=False)
    numbers: count[int] = field(default_factory=lambda: count(1))

    async def emit(self, payload: Message) -> None:
        self.log.append(payload)

    async def spawn(self, request: ChildRequest) -> ChildResult:
        if request.profile not in ("", "default"):
            raise ChildRefused(f"there is no profile {request.profile!r}")
        self.children.append(request)
        return ChildResult(
            session="S1-child",
            status=common.SESSION_STATUS_IDLE,
            text=f"did {request.prompt}",
            total_cost_nano_usd=7,
            total_input_tokens=3,
            total_output_tokens=2,
        )

    def statuses(self) -> list[tuple[str, str]]:
        return [(e.provider, e.state) for e in self.log if isinstance(e, event_pb2.ProviderStatus)]

    def invocation(self, name: str, arguments: Mapping[str, Any], **more: Any) -> Invocation:
        provider, _, called = name.partition(".")
        call_id = more.pop("call_id", None) or f"{self.facts.session}-{next(self.numbers)}"
        return Invocation(call_id, provider, called, json.dumps(arguments).encode(), turn=0, step=1, **more)

    async def call(self, name: str, arguments: Mapping[str, Any], **more: Any) -> ToolOutcome | ToolFailure:
        return await self.tools.invoke(self.invocation(name, arguments, **more))

    async def act(
        self, *steps: Sequence[Any], name: str = "scripted.act", **more: Any
    ) -> ToolOutcome | ToolFailure:
        return await self.call(name, {"do": [list(step) for step in steps]}, **more)


@dataclass
class Bench:
    """Where sessions are opened."""

    registry: ToolRegistry
    spool: Spool
    workspace: Path
    base: Path

    async def open(
        self,
        name: str = "S1",
        tools: Sequence[str] = ("*",),
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        root: str | None = None,
    ) -> Session:
        facts = ToolSession(
            session=name,
            root=root or name,
            cwd=str(cwd or self.workspace),
            workspace=str(self.workspace),
            environment=environment or {"PATH": "/usr/bin:/bin"},
            tools=tuple(tools),
            unattended=False,
        )
        session = Session(facts)
        session.tools = await self.registry.open(facts, session.emit, session.spawn)
        return session


@asynccontextmanager
async def bench(
    base: Path, *providers: ProviderDefinition, raises: Sequence[Raise] = ()
) -> AsyncIterator[Bench]:
    """A registry with these providers and core, in directories below `base`."""
    base = base.resolve()
    workspace = base / "w"
    workspace.mkdir()
    spool = Spool(base / "s" / "spool")

    async def no_tasks(session: str) -> bytes | None:
        return None

    registry = ToolRegistry(
        Bubblewrap.find(),
        ToolPaths(runtime=base / "r", state=base / "s", home=Path.home()),
        providers,
        spool,
        Core("1", spool, no_tasks),
        lambda: raises,
        structlog.get_logger(),
    )
    await registry.start()
    try:
        yield Bench(registry, spool, workspace, base)
    finally:
        await registry.close()


def content(ended: ToolOutcome | ToolFailure) -> Any:
    """The decoded content of a call that ended by itself."""
    assert isinstance(ended, ToolOutcome), ended
    return json.loads(ended.content)


def failure(ended: ToolOutcome | ToolFailure, category: common.ToolErrorCategory.ValueType) -> ToolFailure:
    """The failure of a call, of this category."""
    assert isinstance(ended, ToolFailure), ended
    assert ended.category == category, ended
    return ended
