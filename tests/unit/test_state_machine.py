"""Every type of event is tried in every state that a random walk reaches, against a naive reading of the rules.

The reference looks only at the list of events, again and again; the checker under test carries its state forward.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.session_log import (
    SESSION,
    START_US,
    SessionLog,
    check_vendor_accepts,
    says,
    text,
    user,
    uses,
)

from turnd.rules.closing import cancelled, close_step, end_turn, repair
from turnd.rules.history import History
from turnd.rules.state import SessionState, Violation, apply
from turnd.rules.status import SessionView, advance
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

TYPE = r"[a-z]+(/[a-z]+)?"
TEXTS = [
    r"turn/start while turn already open",
    r"turn/start expected turn \d+, got \d+",
    r"turn/end without open turn/start",
    r"turn/end expected turn \d+, got \d+",
    r"turn/end while step still open",
    r"turn/end without turn/stopping",
    r"turn/stopping without open turn",
    r"turn/stopping twice",
    r"step/start without open turn",
    r"step/start in turn \d+ but open turn is \d+",
    r"step/start while step already open",
    r"step/start expected step \d+, got \d+",
    r"step/end without open step/start",
    r"step/end in turn \d+ but open turn is \d+",
    r"step/end expected step \d+, got \d+",
    r"step/end while (tool/call|approval/request|interactive/request|child/started) still open",
    r"user/message without open turn",
    r"user/message while step open",
    r"user/message after step/end neither synthetic nor steering",
    r"(agent/re(quest|try)|assistant/(chunk|message)|usage|tool/call|plan/(ready|applied)) without open step",
    r"(approval/request|interactive/request) without open step",
    r"tool/call id already used",
    r"tool/(started|result) without open tool/call",
    r"tool/started twice",
    r"tool/started without approval",
    r"tool/started with another input than the approved one",
    r"tool/started expected attempt \d+, got \d+",
    r"tool/(retry|progress) without open attempt",
    r"(approval/decided without open approval/request|interactive/answered without open interactive/request)",
    r"(approval|interactive)/request id already open",
    r"child/started (without open tool/call|twice)",
    r"child/ended without open child/started",
    r"(agent/request|context/compacted) without open turn",
    r"context/compacted while tool/call still open",
    r"(step/start|agent/request|tool/call|tool/started|approval/request|interactive/request|child/started"
    r"|context/compacted)"
    r" after turn/stopping",
    r"seq gap",
    r"session already ended",
    r"session/created twice",
    r"session/ended while turn still open",
    r"session/reopened without session/ended",
    rf"{TYPE} expected (no turn|turn \d+( step \d+)?), got (no turn|step \d+ without turn|turn \d+( step \d+)?)",
]
KNOWN_TEXT = re.compile("|".join(f"(?:{text})" for text in TEXTS))

FIELDS = [field.name for field in event_pb2.Event.DESCRIPTOR.oneofs_by_name["data"].fields]
WEIGHTS: dict[str, float] = {
    **dict.fromkeys(FIELDS, 3),
    **dict.fromkeys(("session_ended", "turn_stopping", "turn_end", "step_end"), 1.5),
    **dict.fromkeys(("session_reopened", "turn_start", "step_start", "tool_call", "tool_started"), 20),
    **dict.fromkeys(
        ("plan_ready", "approval_request", "approval_decided", "tool_retry", "child_started"), 10
    ),
}
"""How often each type is tried on a walk: what opens something more often, or no walk would come far."""


class Candidates:
    """Payloads of any type, more often than not with the numbers and ids that could be right."""

    def __init__(self, rng: random.Random, state: SessionState) -> None:
        self.rng = rng
        self.state = state
        self.call_id = self.known(state.calls, [f"c{n}" for n in range(5)])
        self.request_id = self.known(state.requests, ["r0", "r1", "r2"])

    def near(self, right: int | None) -> int:
        return self.rng.choice([right or 0] * 6 + [(right or 0) + 1, 0])

    def known(self, ids: Iterable[str], other: Sequence[str]) -> str:
        return self.rng.choice([*sorted(ids) * 3, *other])

    def payload(self, kind: str) -> Message:
        rng, state, call_id, request_id = self.rng, self.state, self.call_id, self.request_id
        attempt = state.calls[call_id].attempt if call_id in state.calls else 0
        match kind:
            case "turn_start":
                return event_pb2.TurnStart(turn=self.near(state.next_turn))
            case "turn_stopping":
                return event_pb2.TurnStopping(reason=pick(rng, common.TurnEndReason))
            case "turn_end":
                return event_pb2.TurnEnd(turn=self.near(state.open_turn))
            case "step_start":
                return event_pb2.StepStart(turn=self.near(state.open_turn), step=self.near(state.next_step))
            case "step_end":
                return event_pb2.StepEnd(turn=self.near(state.open_turn), step=self.near(state.open_step))
            case "user_message":
                return user("words", steering=rng.random() < 0.5, plan_mode=rng.random() < 0.5)
            case "agent_request":
                return event_pb2.AgentRequest(purpose=pick(rng, common.RequestPurpose))
            case "usage":
                counts = common.TokenCounts(input_tokens=3)
                return event_pb2.Usage(purpose=pick(rng, common.RequestPurpose), tokens=counts)
            case "assistant_chunk":
                return event_pb2.AssistantChunk(attempt=1, deltas=[event_pb2.Delta(text="so")])
            case "assistant_message":
                ids = [f"c{rng.randrange(9)}" for _ in range(rng.randrange(4))]
                message = says(text("so"), *(uses(c) for c in ids))
                message.partial = rng.random() < 0.3
                return message
            case "tool_call":
                fresh = f"c{len(state.used_call_ids)}"
                used = rng.choice([fresh, fresh, fresh, call_id])
                return event_pb2.ToolCall(call_id=used, kind=pick(rng, common.ToolKind), input=b"{}")
            case "tool_started":
                number = self.near(attempt + 1)
                known = state.calls.get(call_id)
                right = known.corrected or known.input if known is not None else b"{}"
                data = rng.choice([right, right, right, b'{"n":1}'])
                return event_pb2.ToolStarted(call_id=call_id, attempt=number, input=data)
            case "tool_retry":
                category = rng.choice(
                    [
                        common.TOOL_ERROR_CATEGORY_PRECONDITION_FAILED,
                        common.TOOL_ERROR_CATEGORY_CONCURRENCY_CONFLICT,
                    ]
                )
                return event_pb2.ToolRetry(call_id=call_id, attempt=self.near(attempt), category=category)
            case "tool_progress":
                return event_pb2.ToolProgress(call_id=call_id)
            case "tool_result":
                category = pick(rng, common.ToolErrorCategory)
                return event_pb2.ToolResult(
                    call_id=call_id, content=b'"x"', is_error=bool(category), category=category
                )
            case "plan_ready":
                item = common.PlanItem(call_id=call_id, decision=pick(rng, common.PolicyAction))
                return event_pb2.PlanReady(items=[item])
            case "approval_request":
                return event_pb2.ApprovalRequest(request_id=request_id, item=common.PlanItem(call_id=call_id))
            case "approval_decided":
                return event_pb2.ApprovalDecided(
                    request_id=request_id,
                    outcome=pick(rng, common.ApprovalOutcome),
                    scope=pick(rng, common.ApprovalScope),
                    corrected_input=rng.choice([b"", b"", b'{"n":1}', b'{"n":2}']),
                )
            case "interactive_request":
                return event_pb2.InteractiveRequest(request_id=request_id, call_id=call_id)
            case "interactive_answered":
                return event_pb2.InteractiveAnswered(request_id=request_id)
            case "child_started":
                return event_pb2.ChildStarted(call_id=call_id, child=rng.choice(["k0", "k1"]))
            case "child_ended":
                child = self.known(state.children, ["k0", "k1"])
                return event_pb2.ChildEnded(call_id=call_id, child=child)
            case "child_attention":
                asked = event_pb2.ApprovalRequest(item=common.PlanItem(call_id="x"))
                return event_pb2.ChildAttention(
                    state=pick(rng, event_pb2.AttentionState),
                    path=["k0"],
                    request_id=rng.choice(["r7", "r8"]),
                    approval=asked,
                )
            case "limit_reached":
                hit = common.LimitHit(dimension=pick(rng, common.LimitDimension))
                return event_pb2.LimitReached(hits=[hit])
            case _:
                empty = getattr(event_pb2.Event(), kind)
                assert isinstance(empty, Message)
                return empty


def pick(rng: random.Random, enum: Any) -> Any:
    return rng.choice([number for number in enum.values() if number])


Entry = tuple[str, Any, int]
"""An event as the reference sees it: the field of its payload, the payload, its seq."""


def entry(event: event_pb2.Event) -> Entry:
    kind = event.WhichOneof("data")
    assert kind is not None
    return kind, getattr(event, kind), event.seq


class Naive:
    """The rules as they are written down, over a list of events that is scanned anew for every question."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.all = entries
        self.turn = self._since("turn_start", "turn_end", entries)
        self.step = self._since("step_start", "step_end", self.turn or [])

    @staticmethod
    def _since(opening: str, closing: str, entries: Sequence[Entry]) -> Sequence[Entry] | None:
        for index in range(len(entries) - 1, -1, -1):
            if entries[index][0] == closing:
                return None
            if entries[index][0] == opening:
                return entries[index:]
        return None

    @staticmethod
    def _having(entries: Sequence[Entry] | None, *kinds: str) -> list[Entry]:
        return [entry for entry in entries or [] if entry[0] in kinds]

    def count(self, kind: str) -> int:
        return len(self._having(self.all, kind))

    def steps_of_turn(self) -> int:
        return len(self._having(self.turn, "step_start"))

    def stopping(self) -> bool:
        return bool(self._having(self.turn, "turn_stopping"))

    def ended(self) -> bool:
        marks = self._having(self.all, "session_ended", "session_reopened")
        return bool(marks) and marks[-1][0] == "session_ended"

    def used(self, call_id: str) -> bool:
        return any(call.call_id == call_id for _, call, _ in self._having(self.all, "tool_call"))

    def open_call(self, call_id: str) -> Entry | None:
        called = [e for e in self._having(self.step, "tool_call") if e[1].call_id == call_id]
        done = any(r.call_id == call_id for _, r, _ in self._having(self.step, "tool_result"))
        return called[0] if called and not done else None

    def open_calls(self) -> int:
        return len(self._having(self.step, "tool_call")) - len(self._having(self.step, "tool_result"))

    def _attempts(self, call_id: str) -> list[str]:
        """What became of each, in order."""
        marks = self._having(self.step, "tool_started", "tool_retry")
        return [kind for kind, payload, _ in marks if payload.call_id == call_id]

    def attempts(self, call_id: str) -> int:
        return self._attempts(call_id).count("tool_started")

    def running(self, call_id: str) -> bool:
        return self.open_call(call_id) is not None and self._attempts(call_id)[-1:] == ["tool_started"]

    def may_start(self, call_id: str, data: bytes) -> bool:
        called = self.open_call(call_id)
        assert called is not None
        if called[1].kind != common.TOOL_KIND_RESOURCE:
            return True
        allowed = approved = False
        effective = called[1].input
        asked: set[str] = set()
        for kind, payload, seq in self.step or []:
            known = seq > called[2]
            if kind == "plan_ready" and known and any(i.call_id == call_id for i in payload.items):
                allowed = approved = payload.items[0].decision == common.POLICY_ACTION_ALLOW
            if kind == "approval_request":
                asked.discard(payload.request_id)
                if payload.item.call_id == call_id:
                    asked.add(payload.request_id)
                    if known:
                        allowed = approved = False
            if kind == "approval_decided" and payload.request_id in asked:
                asked.discard(payload.request_id)
                if known:
                    approved = payload.outcome == common.APPROVAL_OUTCOME_APPROVED
                    allowed = approved and payload.scope != common.APPROVAL_SCOPE_ONCE
                    effective = payload.corrected_input if approved and payload.corrected_input else effective
            stale = (
                kind == "tool_retry" and payload.category == common.TOOL_ERROR_CATEGORY_PRECONDITION_FAILED
            )
            if stale and payload.call_id == call_id:
                approved = allowed
        return approved and data == effective

    def open_requests(self) -> dict[str, bool]:
        """By id: is it a question?"""
        found: dict[str, bool] = {}
        for kind, payload, _ in self.step or []:
            if kind in ("approval_request", "interactive_request"):
                found[payload.request_id] = kind == "interactive_request"
            if kind in ("approval_decided", "interactive_answered"):
                found.pop(payload.request_id)
        return found

    def open_children(self) -> set[str]:
        found: set[str] = set()
        for kind, payload, _ in self.step or []:
            if kind == "child_started":
                found.add(payload.child)
            if kind == "child_ended":
                found.remove(payload.child)
        return found

    def accepts(self, payload: Message, *, synthetic: bool) -> bool:
        """Is an event with this payload lawful now?"""
        in_turn, in_step = self.turn is not None, self.step is not None
        going_on = not self.stopping()
        turn, step = self.count("turn_end"), self.steps_of_turn()
        if self.ended():
            return isinstance(payload, event_pb2.SessionReopened)
        match payload:
            case event_pb2.SessionCreated() | event_pb2.SessionReopened():
                return False
            case event_pb2.SessionEnded():
                return not in_turn
            case event_pb2.TurnStart():
                return not in_turn and payload.turn == turn
            case event_pb2.TurnStopping():
                return in_turn and going_on
            case event_pb2.TurnEnd():
                closed = in_turn and not in_step and payload.turn == turn
                return closed and (synthetic or not going_on)
            case event_pb2.StepStart():
                right = payload.turn == turn and payload.step == step + 1
                return in_turn and not in_step and going_on and right
            case event_pb2.StepEnd():
                right = payload.turn == turn and payload.step == step
                settled = not (self.open_calls() or self.open_requests() or self.open_children())
                return in_step and right and settled
            case event_pb2.UserMessage():
                return in_turn and not in_step and (step == 0 or synthetic or payload.steering)
            case event_pb2.AgentRequest(purpose=common.REQUEST_PURPOSE_TITLE):
                return True
            case event_pb2.AgentRequest(purpose=0 | common.REQUEST_PURPOSE_STEP):
                return in_step and going_on
            case event_pb2.AgentRequest(purpose=common.REQUEST_PURPOSE_COMPACTION):
                return in_turn and going_on
            case event_pb2.AgentRequest():
                return going_on
            case event_pb2.ContextCompacted():
                return in_turn and going_on and not self.open_calls()
            case event_pb2.Usage(purpose=0 | common.REQUEST_PURPOSE_STEP):
                return in_step
            case (
                event_pb2.AgentRetry()
                | event_pb2.AssistantChunk()
                | event_pb2.AssistantMessage()
                | event_pb2.PlanReady()
                | event_pb2.PlanApplied()
            ):
                return in_step
            case event_pb2.ToolCall():
                return in_step and going_on and not self.used(payload.call_id)
            case event_pb2.ToolStarted():
                opened = self.open_call(payload.call_id) is not None and going_on
                number = self.attempts(payload.call_id) + 1
                next_one = opened and not self.running(payload.call_id) and payload.attempt == number
                return next_one and self.may_start(payload.call_id, payload.input)
            case event_pb2.ToolRetry():
                return self.running(payload.call_id) and payload.attempt == self.attempts(payload.call_id)
            case event_pb2.ToolProgress():
                return self.running(payload.call_id)
            case event_pb2.ToolResult():
                return self.open_call(payload.call_id) is not None
            case event_pb2.ApprovalRequest() | event_pb2.InteractiveRequest():
                return in_step and going_on and payload.request_id not in self.open_requests()
            case event_pb2.ApprovalDecided():
                return self.open_requests().get(payload.request_id) is False
            case event_pb2.InteractiveAnswered():
                return self.open_requests().get(payload.request_id) is True
            case event_pb2.ChildStarted():
                return (
                    self.running(payload.call_id) and going_on and payload.child not in self.open_children()
                )
            case event_pb2.ChildEnded():
                return payload.child in self.open_children()
            case _:
                return True


class AnyEventInAnyState(RuleBasedStateMachine):
    """Appends whatever is lawful, and sees everything else refused."""

    @initialize(parent=st.sampled_from(["", "", "p"]), soft=st.booleans())
    def create(self, parent: str, soft: bool) -> None:
        mode = common.LIMIT_MODE_SOFT if soft else common.LIMIT_MODE_HARD
        profile = common.ProfileSnapshot(bounds=common.Bounds(limit_mode=mode))
        self.log = SessionLog(event_pb2.SessionCreated(parent=parent, profile=profile))
        self.entries: list[Entry] = []

    def naive(self) -> Naive:
        self.entries += map(entry, self.log.events[len(self.entries) :])
        return Naive(self.entries)

    @rule(rng=st.randoms(use_true_random=True))
    def every_type_of_event(self, rng: random.Random) -> None:
        """Tries each type with and without `synthetic`: the checker and the reference agree on all of them."""
        log = self.log
        before = (log.state, log.view, log.history.messages())
        naive = self.naive()
        for kind in FIELDS:
            event, lawful = self.candidate(rng, kind, naive)
            if lawful:
                apply(log.state, event)
                event.seq += rng.choice([-1, 1, 5])
                assert log.refused(event) == "seq gap"
            else:
                words = log.refused(event)
                assert KNOWN_TEXT.fullmatch(words), words
        assert (log.state, log.view, log.history.messages()) == before

    @rule(rng=st.randoms(use_true_random=True), length=st.integers(30, 120))
    def walk(self, rng: random.Random, length: int) -> None:
        """Tries one event after another; what is lawful is appended."""
        for kind in rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=length):
            event, lawful = self.candidate(rng, kind, self.naive())
            if lawful:
                self.log.take(event)
            else:
                self.log.refused(event)

    def candidate(self, rng: random.Random, kind: str, naive: Naive) -> tuple[event_pb2.Event, bool]:
        synthetic = rng.random() < 0.3
        payload = Candidates(rng, self.log.state).payload(kind)
        return self.log.event(payload, synthetic=synthetic), naive.accepts(payload, synthetic=synthetic)

    @rule(shift=st.sampled_from([1, 4]))
    @precondition(lambda self: self.log.state.open_turn is not None)
    def wrong_envelope(self, shift: int) -> None:
        event = self.log.event(event_pb2.Note())
        event.turn += shift
        assert KNOWN_TEXT.fullmatch(self.log.refused(event))

    @rule()
    @precondition(lambda self: self.log.state.open_turn is not None)
    def cancel(self) -> None:
        """Everything that is open is settled, and the log takes it."""
        log = self.log
        if log.state.stopping is None:
            log.stopping(common.TURN_END_REASON_ABORTED)
        log.add(*close_step(log.state, how=cancelled("x")))
        assert not log.view.open_requests
        log.add(*end_turn(log.state, common.TURN_END_REASON_ABORTED))
        assert log.state.open_turn is None

    @rule()
    @precondition(lambda self: self.log.state.open_turn is not None)
    def crash(self) -> None:
        log = self.log
        log.add_drafts(repair(log.state, SESSION, START_US))
        assert log.state.open_turn is None
        assert log.state.ended or not log.view.open_requests
        assert repair(log.state, SESSION, START_US) == []

    @invariant()
    def numbers_are_those_of_the_markers(self) -> None:
        naive, state = self.naive(), self.log.state
        assert state.seq == len(self.log.events)
        assert state.next_turn == naive.count("turn_end")
        assert state.open_turn == (None if naive.turn is None else naive.count("turn_end"))
        assert state.open_step == (None if naive.step is None else naive.steps_of_turn())
        assert len(state.calls) == naive.open_calls()
        assert (self.log.view.turns, self.log.view.steps) == (
            naive.count("turn_start"),
            naive.count("step_start"),
        )

    @invariant()
    def the_history_is_valid_for_vendors(self) -> None:
        check_vendor_accepts(self.log.history.messages())

    def teardown(self) -> None:
        state, view, history = SessionState(), SessionView(), History()
        for event in self.log.events:
            stored = event_pb2.Event.FromString(event.SerializeToString())
            state = apply(state, stored)
            view = advance(view, stored)
            history.advance(stored)
        assert state == self.log.state
        assert view == self.log.view
        assert history.messages() == self.log.history.messages()


@pytest.mark.req("LOG-01", "LOG-02", "LOG-03", "LOG-05", "LOG-06", "LOG-08", "LOG-09", "LOG-13", "LOOP-15")
class TestAnyEventInAnyState(AnyEventInAnyState.TestCase):
    settings = settings(
        max_examples=25,
        stateful_step_count=8,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )


@pytest.mark.req("LOG-01", "LOG-02", "LOG-03", "LOG-06", "LOG-08", "LOG-13", "MODEL-06")
@given(seed=st.integers(0, 2**32), parent=st.sampled_from(["", "p"]))
@settings(max_examples=15, deadline=None)
def test_long_walks_end_in_a_log_that_can_be_replayed_and_repaired(seed: int, parent: str) -> None:
    machine = AnyEventInAnyState()
    machine.create(parent, soft=False)
    rng = random.Random(seed)
    for _ in range(5):
        machine.walk(rng, 60)
        machine.numbers_are_those_of_the_markers()
        machine.the_history_is_valid_for_vendors()
    machine.crash()
    machine.teardown()


@pytest.mark.req("LOG-03")
@pytest.mark.parametrize("field", [field for field in FIELDS if field != "session_created"])
def test_an_event_that_a_session_may_not_begin_with(field: str) -> None:
    payload = getattr(event_pb2.Event(), field)
    event = SessionLog().event(payload)
    event.seq = 1
    with pytest.raises(Violation) as caught:
        apply(SessionState(), event)
    assert caught.value.text == "first event is not session/created"


@pytest.mark.req("LOG-03")
def test_the_first_cause_stands_for_every_pair_of_reasons() -> None:
    reasons = [r for r in common.TurnEndReason.values() if r]
    for first, second in itertools.permutations(reasons, 2):
        log = SessionLog().turn().stopping(first)
        assert log.refused(event_pb2.TurnStopping(reason=second)) == "turn/stopping twice"
        assert log.state.stopping is not None
        assert log.state.stopping.reason == first
