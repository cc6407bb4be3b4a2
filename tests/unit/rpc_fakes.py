"""A server of the real kind over commands and a log that tests script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from turnd.rpc.server import RpcServer
from turnd.sessions.refusal import not_found
from turnd.sessions.tail import Batch, CursorOutOfRange
from turnd.v1 import daemon_pb2, event_pb2, sessions_pb2
from turnd.v1.paths import Paths
from turnd_client.client import Client
from turnd_client.endpoint import Endpoint

SESSION = "01ARZ3NDEKTSV4RRFFQ69G5FAV"


def note(seq: int, text: str = "") -> event_pb2.Event:
    return event_pb2.Event(session=SESSION, seq=seq, note=event_pb2.Note(text=text or f"note {seq}"))


class ScriptedTail:
    """One session's events; `commit` adds one and wakes those who follow."""

    def __init__(self) -> None:
        self.events: list[event_pb2.Event] = []
        self.closed = 0
        self.closed_one = asyncio.Event()
        self._more = asyncio.Event()

    def commit(self, *events: event_pb2.Event) -> None:
        self.events.extend(events)
        self._more.set()
        self._more = asyncio.Event()

    async def follow(self, session: str | None, after: int) -> AsyncGenerator[Batch, None]:
        if not 0 <= after <= len(self.events):
            raise CursorOutOfRange(after, len(self.events))
        at = after
        try:
            while True:
                more = self._more
                part = self.events[at : at + 100]
                at += len(part)
                if part or at == after:
                    blobs = tuple(event.SerializeToString() for event in part)
                    yield Batch(blobs, at, at, caught_up=at == len(self.events))
                if at == len(self.events):
                    await more.wait()
        finally:
            self.closed += 1
            self.closed_one.set()


@dataclass
class ScriptedCommands:
    """Answers GetSession by the tail; everything else as a test says."""

    tail: ScriptedTail
    raises: BaseException | None = None
    started: asyncio.Event = field(default_factory=asyncio.Event)
    block: asyncio.Event | None = None
    cleaned: int = 0

    async def get_session(self, request: sessions_pb2.GetSessionRequest) -> sessions_pb2.GetSessionResponse:
        self.started.set()
        try:
            if self.block is not None:
                await self.block.wait()
        finally:
            # A handler that needs the loop for its clean-up, as one that closes a database does.
            await asyncio.sleep(0)
            self.cleaned += 1
        if self.raises is not None:
            raise self.raises
        if request.session != SESSION:
            raise not_found("session", request.session, f"no session {request.session}")
        return sessions_pb2.GetSessionResponse(
            session=sessions_pb2.Session(id=SESSION, last_seq=len(self.tail.events))
        )

    async def send_message(
        self, request: sessions_pb2.SendMessageRequest
    ) -> sessions_pb2.SendMessageResponse:
        return sessions_pb2.SendMessageResponse(message_id=str(request.ByteSize()))

    async def export(self, request: sessions_pb2.ExportRequest) -> AsyncGenerator[bytes, None]:
        for event in self.tail.events:
            yield event.note.text.encode() + b"\n"

    async def verify(
        self, requests: AsyncIterator[sessions_pb2.VerifyRequest]
    ) -> sessions_pb2.VerifyResponse:
        lines = b"".join([request.lines async for request in requests])
        return sessions_pb2.VerifyResponse(events=lines.count(b"\n"))

    def __getattr__(self, name: str) -> Any:
        async def refused(request: object) -> None:
            raise AssertionError(f"{name} was called")

        return refused


class Daemon:
    async def status(self, request: daemon_pb2.StatusRequest) -> daemon_pb2.StatusResponse:
        return daemon_pb2.StatusResponse(version="0.0.1", protocol=1, pid=1)

    async def drain(self, request: daemon_pb2.DrainRequest) -> daemon_pb2.DrainResponse:
        return daemon_pb2.DrainResponse()

    async def reload(self, request: daemon_pb2.ReloadRequest) -> daemon_pb2.ReloadResponse:
        return daemon_pb2.ReloadResponse(changed=["profiles.default"])

    async def cost(self, request: daemon_pb2.CostRequest) -> daemon_pb2.CostResponse:
        return daemon_pb2.CostResponse()

    async def list_policy(self, request: daemon_pb2.ListPolicyRequest) -> daemon_pb2.ListPolicyResponse:
        return daemon_pb2.ListPolicyResponse()

    async def explain_policy(
        self, request: daemon_pb2.ExplainPolicyRequest
    ) -> daemon_pb2.ExplainPolicyResponse:
        return daemon_pb2.ExplainPolicyResponse()

    async def remove_policy(self, request: daemon_pb2.RemovePolicyRequest) -> daemon_pb2.RemovePolicyResponse:
        return daemon_pb2.RemovePolicyResponse()

    async def trust(self, request: daemon_pb2.TrustRequest) -> daemon_pb2.TrustResponse:
        return daemon_pb2.TrustResponse()

    async def gc(self, request: daemon_pb2.GcRequest) -> daemon_pb2.GcResponse:
        return daemon_pb2.GcResponse()

    async def doctor(self, request: daemon_pb2.DoctorRequest) -> daemon_pb2.DoctorResponse:
        return daemon_pb2.DoctorResponse()


class Present:
    """Who is attached now."""

    def __init__(self) -> None:
        self.names: list[tuple[str | None, str]] = []
        self.one_left = asyncio.Event()

    @contextmanager
    def attached(self, session: str | None, client: str) -> Iterator[None]:
        self.names.append((session, client))
        try:
            yield
        finally:
            self.names.remove((session, client))
            self.one_left.set()


@dataclass
class Served:
    place: Paths
    server: RpcServer
    tail: ScriptedTail
    commands: ScriptedCommands
    present: Present

    def client(self, name: str = "test") -> Client:
        return Client(Endpoint(self.place), name)

    def channel(self, *options: tuple[str, int]) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(Endpoint(self.place).target, options=options)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {Endpoint(self.place).token()}"),)


def place_of(base: Path) -> Paths:
    return Paths(config=base / "config", state=base / "state", runtime=base / "run")


@asynccontextmanager
async def served(
    base: Path, *, heartbeat_s: float = 15.0, stuck_client_s: float = 300.0
) -> AsyncIterator[Served]:
    """A server that answers under a base directory."""
    tail = ScriptedTail()
    commands = ScriptedCommands(tail)
    present = Present()
    server = RpcServer(
        place_of(base),
        "0.0.1",
        commands,
        Daemon(),
        tail,
        present,
        heartbeat_s=heartbeat_s,
        stuck_client_s=stuck_client_s,
    )
    await server.start()
    try:
        yield Served(place_of(base), server, tail, commands, present)
    finally:
        await server.stop(0)
