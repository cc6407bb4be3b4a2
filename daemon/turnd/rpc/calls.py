"""The calls that are being handled, so that a stop can wait for the last of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class RunningCalls:
    """The registry of handlers: gRPC's own stop returns before they have cleaned up (G03)."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()
        self._stopping = asyncio.Event()

    @property
    def stopping(self) -> asyncio.Event:
        """Set when streams without an end have to end."""
        return self._stopping

    @contextmanager
    def running(self) -> Iterator[None]:
        """The task that calls this is handling a call as long as it is inside."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            yield
        finally:
            self._tasks.discard(task)

    async def ended(self, timeout_s: float) -> bool:
        """Waits until no call is being handled; False where some still are after the time-out."""
        tasks = set(self._tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        return not self._tasks


def is_being_cancelled() -> bool:
    """Tells the cancellation of this very task (the client left) from one that came out of what it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
