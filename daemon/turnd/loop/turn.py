"""One Turn: a user request and its whole resolution, Step by Step."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from turnd.loop.breakers import Tripped
from turnd.loop.compact import leave_out_results, make_room
from turnd.loop.outcome import Ending, Limited, NextStep, StepOutcome, failed
from turnd.loop.run import LimitFired, Run, StepFailed
from turnd.loop.step import run_final_step, run_step
from turnd.rules.bounds import instruction
from turnd.rules.state import Violation
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2, sessions_pb2

Prepare = Callable[[Run], Awaitable[None]]
"""Makes model and tools ready and fires session-start; raises StepFailed where the Turn cannot have a Step."""


async def resolve_turn(
    run: Run, message: sessions_pb2.QueuedMessage | None, prepare: Prepare
) -> Ending | None:
    """Opens a Turn with a queued message and works until it is done, stopped or at a limit; None where there was
    nothing to open any more.

    Without a message a command has opened it. Leaves the Turn open: `settle.close_turn` ends it, whatever this returns
    or raises, cancelled or not.
    """
    if message is not None and not await _is_opened(run, message):
        return None
    run.doom = run.doom.restarted()
    return await _resolve(run, prepare)


async def _is_opened(run: Run, message: sessions_pb2.QueuedMessage) -> bool:
    """Opens the Turn, unless a command was faster: where it opened one, that is worked on and the message waits; where
    it took the message out, nothing is open.
    """
    try:
        await _open_turn(run, message)
    except Violation:
        waits = any(queued.message_id == message.message_id for queued in run.view.queue)
        if run.state.open_turn is None and waits:
            raise
    return run.state.open_turn is not None


async def _open_turn(run: Run, message: sessions_pb2.QueuedMessage) -> None:
    await run.append(
        event_pb2.InboxTaken(message_ids=[message.message_id]),
        event_pb2.TurnStart(turn=run.state.next_turn),
        event_pb2.UserMessage(
            message_id=message.message_id,
            blocks=message.blocks,
            client=message.client,
            plan_mode=message.message_id in run.view.queued_plan_mode,
        ),
    )


async def _resolve(run: Run, prepare: Prepare) -> Ending:
    """Steps until the Turn is done, stopped, or at a limit. Limits are looked at before each of them (BOUND-01)."""
    try:
        await prepare(run)
    except StepFailed as failure:
        return failed(failure.stop)
    outcome: StepOutcome = NextStep()
    while True:
        match outcome:
            case NextStep():
                if reached := run.limits_reached():
                    outcome = Limited(reached)
                    continue
                await _take_steering(run)
                outcome = await _make_room_and_step(run)
            case Limited(reached):
                return await _at_limit(run, reached)
            case Tripped():
                return await _at_breaker(run, outcome)
            case Ending():
                return outcome


async def _make_room_and_step(run: Run) -> StepOutcome:
    """A Step whose request fits, where that can be had (MODEL-08)."""
    try:
        await make_room(run)
    except StepFailed as failure:
        return failed(failure.stop)
    except LimitFired as fired:
        return Limited(fired.reached)
    return await run_step(run)


async def _final_step(run: Run) -> Ending:
    await leave_out_results(run)
    return await run_final_step(run)


async def _take_steering(run: Run) -> None:
    """Messages for the next Step enter the Turn at this boundary (LOOP-10)."""
    if run.state.next_step == 1:
        return
    waiting = [m for m in run.view.queue if m.delivery == common.DELIVERY_NEXT_STEP]
    for message in waiting:
        await run.append(
            event_pb2.InboxTaken(message_ids=[message.message_id]),
            event_pb2.UserMessage(
                message_id=message.message_id, blocks=message.blocks, steering=True, client=message.client
            ),
        )
    if waiting:
        run.doom = run.doom.restarted()


async def _at_limit(run: Run, reached: tuple[common.LimitHit, ...]) -> Ending:
    """One more Step without tools, then the status that names the bound; in soft mode a pause (BOUND-02, BOUND-04)."""
    await run.append(event_pb2.LimitReached(hits=reached))
    if run.view.limit_mode == common.LIMIT_MODE_SOFT:
        return Ending(common.TURN_END_REASON_INTERRUPTED, limit=reached[0])
    await _instruct(run, instruction(reached))
    last = await _final_step(run)
    return Ending(last.reason, limit=reached[0], error=last.error)


async def _at_breaker(run: Run, tripped: Tripped) -> Ending:
    """The final Step, and the Turn ends `blocked` (GATE-12)."""
    await _instruct(
        run,
        f"The turn is stopped: {tripped.why}. No tools can be used any more. "
        "Say what was done, what is missing, and what the user can do about it.",
    )
    await _final_step(run)
    return failed(event_pb2.ErrorStop(source=tripped.source, category="breaker", message=tripped.why))


async def _instruct(run: Run, text: str) -> None:
    block = common.ContentBlock(text=common.TextBlock(text=text))
    await run.append(event_pb2.UserMessage(blocks=[block]), synthetic=True)
