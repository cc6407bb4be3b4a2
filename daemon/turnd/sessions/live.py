"""The sessions that are in memory, each owned by one runner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from turnd.loop.session import LiveSession
from turnd.loop.settings import LoopSettings
from turnd.ports import World
from turnd.sessions.tree import Profiles, Tree
from turnd.v1 import event_pb2


class LiveSessions:
    """The mutable state is one LiveSession for each session that a command has touched."""

    def __init__(self, world: World, settings: Callable[[], LoopSettings], profiles: Profiles) -> None:
        self._world = world
        self._settings = settings
        self._sessions: dict[str, LiveSession] = {}
        self.tree = Tree(world.log, world.ids, world.layers, self.get, profiles)

    async def get(self, session: str) -> LiveSession:
        """The one runner of a session, its log loaded (C09). Raises UnknownSession."""
        await self._world.log.load(session)
        await self.tree.enter(session)
        live = self._sessions.get(session)
        if live is None:
            parent = self._sessions.get(self._world.log.view(session).parent)
            above = None if parent is None else parent.meter
            live = LiveSession(self._world, self._settings, self.tree, session, above)
            self._sessions[session] = live
        return live

    async def forget(self, session: str) -> bool:
        """Lets go of a session that does nothing, and of its providers; False where it is at work."""
        live = self._sessions.get(session)
        if live is None:
            return True
        if live.busy:
            return False
        del self._sessions[session]
        self.tree.leave(session)
        await live.stop()
        return True

    def committed(self, events: Sequence[event_pb2.Event]) -> None:
        """Tells each session in memory what was committed of it, before whoever appended it goes on."""
        self.tree.committed(events)
        for event in events:
            live = self._sessions.get(event.session)
            if live is not None:
                live.observe(event)

    @property
    def running(self) -> int:
        """Sessions with a Turn open or about to open."""
        return sum(live.busy for live in self._sessions.values())

    async def drain(self, grace_s: float) -> None:
        """Lets open Turns end within the grace time, then interrupts them; no other starts.

        Raises an ExceptionGroup of what went wrong in single sessions, after all have been stopped.
        """
        if self._sessions and grace_s > 0:
            tasks = [asyncio.ensure_future(live.last_turn()) for live in self._sessions.values()]
            _, late = await asyncio.wait(tasks, timeout=grace_s)
            for task in late:
                task.cancel()
        ended = await asyncio.gather(
            *(live.stop() for live in self._sessions.values()), return_exceptions=True
        )
        faults = [fault for fault in ended if isinstance(fault, Exception)]
        if faults:
            raise ExceptionGroup("sessions that could not be stopped", faults)
