"""What people ask of the daemon about its own files: what could go (`turn gc`), and what is wrong (`turn doctor`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from turnd.ports import Clock
from turnd.sessions.live import LiveSessions
from turnd.sessions.refusal import invalid
from turnd.sessions.requests import Answering, Requests, once
from turnd.v1 import daemon_pb2
from turnd.v1.jsonform import enum_text

MAX_DAYS: Final = 36500
_DAY_US: Final = 86400 * 1_000_000
_AT_WORK: Final = "the session is at work again, so it was not removed"


@dataclass(frozen=True, slots=True)
class Unused:
    """Something that is not needed any more."""

    item: daemon_pb2.GcItem
    sessions: Sequence[str] = ()
    """That are removed with it."""
    remove: Callable[[], Awaitable[str]] | None = None
    """Removes it; gives why that failed, an empty text where it did not. None: it is only listed."""


class Premises(Protocol):
    """The daemon's files: the log, the spools, copies of the log."""

    async def unused(self, before_us: int) -> Sequence[Unused]:
        """What could be removed, as of a time, and copies of the log that are older."""

    async def examine(self, full: bool) -> Sequence[daemon_pb2.DoctorCheck]:
        """Looks at all of it; with `full` also at every byte of the log."""


class Housekeeping:
    """Gc and Doctor. Nothing is ever removed by itself, and nothing that can run or be continued at work."""

    def __init__(self, premises: Premises, live: LiveSessions, clock: Clock, requests: Requests) -> None:
        self._premises = premises
        self._live = live
        self._clock = clock
        self._requests = requests

    @once(daemon_pb2.GcResponse)
    async def gc(
        self, request: daemon_pb2.GcRequest, answering: Answering[daemon_pb2.GcResponse]
    ) -> daemon_pb2.GcResponse:
        """What could be removed; with `remove`, removes that, or what is named of it.

        What is removed cannot be removed twice, so that the answer may be stored behind it.
        """
        if request.older_than_days > MAX_DAYS:
            raise invalid("older_than_days", f"at most {MAX_DAYS}, got {request.older_than_days}")
        found = await self._premises.unused(self._clock.now_us() - request.older_than_days * _DAY_US)
        if request.remove:
            wanted = set(request.names)
            for unused in found:
                if unused.remove is not None and (not wanted or unused.item.name in wanted):
                    unused.item.problem = await self._remove(unused.sessions, unused.remove)
                    unused.item.removed = not unused.item.problem
        items = [unused.item for unused in found]
        counted = [item for item in items if (item.removed if request.remove else item.removable)]
        return daemon_pb2.GcResponse(
            what=[_text(item) for item in items],
            bytes=sum(item.bytes for item in counted),
            removed=request.remove and bool(counted),
            items=items,
        )

    async def _remove(self, sessions: Sequence[str], remove: Callable[[], Awaitable[str]]) -> str:
        for session in sessions:
            if not await self._live.forget(session):
                return _AT_WORK
        return await remove()

    async def doctor(self, request: daemon_pb2.DoctorRequest) -> daemon_pb2.DoctorResponse:
        """Each check with what was found, and what to do where something is wrong."""
        return daemon_pb2.DoctorResponse(checks=await self._premises.examine(request.full))


def _text(item: daemon_pb2.GcItem) -> str:
    return f"{enum_text(daemon_pb2.GcKind, item.kind)} {item.name} ({item.bytes} bytes)"
