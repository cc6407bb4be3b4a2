"""What people ask of the daemon about its own files: what could go (`turn gc`), and what is wrong (`turn doctor`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from turnd.ports import AnsweredRequest, Clock
from turnd.sessions.live import LiveSessions
from turnd.sessions.refusal import invalid
from turnd.sessions.requests import Answering, Requests, once
from turnd.v1 import daemon_pb2
from turnd.v1.jsonform import enum_text

MAX_DAYS: Final = 36500
_DAY_US: Final = 86400 * 1_000_000
_AT_WORK: Final = "the session is at work again, so it was not removed"
_NOT_REACHED: Final = "turnd was stopped before it came to this, so it was not removed; run gc again"


@dataclass(frozen=True, slots=True)
class Unused:
    """Something that is not needed any more."""

    item: daemon_pb2.GcItem
    sessions: Sequence[str] = ()
    """That are removed with it."""
    remove: Callable[[AnsweredRequest | None], Awaitable[str]] | None = None
    """Removes it; gives why that failed, an empty text where it did not. None: it is only listed.

    The command, which has answered so far that it is removed, is stored before it is, or in the same transaction.
    """


class Premises(Protocol):
    """The daemon's files: the log, the spools, copies of the log."""

    async def unused(self, before_us: int) -> Sequence[Unused]:
        """What could be removed, as of a time, and copies of the log that are older."""

    async def kept(self, before_us: int) -> str:
        """The session that is as old as what could be removed, and stays all the same; empty: there is none."""

    async def examine(self, full: bool) -> Sequence[daemon_pb2.DoctorCheck]:
        """Looks at all of it; with `full` also at every byte of the log."""

    async def record(self, answered: AnsweredRequest) -> None:
        """Stores what a command has answered so far, in the place of what it had answered. Raises LogFailed."""


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

        Each removal is recorded with it, as the answer so far: a daemon that is killed on the way leaves an answer
        that says what it had removed, and what it did not come to. Raises CommandRefused, LogFailed.
        """
        if request.older_than_days > MAX_DAYS:
            raise invalid("older_than_days", f"at most {MAX_DAYS}, got {request.older_than_days}")
        before_us = self._clock.now_us() - request.older_than_days * _DAY_US
        found = await self._premises.unused(before_us)
        kept = await self._premises.kept(before_us)
        items = [unused.item for unused in found]
        if request.remove:
            answered = answering.by(lambda _: _removed(items, kept))
            await self._remove(found, set(request.names), answered)
            if answered is not None:
                await self._premises.record(answered)
            return _removed(items, kept)
        return _answer(items, [item for item in items if item.removable], kept)

    async def _remove(
        self, found: Sequence[Unused], wanted: set[str], answered: AnsweredRequest | None
    ) -> None:
        """Removes what is wanted, all if nothing is named; each item says at any time what became of it."""
        removable = [
            (unused.item, unused.sessions, unused.remove)
            for unused in found
            if unused.remove is not None and (not wanted or unused.item.name in wanted)
        ]
        for item, _, _ in removable:
            item.problem = _NOT_REACHED
        for item, sessions, remove in removable:
            item.problem = ""
            if await self._let_go(sessions):
                item.removed = True
                item.problem = await remove(answered)
                item.removed = not item.problem
            else:
                item.problem = _AT_WORK

    async def _let_go(self, sessions: Sequence[str]) -> bool:
        for session in sessions:
            if not await self._live.forget(session):
                return False
        return True

    async def doctor(self, request: daemon_pb2.DoctorRequest) -> daemon_pb2.DoctorResponse:
        """Each check with what was found, and what to do where something is wrong."""
        return daemon_pb2.DoctorResponse(checks=await self._premises.examine(request.full))


def _removed(items: Sequence[daemon_pb2.GcItem], kept: str) -> daemon_pb2.GcResponse:
    return _answer(items, [item for item in items if item.removed], kept)


def _answer(
    items: Sequence[daemon_pb2.GcItem], counted: Sequence[daemon_pb2.GcItem], kept: str
) -> daemon_pb2.GcResponse:
    return daemon_pb2.GcResponse(
        what=[_text(item) for item in items],
        bytes=sum(item.bytes for item in counted),
        removed=any(item.removed for item in items),
        items=items,
        kept=kept,
    )


def _text(item: daemon_pb2.GcItem) -> str:
    return f"{enum_text(daemon_pb2.GcKind, item.kind)} {item.name} ({item.bytes} bytes)"
