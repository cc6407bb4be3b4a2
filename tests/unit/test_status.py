"""The view of a session is carried forward event by event, and says what the log says."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.session_log import (
    SESSION,
    START_US,
    SessionLog,
    answered,
    asks,
    decided,
    questions,
    result,
    says,
    text,
    user,
)

from turnd.rules.closing import repair
from turnd.rules.status import SessionView, advance, to_session
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2, sessions_pb2

RESOURCE = common.TOOL_KIND_RESOURCE


def created(**fields: Any) -> SessionLog:
    return SessionLog(event_pb2.SessionCreated(**fields))


def status(log: SessionLog) -> str:
    return common.SessionStatus.Name(log.view.status).removeprefix("SESSION_STATUS_")


@pytest.mark.req("LOG-13")
def test_a_new_session_is_idle_and_knows_what_it_was_created_with() -> None:
    profile = common.ProfileSnapshot(name="default", model="replay:x", bounds=common.Bounds(max_turns=3))
    view = created(
        cwd="/w",
        workspace="/w/sub",
        title="t",
        profile=profile,
        parent="p",
        depth=1,
        environment={"PATH": "/bin"},
        unattended=True,
        plan_mode=True,
        sandbox="bubblewrap",
        unenforced=["x"],
    ).view
    assert view.id == SESSION
    assert view.status == common.SESSION_STATUS_IDLE
    assert (view.cwd, view.workspace, view.title, view.parent, view.depth) == ("/w", "/w/sub", "t", "p", 1)
    assert view.profile == profile
    assert view.bounds.max_turns == 3
    assert dict(view.environment) == {"PATH": "/bin"}
    assert (view.unattended, view.plan_mode, view.sandbox, view.unenforced) == (
        True,
        True,
        "bubblewrap",
        ("x",),
    )
    assert view.created_us == START_US + 1
    assert created(cwd="/w").view.workspace == "/w"


@pytest.mark.req("LOG-13", "LOOP-14")
def test_the_status_follows_the_log() -> None:
    log = SessionLog()
    assert status(log) == "IDLE"
    assert status(log.turn()) == "RUNNING"
    assert status(log.answer("a").end_turn()) == "IDLE"
    log.add(event_pb2.SessionStatusChanged(status=common.SESSION_STATUS_PAUSED))
    assert status(log) == "PAUSED"
    log.add(event_pb2.SessionEnded(status=common.SESSION_STATUS_COMPLETED))
    assert status(log) == "COMPLETED"
    assert status(log.add(event_pb2.SessionReopened())) == "IDLE"
    assert status(log.turn()) == "RUNNING"


@pytest.mark.req("LOG-13", "LOOP-09")
def test_turns_steps_tokens_cost_and_times_are_summed() -> None:
    log = SessionLog()
    tokens = common.TokenCounts(
        input_tokens=1, output_tokens=2, cache_read_tokens=3, cache_write_tokens=4, reasoning_tokens=5
    )
    for _ in range(2):
        log.turn()
        for _ in range(3):
            log.step().add(
                event_pb2.Usage(purpose=common.REQUEST_PURPOSE_STEP, tokens=tokens, cost_nano_usd=7),
                event_pb2.Usage(purpose=common.REQUEST_PURPOSE_TITLE, tokens=tokens, cost_nano_usd=1),
            )
            counted = log.state.step_tokens.counts()
            assert counted == tokens
            log.add(
                event_pb2.StepEnd(
                    turn=log.view.turns - 1, step=log.view.steps_of_turn, active_ms=5, waited_ms=9
                )
            )
        log.end_turn()
    view = log.view
    assert (view.turns, view.steps, view.steps_of_turn, view.begun) == (2, 6, 3, True)
    assert (view.cost_nano_usd, view.active_ms) == (48, 30)
    assert view.tokens.counts() == common.TokenCounts(
        input_tokens=12, output_tokens=24, cache_read_tokens=36, cache_write_tokens=48, reasoning_tokens=60
    )
    log.add(event_pb2.SessionEnded(), event_pb2.SessionReopened()).turn().step()
    assert (log.view.steps, log.view.steps_of_turn, log.view.begun) == (7, 1, True)


@pytest.mark.req("LOG-13")
def test_requests_are_counted_by_purpose_with_their_retries() -> None:
    log = SessionLog().turn().step()
    log.add(event_pb2.AgentRequest(purpose=common.REQUEST_PURPOSE_STEP))
    log.add(event_pb2.AgentRequest(purpose=common.REQUEST_PURPOSE_TITLE))
    log.add(event_pb2.AgentRetry(), event_pb2.AgentRetry())
    log.add(event_pb2.AgentRequest(purpose=common.REQUEST_PURPOSE_COMPACTION), event_pb2.AgentRetry())
    assert dict(log.view.requests_made) == {
        common.REQUEST_PURPOSE_STEP: 3,
        common.REQUEST_PURPOSE_TITLE: 1,
        common.REQUEST_PURPOSE_COMPACTION: 2,
    }
    assert log.view.retries == 3


@pytest.mark.req("LOOP-10")
def test_the_queue_keeps_its_order_and_what_was_asked_for() -> None:
    log = SessionLog()
    for number in range(4):
        log.add(
            event_pb2.InboxQueued(
                message_id=f"m{number}",
                blocks=[text(str(number))],
                delivery=common.DELIVERY_NEXT_STEP,
                client="cli",
                plan_mode=number > 1,
            )
        )
    log.add(event_pb2.InboxTaken(message_ids=["m1"]), event_pb2.InboxCleared(message_ids=["m3", "m9"]))
    assert [m.message_id for m in log.view.queue] == ["m0", "m2"]
    assert log.view.queue[0] == sessions_pb2.QueuedMessage(
        message_id="m0", blocks=[text("0")], delivery=common.DELIVERY_NEXT_STEP, client="cli"
    )
    assert log.view.queued_plan_mode == {"m2"}


@pytest.mark.req("GATE-11")
def test_plan_mode_of_a_message_ends_with_its_turn() -> None:
    log = SessionLog().add(event_pb2.TurnStart(turn=0), user("a", plan_mode=True))
    log.answer("b").add(user("c", steering=True))
    assert log.view.planning
    log.end_turn()
    assert not log.view.planning
    log.add(event_pb2.SessionChanged(plan_mode=True)).turn()
    assert log.view.planning
    log.end_turn().add(event_pb2.SessionChanged(title="x"))
    assert log.view.planning


@pytest.mark.req("GATE-07")
def test_open_requests_are_shown_whole_until_they_are_settled() -> None:
    log = SessionLog().turn().step().calls("c1", "c2", kind=RESOURCE)
    log.add(asks("r1", "c1"), questions("q1", "c2"))
    asked = log.view.open_requests["r1"]
    assert asked.approval == asks("r1", "c1")
    assert asked.session == SESSION
    assert not asked.path
    assert asked.asked == log.events[-2].time
    assert log.view.open_requests["q1"].interactive == questions("q1", "c2")
    log.add(decided("r1"), answered("q1"))
    assert not log.view.open_requests


@pytest.mark.req("GATE-07")
def test_a_root_shows_the_requests_of_its_descendants() -> None:
    log = SessionLog().turn().step()
    for request_id, request in (
        ("r1", {"approval": asks("r1", "x")}),
        ("q1", {"interactive": questions("q1", "y")}),
    ):
        log.add(
            event_pb2.ChildAttention(
                state=event_pb2.ATTENTION_STATE_OPEN, path=["k1", "k2"], request_id=request_id, **request
            )
        )
    shown = log.view.open_requests["r1"]
    assert (shown.session, list(shown.path)) == ("k2", ["k1", "k2"])
    assert shown.approval == asks("r1", "x")
    assert log.view.open_requests["q1"].interactive == questions("q1", "y")
    log.add(event_pb2.ChildAttention(state=event_pb2.ATTENTION_STATE_SETTLED, request_id="r1"))
    assert set(log.view.open_requests) == {"q1"}
    log.add_drafts(repair(log.state, SESSION, START_US))
    assert not log.view.open_requests


@pytest.mark.req("GATE-09")
def test_a_decision_for_the_session_is_remembered_until_it_ends() -> None:
    rule = common.GrantRule(provider="workspace", tool="write_file")
    log = SessionLog().turn().step().calls("c1", "c2", "c3", "c4", kind=RESOURCE)
    for number, (outcome, scope) in enumerate(
        [
            (common.APPROVAL_OUTCOME_APPROVED, common.APPROVAL_SCOPE_SESSION),
            (common.APPROVAL_OUTCOME_APPROVED, common.APPROVAL_SCOPE_ONCE),
            (common.APPROVAL_OUTCOME_DENIED, common.APPROVAL_SCOPE_SESSION),
            (common.APPROVAL_OUTCOME_APPROVED, common.APPROVAL_SCOPE_ALWAYS),
        ],
        start=1,
    ):
        decision = decided(f"r{number}", outcome, scope)
        decision.grant.CopyFrom(rule)
        log.add(asks(f"r{number}", f"c{number}"), decision)
    assert log.view.grants == (rule,)
    log.add(*(result(f"c{number}") for number in range(1, 5))).end_step().end_turn()
    assert log.view.grants == (rule,)
    assert log.add(event_pb2.SessionEnded()).view.grants == ()


@pytest.mark.req("LOOP-14")
def test_an_allowance_replaces_what_it_names_and_nothing_else() -> None:
    bounds = common.Bounds(max_turns=1, max_cost_nano_usd=5, limit_mode=common.LIMIT_MODE_SOFT)
    log = created(profile=common.ProfileSnapshot(bounds=bounds))
    assert log.view.limit_mode == common.LIMIT_MODE_SOFT
    log.add(event_pb2.SessionChanged(allowance=common.Bounds(max_turns=9, max_wall_clock_ms=0)))
    assert log.view.bounds == common.Bounds(
        max_turns=9, max_cost_nano_usd=5, max_wall_clock_ms=0, limit_mode=common.LIMIT_MODE_SOFT
    )
    assert log.state.soft_limits
    other = common.ProfileSnapshot(name="other", bounds=common.Bounds(max_turns=2))
    log.add(event_pb2.SessionChanged(profile=other))
    assert log.view.profile == other
    assert log.view.bounds == other.bounds
    assert log.view.limit_mode == common.LIMIT_MODE_HARD
    assert not log.state.soft_limits
    assert bounds.max_turns == 1


@pytest.mark.req("LOOP-14")
@pytest.mark.parametrize("alone", [{"unattended": True}, {"parent": "p"}])
def test_nobody_pauses_where_nobody_is_there(alone: dict[str, Any]) -> None:
    soft = common.ProfileSnapshot(bounds=common.Bounds(limit_mode=common.LIMIT_MODE_SOFT))
    log = created(profile=soft, **alone)
    assert log.view.limit_mode == common.LIMIT_MODE_HARD
    assert not log.state.soft_limits


@pytest.mark.req("LOOP-07", "LOG-07")
def test_how_the_last_turn_ended_and_who_cancelled_it() -> None:
    log = SessionLog().turn()
    cancel = event_pb2.CancelStop(cause=common.CANCEL_CAUSE_USER, client="cli")
    log.add(event_pb2.TurnStopping(reason=common.TURN_END_REASON_ABORTED, cancel=cancel))
    log.end_turn(common.TURN_END_REASON_ABORTED)
    assert log.view.last_reason == common.TURN_END_REASON_ABORTED
    assert log.view.last_cause == common.CANCEL_CAUSE_USER
    log.turn().answer("a").end_turn()
    assert log.view.last_reason == common.TURN_END_REASON_COMPLETED
    assert log.view.last_cause == common.CANCEL_CAUSE_UNSPECIFIED


@pytest.mark.req("LOG-13")
def test_the_final_text_is_that_of_the_last_message() -> None:
    log = SessionLog().turn().answer("first").step().add(says(text("sec"), text("ond"))).end_step()
    assert log.view.final_text == "second"


@pytest.mark.req("LOG-13")
def test_the_environment_can_be_replaced() -> None:
    log = created(environment={"A": "1", "B": "2"})
    change = event_pb2.EnvironmentChange(environment={"B": "3"})
    assert dict(log.add(event_pb2.SessionChanged(environment=change)).view.environment) == {"B": "3"}


@pytest.mark.req("LOG-13")
def test_clients_are_shown_what_the_view_holds() -> None:
    log = created(cwd="/w", title="t", profile=common.ProfileSnapshot(name="p", model="m"))
    log.add(event_pb2.InboxQueued(message_id="m1"))
    log.turn().step().calls("c1", "c2", kind=RESOURCE).add(asks("r2", "c1"), asks("r1", "c2"))
    log.add(event_pb2.Usage(cost_nano_usd=5, tokens=common.TokenCounts(output_tokens=3)))
    session = to_session(log.view, descendants_cost_nano_usd=10)
    assert (session.id, session.title, session.cwd, session.profile, session.model) == (
        SESSION,
        "t",
        "/w",
        "p",
        "m",
    )
    assert session.status == common.SESSION_STATUS_RUNNING
    assert (session.turns, session.steps, session.cost_nano_usd) == (1, 1, 15)
    assert session.last_seq == len(log.events)
    assert session.created.ToMicroseconds() == START_US + 1
    assert [request.approval.request_id for request in session.open_requests] == ["r2", "r1"]
    assert [message.message_id for message in session.queued] == ["m1"]
    assert session.tokens.output_tokens == 3


@pytest.mark.req("LOG-13")
def test_the_same_log_gives_the_same_view() -> None:
    log = SessionLog().turn().step().calls("c1", kind=RESOURCE).add(asks("r1", "c1"))
    view = SessionView()
    for event in log.events:
        view = advance(view, event_pb2.Event.FromString(event.SerializeToString()))
    assert view == log.view
