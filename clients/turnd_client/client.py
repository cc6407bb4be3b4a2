"""One connection to the daemon, with a typed method for each call."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from types import TracebackType
from typing import Self, TypeVar

import grpc
from google.protobuf.message import Message

from turnd.v1 import common_pb2, daemon_pb2, daemon_pb2_grpc, event_pb2, sessions_pb2, sessions_pb2_grpc
from turnd_client.endpoint import Endpoint
from turnd_client.errors import ConnectionLost, from_rpc
from turnd_client.feeding import Feed
from turnd_client.wire import CHANNEL_OPTIONS, PROTOCOL

_Request = TypeVar("_Request", bound=Message)
_Response = TypeVar("_Response", bound=Message)
_Metadata = tuple[tuple[str, str], ...]

CALL_TIMEOUT_S = 30.0
"""Deadline of a call that the daemon answers from what it has."""

SETTLE_TIMEOUT_S = 120.0
"""Deadline of a call that is answered when everything which runs has been ended."""

RECONNECT_TIMEOUT_S = 5.0
"""How long a daemon that went away during a command may take to come back; then the command is sent again."""

STREAM_TIMEOUT_S = 3600.0
"""Deadline of what takes as long as the log is large: an export, a file that is verified, a full check."""


def new_request_id() -> str:
    """An id for one command: the same id sent again does nothing twice (RPC-04)."""
    return secrets.token_hex(16)


class Client:
    """Speaks to one daemon. Made, used and closed in one event loop (G07).

    `name` is what this client calls itself in decisions and cancellations. Every method raises Refused,
    ConnectionLost or CallTimedOut. A command whose connection is lost is sent once more, with the id it has;
    who wants to send it again after that gives the `request_id` (RPC-04).
    """

    def __init__(self, endpoint: Endpoint, name: str) -> None:
        self.name = name
        self._endpoint = endpoint
        self._token = endpoint.token()
        self._channel = grpc.aio.insecure_channel(endpoint.target, options=CHANNEL_OPTIONS)
        self._sessions = sessions_pb2_grpc.SessionsStub(self._channel)
        self._daemon = daemon_pb2_grpc.DaemonStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connection and every stream on it."""
        await self._channel.close()

    # --- the daemon ---------------------------------------------------------------------------------------

    async def status(self, timeout_s: float = CALL_TIMEOUT_S) -> daemon_pb2.StatusResponse:
        """The handshake: who answers, where, and in which state."""
        request = daemon_pb2.StatusRequest(version=version("turnd"), protocol=PROTOCOL)
        return await self._call(self._daemon.Status, request, timeout_s)

    async def drain(self, grace_ms: int | None = None) -> daemon_pb2.DrainResponse:
        """Asks the daemon to stop after what runs was settled; answers at once."""
        return await self._call(
            self._daemon.Drain, daemon_pb2.DrainRequest(grace_ms=grace_ms), CALL_TIMEOUT_S
        )

    async def reload(self) -> daemon_pb2.ReloadResponse:
        """Makes the daemon read its configuration again; Refused, with nothing changed, where that is wrong."""
        return await self._call(self._daemon.Reload, daemon_pb2.ReloadRequest(), CALL_TIMEOUT_S)

    async def gc(
        self, older_than_days: int, *, remove: Sequence[str] = (), request_id: str = ""
    ) -> daemon_pb2.GcResponse:
        """What could be removed of sessions that ended so long ago, and what else is not needed any more.

        With `remove`, which names what an earlier answer had, that is removed.
        """
        request = daemon_pb2.GcRequest(older_than_days=older_than_days, client=self.name)
        if remove:
            request.MergeFrom(
                daemon_pb2.GcRequest(remove=True, names=remove, request_id=request_id or new_request_id())
            )
        return await self._command(self._daemon.Gc, request, STREAM_TIMEOUT_S)

    async def cost(self, session: str = "", *, by: Sequence[str] = ()) -> daemon_pb2.CostResponse:
        """What a session spent with its sub-agents, or all sessions, by session, model, day, step or purpose."""
        request = daemon_pb2.CostRequest(session=session, by=",".join(by))
        return await self._call(self._daemon.Cost, request, CALL_TIMEOUT_S)

    async def list_policy(self, directory: str = "") -> daemon_pb2.ListPolicyResponse:
        """The policy rules in force, each with file and line; with those of a directory's own file."""
        request = daemon_pb2.ListPolicyRequest(directory=directory)
        return await self._call(self._daemon.ListPolicy, request, SETTLE_TIMEOUT_S)

    async def trust(self, workspace: str, *, digest: str = "") -> daemon_pb2.TrustResponse:
        """What a directory's own configuration says and would widen; with the digest of what was shown, trusts that."""
        request = daemon_pb2.TrustRequest(workspace=workspace, trust=bool(digest), digest=digest)
        return await self._call(self._daemon.Trust, request, SETTLE_TIMEOUT_S)

    async def untrust(self, workspace: str) -> daemon_pb2.TrustResponse:
        """Ends the trust in a directory's own configuration. Raises NotFound where there is none."""
        request = daemon_pb2.TrustRequest(workspace=workspace, untrust=True)
        return await self._call(self._daemon.Trust, request, SETTLE_TIMEOUT_S)

    async def trusted(self) -> daemon_pb2.TrustResponse:
        """Which directories are trusted, and whether they still have what was trusted."""
        return await self._call(self._daemon.Trust, daemon_pb2.TrustRequest(), STREAM_TIMEOUT_S)

    async def remove_policy(self, name: str, *, request_id: str = "") -> None:
        """Removes a rule that a decision for always stored (GATE-09)."""
        request = daemon_pb2.RemovePolicyRequest(request_id=request_id or new_request_id(), name=name)
        await self._command(self._daemon.RemovePolicy, request, CALL_TIMEOUT_S)

    async def explain_policy(
        self,
        workspace: str,
        tool: str,
        data: bytes,
        *,
        profile: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> daemon_pb2.ExplainPolicyResponse:
        """What policy would say of one call in an absolute directory, asking nobody and running nothing of it."""
        request = daemon_pb2.ExplainPolicyRequest(
            workspace=workspace, tool=tool, input=data, profile=profile, environment=dict(environment or {})
        )
        return await self._call(self._daemon.ExplainPolicy, request, SETTLE_TIMEOUT_S)

    async def doctor(self, *, full: bool = False) -> daemon_pb2.DoctorResponse:
        """Looks at the daemon's files; with `full` every byte of the log is read, which takes its time."""
        request = daemon_pb2.DoctorRequest(full=full)
        return await self._call(self._daemon.Doctor, request, STREAM_TIMEOUT_S if full else CALL_TIMEOUT_S)

    # --- sessions -----------------------------------------------------------------------------------------

    async def create_session(
        self,
        cwd: str,
        *,
        profile: str = "",
        model: str = "",
        title: str = "",
        bounds: common_pb2.Bounds | None = None,
        environment: Mapping[str, str] | None = None,
        unattended: bool = False,
        plan_mode: bool = False,
        request_id: str = "",
    ) -> sessions_pb2.Session:
        """A new session in an absolute directory; what is left empty is the profile's."""
        request = sessions_pb2.CreateSessionRequest(
            request_id=request_id or new_request_id(),
            client=self.name,
            cwd=cwd,
            profile=profile,
            model=model,
            title=title,
            bounds=bounds,
            environment=dict(environment or {}),
            unattended=unattended,
            plan_mode=plan_mode,
        )
        return (await self._command(self._sessions.CreateSession, request, CALL_TIMEOUT_S)).session

    async def list_sessions(
        self,
        *,
        statuses: Sequence[common_pb2.SessionStatus.ValueType] = (),
        cwd: str = "",
        parent: str = "",
        include_children: bool = False,
    ) -> AsyncGenerator[sessions_pb2.Session, None]:
        """All sessions that pass the filters, newest first, page by page."""
        page_token = ""
        while True:
            request = sessions_pb2.ListSessionsRequest(
                statuses=statuses,
                cwd=cwd,
                parent=parent,
                include_children=include_children,
                page_token=page_token,
            )
            page = await self._call(self._sessions.ListSessions, request, CALL_TIMEOUT_S)
            for session in page.sessions:
                yield session
            page_token = page.next_page_token
            if not page_token:
                return

    async def get_session(self, session: str) -> sessions_pb2.GetSessionResponse:
        """A session by its id or an unambiguous prefix."""
        request = sessions_pb2.GetSessionRequest(session=session)
        return await self._call(self._sessions.GetSession, request, CALL_TIMEOUT_S)

    async def send_message(
        self,
        session: str,
        text: str,
        *,
        now: bool = False,
        plan_mode: bool = False,
        request_id: str = "",
    ) -> sessions_pb2.SendMessageResponse:
        """Queues a message for the next Turn, or with `now` for the next Step of the one that runs."""
        request = sessions_pb2.SendMessageRequest(
            request_id=request_id or new_request_id(),
            client=self.name,
            session=session,
            blocks=[common_pb2.ContentBlock(text=common_pb2.TextBlock(text=text))],
            delivery=common_pb2.DELIVERY_NEXT_STEP if now else common_pb2.DELIVERY_NEXT_TURN,
            plan_mode=plan_mode,
        )
        return await self._command(self._sessions.SendMessage, request, CALL_TIMEOUT_S)

    async def clear_queue(
        self, session: str, message_ids: Sequence[str] = (), *, request_id: str = ""
    ) -> list[str]:
        """Takes waiting messages out of the queue (without ids: all); gives the ids of those taken."""
        request = sessions_pb2.ClearQueueRequest(
            request_id=request_id or new_request_id(),
            client=self.name,
            session=session,
            message_ids=message_ids,
        )
        return list((await self._command(self._sessions.ClearQueue, request, CALL_TIMEOUT_S)).message_ids)

    async def decide(
        self,
        session: str,
        approval: str,
        *,
        approve: bool,
        scope: common_pb2.ApprovalScope.ValueType = common_pb2.APPROVAL_SCOPE_ONCE,
        reason: str = "",
        grant: common_pb2.GrantRule | None = None,
        corrected_input: bytes = b"",
        request_id: str = "",
    ) -> event_pb2.ApprovalDecided:
        """Answers an approval. A late decision is Refused with who decided and when (GATE-07).

        `corrected_input`, as JSON, runs in the place of the proposed one; what does not fit, or is not allowed, is
        Refused, and the request stays open (GATE-08).
        """
        request = sessions_pb2.DecideRequest(
            request_id=request_id or new_request_id(),
            client=self.name,
            session=session,
            approval=approval,
            approve=approve,
            scope=scope,
            reason=reason,
            grant=grant,
            corrected_input=corrected_input,
        )
        # A corrected input is previewed, and goes through the hooks, before it is answered.
        timeout_s = SETTLE_TIMEOUT_S if corrected_input else CALL_TIMEOUT_S
        return (await self._command(self._sessions.Decide, request, timeout_s)).decided

    async def answer(
        self, session: str, question: str, output: bytes, *, request_id: str = ""
    ) -> event_pb2.InteractiveAnswered:
        """Answers a question with JSON that fits its schema."""
        request = sessions_pb2.AnswerRequest(
            request_id=request_id or new_request_id(),
            client=self.name,
            session=session,
            question=question,
            output=output,
        )
        return (await self._command(self._sessions.Answer, request, CALL_TIMEOUT_S)).answered

    async def cancel(self, session: str, *, keep_queue: bool = False, request_id: str = "") -> int:
        """Cancels the Turn that is open and gives its number."""
        request = sessions_pb2.CancelRequest(
            request_id=request_id or new_request_id(),
            client=self.name,
            session=session,
            keep_queue=keep_queue,
        )
        return int((await self._command(self._sessions.Cancel, request, SETTLE_TIMEOUT_S)).turn)

    async def continue_session(
        self, session: str, allowance: common_pb2.Bounds, *, request_id: str = ""
    ) -> sessions_pb2.Session:
        """Lets a session go on behind a bound; the bounds that are set replace those in force."""
        request = sessions_pb2.ContinueRequest(
            request_id=request_id or new_request_id(),
            client=self.name,
            session=session,
            allowance=allowance,
        )
        return (await self._command(self._sessions.Continue, request, CALL_TIMEOUT_S)).session

    async def resume(self, session: str, *, request_id: str = "") -> sessions_pb2.Session:
        """Lets a session go on after a Turn that was cut off."""
        request = sessions_pb2.ResumeRequest(
            request_id=request_id or new_request_id(), client=self.name, session=session
        )
        return (await self._command(self._sessions.Resume, request, CALL_TIMEOUT_S)).session

    async def update_session(
        self,
        session: str,
        *,
        profile: str | None = None,
        environment: Mapping[str, str] | None = None,
        plan_mode: bool | None = None,
        title: str | None = None,
        request_id: str = "",
    ) -> sessions_pb2.Session:
        """Changes what is given; None leaves it as it is."""
        request = sessions_pb2.UpdateSessionRequest(
            request_id=request_id or new_request_id(),
            client=self.name,
            session=session,
            profile=profile,
            plan_mode=plan_mode,
            title=title,
        )
        if environment is not None:
            request.environment.SetInParent()
            request.environment.environment.update(environment)
        return (await self._command(self._sessions.UpdateSession, request, CALL_TIMEOUT_S)).session

    async def close_session(self, session: str, *, request_id: str = "") -> sessions_pb2.Session:
        """Ends a session; one that runs is cancelled first."""
        request = sessions_pb2.CloseSessionRequest(
            request_id=request_id or new_request_id(), client=self.name, session=session
        )
        return (await self._command(self._sessions.CloseSession, request, SETTLE_TIMEOUT_S)).session

    async def fork(self, session: str, seq: int = 0, *, request_id: str = "") -> sessions_pb2.Session:
        """A new session with the events of another up to a seq as its history; 0 is the last one."""
        request = sessions_pb2.ForkRequest(
            request_id=request_id or new_request_id(), client=self.name, session=session, seq=seq
        )
        return (await self._command(self._sessions.Fork, request, SETTLE_TIMEOUT_S)).session

    # --- streams ------------------------------------------------------------------------------------------

    def attach(self, session: str, after_seq: int = 0) -> AsyncGenerator[sessions_pb2.AttachResponse, None]:
        """The stream of one session, as it comes; `follow.follow` adds reconnecting."""
        cursor = sessions_pb2.SessionCursor(session=session, after_seq=after_seq)
        # No deadline: the stream has no end, and its silence is judged by the heartbeats.
        return self._stream(
            self._sessions.Attach, sessions_pb2.AttachRequest(client=self.name, session=cursor), None
        )

    def attach_all(self, after_position: int = 0) -> AsyncGenerator[sessions_pb2.AttachResponse, None]:
        """The stream of all sessions."""
        cursor = sessions_pb2.AllCursor(after_position=after_position)
        return self._stream(
            self._sessions.Attach, sessions_pb2.AttachRequest(client=self.name, all=cursor), None
        )

    async def export(self, session: str) -> AsyncGenerator[bytes, None]:
        """The session as JSON Lines, in parts; a line may go on in the next one."""
        request = sessions_pb2.ExportRequest(session=session)
        async for part in self._stream(self._sessions.Export, request, STREAM_TIMEOUT_S):
            yield part.lines

    async def read_output(
        self, session: str, call_id: str, *, offset: int = 0, limit: int = 0
    ) -> AsyncGenerator[bytes, None]:
        """The spooled output of a call, from an offset on; `limit` in bytes, 0 for all."""
        request = sessions_pb2.ReadOutputRequest(session=session, call_id=call_id, offset=offset, limit=limit)
        async for part in self._stream(self._sessions.ReadOutput, request, STREAM_TIMEOUT_S):
            yield part.data

    async def verify_session(self, session: str) -> sessions_pb2.VerifyResponse:
        """Checks a stored log against every rule."""
        return await self._verify([sessions_pb2.VerifyRequest(session=session)])

    async def verify_lines(
        self, parts: Iterable[bytes], *, judge_history: bool = False
    ) -> sessions_pb2.VerifyResponse:
        """Checks a log in JSON Lines, given in parts of any size below the message limit."""
        return await self._verify(
            sessions_pb2.VerifyRequest(lines=part, judge_history=judge_history) for part in parts
        )

    async def import_session(
        self,
        parts: Iterable[bytes],
        cwd: str,
        *,
        profile: str = "",
        model: str = "",
        environment: Mapping[str, str] | None = None,
        request_id: str = "",
    ) -> sessions_pb2.ImportResponse:
        """A new session in a directory, with the history of a log in JSON Lines, given in parts of any size below
        the message limit."""
        start = sessions_pb2.ImportStart(
            request_id=request_id or new_request_id(),
            client=self.name,
            cwd=cwd,
            profile=profile,
            model=model,
            environment=dict(environment or {}),
        )

        def requests() -> Iterator[sessions_pb2.ImportRequest]:
            sent = 0
            yield sessions_pb2.ImportRequest(start=start)
            for part in parts:
                sent += len(part)
                yield sessions_pb2.ImportRequest(lines=part)
            yield sessions_pb2.ImportRequest(end=sessions_pb2.ImportEnd(bytes=sent))

        feed = Feed(requests())

        async def attempt(metadata: _Metadata) -> sessions_pb2.ImportResponse:
            return await self._sessions.Import(iter(feed), timeout=STREAM_TIMEOUT_S, metadata=metadata)

        # As with verify: the parts can be read once only.
        await self.status()
        with feed.failures():
            return await self._with_token(attempt)

    async def _verify(self, requests: Iterable[sessions_pb2.VerifyRequest]) -> sessions_pb2.VerifyResponse:
        feed = Feed(requests)

        async def attempt(metadata: _Metadata) -> sessions_pb2.VerifyResponse:
            return await self._sessions.Verify(iter(feed), timeout=STREAM_TIMEOUT_S, metadata=metadata)

        # A stream of parts can be read once only, so a token that has changed is found out before.
        await self.status()
        with feed.failures():
            return await self._with_token(attempt)

    # --- how a call is made -------------------------------------------------------------------------------

    async def _call(
        self,
        method: Callable[..., Awaitable[_Response]],
        request: Message,
        timeout_s: float,
    ) -> _Response:
        async def attempt(metadata: _Metadata) -> _Response:
            return await method(request, timeout=timeout_s, metadata=metadata)

        return await self._with_token(attempt)

    async def _command(
        self,
        method: Callable[..., Awaitable[_Response]],
        request: Message,
        timeout_s: float,
    ) -> _Response:
        """A call that changes something; where the connection is lost it is sent once more, with the same id."""
        try:
            return await self._call(method, request, timeout_s)
        except ConnectionLost:
            if not await self._connected_again():
                raise
        return await self._call(method, request, timeout_s)

    async def _connected_again(self) -> bool:
        try:
            async with asyncio.timeout(RECONNECT_TIMEOUT_S):
                await self._channel.channel_ready()
        except TimeoutError:
            return False
        return True

    async def _with_token(self, attempt: Callable[[_Metadata], Awaitable[_Response]]) -> _Response:
        try:
            return await attempt(self._metadata())
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAUTHENTICATED or not self._token_changed():
                raise from_rpc(error) from error
        try:
            return await attempt(self._metadata())
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error) from error

    async def _stream(
        self,
        method: Callable[..., grpc.aio.UnaryStreamCall[_Request, _Response]],
        request: _Request,
        timeout_s: float | None,
    ) -> AsyncGenerator[_Response, None]:
        while True:
            call = method(request, timeout=timeout_s, metadata=self._metadata())
            try:
                async for response in call:
                    yield response
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNAUTHENTICATED and self._token_changed():
                    continue
                raise from_rpc(error) from error
            finally:
                call.cancel()
            return

    def _metadata(self) -> _Metadata:
        return (("authorization", f"Bearer {self._token}"),)

    def _token_changed(self) -> bool:
        # A daemon that was started anew has a token of its own.
        before, self._token = self._token, self._endpoint.token()
        return self._token != before
