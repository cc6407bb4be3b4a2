"""Reading the log: pages that are let go, so that no reader holds the writer's WAL (LOG-10)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import aiosqlite

from turnd.ports import RememberedRule, StoredAnswer, Subtree
from turnd.store import ledger, queries
from turnd.store.checksum import MISFIT, WHOLE, is_whole
from turnd.store.remembered import RULES, rules_of
from turnd.store.schema import read_only_uri
from turnd.v1 import daemon_pb2

NO_KEY: Final = 2**63 - 1
"""Greater than every key."""
PAGE_EVENTS: Final = 1000
PAGE_BYTES: Final = 4 * 2**20
"""A page ends with the event that passes this size."""


class GarbledRow(Exception):
    """The next row is not as it was stored (LOG-16)."""

    def __init__(self, position: int, seq: int) -> None:
        super().__init__(f"it {MISFIT}")
        self.position = position
        self.seq = seq


@dataclass(frozen=True, slots=True)
class Row:
    """One event as it is stored."""

    position: int
    seq: int
    blob: bytes


@dataclass(frozen=True, slots=True)
class SessionRow:
    """What the table of sessions says of one."""

    key: int
    id: str
    last_seq: int
    updated_us: int
    session: bytes
    """An encoded `Session`, its cost without its descendants'."""


class Reader:
    """A connection that can only read. Every method runs one statement, or several independent ones, to its end."""

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self._connection = connection

    @classmethod
    async def open(cls, path: Path) -> Self:
        """Opens the file, which a writer must have made."""
        connection = await aiosqlite.connect(read_only_uri(path), uri=True, isolation_level=None)
        await connection.create_function(WHOLE, 5, is_whole, deterministic=True)
        return cls(connection)

    async def close(self) -> None:
        """Ends the connection and its thread."""
        await self._connection.close()

    async def page(self, key: int, after_seq: int, through_seq: int) -> list[Row]:
        """The next events of a session after one seq, up to another; empty where there are none.

        The page ends before a row that is not whole; raises GarbledRow where that is the first.
        """
        return await self._page(queries.SESSION_PAGE, (key,), after_seq, through_seq)

    async def page_of_all(self, after_position: int, through_position: int) -> list[Row]:
        """The same of all sessions after one position, up to another; a GarbledRow's own seq may be wrong."""
        return await self._page(queries.PAGE_OF_ALL, (), after_position, through_position)

    async def owner(self, position: int) -> tuple[str, int]:
        """The session and the seq that the index has for a position; empty and 0 where it has none."""
        rows = await self._connection.execute_fetchall(queries.OWNER, (position,))
        return next(((str(row[0] or ""), int(row[1])) for row in rows), ("", 0))

    async def session(self, session: str) -> SessionRow | None:
        """The row of one session."""
        rows = await self._sessions(queries.ONE_SESSION, (session,))
        return rows[0] if rows else None

    async def unsettled(self) -> list[SessionRow]:
        """Sessions that a killed daemon left open, sub-agents before their parents; found by index."""
        return await self._sessions(queries.UNSETTLED, ())

    async def with_prefix(self, prefix: str, limit: int) -> list[str]:
        """Ids that begin so, at most `limit` of them."""
        rows = await self._connection.execute_fetchall(
            queries.WITH_PREFIX, (prefix, prefix + "\U0010ffff", limit)
        )
        return [row[0] for row in rows]

    async def newest(
        self,
        limit: int,
        *,
        before_key: int,
        statuses: Sequence[int],
        cwd: str,
        parent: str,
        include_children: bool,
    ) -> list[SessionRow]:
        """Sessions, the last created first. With a parent its children; else roots, or everything."""
        values = {
            "before_key": before_key,
            "statuses": json.dumps([int(status) for status in statuses]),
            "cwd": cwd,
            "parent": parent,
            "include_children": include_children,
            "limit": limit,
        }
        return await self._sessions(queries.NEWEST_CHILDREN if parent else queries.NEWEST, values)

    async def totals(self, sessions: Iterable[str]) -> dict[str, Subtree]:
        """What each of these sessions spent with its descendants; nothing for one that does not exist."""
        rows = await self._connection.execute_fetchall(queries.TOTALS, (json.dumps(list(sessions)),))
        return {
            root: Subtree(count, cost, inputs, outputs, estimated=bool(estimated), unpriced=bool(unpriced))
            for root, count, cost, inputs, outputs, estimated, unpriced in rows
        }

    async def costs(self, session: str, by: Sequence[str]) -> list[daemon_pb2.CostRow]:
        """What was spent, told apart by some of `ledger.DIMENSIONS`; of a session with its descendants, or of all."""
        query = ledger.statement(by, of_tree=bool(session))
        rows = await self._connection.execute_fetchall(query, (session,) if session else ())
        return [ledger.row(by, row) for row in rows]

    async def answer(self, request_id: str) -> StoredAnswer | None:
        """What was answered to a client's command."""
        rows = await self._connection.execute_fetchall(queries.ANSWER, (request_id,))
        return next((StoredAnswer(*row) for row in rows), None)

    async def remembered_rules(self) -> list[RememberedRule]:
        """What decisions for always stored, oldest first."""
        return rules_of(await self._connection.execute_fetchall(RULES))

    async def count(self) -> int:
        """How many sessions there are."""
        return await self._number(queries.COUNT)

    async def last_key(self) -> int:
        """The greatest key of a session; 0 where there is none."""
        return await self._number(queries.LAST_KEY)

    async def _number(self, query: str) -> int:
        rows = await self._connection.execute_fetchall(query)
        return int(next(iter(rows))[0])

    async def _page(
        self, page: queries.PageQueries, which: tuple[int, ...], after: int, through: int
    ) -> list[Row]:
        # Rows are never changed, so that two statements see the same ones; sizes are read without the blobs.
        sizes = await self._connection.execute_fetchall(page.sizes, (*which, after, through, PAGE_EVENTS))
        last, total = after, 0
        for at, size in sizes:
            last, total = at, total + size
            if total > PAGE_BYTES:
                break
        if last == after:
            return []
        rows = await self._connection.execute_fetchall(page.rows, (*which, after, last))
        page_rows: list[Row] = []
        for position, seq, blob, whole in rows:
            if not whole:
                if not page_rows:
                    raise GarbledRow(position, seq)
                break
            page_rows.append(Row(position, seq, blob))
        return page_rows

    async def _sessions(
        self, query: str, values: Sequence[object] | Mapping[str, object]
    ) -> list[SessionRow]:
        rows = await self._connection.execute_fetchall(query, values)
        return [SessionRow(*row) for row in rows]
