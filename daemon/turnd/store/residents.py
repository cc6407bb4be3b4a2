"""Which sessions are in memory: each comes when it is asked for, and goes when it is removed from the file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from turnd.ports import UnknownSession
from turnd.rules.state import Violation
from turnd.store.catalogue import Catalogue
from turnd.store.gc import EndedTree, SessionChanged
from turnd.store.intake import Intake
from turnd.store.live import BrokenLog, Folded
from turnd.store.reading import Reading, UnreadableLog


class Residents:
    """The mutable state is the sessions that are being read just now, and those that are being removed."""

    def __init__(
        self, intake: Intake, catalogue: Catalogue, reading: Reading, damaged: Callable[[str], None]
    ) -> None:
        self._intake = intake
        self._catalogue = catalogue
        self._reading = reading
        self._damaged = damaged
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._removing: set[str] = set()

    async def load(self, session: str) -> None:
        """Folds the stored log of a session, unless it is in memory; once for all who ask at the same time.

        Raises UnknownSession, BrokenLog.
        """
        if self._intake.get(session) is not None:
            return
        if session in self._removing:
            raise UnknownSession(f"session {session} is being removed")
        loading = self._loading.get(session)
        if loading is None:
            loading = self._loading[session] = asyncio.create_task(self._load(session))
            loading.add_done_callback(lambda done: self._loaded(session, done))
        await asyncio.shield(loading)

    @asynccontextmanager
    async def leaving(self, tree: EndedTree) -> AsyncIterator[None]:
        """Nothing of the tree is in memory inside, nor comes into it. Raises SessionChanged where some is in use."""
        members = [member.id for member in tree.members]
        self._removing.update(members)
        try:
            loading = {self._loading[session] for session in members if session in self._loading}
            if loading:
                await asyncio.wait(loading)
            for member in tree.members:
                live = self._intake.get(member.id)
                if live is not None and (live.in_flight or live.accepted.state.seq != member.last_seq):
                    raise SessionChanged(member.id)
            for session in members:
                self._intake.remove(session)
            yield
        finally:
            self._removing.difference_update(members)

    async def close(self) -> None:
        """Waits for what is being read."""
        while self._loading:
            await asyncio.wait(self._loading.values())

    def _loaded(self, session: str, done: asyncio.Task[None]) -> None:
        del self._loading[session]
        # Where every caller was cancelled nobody else asks for the outcome.
        if not done.cancelled():
            done.exception()

    async def _load(self, session: str) -> None:
        row = await self._catalogue.row(session)
        folded = Folded()
        async for page in self._reading.pages(session, 0):
            for event in page:
                try:
                    folded = folded.after(event)
                except Violation as violation:
                    if event.seq == folded.state.seq + 1:
                        raise BrokenLog(session, event.seq, violation.text) from violation
                    missing = UnreadableLog(session, folded.state.seq + 1, "it is missing")
                    self._damaged(str(missing))
                    raise missing from violation
        self._intake.add(session, row.key, folded)
