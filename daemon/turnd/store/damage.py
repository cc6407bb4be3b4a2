"""What becomes of a damaged file: it is renamed, and what can be read of it is recovered into a new one (LOG-16).

Three names beside the file take part. `turnd.db.suspect` says that damage was found while the daemon served, so that
the next start recovers. `turnd.db.recovering` is a new file that is not complete. `turnd.db.recovered-TIME` is one
that is complete: what is left to do then is to rename, which any start can go on with.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from turnd.store.checksum import CHECKSUM, MISFIT, define
from turnd.store.pages import FoundRow, GarbledRow, event_rows, last_seqs, rows_behind
from turnd.store.queries import OWNER
from turnd.store.rebuild import Progress, rebuild
from turnd.store.schema import (
    OWN,
    PAGE_BYTES,
    create_private,
    open_for_writing,
    read_only_uri,
    sync_directory,
)

_SUFFIXES: Final = ("-shm", "-wal", "")
"""Of the files that a database has; the one that counts is renamed last."""
_LAST_SEQS: Final = (
    "SELECT id, last_seq FROM sessions",
    "SELECT id, (SELECT max(seq) FROM events WHERE events.session = key) FROM sessions",
)
_MAX_NAMED: Final = 20
"""Sessions that are named in the account of a recovery; the others are counted."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A session of which not everything could be read. `kept` 0: nothing of it is in the new file."""

    session: str
    kept: int
    found: int
    """Events that could be read, those behind the first hole included."""
    last: int
    """The highest seq that was seen."""

    def __str__(self) -> str:
        behind = (
            f", {self.found - self.kept} more are readable behind the hole" if self.found > self.kept else ""
        )
        return f"{self.session}: {self.kept} of at least {self.last} events kept{behind}"


@dataclass(frozen=True, slots=True)
class Recovery:
    """What was made of a damaged file, which is kept under another name."""

    reason: str
    damaged: Path
    events: int
    sessions: int
    cuts: Sequence[Cut]
    notes: Sequence[str]
    """About rows that do not fit their checksums, and tables whose rows are not derived from events."""

    @property
    def losses(self) -> Mapping[str, str]:
        """For each session that was kept in part, in words for whoever reads it."""
        return {
            cut.session: f"the log was damaged here: of this session's events those from {cut.kept + 1} to at least "
            f"{cut.last} were lost; the damaged log is kept as {self.damaged}"
            for cut in self.cuts
            if cut.kept
        }

    def __str__(self) -> str:
        text = (
            f"the log was damaged ({self.reason}); it is kept as {self.damaged}; "
            f"{self.events} events of {self.sessions} sessions were recovered"
        )
        if self.cuts:
            named = "; ".join(str(cut) for cut in self.cuts[:_MAX_NAMED])
            more = f"; and {len(self.cuts) - _MAX_NAMED} more sessions" if len(self.cuts) > _MAX_NAMED else ""
            text += f"; cut at the first event that could not be read: {named}{more}"
        else:
            text += "; no session is cut short between events that can be read"
        return "; ".join((text, *self.notes))


def suspect(database: Path, reason: str) -> None:
    """Has the next start recover the file."""
    mark = _beside(database, "suspect")
    create_private(mark)
    mark.write_text(reason, encoding="utf-8")


def suspicion(database: Path) -> str:
    """Why the file is to be recovered; empty where it is not."""
    mark = _beside(database, "suspect")
    try:
        return mark.read_text(encoding="utf-8", errors="replace").strip() or "it was marked as damaged"
    except FileNotFoundError:
        return ""


def recover(database: Path, reason: str, now_us: int, progress: Progress) -> Recovery:
    """Recovers what can be read into a new file, then puts it in the place of the damaged one.

    Raises OSError or sqlite3.Error where the new file cannot be written; the damaged one is then where it was.
    """
    new = _beside(database, "recovering")
    _remove(new)
    with closing(open_for_writing(new)) as connection:
        cuts, garbled = _copy_events(database, connection)
        notes = [*garbled, *_copy_own_tables(database, connection)]
        rebuilt = rebuild(connection, progress)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    complete = _unused(_beside(database, f"recovered-{time_text(now_us)}"))
    _sync(new)
    new.rename(complete)
    sync_directory(database.parent)
    damaged = _take_place(database, complete)
    return Recovery(reason, damaged, rebuilt.events, rebuilt.sessions, cuts, notes)


def put_stand_in(database: Path) -> None:
    """Puts a first page in the place of a file that is missing or empty, and whose WAL is to be recovered.

    SQLite deletes the WAL of a file without content.
    """
    new = _beside(database, "recovering")
    _remove(new)
    with closing(open_for_writing(new)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    os.truncate(new, PAGE_BYTES)
    _sync(new)
    new.rename(database)
    sync_directory(database.parent)


def finish_interrupted(database: Path) -> str:
    """Goes on with a recovery that had everything but its renames; what was done, or an empty text."""
    for complete in sorted(database.parent.glob(f"{database.name}.recovered-*")):
        damaged = _take_place(database, complete)
        return f"a recovery that was interrupted has been finished; the damaged log is kept as {damaged}"
    return ""


def time_text(time_us: int) -> str:
    """A time for the name of a file: `20240131T235959Z`."""
    return datetime.fromtimestamp(time_us / 1e6, UTC).strftime("%Y%m%dT%H%M%SZ")


def _take_place(database: Path, complete: Path) -> Path:
    damaged = _beside(
        database, complete.name.removeprefix(f"{database.name}.").replace("recovered", "damaged", 1)
    )
    for suffix in _SUFFIXES:
        part = database.with_name(database.name + suffix)
        if part.exists():
            part.rename(damaged.with_name(damaged.name + suffix))
    sync_directory(database.parent)
    complete.rename(database)
    sync_directory(database.parent)
    _beside(database, "suspect").unlink(missing_ok=True)
    return damaged


def _copy_events(database: Path, connection: sqlite3.Connection) -> tuple[Sequence[Cut], Sequence[str]]:
    """Every session's events up to the first that is missing, under the positions that they had.

    Gives what is missing, and what there is to say of rows that do not fit their checksums.
    """
    rows = _beside(database, "recovering-rows")
    _remove(rows)
    create_private(rows)
    define(connection)
    connection.execute("ATTACH ? AS rows", (str(rows),))
    try:
        connection.execute("PRAGMA rows.synchronous = OFF")
        connection.execute("BEGIN")
        _collect(database, connection)
        cuts = _choose(connection, _promised(database))
        connection.execute(
            "INSERT INTO main.events "  # noqa: S608 - our own names
            f"SELECT position, key, seq, event, {CHECKSUM}(position, key, seq, event) "
            "FROM found JOIN kept USING (session) WHERE seq <= last ORDER BY position"
        )
        garbled = _garbled(database, connection)
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        connection.execute("DETACH rows")
        _remove(rows)
    return cuts, garbled


def _collect(database: Path, connection: sqlite3.Connection) -> None:
    connection.execute(
        "CREATE TABLE rows.found "
        "(position INTEGER PRIMARY KEY, session TEXT, seq INTEGER, event BLOB, creates INTEGER, "
        "UNIQUE (session, seq))"
    )
    connection.execute("CREATE TABLE rows.garbled (position INTEGER PRIMARY KEY, seq INTEGER)")
    for row in event_rows(database):
        _take(connection, row)
    connection.execute("SAVEPOINT behind")
    for row in rows_behind(database):
        if not _take(connection, row):
            # Those frames are of a transaction that failed at its commit, and was followed by another one.
            connection.execute("ROLLBACK TO behind")
            break
    connection.execute("RELEASE behind")


def _take(connection: sqlite3.Connection, row: FoundRow | GarbledRow) -> bool:
    """Keeps the row unless it is there already; False where another one is at its place.

    Of a garbled one only its place is noted.
    """
    if isinstance(row, GarbledRow):
        connection.execute("INSERT OR IGNORE INTO garbled VALUES (?, ?)", (row.position, row.seq))
        return True
    values = (row.position, row.session, row.seq, row.blob, row.creates)
    added = connection.execute("INSERT OR IGNORE INTO found VALUES (?, ?, ?, ?, ?)", values).rowcount
    if added:
        return True
    same = "SELECT 1 FROM found WHERE position = ? AND session = ? AND seq = ? AND event = ?"
    return connection.execute(same, values[:4]).fetchone() is not None


def _garbled(database: Path, connection: sqlite3.Connection) -> Sequence[str]:
    """Rows of which no copy fits its checksum; named by what the damaged file's index says, where it can be read."""
    lost = "FROM garbled WHERE position NOT IN (SELECT position FROM found)"
    (count,) = connection.execute(f"SELECT count(*) {lost}").fetchone()
    if not count:
        return []
    named = []
    query = f"SELECT position, seq {lost} ORDER BY position LIMIT {_MAX_NAMED}"
    for position, seq in connection.execute(query):
        session = None
        with suppress(sqlite3.Error), closing(_reading(database)) as damaged:
            session, seq = damaged.execute(OWNER, (position,)).fetchone() or (session, seq)
        named.append(f"event {seq} of {session or 'a session that is not known'}, at position {position}")
    more = f"; and {count - _MAX_NAMED} more" if count > _MAX_NAMED else ""
    return [f"not taken over, because it {MISFIT}: {'; '.join(named)}{more}"]


def _choose(connection: sqlite3.Connection, promised: Mapping[str, int]) -> Sequence[Cut]:
    """Up to which seq each session is kept; keys are given anew, in the order in which the sessions began."""
    connection.execute("CREATE TABLE rows.kept (key INTEGER PRIMARY KEY, session TEXT UNIQUE, last INTEGER)")
    cuts = [Cut(session, 0, 0, last) for session, last in promised.items() if not _found(connection, session)]
    query = "SELECT session, min(position), max(seq), count(*) FROM found GROUP BY session ORDER BY 2"
    for session, _, last, found in connection.execute(query).fetchall():
        last = max(last, promised.get(session, 0))
        kept = _contiguous(connection, session)
        if kept:
            connection.execute("INSERT INTO kept (session, last) VALUES (?, ?)", (session, kept))
        if kept < last:
            cuts.append(Cut(session, kept, found, last))
    return cuts


def _found(connection: sqlite3.Connection, session: str) -> bool:
    row = connection.execute("SELECT 1 FROM found WHERE session = ? LIMIT 1", (session,)).fetchone()
    return row is not None


def _contiguous(connection: sqlite3.Connection, session: str) -> int:
    """Up to which seq a session is whole; 0 where its session/created is not in that part."""
    kept = position = 0
    created = False
    query = "SELECT seq, position, creates FROM found WHERE session = ? ORDER BY seq"
    for seq, at, creates in connection.execute(query, (session,)):
        if seq != kept + 1 or at <= position:
            break
        kept, position, created = seq, at, created or bool(creates)
    return kept if created else 0


def _promised(database: Path) -> Mapping[str, int]:
    """The last seq of each session by the table of sessions and by the index of events, as far as they can be read.

    Where the table was derived from what could be read, only the index knows of the rest.
    """
    promised: dict[str, int] = {}
    for session, last in last_seqs(database):
        promised[session] = max(last, promised.get(session, 0))
    for query in _LAST_SEQS:
        with suppress(sqlite3.Error), closing(_reading(database)) as connection:
            for session, last in connection.execute(query):
                if isinstance(session, str) and isinstance(last, int):
                    promised[session] = max(last, promised.get(session, 0))
    return promised


def _copy_own_tables(database: Path, connection: sqlite3.Connection) -> Sequence[str]:
    """What stands beside the events and is not derived from them, row by row until SQLite cannot go on."""
    notes = []
    for table in OWN:
        rows = 0
        connection.execute("BEGIN")
        try:
            with closing(_reading(database)) as damaged:
                for row in damaged.execute(f"SELECT * FROM {table}"):  # noqa: S608 - our own names
                    marks = ", ".join("?" * len(row))
                    connection.execute(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", row)  # noqa: S608
                    rows += 1
        except sqlite3.DatabaseError as error:
            notes.append(f"of the table {table} {rows} rows were kept, then: {error}")
        connection.execute("COMMIT")
    return notes


def _reading(database: Path) -> sqlite3.Connection:
    return sqlite3.connect(read_only_uri(database), uri=True)


def _beside(database: Path, suffix: str) -> Path:
    return database.with_name(f"{database.name}.{suffix}")


def _unused(path: Path) -> Path:
    """The name, or one with a number where the name is taken, also by an earlier damaged file."""
    damaged = path.name.replace(".recovered-", ".damaged-", 1)
    for number in range(2, 10_000):
        if not path.exists() and not path.with_name(damaged).exists():
            return path
        base, _, _ = path.name.partition("Z")
        path = path.with_name(f"{base}Z-{number}")
        damaged = path.name.replace(".recovered-", ".damaged-", 1)
    raise FileExistsError(f"there are too many damaged files beside {path}; move some away")


def _remove(database: Path) -> None:
    for suffix in (*_SUFFIXES, "-journal"):
        database.with_name(database.name + suffix).unlink(missing_ok=True)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
