"""A session's log in memory: every event is checked and projected as the daemon does it."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest
from google.protobuf.message import Message

from turnd.rules.event import Draft, make_event
from turnd.rules.history import History, HistoryMessage
from turnd.rules.state import SessionState, Violation, apply, position
from turnd.rules.status import SessionView, advance
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

SESSION = "01SESSION"
START_US = 1_700_000_000_000_000


class SessionLog:
    """Appends payloads in the envelopes that the state derives; what breaks a rule changes nothing."""

    def __init__(self, created: event_pb2.SessionCreated | None = None) -> None:
        self.events: list[event_pb2.Event] = []
        self.state = SessionState()
        self.view = SessionView()
        self.history = History()
        self.add(created or event_pb2.SessionCreated(cwd="/w"))

    def add(self, *payloads: Message, synthetic: bool = False) -> SessionLog:
        for payload in payloads:
            self.take(self.event(payload, synthetic=synthetic))
        return self

    def event(self, payload: Message, *, synthetic: bool = False) -> event_pb2.Event:
        """The event that `payload` would be."""
        turn, step = position(self.state, payload)
        seq = self.state.seq + 1
        draft = Draft(SESSION, payload, synthetic=synthetic)
        return make_event(draft, seq=seq, time_us=START_US + seq, turn=turn, step=step)

    def take(self, event: event_pb2.Event) -> None:
        self.state = apply(self.state, event)
        self.view = advance(self.view, event)
        self.history.advance(event)
        self.events.append(event)

    def add_drafts(self, drafts: Iterable[Draft]) -> SessionLog:
        for draft in drafts:
            turn, step = position(self.state, draft.payload)
            time_us = START_US if draft.time_us is None else draft.time_us
            self.take(make_event(draft, seq=self.state.seq + 1, time_us=time_us, turn=turn, step=step))
        return self

    def refused(self, event: event_pb2.Event | Message) -> str:
        """The rule's text for an event that must not be accepted."""
        with pytest.raises(Violation) as caught:
            self.take(event if isinstance(event, event_pb2.Event) else self.event(event))
        assert str(caught.value) == caught.value.text
        return caught.value.text

    # The usual openings and closings, by the numbers that come next.

    def turn(self, words: str = "do it") -> SessionLog:
        return self.add(event_pb2.TurnStart(turn=self.state.next_turn), user(words))

    def step(self) -> SessionLog:
        turn = self.state.open_turn
        assert turn is not None
        return self.add(event_pb2.StepStart(turn=turn, step=self.state.next_step))

    def end_step(self) -> SessionLog:
        turn, step = self.state.open_turn, self.state.open_step
        assert turn is not None
        assert step is not None
        return self.add(event_pb2.StepEnd(turn=turn, step=step))

    def stopping(self, reason: common.TurnEndReason.ValueType) -> SessionLog:
        return self.add(event_pb2.TurnStopping(reason=reason))

    def end_turn(
        self, reason: common.TurnEndReason.ValueType = common.TURN_END_REASON_COMPLETED
    ) -> SessionLog:
        if self.state.stopping is None:
            self.stopping(reason)
        turn = self.state.open_turn
        assert turn is not None
        return self.add(event_pb2.TurnEnd(turn=turn, reason=reason))

    def answer(self, words: str) -> SessionLog:
        """A Step in which the model only says something."""
        return self.step().add(says(text(words))).end_step()

    def calls(
        self, *call_ids: str, kind: common.ToolKind.ValueType = common.TOOL_KIND_DATA_SOURCE
    ) -> SessionLog:
        """The model's message with these calls, and their tool/calls."""
        self.add(says(*(uses(call_id) for call_id in call_ids)))
        for index, call_id in enumerate(call_ids):
            self.add(call(call_id, kind=kind, index=index))
        return self

    def roles(self) -> list[str]:
        return [message.role for message in self.history.messages()]

    def said(self) -> list[list[str]]:
        """The history in short: texts, `use:ID`, `result:ID`."""
        return [[brief(block) for block in message.blocks] for message in self.history.messages()]


def text(words: str) -> common.ContentBlock:
    return common.ContentBlock(text=common.TextBlock(text=words))


def uses(call_id: str, input_json: bytes = b'{"path":"a"}') -> common.ContentBlock:
    use = common.ToolUseBlock(call_id=call_id, provider="workspace", tool="read_file", input=input_json)
    return common.ContentBlock(tool_use=use)


def user(words: str, *, steering: bool = False, plan_mode: bool = False) -> event_pb2.UserMessage:
    return event_pb2.UserMessage(blocks=[text(words)], steering=steering, plan_mode=plan_mode)


def says(*blocks: common.ContentBlock) -> event_pb2.AssistantMessage:
    return event_pb2.AssistantMessage(blocks=blocks)


def call(
    call_id: str, *, kind: common.ToolKind.ValueType = common.TOOL_KIND_DATA_SOURCE, index: int = 0
) -> event_pb2.ToolCall:
    return event_pb2.ToolCall(
        call_id=call_id, provider="workspace", tool="read_file", kind=kind, index=index, input=b'{"path":"a"}'
    )


def started(call_id: str, attempt: int = 1) -> event_pb2.ToolStarted:
    return event_pb2.ToolStarted(call_id=call_id, attempt=attempt, input=b'{"path":"a"}')


def result(call_id: str, words: str = "done") -> event_pb2.ToolResult:
    return event_pb2.ToolResult(call_id=call_id, content=json.dumps(words).encode())


def planned(
    call_id: str, decision: common.PolicyAction.ValueType = common.POLICY_ACTION_ALLOW
) -> common.PlanItem:
    by = common.DecidedBy(kind=common.DECIDED_BY_KIND_RULE, name="r")
    return common.PlanItem(call_id=call_id, decision=decision, decided_by=by)


def asks(request_id: str, call_id: str) -> event_pb2.ApprovalRequest:
    return event_pb2.ApprovalRequest(request_id=request_id, item=common.PlanItem(call_id=call_id))


def decided(
    request_id: str,
    outcome: common.ApprovalOutcome.ValueType = common.APPROVAL_OUTCOME_APPROVED,
    scope: common.ApprovalScope.ValueType = common.APPROVAL_SCOPE_ONCE,
) -> event_pb2.ApprovalDecided:
    return event_pb2.ApprovalDecided(request_id=request_id, outcome=outcome, scope=scope, client="cli")


def questions(request_id: str, call_id: str) -> event_pb2.InteractiveRequest:
    return event_pb2.InteractiveRequest(request_id=request_id, call_id=call_id)


def answered(request_id: str) -> event_pb2.InteractiveAnswered:
    return event_pb2.InteractiveAnswered(request_id=request_id, outcome=common.ANSWER_OUTCOME_ANSWERED)


def brief(block: common.ContentBlock) -> str:
    match block.WhichOneof("block"):
        case "text":
            return block.text.text
        case "tool_use":
            return f"use:{block.tool_use.call_id}"
        case "tool_result":
            return f"result:{block.tool_result.call_id}"
        case other:
            return str(other)


def check_vendor_accepts(messages: tuple[HistoryMessage, ...]) -> None:
    """What both families of vendors check of a history, pairing first of all."""
    seen: set[str] = set()
    open_calls: list[str] = []
    for index, message in enumerate(messages):
        assert message.role == ("user", "assistant")[index % 2]
        assert message.blocks, "an empty message"
        kinds = [block.WhichOneof("block") for block in message.blocks]
        results = [block.tool_result for block in message.blocks if block.HasField("tool_result")]
        assert kinds[: len(results)] == ["tool_result"] * len(results), "results stand first"
        assert [r.call_id for r in results] == open_calls
        for block in message.blocks:
            assert not block.HasField("text") or block.text.text.strip()
        for found in results:
            json.loads(found.content)
        called = [block.tool_use for block in message.blocks if block.HasField("tool_use")]
        open_calls = [use.call_id for use in called]
        assert seen.isdisjoint(open_calls)
        assert len(set(open_calls)) == len(open_calls)
        seen.update(open_calls)
        if message.role == "assistant":
            assert set(kinds) <= {"text", "tool_use", "thinking", "redacted_thinking"}
            assert kinds[-1] not in ("thinking", "redacted_thinking")
            assert all(isinstance(json.loads(use.input), dict) for use in called)
        else:
            assert set(kinds) <= {"text", "image", "document", "tool_result"}
    assert not open_calls, "calls without results"
