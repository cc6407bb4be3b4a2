"""What the servicers need of the daemon: one method for each call, from request to response.

Refusals are raised: CommandRefused, UnknownSession, LogFailed, Violation (see `refusals`). Calls of the
contract without a method here are answered UNIMPLEMENTED.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractContextManager
from typing import Protocol

from turnd.v1 import daemon_pb2, sessions_pb2


class SessionCommands(Protocol):
    """Commands about sessions; those that change something do nothing twice for one request_id (RPC-04)."""

    async def create_session(
        self, request: sessions_pb2.CreateSessionRequest
    ) -> sessions_pb2.CreateSessionResponse: ...

    async def list_sessions(
        self, request: sessions_pb2.ListSessionsRequest
    ) -> sessions_pb2.ListSessionsResponse: ...

    async def get_session(
        self, request: sessions_pb2.GetSessionRequest
    ) -> sessions_pb2.GetSessionResponse: ...

    async def send_message(
        self, request: sessions_pb2.SendMessageRequest
    ) -> sessions_pb2.SendMessageResponse: ...

    async def clear_queue(
        self, request: sessions_pb2.ClearQueueRequest
    ) -> sessions_pb2.ClearQueueResponse: ...

    async def decide(self, request: sessions_pb2.DecideRequest) -> sessions_pb2.DecideResponse: ...

    async def answer(self, request: sessions_pb2.AnswerRequest) -> sessions_pb2.AnswerResponse: ...

    async def cancel(self, request: sessions_pb2.CancelRequest) -> sessions_pb2.CancelResponse: ...

    async def continue_session(
        self, request: sessions_pb2.ContinueRequest
    ) -> sessions_pb2.ContinueResponse: ...

    async def resume(self, request: sessions_pb2.ResumeRequest) -> sessions_pb2.ResumeResponse: ...

    async def update_session(
        self, request: sessions_pb2.UpdateSessionRequest
    ) -> sessions_pb2.UpdateSessionResponse: ...

    async def close_session(
        self, request: sessions_pb2.CloseSessionRequest
    ) -> sessions_pb2.CloseSessionResponse: ...

    def read_output(
        self, request: sessions_pb2.ReadOutputRequest
    ) -> AsyncGenerator[sessions_pb2.ReadOutputResponse, None]: ...

    def export(self, request: sessions_pb2.ExportRequest) -> AsyncGenerator[bytes, None]:
        """The bytes of the JSON Lines, in parts of less than 1 MiB."""

    async def verify(
        self, requests: AsyncIterator[sessions_pb2.VerifyRequest]
    ) -> sessions_pb2.VerifyResponse: ...

    async def import_session(
        self, requests: AsyncIterator[sessions_pb2.ImportRequest]
    ) -> sessions_pb2.ImportResponse: ...

    async def fork(self, request: sessions_pb2.ForkRequest) -> sessions_pb2.ForkResponse: ...


class DaemonCommands(Protocol):
    """Commands about the daemon itself."""

    async def status(self, request: daemon_pb2.StatusRequest) -> daemon_pb2.StatusResponse: ...

    async def drain(self, request: daemon_pb2.DrainRequest) -> daemon_pb2.DrainResponse: ...

    async def reload(self, request: daemon_pb2.ReloadRequest) -> daemon_pb2.ReloadResponse: ...

    async def cost(self, request: daemon_pb2.CostRequest) -> daemon_pb2.CostResponse: ...

    async def list_policy(self, request: daemon_pb2.ListPolicyRequest) -> daemon_pb2.ListPolicyResponse: ...

    async def explain_policy(
        self, request: daemon_pb2.ExplainPolicyRequest
    ) -> daemon_pb2.ExplainPolicyResponse: ...

    async def remove_policy(
        self, request: daemon_pb2.RemovePolicyRequest
    ) -> daemon_pb2.RemovePolicyResponse: ...

    async def trust(self, request: daemon_pb2.TrustRequest) -> daemon_pb2.TrustResponse: ...

    async def gc(self, request: daemon_pb2.GcRequest) -> daemon_pb2.GcResponse: ...

    async def doctor(self, request: daemon_pb2.DoctorRequest) -> daemon_pb2.DoctorResponse: ...


class Presence(Protocol):
    """Who is attached, for the record of whom a request was delivered to."""

    def attached(self, session: str | None, client: str) -> AbstractContextManager[None]:
        """The client sees the session's events (None: those of all sessions) as long as it is inside."""
