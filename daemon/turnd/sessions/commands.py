"""What clients ask of sessions: each command is checked against the state, becomes an event, and wakes the loop."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Protocol, TypeVar

from turnd.loop.session import LiveSession
from turnd.ports import Ids, Models
from turnd.rules import bounds, lifecycle
from turnd.rules.event import Draft
from turnd.rules.lifecycle import Command
from turnd.rules.shown import alone
from turnd.rules.status import SessionView, advance, to_session
from turnd.sessions.approvals import Approvals
from turnd.sessions.fork import Forking
from turnd.sessions.going_on import GoingOn
from turnd.sessions.importing import Arrived, HistoryLog, Importing, parts_of
from turnd.sessions.live import LiveSessions
from turnd.sessions.places import Places
from turnd.sessions.refusal import Code, CommandRefused, invalid, not_now
from turnd.sessions.requests import Answering, Requests, once
from turnd.sessions.standing import standing
from turnd.sessions.surroundings import Surroundings
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2, sessions_pb2

DEFAULT_PAGE, LARGEST_PAGE = 100, 500
MAX_MESSAGE_CONTENT = 4 * 2**20
"""Bytes of all blocks of a message together."""
MAX_QUEUED = 1000
"""Messages that wait in one session."""
_NO_TURN = "no turn is open in this session: there is nothing to cancel"


_WithSession = TypeVar(
    "_WithSession",
    sessions_pb2.ContinueResponse,
    sessions_pb2.ResumeResponse,
    sessions_pb2.UpdateSessionResponse,
)


class Archive(Protocol):
    """The log as a whole: what is not about one loaded session."""

    async def resolve(self, prefix: str) -> str:
        """The id that a unique prefix stands for. Raises UnknownSession and CommandRefused."""

    async def list_(
        self, request: sessions_pb2.ListSessionsRequest, page_size: int
    ) -> sessions_pb2.ListSessionsResponse:
        """Sessions, newest first. Raises CommandRefused for a page token that is none."""

    def export(self, session: str) -> AsyncGenerator[bytes, None]:
        """The session's log as JSON Lines, in parts of less than 1 MiB."""

    async def verify(
        self, requests: AsyncIterator[sessions_pb2.VerifyRequest]
    ) -> sessions_pb2.VerifyResponse:
        """Checks a log against every rule."""

    async def receive(self, lines: AsyncIterator[bytes]) -> Arrived:
        """Reads the log of one session. Raises CommandRefused where the file is something else."""


class Outputs(Protocol):
    """The spools of calls."""

    def read(
        self, request: sessions_pb2.ReadOutputRequest
    ) -> AsyncGenerator[sessions_pb2.ReadOutputResponse, None]:
        """What was kept of a call's output, from an offset on. Raises CommandRefused."""


class Commands:
    """One method for each call of the service Sessions that this version has. Holds no state of its own.

    Those that change something are carried out `once` for each request id (RPC-04).
    """

    def __init__(
        self,
        log: HistoryLog,
        ids: Ids,
        models: Models,
        live: LiveSessions,
        approvals: Approvals,
        archive: Archive,
        outputs: Outputs,
        surroundings: Surroundings,
        requests: Requests,
    ) -> None:
        self._requests = requests
        self._log = log
        self._ids = ids
        self._models = models
        self._live = live
        self._approvals = approvals
        self._archive = archive
        self._outputs = outputs
        self._surroundings = surroundings
        self._importing = Importing(log, ids, models, surroundings)
        self._forking = Forking(log, ids, surroundings)
        self._going_on = GoingOn(log, live.tree)
        self._places = Places()

    @once(sessions_pb2.CreateSessionResponse)
    async def create_session(
        self,
        request: sessions_pb2.CreateSessionRequest,
        answering: Answering[sessions_pb2.CreateSessionResponse],
    ) -> sessions_pb2.CreateSessionResponse:
        """A new, idle session in a directory, under a profile. Raises CommandRefused, LogFailed."""
        around = self._surroundings
        cwd = around.directory(request.cwd)
        profile = await around.profile(self._models, cwd, request.profile, request.model, request.bounds)
        sandbox, unenforced = around.sandbox()
        session = self._ids.session()
        created = event_pb2.SessionCreated(
            cwd=cwd,
            workspace=cwd,
            title=request.title,
            profile=profile,
            environment=around.environment(request.environment),
            unattended=request.unattended,
            plan_mode=request.plan_mode,
            client=request.client,
            sandbox=sandbox,
            unenforced=unenforced,
        )
        await self._log.append(
            Draft(session, created),
            Draft(session, event_pb2.SessionStatusChanged(status=common.SESSION_STATUS_IDLE)),
            answered=answering.by(
                lambda events: sessions_pb2.CreateSessionResponse(session=_after(SessionView(), events))
            ),
        )
        return sessions_pb2.CreateSessionResponse(session=await self._shown(session))

    async def list_sessions(
        self, request: sessions_pb2.ListSessionsRequest
    ) -> sessions_pb2.ListSessionsResponse:
        """Sessions, newest first."""
        if request.page_size > LARGEST_PAGE:
            raise invalid("page_size", f"at most {LARGEST_PAGE}, got {request.page_size}")
        return await self._archive.list_(request, request.page_size or DEFAULT_PAGE)

    async def get_session(self, request: sessions_pb2.GetSessionRequest) -> sessions_pb2.GetSessionResponse:
        """All of one session, as of its last committed event (LOG-11)."""
        session = await self._loaded(request.session)
        shared = await self._shared(self._log.view(session))
        subtree = await self._log.subtree(session)
        state, view = await self._log.committed(session)
        refusal = self._log.refusal()
        spent = bounds.Spent(
            steps=view.steps, cost_nano_usd=subtree.cost_nano_usd, wall_clock_ms=view.active_ms
        )
        below = max(subtree.cost_nano_usd - view.cost_nano_usd, 0)
        session_shown = alone(to_session(view, descendants_cost_nano_usd=below))
        session_shown.estimated, session_shown.unpriced = subtree.estimated, subtree.unpriced
        warnings, unusable = await self._workspace_says(view)
        return sessions_pb2.GetSessionResponse(
            session=session_shown,
            bounds=view.bounds,
            left=bounds.left(view.bounds, spent, shared),
            next_turn=state.next_turn,
            next_step=state.next_step,
            open_turn=state.open_turn,
            open_step=state.open_step,
            as_of_seq=state.seq,
            environment=dict(view.environment),
            sandbox=view.sandbox,
            unenforced=view.unenforced,
            problems=[*([refusal] if refusal else []), *unusable],
            warnings=warnings,
        )

    async def _workspace_says(self, view: SessionView) -> tuple[Sequence[str], Sequence[str]]:
        """What the workspace's own file asks for and does not get, and why it cannot be used (OPS-04)."""
        try:
            return (await self._surroundings.layer(view.workspace or view.cwd)).warnings, ()
        except CommandRefused as unusable:
            return (), (f"{unusable}\nuntil then, policy denies every call",)

    async def _wake(
        self, request: sessions_pb2.SendMessageRequest, sent: sessions_pb2.SendMessageResponse
    ) -> None:
        """A message that a killed daemon has left in the queue waits for its sender, who is here again."""
        live = await self._session(request.session)
        if any(queued.message_id == sent.message_id for queued in self._log.view(live.session).queue):
            live.poke()

    @once(sessions_pb2.SendMessageResponse, _wake)
    @standing
    async def send_message(
        self, request: sessions_pb2.SendMessageRequest, answering: Answering[sessions_pb2.SendMessageResponse]
    ) -> sessions_pb2.SendMessageResponse:
        """Queues a message durably; an idle session begins a Turn with it, an ended one is reopened."""
        live = await self._session(request.session)
        view = self._log.view(live.session)
        _check_blocks(request.blocks)
        _check_queue(view)
        transition = _transition(view, Command.SEND_MESSAGE)
        if view.is_child and request.delivery != common.DELIVERY_NEXT_STEP:
            raise not_now(
                "a sub-agent has one turn: steer it (delivery next_step, `turn send ID TEXT --now`)"
            )
        queued = event_pb2.InboxQueued(
            message_id=self._ids.message(),
            blocks=request.blocks,
            delivery=request.delivery or common.DELIVERY_NEXT_TURN,
            client=request.client,
            plan_mode=request.plan_mode,
        )
        drafts = [Draft(live.session, queued)]
        if transition.reopen:
            drafts.insert(0, Draft(live.session, event_pb2.SessionReopened(client=request.client)))

        def answer(events: Sequence[event_pb2.Event]) -> sessions_pb2.SendMessageResponse:
            return sessions_pb2.SendMessageResponse(message_id=queued.message_id, seq=events[-1].seq)

        events = await self._log.append(*drafts, answered=answering.by(answer))
        live.poke()
        return answer(events)

    @once(sessions_pb2.ClearQueueResponse)
    @standing
    async def clear_queue(
        self, request: sessions_pb2.ClearQueueRequest, answering: Answering[sessions_pb2.ClearQueueResponse]
    ) -> sessions_pb2.ClearQueueResponse:
        """Takes messages out of the queue that no Turn has taken yet."""
        live = await self._session(request.session)
        _transition(self._log.view(live.session), Command.CLEAR_QUEUE)
        drafts, cleared = self._clearing(live.session, request.client, set(request.message_ids))
        answer = sessions_pb2.ClearQueueResponse(message_ids=cleared)
        await self._log.append(*drafts, answered=answering.by(lambda _: answer))
        return answer

    @once(sessions_pb2.DecideResponse)
    @standing
    async def decide(
        self, request: sessions_pb2.DecideRequest, answering: Answering[sessions_pb2.DecideResponse]
    ) -> sessions_pb2.DecideResponse:
        """The first decision on an approval wins (GATE-07)."""
        request.session = await self._loaded(request.session)
        return sessions_pb2.DecideResponse(decided=await self._approvals.decide(request, answering))

    @once(sessions_pb2.AnswerResponse)
    @standing
    async def answer(
        self, request: sessions_pb2.AnswerRequest, answering: Answering[sessions_pb2.AnswerResponse]
    ) -> sessions_pb2.AnswerResponse:
        """The first answer that fits wins."""
        request.session = await self._loaded(request.session)
        return sessions_pb2.AnswerResponse(answered=await self._approvals.answer_question(request, answering))

    @once(sessions_pb2.CancelResponse)
    @standing
    async def cancel(
        self, request: sessions_pb2.CancelRequest, answering: Answering[sessions_pb2.CancelResponse]
    ) -> sessions_pb2.CancelResponse:
        """Stops the open Turn and all that it started; returns once it is closed (LOOP-07)."""
        live = await self._session(request.session)
        _transition(self._log.view(live.session), Command.CANCEL)
        turn = self._log.state(live.session).open_turn
        if turn is None:
            raise not_now(_NO_TURN)
        answer = sessions_pb2.CancelResponse(turn=turn)
        drafts = [] if request.keep_queue else self._clearing(live.session, request.client)[0]
        answered = answering.by(lambda _: answer)
        if not await live.cancel(common.CANCEL_CAUSE_USER, request.client, drafts, answered):
            raise not_now(_NO_TURN)
        return answer

    @once(sessions_pb2.ContinueResponse)
    @standing
    async def continue_session(
        self, request: sessions_pb2.ContinueRequest, answering: Answering[sessions_pb2.ContinueResponse]
    ) -> sessions_pb2.ContinueResponse:
        """Goes on behind a bound with a new allowance, whose bounds replace those in force (BOUND-04)."""
        live = await self._session(request.session)
        transition = _transition(self._log.view(live.session), Command.CONTINUE)
        made = self._answer_with_session(live.session, sessions_pb2.ContinueResponse)
        await self._going_on.continue_(
            live, transition, request.allowance, request.client, answering.by(made)
        )
        return sessions_pb2.ContinueResponse(session=await self._shown(live.session))

    @once(sessions_pb2.ResumeResponse)
    @standing
    async def resume(
        self, request: sessions_pb2.ResumeRequest, answering: Answering[sessions_pb2.ResumeResponse]
    ) -> sessions_pb2.ResumeResponse:
        """Goes on after a Turn that was cut off, with a Turn of its own (LOOP-11)."""
        live = await self._session(request.session)
        transition = _transition(self._log.view(live.session), Command.RESUME)
        made = self._answer_with_session(live.session, sessions_pb2.ResumeResponse)
        await self._going_on.resume(live, transition, request.client, answering.by(made))
        return sessions_pb2.ResumeResponse(session=await self._shown(live.session))

    @once(sessions_pb2.UpdateSessionResponse)
    @standing
    async def update_session(
        self,
        request: sessions_pb2.UpdateSessionRequest,
        answering: Answering[sessions_pb2.UpdateSessionResponse],
    ) -> sessions_pb2.UpdateSessionResponse:
        """Changes profile, environment, plan mode or title; what is not set stays as it is.

        A new profile brings its bounds, and holds from the next Turn on.
        """
        live = await self._session(request.session)
        _transition(self._log.view(live.session), Command.UPDATE)
        changed = event_pb2.SessionChanged()
        if request.HasField("profile"):
            view = self._log.view(live.session)
            changed.profile.CopyFrom(
                await self._surroundings.profile(
                    self._models, view.workspace, request.profile, otherwise=view.profile.model
                )
            )
        if request.HasField("environment"):
            kept = self._surroundings.environment(request.environment.environment)
            changed.environment.SetInParent()
            changed.environment.environment.update(kept)
        if request.HasField("plan_mode"):
            changed.plan_mode = request.plan_mode
        if request.HasField("title"):
            changed.title = request.title
        if not changed.ByteSize():
            raise invalid("profile", "nothing to change: set profile, environment, plan_mode or title")
        changed.client = request.client
        made = self._answer_with_session(live.session, sessions_pb2.UpdateSessionResponse)
        await self._log.append(Draft(live.session, changed), answered=answering.by(made))
        return sessions_pb2.UpdateSessionResponse(session=await self._shown(live.session))

    @once(sessions_pb2.CloseSessionResponse)
    @standing
    async def close_session(
        self,
        request: sessions_pb2.CloseSessionRequest,
        answering: Answering[sessions_pb2.CloseSessionResponse],
    ) -> sessions_pb2.CloseSessionResponse:
        """Ends the session; a Turn that is open is cancelled first."""
        live = await self._session(request.session)
        transition = _transition(self._log.view(live.session), Command.CLOSE)

        def answer(events: Sequence[event_pb2.Event]) -> sessions_pb2.CloseSessionResponse:
            return sessions_pb2.CloseSessionResponse(session=_after(self._log.view(live.session), events))

        await live.close(transition.next_status, request.client, answering.by(answer))
        return sessions_pb2.CloseSessionResponse(session=await self._shown(live.session))

    async def read_output(
        self, request: sessions_pb2.ReadOutputRequest
    ) -> AsyncGenerator[sessions_pb2.ReadOutputResponse, None]:
        """What was kept of a call's output."""
        request.session = await self._loaded(request.session)
        async for part in self._outputs.read(request):
            yield part

    async def export(self, request: sessions_pb2.ExportRequest) -> AsyncGenerator[bytes, None]:
        """The session's log as JSON Lines, losslessly (LOG-17)."""
        session = await self._archive.resolve(request.session)
        async for lines in self._archive.export(session):
            yield lines

    async def verify(
        self, requests: AsyncIterator[sessions_pb2.VerifyRequest]
    ) -> sessions_pb2.VerifyResponse:
        """Checks a log, stored or as JSON Lines, against every rule (LOG-17)."""
        return await self._archive.verify(requests)

    async def import_session(
        self, requests: AsyncIterator[sessions_pb2.ImportRequest]
    ) -> sessions_pb2.ImportResponse:
        """A new session with the history of a file (LOG-17, LOG-22)."""
        start, lines = await parts_of(requests)
        async with self._places.one() as place:
            arrived = await self._archive.receive(lines)

            async def run(
                answering: Answering[sessions_pb2.ImportResponse],
            ) -> sessions_pb2.ImportResponse:
                # It goes on without its client.
                with place.held():
                    return await self._importing.run(start, arrived, answering)

            return await self._requests.once(start, sessions_pb2.ImportResponse, run, content=arrived.digest)

    @once(sessions_pb2.ForkResponse)
    @standing
    async def fork(
        self, request: sessions_pb2.ForkRequest, answering: Answering[sessions_pb2.ForkResponse]
    ) -> sessions_pb2.ForkResponse:
        """A new session with the log of another up to a seq as its history."""
        session = await self._loaded(request.session)
        async with self._places.one():
            return await self._forking.run(session, request, answering)

    def _answer_with_session(
        self, session: str, response: Callable[..., _WithSession]
    ) -> Callable[[Sequence[event_pb2.Event]], _WithSession]:
        """Makes the answer that shows the session after events which are not accepted yet."""

        def answer(events: Sequence[event_pb2.Event]) -> _WithSession:
            return response(session=_after(self._log.view(session), events))

        return answer

    async def _shared(self, view: SessionView) -> list[tuple[common.Bounds, int]]:
        """The bounds of each session above, and what its tree has spent (BOUND-06)."""
        shared = []
        for ancestor in view.ancestors:
            await self._log.load(ancestor)
            spent = await self._log.subtree(ancestor)
            _, above = await self._log.committed(ancestor)
            shared.append((above.bounds, spent.cost_nano_usd))
        return shared

    async def _shown(self, session: str) -> sessions_pb2.Session:
        """The session as it is on the disk."""
        _, view = await self._log.committed(session)
        return alone(to_session(view))

    async def _loaded(self, prefix: str) -> str:
        session = await self._archive.resolve(prefix)
        await self._log.load(session)
        return session

    async def _session(self, prefix: str) -> LiveSession:
        return await self._live.get(await self._archive.resolve(prefix))

    def _clearing(
        self, session: str, client: str, only: set[str] | None = None
    ) -> tuple[list[Draft], list[str]]:
        queued = [m.message_id for m in self._log.view(session).queue]
        cleared = [message_id for message_id in queued if not only or message_id in only]
        event = event_pb2.InboxCleared(message_ids=cleared, client=client)
        return [Draft(session, event)] if cleared else [], cleared


def _after(view: SessionView, events: Sequence[event_pb2.Event]) -> sessions_pb2.Session:
    """The session after events of its log, which are not accepted yet."""
    return alone(to_session(functools.reduce(advance, events, view)))


def _transition(view: SessionView, command: Command) -> lifecycle.Transition:
    """What the command does to the session. Raises CommandRefused where its status does not allow it (LOOP-14)."""
    decided = lifecycle.decide(view.status, command, view.is_child)
    if isinstance(decided, lifecycle.Refusal):
        raise not_now(decided.text, session=view.id, status=lifecycle.status_name(view.status))
    return decided


def _check_blocks(blocks: Sequence[common.ContentBlock]) -> None:
    """A block that the model cannot take is refused, never dropped (models.md)."""
    if not blocks:
        raise invalid("blocks", "the message is empty")
    size = sum(block.ByteSize() for block in blocks)
    if size > MAX_MESSAGE_CONTENT:
        raise CommandRefused(
            Code.RESOURCE_EXHAUSTED,
            f"a message takes at most {MAX_MESSAGE_CONTENT} bytes of blocks together, got {size}: put the rest "
            "into a file, and name it",
        )
    for index, block in enumerate(blocks):
        kind = block.WhichOneof("block")
        if kind != "text":
            raise _refused_block(index, kind)
        if not block.text.text.strip():
            raise invalid(f"blocks[{index}].text", "the text is empty")


def _check_queue(view: SessionView) -> None:
    if len(view.queue) >= MAX_QUEUED:
        raise CommandRefused(
            Code.RESOURCE_EXHAUSTED,
            f"{len(view.queue)} messages wait in this session, which is all that it takes: let it work, or clear "
            "the queue",
        )


def _refused_block(index: int, kind: str | None) -> CommandRefused:
    found = kind or "nothing"
    return invalid(f"blocks[{index}]", f"a message takes text blocks in this version, got {found}")
