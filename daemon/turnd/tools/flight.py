"""A call in flight: whose it is, until when it may run, and what it started."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from turnd.cells.workspace import Workspace
from turnd.ports import Emit, Invocation, Spawn, ToolSession
from turnd.tools.calloutput import CallOutput
from turnd.v1 import provider_pb2

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Use:
    """A session that uses a provider, and the way into its log."""

    session: ToolSession
    workspace: Workspace
    """The session's, as it was when its tools were opened."""
    emit: Emit
    spawn: Spawn
    """Runs a sub-agent of the session."""


@dataclass(slots=True, eq=False)
class Flight:
    """One call that a process serves now. `work` is what it has running in the daemon: its commands."""

    call: Invocation
    use: Use
    spec: provider_pb2.ToolSpec
    deadline: float
    """On the event loop's clock."""
    output: CallOutput
    work: set[asyncio.Task[Any]] = field(default_factory=set)
    landed: bool = False
    notes: int = 0
    """How many it has put into the log."""

    async def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Runs something for the call, so that it ends before the call does. Raises CallOver when it has
        ended.
        """
        if self.landed:
            work.close()
            raise CallOver
        task = asyncio.create_task(work)
        self.work.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if _this_task_is_cancelled():
                raise
            # The call has landed, which ended the work but not whoever asked for it.
            raise CallOver from None
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self.work.discard(task)

    async def land(self) -> None:
        """The call is over: ends everything that it still has running, and waits for that (TOOL-04)."""
        self.landed = True
        for task in self.work:
            task.cancel()
        await asyncio.gather(*self.work, return_exceptions=True)


class CallOver(Exception):
    """The call ended while something was still done for it."""


class Flights:
    """The calls that one process serves, by their ids."""

    def __init__(self) -> None:
        self._flights: dict[str, Flight] = {}

    def get(self, call_id: str) -> Flight | None:
        """The call in flight with this id at this process, if there is one (TOOL-08)."""
        return self._flights.get(call_id)

    def enter(self, flight: Flight) -> None:
        """From now on the process may act for this call."""
        assert flight.call.call_id not in self._flights, "a call is served once at a time"
        self._flights[flight.call.call_id] = flight

    async def leave(self, flight: Flight) -> None:
        """The process may no longer act for this call, and what it had running for it has ended."""
        del self._flights[flight.call.call_id]
        await flight.land()


def _this_task_is_cancelled() -> bool:
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0
