"""The whole table of a session's life: every status by every command, and what a Turn leaves behind."""

from __future__ import annotations

import itertools

import pytest

from turnd.rules.lifecycle import (
    Command,
    Refusal,
    Transition,
    can_resume,
    decide,
    is_ended,
    queue_waits,
    status_after_turn,
    status_name,
)
from turnd.v1 import common_pb2 as common

IDLE = common.SESSION_STATUS_IDLE
RUNNING = common.SESSION_STATUS_RUNNING
PAUSED = common.SESSION_STATUS_PAUSED
COMPLETED = common.SESSION_STATUS_COMPLETED
CANCELLED = common.SESSION_STATUS_CANCELLED
MAX_TURNS = common.SESSION_STATUS_ERROR_MAX_TURNS
MAX_BUDGET = common.SESSION_STATUS_ERROR_MAX_BUDGET_USD
MAX_WALL_CLOCK = common.SESSION_STATUS_ERROR_MAX_WALL_CLOCK
DOOM_LOOP = common.SESSION_STATUS_ERROR_DOOM_LOOP
FAILED = common.SESSION_STATUS_FAILED
STATUSES = [status for status in common.SessionStatus.values() if status]
ENDED = {COMPLETED, CANCELLED, MAX_TURNS, MAX_BUDGET, MAX_WALL_CLOCK, DOOM_LOOP, FAILED}

REOPENED = Transition(RUNNING, reopen=True)
BY_A_NEW_ALLOWANCE = {Command.CONTINUE: REOPENED}
LAWFUL = {
    IDLE: {
        Command.SEND_MESSAGE: Transition(RUNNING),
        Command.RESUME: Transition(RUNNING),
        Command.CLOSE: Transition(COMPLETED),
        Command.UPDATE: Transition(IDLE),
        Command.CLEAR_QUEUE: Transition(IDLE),
    },
    RUNNING: {
        Command.SEND_MESSAGE: Transition(RUNNING),
        Command.CLOSE: Transition(CANCELLED),
        Command.CANCEL: Transition(IDLE),
        Command.DECIDE: Transition(RUNNING),
        Command.ANSWER: Transition(RUNNING),
        Command.UPDATE: Transition(RUNNING),
        Command.CLEAR_QUEUE: Transition(RUNNING),
    },
    PAUSED: {
        Command.CONTINUE: Transition(RUNNING),
        Command.CLOSE: Transition(COMPLETED),
        Command.UPDATE: Transition(PAUSED),
        Command.CLEAR_QUEUE: Transition(PAUSED),
    },
    COMPLETED: {Command.SEND_MESSAGE: REOPENED, Command.RESUME: REOPENED},
    CANCELLED: {Command.SEND_MESSAGE: REOPENED, Command.RESUME: REOPENED},
    MAX_TURNS: BY_A_NEW_ALLOWANCE,
    MAX_BUDGET: BY_A_NEW_ALLOWANCE,
    MAX_WALL_CLOCK: BY_A_NEW_ALLOWANCE,
    DOOM_LOOP: BY_A_NEW_ALLOWANCE,
    FAILED: {},
}
CELLS = list(itertools.product(STATUSES, Command))


def cell_name(value: common.SessionStatus.ValueType | Command) -> str:
    return value.value if isinstance(value, Command) else status_name(value)


@pytest.mark.req("LOOP-14")
@pytest.mark.parametrize(("status", "command"), CELLS, ids=cell_name)
def test_each_cell_of_a_root_session(status: common.SessionStatus.ValueType, command: Command) -> None:
    found = decide(status, command, False)
    expected = LAWFUL[status].get(command)
    if expected is None:
        assert isinstance(found, Refusal)
        assert found.text.startswith("a session must be ")
        assert f"this one is {status_name(status)}" in found.text
    else:
        assert found == expected


@pytest.mark.req("LOOP-14")
@pytest.mark.parametrize(("status", "command"), CELLS, ids=cell_name)
def test_each_cell_of_a_sub_agent(status: common.SessionStatus.ValueType, command: Command) -> None:
    found = decide(status, command, True)
    if status in ENDED:
        assert isinstance(found, Refusal)
        assert "has ended and takes no command" in found.text
    elif command is Command.UPDATE:
        assert isinstance(found, Refusal)
    else:
        assert found == decide(status, command, False)


@pytest.mark.req("LOOP-14")
def test_a_refusal_says_what_to_do() -> None:
    refusal = decide(PAUSED, Command.SEND_MESSAGE, False)
    assert refusal == Refusal(
        "a session must be cancelled, completed, idle or running to take a message; this one is paused: "
        "continue it with a new allowance, or close it"
    )


@pytest.mark.req("LOOP-14")
@pytest.mark.parametrize("status", STATUSES, ids=status_name)
def test_ended_are_those_whose_log_takes_nothing_more(status: common.SessionStatus.ValueType) -> None:
    assert is_ended(status) == (status in ENDED)


REASONS = {
    common.TURN_END_REASON_COMPLETED: COMPLETED,
    common.TURN_END_REASON_ABORTED: CANCELLED,
    common.TURN_END_REASON_INTERRUPTED: CANCELLED,
    common.TURN_END_REASON_BLOCKED: FAILED,
    common.TURN_END_REASON_ERROR: FAILED,
    common.TURN_END_REASON_MAX_TOKENS: FAILED,
}
LIMITS = {
    common.LIMIT_DIMENSION_DOOM_LOOP: DOOM_LOOP,
    common.LIMIT_DIMENSION_MAX_TURNS: MAX_TURNS,
    common.LIMIT_DIMENSION_MAX_COST_USD: MAX_BUDGET,
    common.LIMIT_DIMENSION_MAX_WALL_CLOCK_S: MAX_WALL_CLOCK,
}
HARD = common.LIMIT_MODE_HARD
SOFT = common.LIMIT_MODE_SOFT


@pytest.mark.req("LOOP-14", "LOG-07")
@pytest.mark.parametrize("reason", REASONS)
def test_a_turn_without_a_bound_leaves_a_root_idle_and_ends_a_sub_agent(
    reason: common.TurnEndReason.ValueType,
) -> None:
    for mode in (HARD, SOFT):
        assert status_after_turn(reason, None, mode, False) == IDLE
        assert status_after_turn(reason, None, mode, True) == REASONS[reason]


@pytest.mark.req("LOOP-14")
@pytest.mark.parametrize(("reason", "limit"), list(itertools.product(REASONS, LIMITS)))
def test_the_status_of_a_bound_stands_however_the_turn_ended(
    reason: common.TurnEndReason.ValueType, limit: common.LimitDimension.ValueType
) -> None:
    assert status_after_turn(reason, limit, HARD, False) == LIMITS[limit]
    assert status_after_turn(reason, limit, SOFT, False) == PAUSED
    assert status_after_turn(reason, limit, HARD, True) == LIMITS[limit]
    assert status_after_turn(reason, limit, SOFT, True) == LIMITS[limit]


@pytest.mark.req("LOOP-10", "LOOP-11")
def test_what_can_be_resumed_and_when_the_queue_waits() -> None:
    resumable = {reason for reason in REASONS if can_resume(reason)}
    waiting = {reason for reason in REASONS if queue_waits(reason)}
    assert resumable == {
        common.TURN_END_REASON_INTERRUPTED,
        common.TURN_END_REASON_ABORTED,
        common.TURN_END_REASON_ERROR,
        common.TURN_END_REASON_MAX_TOKENS,
    }
    assert waiting == {
        common.TURN_END_REASON_INTERRUPTED,
        common.TURN_END_REASON_ERROR,
        common.TURN_END_REASON_BLOCKED,
    }
    assert not can_resume(common.TURN_END_REASON_UNSPECIFIED)
