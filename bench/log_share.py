"""The part of a Step that is the log's: its events appended as the loop does it, and taken by the history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter

from google.protobuf.message import Message

from bench.world import ANSWER
from turnd.rules import canon, estimate
from turnd.rules.event import Draft
from turnd.rules.history import History
from turnd.store.log import EventLog
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

Appends = Sequence[Sequence[Message]]
"""What is appended together, in order."""


async def read_history(log: EventLog, session: str) -> History:
    """The history of a session as it is stored."""
    history = History()
    async for page in log.read(session):
        for event in page:
            history.advance(event)
    return history


async def step_times(log: EventLog, session: str, history: History, steps: int) -> list[float]:
    """Seconds for each of so many Steps, in a Turn of their own."""
    state = log.state(session)
    turn = state.next_turn
    await _append(log, session, history, [[event_pb2.TurnStart(turn=turn)]])
    times = []
    for number in range(1, steps + 1):
        begin = perf_counter()
        await _append(log, session, history, _events_of_step(turn, number))
        times.append(perf_counter() - begin)
    reason = common.TURN_END_REASON_COMPLETED
    ending = [event_pb2.TurnStopping(reason=reason), event_pb2.TurnEnd(turn=turn, reason=reason)]
    await _append(log, session, history, [ending])
    return times


def request_time(history: History) -> float:
    """Seconds for a request made of the whole history: its messages, the estimate of its size, its digest."""
    begin = perf_counter()
    messages = history.messages()
    estimate.request_tokens("", (message.tokens for message in messages), ())
    canon.request_digest(
        "m", "", (message.digest for message in messages), (), tools_withheld=False, parameters=b""
    )
    return perf_counter() - begin


async def _append(log: EventLog, session: str, history: History, appends: Appends) -> None:
    for payloads in appends:
        for event in await log.append(*(Draft(session, payload) for payload in payloads)):
            history.advance(event)


def _events_of_step(turn: int, step: int) -> Appends:
    text = "It is like the others. " * 5
    read, changed = f"c_{turn}_{step}_read", f"c_{turn}_{step}_changed"
    allowed = common.PlanItem(call_id=changed, decision=common.POLICY_ACTION_ALLOW)
    applied = common.AppliedItem(call_id=changed, outcome=common.ITEM_OUTCOME_APPLIED)
    usage = event_pb2.Usage(attempt=1, tokens=common.TokenCounts(input_tokens=1000, output_tokens=100))
    return [
        [event_pb2.StepStart(turn=turn, step=step)],
        [event_pb2.AgentRequest(purpose=common.REQUEST_PURPOSE_STEP, model="m")],
        [event_pb2.AssistantChunk(attempt=1, deltas=[event_pb2.Delta(text=text)])],
        [usage],
        list(_message_and_calls(text, read, changed)),
        [event_pb2.ToolStarted(call_id=read, attempt=1, input=b"{}")],
        [event_pb2.ToolResult(call_id=read, content=ANSWER)],
        [event_pb2.PlanReady(items=[allowed])],
        [event_pb2.ToolStarted(call_id=changed, attempt=1, input=b"{}")],
        [event_pb2.ToolResult(call_id=changed, content=ANSWER)],
        [event_pb2.PlanApplied(items=[applied])],
        [event_pb2.StepEnd(turn=turn, step=step)],
    ]


def _message_and_calls(text: str, read: str, changed: str) -> Iterator[Message]:
    calls = [
        event_pb2.ToolCall(call_id=read, provider="bench", tool="look", input=b"{}", index=0),
        event_pb2.ToolCall(call_id=changed, provider="bench", tool="change", input=b"{}", index=1),
    ]
    calls[0].kind, calls[1].kind = common.TOOL_KIND_DATA_SOURCE, common.TOOL_KIND_RESOURCE
    uses = [common.ToolUseBlock(call_id=call.call_id, provider="bench", input=b"{}") for call in calls]
    said = [common.ContentBlock(text=common.TextBlock(text=text))]
    yield event_pb2.AssistantMessage(blocks=said + [common.ContentBlock(tool_use=use) for use in uses])
    yield from calls
