"""Which sessions could be removed from the file, and their removal: always on demand, never by itself (S14).

What is removed is a whole tree: a session that has ended with all its sub-agents, which have ended as well. The
session that has the newest event of the log stays until another has one, so that no position is ever used again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from turnd.rules.lifecycle import is_ended
from turnd.store.answers import amend_request
from turnd.store.batch import Request
from turnd.store.schema import read_only_uri
from turnd.v1 import common_pb2 as common
from turnd.v1 import sessions_pb2

TABLES: Final = ("events", "usage_ledger", "plan_items", "producers")
"""Those whose rows belong to a session, beside the one of the sessions themselves."""
_ENDED: Final = frozenset(status for status in common.SessionStatus.values() if is_ended(status))
_TREES: Final = """
    WITH RECURSIVE tree (root, key) AS (
        SELECT key, key FROM sessions AS s
        WHERE parent = '' OR NOT EXISTS (SELECT 1 FROM sessions AS p WHERE p.id = s.parent)
        UNION
        SELECT tree.root, child.key FROM tree
        JOIN sessions AS upper ON upper.key = tree.key
        JOIN sessions AS child ON child.parent = upper.id AND child.parent <> ''
    )
    SELECT tree.root, key, id, last_seq, status, unsettled, updated_us FROM tree JOIN sessions USING (key)
    ORDER BY tree.root, key
"""
_NEWEST: Final = "SELECT session FROM events ORDER BY position DESC LIMIT 1"


class SessionChanged(Exception):
    """The session is not as it was when its removal was decided; nothing of it was removed."""

    def __init__(self, session: str) -> None:
        super().__init__(f"session {session} was used meanwhile, so it was not removed; look again")


@dataclass(frozen=True, slots=True)
class Member:
    """One session of a tree, as it was when it was looked at."""

    key: int
    id: str
    last_seq: int


@dataclass(frozen=True, slots=True)
class EndedTree:
    """A session that has ended, with everything below it; the first member is its root."""

    members: Sequence[Member]
    title: str
    updated_us: int
    """Of the newest event in the tree."""
    bytes: int
    """Of all its events."""

    @property
    def id(self) -> str:
        """Of the root."""
        return self.members[0].id


def ended_before(path: Path, before_us: int) -> Sequence[EndedTree]:
    """Trees whose newest event is older than a time, oldest first. For a thread. Raises sqlite3.Error."""
    with closing(_reading(path)) as connection:
        newest = _newest(connection)
        found = [
            _described(connection, members, updated_us)
            for members, updated_us in _over(connection, before_us)
            if all(member.key != newest for member in members)
        ]
    return sorted(found, key=lambda tree: tree.updated_us)


def kept_for_its_place(path: Path, before_us: int) -> str:
    """The root of the tree that is as old and stays, as it has the newest event; empty: there is none. For a thread.

    Raises sqlite3.Error.
    """
    with closing(_reading(path)) as connection:
        newest = _newest(connection)
        for members, _ in _over(connection, before_us):
            if any(member.key == newest for member in members):
                return members[0].id
    return ""


def all_sessions(path: Path) -> set[str]:
    """The ids of all sessions. For a thread. Raises sqlite3.Error."""
    with closing(_reading(path)) as connection:
        return {session for (session,) in connection.execute("SELECT id FROM sessions")}


def removal(tree: EndedTree, request: Request | None = None) -> Callable[[sqlite3.Connection], None]:
    """What removes a tree within a transaction; it raises SessionChanged where the tree is not as it was.

    The command that it was asked by is stored in the same transaction, so that no removal is without its record.
    """

    def remove(connection: sqlite3.Connection) -> None:
        _remove(tree, connection)
        if request is not None:
            amend_request(connection, request)

    return remove


def _newest(connection: sqlite3.Connection) -> int | None:
    row = connection.execute(_NEWEST).fetchone()
    return None if row is None else row[0]


def _over(connection: sqlite3.Connection, before_us: int) -> Iterator[tuple[list[Member], int]]:
    """Trees that have ended before a time, with the time of their newest event."""
    trees: dict[int, list[tuple[Member, bool, int]]] = {}
    for root, key, session, last_seq, status, unsettled, updated_us in connection.execute(_TREES):
        over = status in _ENDED and not unsettled and updated_us < before_us
        trees.setdefault(root, []).append((Member(key, session, last_seq), over, updated_us))
    for tree in trees.values():
        if all(over for _, over, _ in tree):
            yield [member for member, _, _ in tree], max(us for _, _, us in tree)


def _remove(tree: EndedTree, connection: sqlite3.Connection) -> None:
    keys = [member.key for member in tree.members]
    newest = _newest(connection)
    for member in tree.members:
        row = connection.execute(
            "SELECT last_seq, status, unsettled FROM sessions WHERE key = ? AND id = ?",
            (member.key, member.id),
        ).fetchone()
        if row is None or row[0] != member.last_seq or row[1] not in _ENDED or row[2]:
            raise SessionChanged(member.id)
        if member.key == newest:
            raise SessionChanged(member.id)
        children = connection.execute("SELECT key FROM sessions WHERE parent = ?", (member.id,))
        if any(key not in keys for (key,) in children):
            raise SessionChanged(member.id)
    # Not every SQLite does so by itself: what a person has removed is not left on pages that nothing uses.
    connection.execute("PRAGMA secure_delete = ON")
    for key in keys:
        for table in TABLES:
            connection.execute(f"DELETE FROM {table} WHERE session = ?", (key,))  # noqa: S608
        connection.execute("DELETE FROM sessions WHERE key = ?", (key,))


def _described(connection: sqlite3.Connection, members: Sequence[Member], updated_us: int) -> EndedTree:
    size = 0
    for member in members:
        query = "SELECT coalesce(sum(length(event)), 0) FROM events WHERE session = ?"
        size += connection.execute(query, (member.key,)).fetchone()[0]
    (blob,) = connection.execute("SELECT session FROM sessions WHERE key = ?", (members[0].key,)).fetchone()
    return EndedTree(members, sessions_pb2.Session.FromString(blob).title, updated_us, size)


def _reading(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(read_only_uri(path), uri=True, isolation_level=None)
    # One snapshot for all that is asked; it ends with the connection.
    connection.execute("BEGIN")
    return connection
