"""Runs calls side by side as far as what their tools declare allows (SCHED-01 to SCHED-06).

Each call is a task of its own that waits for the earlier calls it conflicts with, then for a free place under the
ceiling, and then runs. It only ever waits for earlier calls and holds nothing while it waits, so no two calls can
wait for each other (SCHED-10, SCHED-11).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path

from turnd.loop.calls import Call, conclude, invocation
from turnd.loop.run import Run
from turnd.ports import ToolFailure, ToolOutcome, WaitsForItself
from turnd.rules import schedule
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

TRIES = 3
"""How often one call may be dispatched: once, and again after a conflict or a retryable error."""


Conditions = tuple[Sequence[asyncio.Event], Callable[[], AbstractAsyncContextManager[None]]]
"""The ends of the earlier calls that a call waits for, and its lock over all sessions."""


class Lane:
    """Where one call waits for the earlier ones it conflicts with, for a free place under the ceiling, and for what
    other sessions run.
    """

    def __init__(
        self, places: asyncio.Semaphore, conditions: Conditions, anew: Callable[[], Conditions]
    ) -> None:
        self._places = places
        self._earlier, self._lock = conditions
        self._anew = anew
        self.ended = asyncio.Event()

    def claim_anew(self) -> None:
        """The call has another input than before, and may conflict with other calls by it (SCHED-03).

        It waits for earlier calls as if it had been declared so; from later ones only the lock keeps it apart.
        """
        self._earlier, self._lock = self._anew()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The call may run inside. Nothing is held outside, so a call that waits for a person holds nothing.

        Raises WaitsForItself.
        """
        for ended in self._earlier:
            await ended.wait()
        # The lock last: whoever has one runs, and waits for nothing but a sub-agent.
        async with self._places, self._lock():
            yield


async def run_side_by_side(
    run: Run, calls: Sequence[Call], work: Callable[[Call, Lane], Awaitable[None]]
) -> None:
    """Does `work` for every call, which dispatches inside its lane's `running`. Raises what the work raises."""
    places = asyncio.Semaphore(run.settings.calls_in_flight)
    claims = [_claim(run, call) for call in calls]
    chain = [view.parent_call_id for view in run.path if view.parent_call_id]
    lanes: list[Lane] = []

    def conditions(index: int, earlier: Iterable[int]) -> Conditions:
        lock = partial(run.world.locks.running, calls[index].id, claims[index], chain)
        return [lanes[i].ended for i in earlier], lock

    def anew(index: int) -> Conditions:
        claims[index] = _claim(run, calls[index])
        return conditions(index, _order(run, claims[: index + 1])[index])

    for index, earlier in enumerate(_order(run, claims)):
        lanes.append(Lane(places, conditions(index, earlier), partial(anew, index)))

    async def one(call: Call, lane: Lane) -> None:
        try:
            await work(call, lane)
        finally:
            lane.ended.set()

    try:
        async with asyncio.TaskGroup() as group:
            for call, lane in zip(calls, lanes, strict=True):
                group.create_task(one(call, lane))
    except ExceptionGroup as failed:
        raise _first(failed) from failed


async def run_data_source(run: Run, call: Call, lane: Lane) -> None:
    """Runs one read to its result, again where its failure may be tried again (TOOL-09)."""
    started_at = run.world.clock.monotonic()
    while True:
        try:
            async with lane.running():
                outcome = await dispatch(run, call, ())
        except WaitsForItself as waits:
            outcome = waits_for_itself(waits)
            break
        if not isinstance(outcome, ToolFailure) or not may_repeat(call, outcome):
            break
        await log_retry(run, call, outcome)
    await conclude(run, call, outcome, started_at=started_at)


async def dispatch(
    run: Run, call: Call, preconditions: tuple[common.Precondition, ...]
) -> ToolOutcome | ToolFailure:
    """Commits to the attempt, then runs it: nothing runs that the log does not say was started (LOG-21)."""
    call.attempts += 1
    await run.append(
        event_pb2.ToolStarted(
            call_id=call.id, attempt=call.attempts, input=call.input, preconditions=preconditions
        )
    )
    attributes: dict[str, str | int | float | bool] = {
        "gen_ai.tool.name": call.spec.name,
        "turnd.provider": call.event.provider,
        "gen_ai.tool.call.id": call.id,
        "turnd.attempt": call.attempts,
    }
    # What a sub-agent does is measured by its own meter, which tells this one; what it waits for is not active.
    active = nullcontext() if call.spec.spawns else run.meter.active()
    with active, run.world.trace.span("turnd.tool", attributes) as span:
        outcome = await run.tools.invoke(invocation(run, call, preconditions, span.traceparent))
        span.set({"turnd.is_error": isinstance(outcome, ToolFailure) or outcome.is_error})
    return outcome


def waits_for_itself(waits: WaitsForItself) -> ToolFailure:
    """What becomes of a call that could never start."""
    return ToolFailure(common.TOOL_ERROR_CATEGORY_CONCURRENCY_CONFLICT, str(waits))


def may_repeat(call: Call, failure: ToolFailure) -> bool:
    """A conflict had no effect; any other failure is repeated only where the provider and the tool allow it."""
    if call.attempts >= TRIES:
        return False
    if failure.category == common.TOOL_ERROR_CATEGORY_CONCURRENCY_CONFLICT:
        return True
    repeatable = call.spec.kind == common.TOOL_KIND_DATA_SOURCE or call.spec.idempotent
    return failure.retryable and repeatable


async def log_retry(run: Run, call: Call, failure: ToolFailure) -> None:
    """Closes an attempt that had no effect."""
    await run.append(
        event_pb2.ToolRetry(
            call_id=call.id,
            attempt=call.attempts,
            category=failure.category,
            message=failure.message,
        )
    )


def _first(failed: ExceptionGroup[Exception]) -> Exception:
    """One of the failures: the loop acts on the kind, and those of one Step have one cause."""
    first = failed.exceptions[0]
    return _first(first) if isinstance(first, ExceptionGroup) else first


def _order(run: Run, claims: Sequence[schedule.Claim]) -> Sequence[Iterable[int]]:
    """For each call the earlier ones it waits for; all of them for a model that takes one call at a time."""
    if not run.model.spec.parallel_tool_calls:
        return [range(index) for index in range(len(claims))]
    return schedule.blockers(claims)


def _claim(run: Run, call: Call) -> schedule.Claim:
    cwd = run.view.cwd

    def canonical(path: str) -> str:
        return os.path.realpath(Path(cwd, path))

    assert call.tool is not None, f"call {call.id} has no tool"
    provider = call.tool.provider
    return schedule.claim(
        call.spec,
        provider=provider,
        instance=f"{run.view.root}/{provider}",
        data=call.input,
        canonical_path=canonical,
    )
