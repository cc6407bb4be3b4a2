"""How Steps, Turns and sessions are closed in the log, whatever ended them (LOOP-15).

What is written is decided by `rules.closing`, which crash repair uses as well; this module writes it, with the
times that were measured and the session-end hook in its place.
"""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import Message as Payload

from turnd.loop.outcome import Ending
from turnd.loop.run import Run
from turnd.ports import AnsweredRequest, At, Children, LogFailed, World
from turnd.rules.closing import Closing, cancelled, close_step, end_turn
from turnd.rules.event import Draft
from turnd.rules.state import Violation
from turnd.rules.status import SessionView
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2
from turnd.v1.jsonform import enum_text


async def close_open_step(run: Run, how: Closing | None = None) -> None:
    """Ends the open Step with all that it owns; nothing where none is open."""
    await run.children.settle(run.session)
    settled = close_step(
        run.state,
        how=how or cancelled("the step ended"),
        active_ms=run.meter.active_ms,
        waited_ms=run.meter.waited_ms,
    )
    if settled:
        run.new_meter()
        await run.append(*settled)


async def close_turn(run: Run, ending: Ending) -> None:
    """Ends the open Turn: what it owns, why it stops, then turn/end with the session's status in one transaction.

    Where a cancel was first its cause stands (LOOP-07). Nothing where no Turn is open. Raises LogFailed.
    """
    if run.state.open_turn is None:
        return
    if run.state.stopping is None:
        await close_open_step(run)
        await _say_why(run, ending)
    stopping = run.state.stopping
    assert stopping is not None, "either this or a cancel has said why the Turn stops"
    await close_open_step(run, _cancelled_by(stopping))
    await _end_turn(run.world, run.session)


async def _say_why(run: Run, ending: Ending) -> None:
    stopping = event_pb2.TurnStopping(reason=ending.reason, limit=ending.limit, error=ending.error)
    try:
        await run.append(stopping)
    except Violation:
        if run.state.stopping is None:
            raise


async def stop_for_cancel(
    world: World,
    session: str,
    cause: common.CancelCause.ValueType,
    client: str,
    before: Sequence[Draft] = (),
    answered: AnsweredRequest | None = None,
) -> bool:
    """Writes why the open Turn stops. False where it is stopping already: the first cause stands.

    What comes before it, and the command that it answers, are in the same transaction, and stored in any case.
    """
    by_someone = cause in (common.CANCEL_CAUSE_USER, common.CANCEL_CAUSE_PARENT)
    reason = common.TURN_END_REASON_ABORTED if by_someone else common.TURN_END_REASON_INTERRUPTED
    stopping = event_pb2.TurnStopping(reason=reason, cancel=event_pb2.CancelStop(cause=cause, client=client))
    try:
        await world.log.append(*before, Draft(session, stopping), answered=answered)
    except Violation:
        await world.log.append(*before, answered=answered)
        return False
    return True


async def settle_failed_turn(world: World, children: Children, session: str, failure: LogFailed) -> None:
    """Ends a Turn that the log cut short, now that it takes events again (LOG-14)."""
    state = world.log.state(session)
    if state.open_turn is None:
        return
    if state.stopping is None:
        stop = event_pb2.ErrorStop(source="log", category="commit_failed", message=str(failure))
        stopping = event_pb2.TurnStopping(reason=common.TURN_END_REASON_ERROR, error=stop)
        await world.log.append(Draft(session, stopping))
    await _settle(world, children, session, cancelled("the log could not be written"))


async def settle_stopped_turn(world: World, children: Children, session: str) -> None:
    """Ends a Turn that is stopping and that nobody works on any more."""
    stopping = world.log.state(session).stopping
    assert stopping is not None, "the Turn was told to stop"
    await _settle(world, children, session, _cancelled_by(stopping))


async def _settle(world: World, children: Children, session: str, how: Closing) -> None:
    await children.settle(session)
    settled = close_step(world.log.state(session), how=how)
    if settled:
        await world.log.append(*_drafts(session, settled))
    await _end_turn(world, session)


async def end_session(
    world: World,
    session: str,
    status: common.SessionStatus.ValueType,
    client: str = "",
    answered: AnsweredRequest | None = None,
) -> None:
    """Ends a session between Turns, after its session-end hook (LOOP-06); what is queued is cleared with it."""
    await _fire_session_end(world, session, status)
    queued = [message.message_id for message in world.log.view(session).queue]
    cleared = [event_pb2.InboxCleared(message_ids=queued, client=client)] if queued else []
    await world.log.append(
        *_drafts(session, cleared),
        Draft(session, event_pb2.SessionStatusChanged(status=status)),
        Draft(session, event_pb2.SessionEnded(status=status)),
        answered=answered,
    )


def session_payload(view: SessionView) -> dict[str, object]:
    """What the hooks `session-start` and `session-end` are told."""
    return {
        "session": view.id,
        "profile": view.profile.name,
        "parent": view.parent or None,
        "directory": view.cwd,
    }


async def _end_turn(world: World, session: str) -> None:
    state = world.log.state(session)
    assert state.stopping is not None, "turn/stopping comes before turn/end"
    payloads = end_turn(state, state.stopping.reason)
    for payload in payloads:
        if isinstance(payload, event_pb2.SessionEnded):
            await _fire_session_end(world, session, payload.status)
    await world.log.append(*_drafts(session, payloads))


async def _fire_session_end(world: World, session: str, status: common.SessionStatus.ValueType) -> None:
    view = world.log.view(session)
    at = At(session, world.log.state(session).open_turn)
    dispatched = await world.hooks.dispatch(
        common.HOOK_POINT_SESSION_END,
        at,
        lambda: session_payload(view) | {"status": enum_text(common.SessionStatus, status)},
    )
    if dispatched.errors:
        await world.log.append(*_drafts(session, dispatched.errors))


def _cancelled_by(stopping: event_pb2.TurnStopping) -> Closing:
    cause = enum_text(common.CancelCause, stopping.cancel.cause)
    return cancelled(f"the turn was cancelled ({cause})", stopping.cancel.client)


def _drafts(session: str, payloads: Sequence[Payload]) -> list[Draft]:
    return [Draft(session, payload) for payload in payloads]
