"""The tables beside the events derived from them anew (LOG-13, LOG-19)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from turnd.rules.state import Violation
from turnd.rules.status import advance
from turnd.store.batch import Change
from turnd.store.checksum import MISFIT, is_whole, of_session
from turnd.store.live import Folded
from turnd.store.projections import write_event_rows, write_session_row
from turnd.store.schema import DERIVED
from turnd.v1 import event_pb2

PROGRESS_EVENTS: Final = 50_000
"""After so many events the progress is told."""
_BEFORE_ALL: Final = -(2**63)

Progress = Callable[[int, int], None]
"""Takes how many events are done, and how many there are."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One table that was not what the events say. `shape`: it was missing, or had other columns or indexes."""

    table: str
    shape: bool
    missing: int
    """Rows that the events call for and that were not there."""
    wrong: int
    """Rows that were there and that no event calls for."""

    def __str__(self) -> str:
        if self.shape:
            return f"{self.table} was missing, or not as this version has it"
        return f"{self.table}: {self.missing} rows were missing or different, {self.wrong} were too many or different"


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild found. `broken` says of each session that cannot go on why, and from which event on."""

    events: int
    sessions: int
    differences: Sequence[Difference]
    broken: Sequence[str]
    damaged: Sequence[str]
    """Those of `broken` with an event that is not as it was stored, or cannot be read: the file is to be recovered."""


def rebuild(connection: sqlite3.Connection, progress: Progress) -> Rebuilt:
    """Derives every table of `DERIVED` anew, in one transaction of its own."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        rebuilt = derive(connection, progress)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    return rebuilt


def derive(connection: sqlite3.Connection, progress: Progress) -> Rebuilt:
    """The same inside of the caller's transaction."""
    shaped = {table: _set_aside(connection, table) for table in DERIVED}
    (total,) = connection.execute("SELECT count(*) FROM events").fetchone()
    done = sessions = 0
    broken, damaged = [], []
    for key in _keys(connection):
        fold = _Fold(connection, key)
        for seq, *row in connection.execute(of_session(), (key,)):
            fold.take(seq, *row)
            done += 1
            if done % PROGRESS_EVENTS == 0:
                progress(done, total)
        fold.finish()
        sessions += 1
        if fold.broken:
            broken.append(fold.broken)
        if fold.damaged:
            damaged.append(fold.broken)
    differences = [
        difference
        for table in DERIVED
        if (difference := _compare(connection, table, shaped[table])) is not None
    ]
    return Rebuilt(done, sessions, differences, broken, damaged)


def is_shaped(connection: sqlite3.Connection, table: str) -> bool:
    """The table and its indexes are as this version makes them."""
    found = connection.execute(
        "SELECT sql FROM sqlite_schema WHERE tbl_name = ? AND sql IS NOT NULL", (table,)
    )
    return sorted(sql for (sql,) in found) == sorted(_statements(table))


class _Fold:
    """Folds one session's events and writes what they mean.

    Where one breaks a rule, or cannot be read, the session is settled as of there: no repair could append to it. What
    is not as it was stored, or cannot be read, is left out.
    """

    def __init__(self, connection: sqlite3.Connection, key: int) -> None:
        self._connection = connection
        self._key = key
        self._folded = Folded()
        self._view = self._folded.view
        self._updated_us = 0
        self.broken = ""
        self.damaged = False

    def take(self, seq: int, position: int, key: int, own_seq: int, blob: bytes, checksum: int) -> None:
        """The seq as the index has it, then the row."""
        if not is_whole(position, key, own_seq, blob, checksum) or (key, own_seq) != (self._key, seq):
            self._damage(seq, f"the event {MISFIT}")
            return
        try:
            event = event_pb2.Event.FromString(blob)
        except DecodeError as error:
            self._damage(seq, str(error))
            return
        if not self.broken:
            try:
                self._folded = self._folded.after(event)
            except Violation as violation:
                self._break(seq, violation.text)
        self._view = advance(self._view, event) if self.broken else self._folded.view
        self._updated_us = event.time.ToMicroseconds()
        write_event_rows(self._connection, position, self._key, event)

    def finish(self) -> None:
        if self._view.id:
            unsettled = self._folded.unsettled and not self.broken
            seq = self._view.last_seq
            write_session_row(
                self._connection, Change(self._key, seq, self._view, unsettled, self._updated_us)
            )

    def _damage(self, seq: int, why: str) -> None:
        self.damaged = True
        self._break(seq, why)

    def _break(self, seq: int, why: str) -> None:
        self.broken = self.broken or f"{self._view.id or self._key} from event {seq} on: {why}"


def _keys(connection: sqlite3.Connection) -> Iterator[int]:
    """From one key to the next by the index, without a look at every event."""
    key: int | None = _BEFORE_ALL
    while True:
        (key,) = connection.execute("SELECT min(session) FROM events WHERE session > ?", (key,)).fetchone()
        if key is None:
            return
        yield key


def _set_aside(connection: sqlite3.Connection, table: str) -> bool:
    """Keeps what is in the table for the comparison, and makes it empty; False where it has another shape."""
    shaped = is_shaped(connection, table)
    if shaped:
        connection.execute(f"CREATE TEMP TABLE old_{table} AS SELECT * FROM main.{table}")  # noqa: S608 - our own names
    for kind, name in connection.execute(
        "SELECT type, name FROM sqlite_schema WHERE tbl_name = ? AND sql IS NOT NULL ORDER BY type", (table,)
    ).fetchall():
        connection.execute(f'DROP {kind} "{name}"')
    for statement in _statements(table):
        connection.execute(statement)
    return shaped


def _compare(connection: sqlite3.Connection, table: str, shaped: bool) -> Difference | None:
    if not shaped:
        return Difference(table, shape=True, missing=0, wrong=0)
    missing, wrong = (
        connection.execute(
            f"SELECT count(*) FROM (SELECT * FROM {one} EXCEPT SELECT * FROM {other})"  # noqa: S608 - our own names
        ).fetchone()[0]
        for one, other in ((f"main.{table}", f"temp.old_{table}"), (f"temp.old_{table}", f"main.{table}"))
    )
    connection.execute(f"DROP TABLE temp.old_{table}")
    return Difference(table, shape=False, missing=missing, wrong=wrong) if missing or wrong else None


def _statements(table: str) -> list[str]:
    return [statement for part in DERIVED[table].split(";") if (statement := part.strip())]
