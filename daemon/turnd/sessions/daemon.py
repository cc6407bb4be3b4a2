"""What clients ask of the daemon itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from turnd.sessions.housekeeping import Housekeeping
from turnd.sessions.live import LiveSessions
from turnd.sessions.policies import Policies
from turnd.sessions.trust import Trust
from turnd.v1 import daemon_pb2

PROTOCOL = 1
"""The major version of `turnd.v1`."""


class Sandbox(Protocol):
    """The sandbox in force."""

    @property
    def description(self) -> str:
        """Mode and version."""

    @property
    def problem(self) -> str:
        """Why there is none; empty where there is."""

    def unenforced(self) -> Sequence[str]:
        """What it does not enforce here."""


class Accounts(Protocol):
    """What the log says of all sessions together."""

    async def count(self) -> int:
        """How many there are, sub-agents included."""

    async def cost(self, request: daemon_pb2.CostRequest) -> daemon_pb2.CostResponse:
        """What was spent. Raises CommandRefused."""


@dataclass(frozen=True, slots=True)
class About:
    """What does not change while the daemon runs."""

    version: str
    socket: str
    state_dir: str
    started_us: int


class DaemonCommands:
    """The calls of the service Daemon that this version has."""

    def __init__(
        self,
        about: About,
        live: LiveSessions,
        accounts: Accounts,
        sandbox: Sandbox,
        stop: Callable[[float | None], None],
        draining: Callable[[], bool],
        reload: Callable[[], Sequence[str]],
        log_problems: Callable[[], Sequence[str]],
        housekeeping: Housekeeping,
        policies: Policies,
        trust: Trust,
    ) -> None:
        self._about = about
        self._live = live
        self._accounts = accounts
        self._sandbox = sandbox
        self._stop = stop
        self._draining = draining
        self._reload = reload
        self._log_problems = log_problems
        self._housekeeping = housekeeping
        self._policies = policies
        self._trust = trust

    async def status(self, request: daemon_pb2.StatusRequest) -> daemon_pb2.StatusResponse:
        """The handshake: whoever gets this answer talks to a living daemon."""
        answer = daemon_pb2.StatusResponse(
            version=self._about.version,
            protocol=PROTOCOL,
            pid=os.getpid(),
            socket=self._about.socket,
            sessions=await self._accounts.count(),
            running=self._live.running,
            sandbox=self._sandbox.description,
            unenforced=self._sandbox.unenforced(),
            state_dir=self._about.state_dir,
            draining=self._draining(),
            problems=[*([self._sandbox.problem] if self._sandbox.problem else []), *self._log_problems()],
        )
        answer.started.FromMicroseconds(self._about.started_us)
        return answer

    async def drain(self, request: daemon_pb2.DrainRequest) -> daemon_pb2.DrainResponse:
        """No new Turns; open ones get the grace time, then the daemon stops."""
        running = self._live.running
        self._stop(request.grace_ms / 1000 if request.HasField("grace_ms") else None)
        return daemon_pb2.DrainResponse(running=running)

    async def reload(self, request: daemon_pb2.ReloadRequest) -> daemon_pb2.ReloadResponse:
        """The configuration is read again; a wrong one is refused whole, and the old one stays in force."""
        return daemon_pb2.ReloadResponse(changed=self._reload())

    async def list_policy(self, request: daemon_pb2.ListPolicyRequest) -> daemon_pb2.ListPolicyResponse:
        """The rules in force, each with its place."""
        return await self._policies.list(request)

    async def remove_policy(self, request: daemon_pb2.RemovePolicyRequest) -> daemon_pb2.RemovePolicyResponse:
        """A rule that a decision stored is removed. Raises CommandRefused."""
        return await self._policies.remove(request)

    async def explain_policy(
        self, request: daemon_pb2.ExplainPolicyRequest
    ) -> daemon_pb2.ExplainPolicyResponse:
        """What the rules would say of one call. Raises CommandRefused."""
        return await self._policies.explain(request)

    async def trust(self, request: daemon_pb2.TrustRequest) -> daemon_pb2.TrustResponse:
        """What a workspace's own file would widen, and the user's word for it. Raises CommandRefused."""
        return await self._trust.run(request)

    async def cost(self, request: daemon_pb2.CostRequest) -> daemon_pb2.CostResponse:
        """What was spent, sub-agents included, told apart as the request says."""
        return await self._accounts.cost(request)

    async def gc(self, request: daemon_pb2.GcRequest) -> daemon_pb2.GcResponse:
        """What of the daemon's files is not needed any more; removes it where that is asked for."""
        return await self._housekeeping.gc(request)

    async def doctor(self, request: daemon_pb2.DoctorRequest) -> daemon_pb2.DoctorResponse:
        """Whether the daemon's files are in order."""
        return await self._housekeeping.doctor(request)
