"""What calls of all sessions hold while they run: one table for the daemon (SCHED-08, SCHED-10, SCHED-11)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from turnd.ports import WaitsForItself
from turnd.rules.schedule import Claim, conflicts


@dataclass(frozen=True, slots=True, eq=False)
class _Want:
    """A call that wants to run, or runs. `chain` are the spawning calls above it, which wait for it."""

    call: str
    claim: Claim
    chain: frozenset[str]
    granted: asyncio.Event


class LockTable:
    """Implements the port `Locks`. The mutable state: what runs, and what waits, in the order in which it came.

    A call runs when nothing that it conflicts with runs, or came before it. Only calls that spawn wait for others
    while they hold something, so only through them could calls wait for each other in a circle: that is looked for
    whenever one begins to wait. Where it waits in a circle only for what came before it, it passes by; where it waits
    for what runs, it is refused.
    """

    def __init__(self) -> None:
        self._held: dict[str, _Want] = {}
        self._waiting: list[_Want] = []

    @asynccontextmanager
    async def running(self, call: str, claim: Claim, chain: Sequence[str]) -> AsyncIterator[None]:
        want = _Want(call, claim, frozenset(chain), asyncio.Event())
        self._ask(want)
        try:
            # Without a time-out: what runs has one of its own.
            await want.granted.wait()
            yield
        finally:
            if want in self._waiting:
                self._waiting.remove(want)
            self._held.pop(call, None)
            self._go_on()

    def _ask(self, want: _Want) -> None:
        assert want.call not in self._held, "an attempt of a call runs once"
        blockers = self._blockers(want, self._waiting)
        if not blockers:
            self._grant(want)
            return
        circle = self._circle(want, blockers)
        if circle is None:
            self._waiting.append(want)
        elif self._holders(want):
            raise WaitsForItself(
                f"not started: it would wait for call {circle.call}, which itself waits for this sub-agent to end"
            )
        else:
            self._grant(want)

    def _grant(self, want: _Want) -> None:
        self._held[want.call] = want
        want.granted.set()

    def _go_on(self) -> None:
        """Whatever no longer conflicts runs, in order; what still waits keeps its place."""
        waiting, self._waiting = self._waiting, []
        for want in waiting:
            if self._blockers(want, self._waiting):
                self._waiting.append(want)
            else:
                self._grant(want)

    def _holders(self, want: _Want) -> list[_Want]:
        return [held for held in self._held.values() if conflicts(held.claim, want.claim)]

    def _blockers(self, want: _Want, earlier: Iterable[_Want]) -> list[_Want]:
        return [*self._holders(want), *(w for w in earlier if conflicts(w.claim, want.claim))]

    def _circle(self, want: _Want, blockers: Iterable[_Want]) -> _Want | None:
        """What `want` would wait for that waits for it: one of its own chain, however many are between them."""
        seen: set[str] = set()
        left = list(blockers)
        while left:
            blocker = left.pop()
            if blocker.call in want.chain:
                return blocker
            if blocker.call in seen:
                continue
            seen.add(blocker.call)
            for index, waiting in enumerate(self._waiting):
                if waiting is blocker or blocker.call in waiting.chain:
                    left += self._blockers(waiting, self._waiting[:index])
        return None
