"""What every vendor asks of a history: roles alternate, a user opens, each call has its result in the next message.

The history that the loop projects is so by itself (MODEL-06); what a transform made of it is looked at (HOOK-04).
"""

from __future__ import annotations

from collections.abc import Sequence

from turnd.rules.history import ASSISTANT, USER, HistoryMessage


def fault(messages: Sequence[HistoryMessage]) -> str:
    """What is wrong first, in words; empty where a vendor takes it."""
    if not messages:
        return "there is no message"
    seen: set[str] = set()
    for number, message in enumerate(messages, 1):
        wrong = _fault(message, number, seen)
        if wrong:
            return f"message {number} {wrong}"
        before = messages[number - 2] if number > 1 else None
        expected = _calls(before) if before is not None else []
        answered = [block.tool_result.call_id for block in message.blocks if block.HasField("tool_result")]
        if answered != expected:
            return f"message {number} has results for {_listed(answered)}, expected {_listed(expected)}"
    return "" if messages[-1].role == USER else "the last message is the model's own"


def _fault(message: HistoryMessage, number: int, seen: set[str]) -> str:
    role = USER if number % 2 else ASSISTANT
    if message.role != role:
        return f"is of role {message.role!r}, expected {role}"
    if not message.blocks:
        return "is empty"
    for call in _calls(message):
        if role == USER:
            return "of the user has a call"
        if not call or call in seen:
            return f"has a call with the id {call!r}, which is empty or used before"
        seen.add(call)
    return ""


def _calls(message: HistoryMessage) -> list[str]:
    return [block.tool_use.call_id for block in message.blocks if block.HasField("tool_use")]


def _listed(call_ids: Sequence[str]) -> str:
    return ", ".join(call_ids) or "no calls"
