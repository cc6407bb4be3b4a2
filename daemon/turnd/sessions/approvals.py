"""Open requests and their settlement: the first decision wins, everybody is told (GATE-07, GATE-17).

Requests and settlements are events, and what is open is the session's state. This module decides who comes first,
lets requests expire, says to whom they went, and wakes the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager

import structlog

from turnd.ports import Clock, Correct, CorrectionRefused, Effective, Log, LogFailed
from turnd.rules.canon import canonical, is_json
from turnd.rules.event import Draft
from turnd.rules.grants import Place, grant_text, is_certain, stored_rule
from turnd.rules.plan import ready
from turnd.rules.policy import covers
from turnd.rules.state import Violation
from turnd.sessions.answers import check_answer
from turnd.sessions.presence import ALL, Presence
from turnd.sessions.refusal import Code, CommandRefused, invalid
from turnd.sessions.requests import Answering
from turnd.sessions.settled import Settled, Settlement, settlement_in
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2, sessions_pb2

log = structlog.get_logger(__name__)

LOG_RETRY_S = 1.0
"""How often an expiry or a delivery is written again while the log takes nothing (V05)."""

MAX_RULES = 1000
"""That decisions for always have stored; each plan that asks looks through them."""


class Approvals:
    """Implements the port `People`, and the commands Decide and Answer.

    The mutable state: one future, one expiry task and what checks another input for each open request, by session and
    request id: a fork has the ids of the session that it shares a log with.
    """

    def __init__(self, log: Log, clock: Clock, presence: Presence) -> None:
        self._log = log
        self._clock = clock
        self._presence = presence
        self._waiting: dict[tuple[str, str], asyncio.Future[Settlement]] = {}
        self._expiry: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._correct: dict[tuple[str, str], Correct] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._settled_before = Settled(log)
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
        found = await self._settled_before.find(session, request_id)
        assert found is not None, f"{request_id} is neither open nor settled"
        return found[0]

    @contextmanager
    def correctable(self, session: str, request_id: str, correct: Correct) -> Iterator[None]:
        """Decide asks `correct` what another input comes to."""
        self._correct[session, request_id] = correct
        try:
            yield
        finally:
            del self._correct[session, request_id]

    # --- commands ---

    async def decide(
        self, request: sessions_pb2.DecideRequest, answering: Answering[sessions_pb2.DecideResponse]
    ) -> event_pb2.ApprovalDecided:
        """The first decision on an approval. Raises CommandRefused where another was first."""
        view = self._log.view(request.session)
        opened = view.open_requests.get(request.approval)
        if opened is None or not opened.HasField("approval"):
            raise await self._settled_before.refusal(request.session, request.approval, "approval")
        asking = opened.session or request.session
        effective = await self._effective(request, asking, opened.approval)
        decided = _decided(request, opened.approval, effective)
        if decided.scope == common.APPROVAL_SCOPE_ALWAYS:
            await self._require_room()
            place = Place.of(self._log.view(asking))
            decided.stored.CopyFrom(stored_rule(place, request.approval))
        drafts = [Draft(asking, decided)]
        if effective is not None:
            drafts.insert(0, Draft(asking, ready([effective.item])))
        answered = answering.by(lambda _: sessions_pb2.DecideResponse(decided=decided))
        equal = self._equal_ones(asking, decided)
        while True:
            try:
                await self._log.append(*drafts, *equal, answered=answered)
            except Violation:
                left = self._equal_ones(asking, decided)
                if request.approval in self._log.view(asking).open_requests and len(left) < len(equal):
                    # Somebody settled one of the equal ones meanwhile.
                    equal = left
                    continue
                raise await self._settled_before.refusal(
                    request.session, request.approval, "approval"
                ) from None
            return decided

    async def _require_room(self) -> None:
        if len(await self._log.remembered_rules()) >= MAX_RULES:
            raise CommandRefused(
                Code.RESOURCE_EXHAUSTED,
                f"{MAX_RULES} rules are stored, which is all that there is room for: decide once or for the session, "
                "or remove some (`turn policy` lists them, `turn policy remove NAME` removes one)",
            )

    def _equal_ones(self, asking: str, decided: event_pb2.ApprovalDecided) -> list[Draft]:
        """The same decision for every other open request that the remembered rule answers (GATE-09)."""
        match decided.scope:
            case common.APPROVAL_SCOPE_SESSION:
                opened = self._open_below(asking)
            case common.APPROVAL_SCOPE_ALWAYS:
                opened = self._open_at(Place.of(self._log.view(asking)))
            case _:
                return []
        return _equal_ones(opened, decided)

    def _open_at(self, place: Place) -> list[sessions_pb2.OpenRequest]:
        """The open requests of all sessions of a place: what a decision for always holds for."""
        views = {session: self._log.view(session) for session, _ in self._waiting}
        requests = (
            views[session].open_requests.get(request_id)
            for session, request_id in self._waiting
            if Place.of(views[session]) == place
        )
        return [request for request in requests if request is not None]

    async def _effective(
        self, request: sessions_pb2.DecideRequest, asking: str, asked: event_pb2.ApprovalRequest
    ) -> Effective | None:
        """What a corrected input comes to; None where the proposed one stays. Raises CommandRefused: then the
        request is open still (GATE-08).
        """
        data = request.corrected_input
        if not data or (is_json(data) and canonical(data) == canonical(asked.item.input)):
            return None
        if not request.approve:
            raise invalid("corrected_input", "a denial runs nothing, and takes no input: approve with it")
        correct = self._correct.get((asking, request.approval))
        if correct is None:
            raise await self._settled_before.refusal(request.session, request.approval, "approval")
        try:
            return await correct(data)
        except CorrectionRefused as wrong:
            raise invalid(
                "corrected_input", f"approval {request.approval} is still open, its input unchanged: {wrong}"
            ) from None
        except Violation:
            raise await self._settled_before.refusal(request.session, request.approval, "approval") from None

    async def answer_question(
        self, request: sessions_pb2.AnswerRequest, answering: Answering[sessions_pb2.AnswerResponse]
    ) -> event_pb2.InteractiveAnswered:
        """The first answer that fits the output schema; a bad one leaves the question open."""
        opened = self._log.view(request.session).open_requests.get(request.question)
        if opened is None or not opened.HasField("interactive"):
            raise await self._settled_before.refusal(request.session, request.question, "question")
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
            raise await self._settled_before.refusal(request.session, request.question, "question") from None
        return answered

    def _open_below(self, session: str) -> list[sessions_pb2.OpenRequest]:
        """The open requests of a session and all below it: what a decision for the session holds for."""
        view = self._log.view(session)
        if not view.ancestors:
            return list(view.open_requests.values())
        shown = self._log.view(view.root).open_requests.values()
        return [request for request in shown if session in request.path]

    # --- what the log tells ---

    def committed(self, events: Sequence[event_pb2.Event]) -> None:
        """Takes note of requests and settlements as they are committed."""
        for event in events:
            self._settled_before.committed(event)
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
                    settled = settlement_in(event)
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
    request: sessions_pb2.DecideRequest, asked: event_pb2.ApprovalRequest, effective: Effective | None
) -> event_pb2.ApprovalDecided:
    grant = asked.grant if effective is None else effective.grant
    scope = request.scope or common.APPROVAL_SCOPE_ONCE
    remembered = scope != common.APPROVAL_SCOPE_ONCE
    if remembered:
        _require_shown(request, grant, corrected=effective is not None)
    return event_pb2.ApprovalDecided(
        request_id=asked.request_id,
        call_id=asked.item.call_id,
        outcome=common.APPROVAL_OUTCOME_APPROVED if request.approve else common.APPROVAL_OUTCOME_DENIED,
        scope=scope,
        client=request.client,
        reason=request.reason,
        corrected_input=b"" if effective is None else request.corrected_input,
        grant=grant if remembered else None,
        digest=None if effective is None else effective.digest,
    )


def _require_shown(request: sessions_pb2.DecideRequest, grant: common.GrantRule, *, corrected: bool) -> None:
    """What is remembered is the very rule that the client was shown, or else nothing is decided (A09)."""
    if not request.approve:
        raise invalid("scope", "a denial is for this item alone, and nothing of it is remembered: deny once")
    if not is_certain(grant):
        raise invalid(
            "scope",
            f"{grant.provider}.{grant.tool} does not say for certain what it is called with, so that nothing could be "
            "remembered: decide once",
        )
    if (corrected or request.HasField("grant")) and request.grant != grant:
        raise invalid(
            "grant",
            f"the rule that would be remembered is: {grant_text(grant)}; decide once, or name this rule",
        )


def _equal_ones(
    opened: Iterable[sessions_pb2.OpenRequest], decided: event_pb2.ApprovalDecided
) -> list[Draft]:
    """The same decision for every other open request that the remembered rule answers."""
    equal = []
    for other in opened:
        if not other.HasField("approval") or other.approval.request_id == decided.request_id:
            continue
        if covers(decided.grant, other.approval.grant):
            copy = event_pb2.ApprovalDecided()
            copy.CopyFrom(decided)
            copy.request_id = other.approval.request_id
            copy.call_id = other.approval.item.call_id
            for field in ("grant", "stored", "corrected_input", "digest"):
                copy.ClearField(field)
            equal.append(Draft(other.session, copy))
    return equal
