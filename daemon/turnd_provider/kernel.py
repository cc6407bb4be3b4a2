"""The provider's end of the Kernel stream: calls to the daemon, and their answers."""

from __future__ import annotations

import asyncio
import itertools
from typing import Final

from turnd.v1 import common_pb2 as common
from turnd.v1 import provider_pb2

MAX_PENDING: Final = 64
"""Calls to the daemon that may wait for their answers at once; a further one waits for a place."""


class KernelRefused(Exception):
    """The daemon refused a call on the Kernel stream, or the stream is gone."""

    def __init__(self, category: common.ToolErrorCategory.ValueType, message: str) -> None:
        super().__init__(message)
        self.category = category
        self.message = message


class Kernel:
    """Calls to the daemon. The mutable state is the queue of what goes out and the calls that wait."""

    def __init__(self) -> None:
        # Bounded by the places below: each pending call has at most itself and its cancellation in here.
        self._outgoing: asyncio.Queue[provider_pb2.KernelResponse] = asyncio.Queue()
        self._places = asyncio.Semaphore(MAX_PENDING)
        self._waiting: dict[int, asyncio.Future[provider_pb2.KernelRequest]] = {}
        self._ids = itertools.count(1)
        self._closed = False

    async def call(self, message: provider_pb2.KernelResponse) -> provider_pb2.KernelRequest:
        """Sends a call (its id is set here) and waits for the answer. Raises KernelRefused.

        Waits without a time-out of its own: the daemon answers every call, and its end ends the stream.
        Cancelling the wait gives the call up at the daemon too.
        """
        async with self._places:
            if self._closed:
                raise KernelRefused(common.TOOL_ERROR_CATEGORY_UNKNOWN, "the stream to the daemon has ended")
            message.id = next(self._ids)
            answer: asyncio.Future[provider_pb2.KernelRequest] = asyncio.get_running_loop().create_future()
            self._waiting[message.id] = answer
            self._outgoing.put_nowait(message)
            try:
                response = await answer
            except asyncio.CancelledError:
                given_up = provider_pb2.CancelCall(id=message.id)
                self._outgoing.put_nowait(provider_pb2.KernelResponse(cancel=given_up))
                raise
            finally:
                self._waiting.pop(message.id, None)
        if response.WhichOneof("answer") == "refused":
            error = response.refused.error
            raise KernelRefused(error.category, error.message)
        return response

    async def next_outgoing(self) -> provider_pb2.KernelResponse:
        """The next message for the daemon. Waits without a time-out: a quiet provider says nothing."""
        return await self._outgoing.get()

    def answered(self, response: provider_pb2.KernelRequest) -> None:
        """Gives an answer to the call that waits for it; one that nobody waits for any more is dropped."""
        waiting = self._waiting.get(response.id)
        if waiting is not None and not waiting.done():
            waiting.set_result(response)

    def close(self) -> None:
        """The stream has ended: every call that waits fails."""
        self._closed = True
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(
                    KernelRefused(common.TOOL_ERROR_CATEGORY_UNKNOWN, "the stream to the daemon has ended")
                )
