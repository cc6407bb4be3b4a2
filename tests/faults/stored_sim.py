"""The loop in its simulated world, on the real log in a file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.sim.world import Sim, SimPeople, SimTool
from tests.unit.stored import TickingClock, database

from turnd.loop.session import LiveSession
from turnd.ports import RememberedRule, Subtree
from turnd.rules.event import Draft
from turnd.rules.state import SessionState
from turnd.rules.status import SessionView
from turnd.store.hold import Hold
from turnd.store.intake import Committed
from turnd.store.log import EventLog
from turnd.store.recover import Repaired
from turnd.system import UlidIds
from turnd.v1 import event_pb2


@asynccontextmanager
async def started(
    directory: Path, clock: TickingClock | None = None
) -> AsyncIterator[tuple[EventLog, Sequence[Repaired]]]:
    """The log of this directory, and what its start repaired."""
    hold = Hold.take(database(directory), version="0", socket="")
    log = EventLog(hold, clock or TickingClock())
    try:
        repaired = await log.start()
        yield log, repaired
    finally:
        await log.close()
        hold.release()


class StoredLog:
    """The real log, as the simulated world knows its own: subscribers get events."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self.events: dict[str, list[event_pb2.Event]] = {}
        self.subscribers: list[Callable[[Sequence[event_pb2.Event]], None]] = []
        log.subscribe(self._committed)

    def _committed(self, committed: Sequence[Committed]) -> None:
        events = [one.event for one in committed]
        for event in events:
            self.events.setdefault(event.session, []).append(event)
        for subscriber in self.subscribers:
            subscriber(events)

    async def load(self, session: str) -> None:
        await self._log.load(session)

    def state(self, session: str) -> SessionState:
        return self._log.state(session)

    def view(self, session: str) -> SessionView:
        return self._log.view(session)

    async def append(self, *drafts: Draft) -> list[event_pb2.Event]:
        return await self._log.append(*drafts)

    def read(self, session: str, after_seq: int = 0) -> AsyncIterator[Sequence[event_pb2.Event]]:
        return self._log.read(session, after_seq)

    async def subtree(self, session: str) -> Subtree:
        return await self._log.subtree(session)

    async def remembered_rules(self) -> Sequence[RememberedRule]:
        return await self._log.remembered_rules()


class StoredSim(Sim):
    """One daemon's loop over a log that was started."""

    def __init__(self, log: EventLog, tools: Sequence[SimTool], **settings: Any) -> None:
        super().__init__(tools, **settings)
        self.log = StoredLog(log)
        self.people = SimPeople(self.log)
        self.world = replace(self.world, log=self.log, ids=UlidIds(), people=self.people)
        self.live = self.make_live()

    async def resumed(self, session: str) -> LiveSession:
        """A session of an earlier daemon; one that has ended is opened again."""
        await self.log.load(session)
        if self.log.state(session).ended:
            await self.log.append(Draft(session, event_pb2.SessionReopened(client="test")))
        return await self.live.get(session)
