"""Which sessions there are, from their table alone: no list scans the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from turnd.ports import Subtree, UnknownSession
from turnd.rules.shown import in_list
from turnd.store.reader import NO_KEY, Reader, SessionRow
from turnd.v1 import common_pb2 as common
from turnd.v1 import daemon_pb2, sessions_pb2

DEFAULT_PAGE: Final = 100
MAX_PAGE: Final = 500
MAX_PAGE_BYTES: Final = 4 * 2**20
"""A page ends with the session that passes this size."""
MAX_CANDIDATES: Final = 10


class AmbiguousSession(Exception):
    """Several sessions have ids that begin so; `candidates` are some of them."""

    def __init__(self, prefix: str, candidates: Sequence[str]) -> None:
        super().__init__(
            f"{prefix!r} is the beginning of several sessions: {', '.join(candidates)}; give more of it"
        )
        self.prefix = prefix
        self.candidates = tuple(candidates)


class BadPageToken(ValueError):
    """A page token that no list gave out."""

    def __init__(self, token: str) -> None:
        super().__init__(f"page_token: expected one from an earlier answer, found {token[:40]!r}")


@dataclass(frozen=True, slots=True)
class SessionPage:
    """Some sessions, newest first, and how to ask for the next ones; empty where there are none."""

    sessions: Sequence[sessions_pb2.Session]
    next_page_token: str


class Catalogue:
    """Sessions by id, by prefix and in pages."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def row(self, session: str) -> SessionRow:
        """The row of one session. Raises UnknownSession."""
        row = await self._reader.session(session)
        if row is None:
            raise UnknownSession(f"no session has the id {session!r}")
        return row

    async def count(self) -> int:
        """How many sessions there are, sub-agents included."""
        return await self._reader.count()

    async def resolve(self, prefix: str) -> str:
        """The id of the one session that has it or begins so, in either case of letters.

        Raises UnknownSession, AmbiguousSession.
        """
        for spelling in dict.fromkeys((prefix, prefix.upper())):
            found = await self._reader.with_prefix(spelling, MAX_CANDIDATES) if spelling else []
            if spelling in found or len(found) == 1:
                return found[0]
            if found:
                raise AmbiguousSession(prefix, found)
        raise UnknownSession(f"no session has an id that begins with {prefix!r}; `turn ls` shows them")

    async def sessions(
        self,
        *,
        statuses: Sequence[common.SessionStatus.ValueType] = (),
        cwd: str = "",
        parent: str = "",
        include_children: bool = False,
        page_size: int = DEFAULT_PAGE,
        page_token: str = "",
    ) -> SessionPage:
        """One page, the cost of each session with its descendants'.

        What is empty does not filter; without `parent` and `include_children` there are roots only. Page sizes
        are from 1 to 500; 0 is 100. Raises BadPageToken.
        """
        size = min(page_size or DEFAULT_PAGE, MAX_PAGE)
        rows = await self._reader.newest(
            size + 1,
            before_key=_key_of(page_token),
            statuses=statuses,
            cwd=cwd,
            parent=parent,
            include_children=include_children,
        )
        more, rows = len(rows) > size, rows[:size]
        totals = await self._reader.totals(row.id for row in rows)
        sessions: list[sessions_pb2.Session] = []
        room = MAX_PAGE_BYTES
        for row in rows:
            if room < 0:
                return SessionPage(sessions, str(rows[len(sessions) - 1].key))
            session = in_list(sessions_pb2.Session.FromString(row.session))
            total = totals[row.id]
            session.cost_nano_usd = total.cost_nano_usd
            session.estimated, session.unpriced = total.estimated, total.unpriced
            sessions.append(session)
            room -= session.ByteSize()
        return SessionPage(sessions, str(rows[-1].key) if more else "")

    async def totals(self, sessions: Iterable[str]) -> Mapping[str, Subtree]:
        """What each of these sessions spent with its descendants, as committed; nothing for unknown ones."""
        return await self._reader.totals(sessions)

    async def costs(self, session: str, by: Sequence[str]) -> list[daemon_pb2.CostRow]:
        """What was spent, told apart by some of `ledger.DIMENSIONS`; empty `session`: by all sessions."""
        return await self._reader.costs(session, by)

    async def unsettled(self) -> Sequence[SessionRow]:
        """Sessions that a killed daemon left open, sub-agents before their parents."""
        return await self._reader.unsettled()


def _key_of(token: str) -> int:
    if not token:
        return NO_KEY
    if not (token.isascii() and token.isdigit() and len(token) < 19):
        raise BadPageToken(token)
    return int(token)
