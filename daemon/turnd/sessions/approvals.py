"""Open requests and their settlement: the first decision wins, everybody is told (GATE-07, GATE-17).

Requests and settlements are events, and what is open is the session's state. This module decides who comes first,
lets requests expire, says to whom they went, and wakes the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence

import structlog

from turnd.ports import Clock, Log, LogFailed
from turnd.rules.event import Draft
from turnd.rules.policy import PolicyCall, granted
from turnd.rules.state import Violation
from turnd.sessions.answers import check_answer
from turnd.sessions.presence import ALL, Presence
from turnd.sessions.refusal import CommandRefused, invalid, not_found, not_now
from turnd.sessions.requests import Answering
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2, sessions_pb2
from turnd.v1.jsonform import enum_text

log = structlog.get_logger(__name__)

LOG_RETRY_S = 1.0
"""How often an expiry or a delivery is written again while the log takes nothing (V05)."""

Settlement = event_pb2.ApprovalDecided | event_pb2.InteractiveAnswered


class Approvals:
    """Implements the port `People`, and the commands Decide and Answer.

    The mutable state: one future and one expiry task for each open request, by session and request id: a fork has
    the ids of the session that it shares a log with.
    """

    def __init__(self, log: Log, clock: Clock, presence: Presence) -> None:
        self._log = log
        self._clock = clock
        self._presence = presence
        self._waiting: dict[tuple[str, str], asyncio.Future[Settlement]] = {}
        self._expiry: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        presence.on_arrival(self._client_arrived)

    # --- the port People ---

    async def decision(self, session: str, request_id: str) -> event_pb2.ApprovalDecided:
        """Waits for the first decision; the request's own expiry bounds the wait."""
        settled = await self._settlement(session, request_id)
        assert isinstance(settled, event_pb2.ApprovalDecided), f"{request_id} is an approval"
        return settled

    async def answer(self, session: str, request_id: str) -> event_pb2.InteractiveAnswered:
        """Waits for the first answer that fits; the question's own expiry bounds the wait."""
        settled = await self._settlement(session, request_id)
        assert isinstance(settled, event_pb2.InteractiveAnswered), f"{request_id} is a question"
        return settled

    async def _settlement(self, session: str, request_id: str) -> Settlement:
        waiting = self._waiting.get((session, request_id))
        if waiting is not None:
            return await asyncio.shield(waiting)
        found = await self._find_settled(session, request_id)
        assert found is not None, f"{request_id} is neither open nor settled"
        return found[0]

    # --- commands ---

    async def decide(
        self, request: sessions_pb2.DecideRequest, answering: Answering[sessions_pb2.DecideResponse]
    ) -> event_pb2.ApprovalDecided:
        """The first decision on an approval. Raises CommandRefused where another was first."""
        view = self._log.view(request.session)
        opened = view.open_requests.get(request.approval)
        if opened is None or not opened.HasField("approval"):
            raise await self._not_open(request.session, request.approval, "approval")
        asking = opened.session or request.session
        decided = _decided(request, opened.approval)
        drafts = [Draft(asking, decided)]
        if decided.HasField("grant"):
            drafts += _equal_ones(self._open_below(asking), decided)
        try:
            await self._log.append(
                *drafts, answered=answering.by(lambda _: sessions_pb2.DecideResponse(decided=decided))
            )
        except Violation:
            raise await self._not_open(request.session, request.approval, "approval") from None
        return decided

    async def answer_question(
        self, request: sessions_pb2.AnswerRequest, answering: Answering[sessions_pb2.AnswerResponse]
    ) -> event_pb2.InteractiveAnswered:
        """The first answer that fits the output schema; a bad one leaves the question open."""
        opened = self._log.view(request.session).open_requests.get(request.question)
        if opened is None or not opened.HasField("interactive"):
            raise await self._not_open(request.session, request.question, "question")
        asking = opened.session or request.session
        check_answer(request.output, opened.interactive.output_schema)
        answered = event_pb2.InteractiveAnswered(
            request_id=request.question,
            call_id=opened.interactive.call_id,
            outcome=common.ANSWER_OUTCOME_ANSWERED,
            client=request.client,
            output=request.output,
        )
        try:
            await self._log.append(
                Draft(asking, answered),
                answered=answering.by(lambda _: sessions_pb2.AnswerResponse(answered=answered)),
            )
        except Violation:
            raise await self._not_open(request.session, request.question, "question") from None
        return answered

    def _open_below(self, session: str) -> list[sessions_pb2.OpenRequest]:
        """The open requests of a session and all below it: what a decision for the session holds for."""
        view = self._log.view(session)
        if not view.ancestors:
            return list(view.open_requests.values())
        shown = self._log.view(view.root).open_requests.values()
        return [request for request in shown if session in request.path]

    async def _not_open(self, session: str, request_id: str, kind: str) -> CommandRefused:
        """The refusal of a late decision: who settled it, how and when."""
        found = await self._find_settled(session, request_id)
        if found is None:
            return not_found(kind, request_id, f"session {session} has no {kind} {request_id}")
        settled, at = found
        outcome = _outcome_text(settled)
        who = settled.client or ("the time-out" if outcome == "expired" else "the daemon")
        return not_now(
            f"{kind} {request_id} was settled before: {outcome} by {who} at {at}",
            outcome=outcome,
            decided_by=who,
            decided_at=at,
        )

    async def _find_settled(self, session: str, request_id: str) -> tuple[Settlement, str] | None:
        async for page in self._log.read(session):
            for event in page:
                settled = _settlement_in(event)
                if settled is not None and settled.request_id == request_id:
                    return settled, event.time.ToJsonString()
        return None

    # --- what the log tells ---

    def committed(self, events: Sequence[event_pb2.Event]) -> None:
        """Takes note of requests and settlements as they are committed."""
        for event in events:
            match event.WhichOneof("data"):
                case "approval_request":
                    self._opened(event.session, event.approval_request.request_id, event.approval_request)
                    for client in self._seen_by(event.session):
                        self._deliver(event.session, event.approval_request.request_id, client)
                case "interactive_request":
                    self._opened(
                        event.session, event.interactive_request.request_id, event.interactive_request
                    )
                case "approval_decided" | "interactive_answered":
                    settled = _settlement_in(event)
                    assert settled is not None
                    self._settled(event.session, settled)
                case _:
                    pass

    def _opened(
        self,
        session: str,
        request_id: str,
        request: event_pb2.ApprovalRequest | event_pb2.InteractiveRequest,
    ) -> None:
        self._waiting[session, request_id] = asyncio.get_running_loop().create_future()
        self._expiry[session, request_id] = self._spawn(self._expire(session, request))

    def _settled(self, session: str, settled: Settlement) -> None:
        waiting = self._waiting.pop((session, settled.request_id), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(settled)
        expiry = self._expiry.pop((session, settled.request_id), None)
        if expiry is not None:
            expiry.cancel()

    def _client_arrived(self, session: str, client: str) -> None:
        if session == ALL:
            return
        for request_id, opened in self._log.view(session).open_requests.items():
            if opened.HasField("approval"):
                self._deliver(opened.session or session, request_id, client)

    def _seen_by(self, session: str) -> list[str]:
        """Who sees a request of the session: those attached to it, and to the root of its tree (GATE-17)."""
        root = self._log.view(session).root
        return sorted({*self._presence.clients(session), *self._presence.clients(root)})

    def _deliver(self, session: str, request_id: str, client: str) -> None:
        delivered = event_pb2.ApprovalDelivered(request_id=request_id, client=client)
        self._spawn(self._append_if_open(Draft(session, delivered)))

    async def _expire(
        self, session: str, request: event_pb2.ApprovalRequest | event_pb2.InteractiveRequest
    ) -> None:
        rest_us = request.expires.ToMicroseconds() - self._clock.now_us()
        await self._clock.sleep(max(rest_us, 0) / 1_000_000)
        if isinstance(request, event_pb2.ApprovalRequest):
            expired: Settlement = event_pb2.ApprovalDecided(
                request_id=request.request_id,
                call_id=request.item.call_id,
                outcome=common.APPROVAL_OUTCOME_EXPIRED,
                reason="nobody decided in time",
            )
        else:
            expired = event_pb2.InteractiveAnswered(
                request_id=request.request_id,
                call_id=request.call_id,
                outcome=common.ANSWER_OUTCOME_EXPIRED,
            )
        await self._append_if_open(Draft(session, expired))

    async def _append_if_open(self, draft: Draft) -> None:
        while True:
            try:
                await self._log.append(draft)
            except Violation:
                # Somebody settled the request first; there is nothing to add.
                return
            except LogFailed as failed:
                log.warning("the log takes no events; tried again", session=draft.session, error=str(failed))
                await self._clock.sleep(LOG_RETRY_S)
            else:
                return

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Ends the expiry tasks; what is open stays open in the log, for repair."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _decided(
    request: sessions_pb2.DecideRequest, asked: event_pb2.ApprovalRequest
) -> event_pb2.ApprovalDecided:
    if request.corrected_input:
        raise invalid(
            "corrected_input",
            "this version takes no corrected input: deny with a reason, and the model tries again",
        )
    if request.scope == common.APPROVAL_SCOPE_ALWAYS:
        raise invalid(
            "scope",
            "this version cannot store a rule for always, and does not narrow it: decide once or session",
        )
    remembered = request.approve and request.scope == common.APPROVAL_SCOPE_SESSION
    return event_pb2.ApprovalDecided(
        request_id=asked.request_id,
        call_id=asked.item.call_id,
        outcome=common.APPROVAL_OUTCOME_APPROVED if request.approve else common.APPROVAL_OUTCOME_DENIED,
        scope=common.APPROVAL_SCOPE_SESSION if remembered else common.APPROVAL_SCOPE_ONCE,
        client=request.client,
        reason=request.reason,
        grant=asked.grant if remembered else None,
    )


def _equal_ones(
    opened: Iterable[sessions_pb2.OpenRequest], decided: event_pb2.ApprovalDecided
) -> list[Draft]:
    """The same decision for every other open request that the remembered rule answers."""
    equal = []
    for other in opened:
        if not other.HasField("approval") or other.approval.request_id == decided.request_id:
            continue
        if granted(decided.grant, _call_of(other.approval)):
            copy = event_pb2.ApprovalDecided()
            copy.CopyFrom(decided)
            copy.request_id = other.approval.request_id
            copy.call_id = other.approval.item.call_id
            copy.ClearField("grant")
            equal.append(Draft(other.session, copy))
    return equal


def _call_of(request: event_pb2.ApprovalRequest) -> PolicyCall:
    """The call that a request asks about, as a remembered decision sees it."""
    item, grant = request.item, request.grant
    return PolicyCall(
        provider=item.provider,
        tool=item.tool,
        kind=item.kind,
        risk=item.risk,
        input=item.input,
        command=grant.command[0] if grant.command else None,
        path=grant.path[0] if grant.path else None,
    )


def _settlement_in(event: event_pb2.Event) -> Settlement | None:
    match event.WhichOneof("data"):
        case "approval_decided":
            return event.approval_decided
        case "interactive_answered":
            return event.interactive_answered
        case "child_attention" if event.child_attention.HasField("decided"):
            return event.child_attention.decided
        case "child_attention" if event.child_attention.HasField("answered"):
            return event.child_attention.answered
        case _:
            return None


def _outcome_text(settled: Settlement) -> str:
    if isinstance(settled, event_pb2.ApprovalDecided):
        return enum_text(common.ApprovalOutcome, settled.outcome)
    return enum_text(common.AnswerOutcome, settled.outcome)
