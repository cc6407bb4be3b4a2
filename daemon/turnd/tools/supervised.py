"""One provider for one tree of sessions: started when needed, started anew after a crash, with back-off
(TOOL-03).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from typing import Any, Final

from structlog.typing import FilteringBoundLogger

from turnd.cells.port import CellFailed
from turnd.cells.spec import CellRefused
from turnd.ports import Emit, LogFailed, SandboxUnavailable
from turnd.rules.state import Violation
from turnd.tools.instance import Instance, InstanceFailed
from turnd.tools.listening import NotReady
from turnd.tools.registration import Registration, RegistrationRefused
from turnd.v1 import event_pb2

START_TIMEOUT_S: Final = 15.0
"""From the start of its cell to its registration."""
FIRST_BACKOFF_S: Final = 0.25
LONGEST_BACKOFF_S: Final = 30.0
STEADY_S: Final = 60.0
"""A provider that lived this long counts as sound again."""

Start = Callable[[str, Registration | None], contextlib.AbstractAsyncContextManager[Instance]]
"""Starts the provider; takes what tells this start from others, and what sessions were shown."""


class Unavailable(Exception):
    """The provider is not there; `state` is what provider/status says of it: `missing` or `refused`."""

    def __init__(self, state: str, message: str) -> None:
        super().__init__(message)
        self.state = state


class Supervised:
    """A provider and its present instance. The mutable state is the task that owns it, and the row of
    crashes.
    """

    def __init__(self, name: str, start: Start, log: FilteringBoundLogger) -> None:
        self.name = name
        self._start = start
        self._log = log
        self._starting = asyncio.Lock()
        self._live: Instance | None = None
        self._owner: asyncio.Task[None] | None = None
        self._shown: Registration | None = None
        self._listeners: dict[str, Emit] = {}
        self._numbers = itertools.count(1)
        self._crashes = 0
        self._not_before = 0.0

    @property
    def registration(self) -> Registration | None:
        """What sessions were shown; None before the first registration."""
        return self._shown

    def listen(self, session: str, emit: Emit) -> None:
        """This session is told what becomes of the provider."""
        self._listeners[session] = emit

    def forget(self, session: str) -> bool:
        """This session no longer uses the provider; True: nobody does."""
        self._listeners.pop(session, None)
        return not self._listeners

    async def live(self) -> Instance:
        """The instance, started if there is none. Raises Unavailable and SandboxUnavailable.

        After a crash it waits its back-off first, so the caller has the time-out.
        """
        async with self._starting:
            if self._live is not None and not self._live.ended.done():
                return self._live
            await self._end_owner()
            await asyncio.sleep(max(0.0, self._not_before - asyncio.get_running_loop().time()))
            return await self._begin()

    async def close(self) -> None:
        """Stops the instance; returns when nothing of it is left."""
        async with self._starting:
            await self._end_owner()

    async def _begin(self) -> Instance:
        up: asyncio.Future[Instance] = asyncio.get_running_loop().create_future()
        self._owner = asyncio.create_task(self._own(up), name=f"provider {self.name}")
        try:
            # No time-out: the start has one.
            either: set[asyncio.Future[Any]] = {up, self._owner}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not up.done():
                self._owner.result()
            self._live = up.result()
        except BaseException:
            await self._end_owner()
            raise
        self._shown = self._shown or self._live.registration
        return self._live

    async def _own(self, up: asyncio.Future[Instance]) -> None:
        """Owns one instance from its start to its end. What goes wrong before it is up is told through
        `up`.
        """
        loop = asyncio.get_running_loop()
        try:
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout(START_TIMEOUT_S):
                    instance = await stack.enter_async_context(
                        self._start(str(next(self._numbers)), self._shown)
                    )
                began = loop.time()
                up.set_result(instance)
                # No time-out: it lives as long as it is used.
                reason = await asyncio.shield(instance.ended)
                self._crashed(loop.time(), began)
                self._log.warning("provider ended", provider=self.name, reason=reason)
                await self.tell("crashed", reason)
        except (CellRefused, CellFailed, SandboxUnavailable) as error:
            self._failed(up, SandboxUnavailable(f"no cell could be made for provider {self.name}: {error}"))
        except RegistrationRefused as error:
            self._failed(up, Unavailable("refused", str(error)))
        except TimeoutError:
            late = f"provider {self.name} did not register within {START_TIMEOUT_S:g} s"
            self._failed(up, Unavailable("missing", late))
        except (InstanceFailed, NotReady, OSError) as error:
            self._failed(up, Unavailable("missing", f"provider {self.name} did not start: {error}"))

    def _failed(self, up: asyncio.Future[Instance], error: Exception) -> None:
        self._crashed(asyncio.get_running_loop().time(), None)
        self._log.warning("provider did not start", provider=self.name, reason=str(error))
        if not up.done():
            up.set_exception(error)

    def _crashed(self, now: float, began: float | None) -> None:
        if began is not None and now - began > STEADY_S:
            self._crashes = 0
        self._not_before = now + min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2**self._crashes)
        self._crashes = min(self._crashes + 1, 16)

    async def tell(self, state: str, message: str = "") -> None:
        """Puts a provider/status event into the log of every session that uses the provider."""
        version = "" if self._shown is None else self._shown.version
        status = event_pb2.ProviderStatus(provider=self.name, state=state, message=message, version=version)
        for session, emit in list(self._listeners.items()):
            await told(emit, status, self._log, session)

    async def _end_owner(self) -> None:
        self._live = None
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.cancel()
            await asyncio.gather(owner, return_exceptions=True)


async def told(emit: Emit, status: event_pb2.ProviderStatus, log: FilteringBoundLogger, session: str) -> None:
    """Writes a provider's status into a session's log; where that takes it no more, the daemon's own log has
    it.
    """
    try:
        await emit(status)
    except (Violation, LogFailed) as error:
        log.warning("provider status not stored", session=session, state=status.state, reason=str(error))
