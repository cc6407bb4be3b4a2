"""The life of a session: what each command does in each status, and what a Turn leaves behind (LOOP-14)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from turnd.v1 import common_pb2 as common

Status: TypeAlias = common.SessionStatus.ValueType


class Command(Enum):
    """What a client can ask of a session that depends on its status. The value is the name of its rpc."""

    SEND_MESSAGE = "SendMessage"
    RESUME = "Resume"
    CONTINUE = "Continue"
    CLOSE = "CloseSession"
    CANCEL = "Cancel"
    DECIDE = "Decide"
    ANSWER = "Answer"
    UPDATE = "UpdateSession"
    CLEAR_QUEUE = "ClearQueue"


@dataclass(frozen=True, slots=True)
class Transition:
    """The command is lawful; `next_status` is where it leads once it is done."""

    next_status: Status
    reopen: bool = False
    """The session had ended: session/reopened comes first, and a new opening begins (LOOP-06)."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The command is FAILED_PRECONDITION; the text says what is the case and what to do."""

    text: str


def decide(status: Status, command: Command, is_child: bool) -> Transition | Refusal:
    """What `command` does to a session in `status`.

    A paused session that is closed had nothing left to cancel: it is `completed`, as an idle one.
    """
    if is_child and is_ended(status):
        return Refusal("the sub-agent's session has ended and takes no command")
    if is_child and command is Command.UPDATE:
        return Refusal("a sub-agent works under what its parent gave it, which nobody changes (SUB-02)")
    found = _TABLE.get((status, command))
    return Refusal(_refusal(status, command)) if found is None else found


def status_after_turn(
    reason: common.TurnEndReason.ValueType,
    limit: common.LimitDimension.ValueType | None,
    limit_mode: common.LimitMode.ValueType,
    is_child: bool,
) -> Status:
    """The status that goes with a Turn's end.

    `limit` is the bound that fired in the Turn, if one did: its status stands however the Turn ended.
    `limit_mode` is the effective one (always hard for sub-agents and unattended sessions). Where the answer
    `is_ended`, session/ended goes with it.
    """
    if limit in _STATUS_OF_LIMIT:
        soft = limit_mode == common.LIMIT_MODE_SOFT and not is_child
        return common.SESSION_STATUS_PAUSED if soft else _STATUS_OF_LIMIT[limit]
    if is_child:
        return _CHILD_STATUS_OF_REASON.get(reason, common.SESSION_STATUS_FAILED)
    return common.SESSION_STATUS_IDLE


def is_ended(status: Status) -> bool:
    """The session is over; its log takes nothing but session/reopened."""
    return status not in (
        common.SESSION_STATUS_UNSPECIFIED,
        common.SESSION_STATUS_IDLE,
        common.SESSION_STATUS_RUNNING,
        common.SESSION_STATUS_PAUSED,
    )


def can_resume(reason: common.TurnEndReason.ValueType) -> bool:
    """A session whose last Turn ended like this can be resumed (LOOP-11)."""
    return reason in (
        common.TURN_END_REASON_INTERRUPTED,
        common.TURN_END_REASON_ABORTED,
        common.TURN_END_REASON_ERROR,
        common.TURN_END_REASON_MAX_TOKENS,
    )


def queue_waits(reason: common.TurnEndReason.ValueType) -> bool:
    """After a Turn that ended like this, queued messages wait for a person (LOOP-10)."""
    return reason in (
        common.TURN_END_REASON_INTERRUPTED,
        common.TURN_END_REASON_ERROR,
        common.TURN_END_REASON_BLOCKED,
    )


def status_name(status: Status) -> str:
    """As documents and the JSON form write it: `error_max_turns`; the number of one that is not known."""
    if status not in common.SessionStatus.values():
        return str(status)
    return common.SessionStatus.Name(status).removeprefix("SESSION_STATUS_").lower()


_IDLE: Final = common.SESSION_STATUS_IDLE
_RUNNING: Final = common.SESSION_STATUS_RUNNING
_PAUSED: Final = common.SESSION_STATUS_PAUSED
_COMPLETED: Final = common.SESSION_STATUS_COMPLETED
_CANCELLED: Final = common.SESSION_STATUS_CANCELLED
_BOUND_ENDED: Final = (
    common.SESSION_STATUS_ERROR_MAX_TURNS,
    common.SESSION_STATUS_ERROR_MAX_BUDGET_USD,
    common.SESSION_STATUS_ERROR_MAX_WALL_CLOCK,
    common.SESSION_STATUS_ERROR_DOOM_LOOP,
)

_TABLE: Final[dict[tuple[Status, Command], Transition]] = {
    (_IDLE, Command.SEND_MESSAGE): Transition(_RUNNING),
    (_IDLE, Command.RESUME): Transition(_RUNNING),
    (_IDLE, Command.CLOSE): Transition(_COMPLETED),
    (_IDLE, Command.UPDATE): Transition(_IDLE),
    (_IDLE, Command.CLEAR_QUEUE): Transition(_IDLE),
    (_RUNNING, Command.SEND_MESSAGE): Transition(_RUNNING),
    (_RUNNING, Command.CLOSE): Transition(_CANCELLED),
    (_RUNNING, Command.CANCEL): Transition(_IDLE),
    (_RUNNING, Command.DECIDE): Transition(_RUNNING),
    (_RUNNING, Command.ANSWER): Transition(_RUNNING),
    (_RUNNING, Command.UPDATE): Transition(_RUNNING),
    (_RUNNING, Command.CLEAR_QUEUE): Transition(_RUNNING),
    (_PAUSED, Command.CONTINUE): Transition(_RUNNING),
    (_PAUSED, Command.CLOSE): Transition(_COMPLETED),
    (_PAUSED, Command.UPDATE): Transition(_PAUSED),
    (_PAUSED, Command.CLEAR_QUEUE): Transition(_PAUSED),
    (_COMPLETED, Command.SEND_MESSAGE): Transition(_RUNNING, reopen=True),
    (_COMPLETED, Command.RESUME): Transition(_RUNNING, reopen=True),
    (_CANCELLED, Command.SEND_MESSAGE): Transition(_RUNNING, reopen=True),
    (_CANCELLED, Command.RESUME): Transition(_RUNNING, reopen=True),
    **{(status, Command.CONTINUE): Transition(_RUNNING, reopen=True) for status in _BOUND_ENDED},
}

_STATUS_OF_LIMIT: Final[dict[common.LimitDimension.ValueType | None, Status]] = {
    common.LIMIT_DIMENSION_DOOM_LOOP: common.SESSION_STATUS_ERROR_DOOM_LOOP,
    common.LIMIT_DIMENSION_MAX_TURNS: common.SESSION_STATUS_ERROR_MAX_TURNS,
    common.LIMIT_DIMENSION_MAX_COST_USD: common.SESSION_STATUS_ERROR_MAX_BUDGET_USD,
    common.LIMIT_DIMENSION_MAX_WALL_CLOCK_S: common.SESSION_STATUS_ERROR_MAX_WALL_CLOCK,
}

_CHILD_STATUS_OF_REASON: Final[dict[common.TurnEndReason.ValueType, Status]] = {
    common.TURN_END_REASON_COMPLETED: common.SESSION_STATUS_COMPLETED,
    common.TURN_END_REASON_ABORTED: common.SESSION_STATUS_CANCELLED,
    common.TURN_END_REASON_INTERRUPTED: common.SESSION_STATUS_CANCELLED,
    common.TURN_END_REASON_BLOCKED: common.SESSION_STATUS_FAILED,
    common.TURN_END_REASON_ERROR: common.SESSION_STATUS_FAILED,
    common.TURN_END_REASON_MAX_TOKENS: common.SESSION_STATUS_FAILED,
}


_WISH: Final[dict[Command, str]] = {
    Command.SEND_MESSAGE: "take a message",
    Command.RESUME: "be resumed",
    Command.CONTINUE: "be continued",
    Command.CLOSE: "be closed",
    Command.CANCEL: "have its turn cancelled",
    Command.DECIDE: "have an approval decided",
    Command.ANSWER: "have a question answered",
    Command.UPDATE: "be changed",
    Command.CLEAR_QUEUE: "have its queue cleared",
}


def _refusal(status: Status, command: Command) -> str:
    lawful = sorted(status_name(s) for s, c in _TABLE if c is command)
    return (
        f"a session must be {_listed(lawful)} to {_WISH[command]}; this one is {status_name(status)}"
        f"{_ADVICE.get(status, '')}"
    )


_ADVICE: Final[dict[Status, str]] = {
    _RUNNING: ": wait for its Turn to end, or cancel it",
    _PAUSED: ": continue it with a new allowance, or close it",
    **dict.fromkeys(_BOUND_ENDED, ": continue it with a new allowance"),
    common.SESSION_STATUS_FAILED: ": it can only be read",
}


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
