"""From an older schema to this one: a backup copy first, then step by step in one transaction (LOG-15).

Version 0 was a table `events` alone, its sessions named by their ids, with nothing derived beside it. Version 1 had no
checksums of its rows.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Final

from turnd.store.checksum import CHECKSUM, NONE, define
from turnd.store.damage import time_text
from turnd.store.rebuild import Progress, derive
from turnd.store.schema import (
    BUSY_TIMEOUT_MS,
    EVENTS,
    OWN,
    VERSION,
    create_private,
    read_only_uri,
    stamp,
    sync_directory,
)

Step = Callable[[sqlite3.Connection, Progress], None]
"""Brings a file from one version to the next, inside of the caller's transaction."""

_BATCH_EVENTS: Final = 1000
"""That are moved from table to table at once: pages that they leave are used for the next ones."""
_FIRST: Final = f"position IN (SELECT position FROM events_1 ORDER BY position LIMIT {_BATCH_EVENTS})"  # noqa: S608
_WITH_CHECKSUMS: Final = (
    "INSERT INTO events SELECT position, session, seq, event, CASE typeof(event) WHEN 'blob' "  # noqa: S608
    f"THEN {CHECKSUM}(position, CAST(session AS INTEGER), CAST(seq AS INTEGER), event) ELSE {NONE} END "
    f"FROM events_1 WHERE {_FIRST}"
)
_MOVED: Final = f"DELETE FROM events_1 WHERE {_FIRST}"  # noqa: S608 - our own names
_EVENTS_1: Final = """
CREATE TABLE events (
    position INTEGER PRIMARY KEY,
    session INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    event BLOB NOT NULL
);
CREATE UNIQUE INDEX events_of_session ON events (session, seq);
"""


class MigrationFailed(Exception):
    """The file could not be brought to this version; it is as it was, and its backup is beside it (V10)."""

    def __init__(self, path: Path, version: int, backup: Path, why: str) -> None:
        super().__init__(
            f"{path} has schema version {version} and could not be migrated to {VERSION}: {why}; "
            f"the file was left as it was, and a backup copy of it is {backup}; "
            "start the turnd that wrote it, or report this with what it says"
        )
        self.path = path
        self.version = version
        self.backup = backup


def migrate(
    path: Path, version: int, now_us: int, progress: Progress, steps: Mapping[int, Step] | None = None
) -> Path:
    """Migrates the file of an older version, and gives the path of the backup copy.

    `steps` are those of this turnd where nothing else is said. Raises MigrationFailed; OSError or sqlite3.Error
    where not even the backup could be written.
    """
    steps = STEPS if steps is None else steps
    backup = _back_up(path, version, now_us)
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            define(connection)
            connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN IMMEDIATE")
            try:
                for number in range(version, VERSION):
                    steps[number](connection, progress)
                _execute(connection, stamp())
                connection.execute("COMMIT")
            except BaseException:
                connection.execute("ROLLBACK")
                raise
    except Exception as error:
        raise MigrationFailed(path, version, backup, f"{type(error).__name__}: {error}") from error
    return backup


def _from_0(connection: sqlite3.Connection, progress: Progress) -> None:
    """Sessions get keys, in the order in which they began."""
    connection.execute("DROP INDEX IF EXISTS events_of_session")
    connection.execute("ALTER TABLE events RENAME TO events_0")
    _execute(connection, _EVENTS_1)
    connection.execute(
        "CREATE TEMP TABLE keys AS "
        "SELECT session AS id, row_number() OVER (ORDER BY min(position)) AS key FROM events_0 GROUP BY session"
    )
    connection.execute("CREATE UNIQUE INDEX temp.keys_by_id ON keys (id)")
    connection.execute(
        "INSERT INTO events SELECT position, key, seq, event FROM events_0 JOIN temp.keys ON id = session "
        "ORDER BY position"
    )
    connection.execute("DROP TABLE events_0")
    connection.execute("DROP TABLE temp.keys")


def _from_1(connection: sqlite3.Connection, progress: Progress) -> None:
    """Each row gets a checksum of what it is now, and everything that is derived is derived as this version does."""
    connection.execute("DROP INDEX IF EXISTS events_of_session")
    connection.execute("ALTER TABLE events RENAME TO events_1")
    _execute(connection, EVENTS)
    (total,) = connection.execute("SELECT count(*) FROM events_1").fetchone()
    done = 0
    while moved := connection.execute(_WITH_CHECKSUMS).rowcount:
        connection.execute(_MOVED)
        done += moved
        progress(done, total)
    connection.execute("DROP TABLE events_1")
    for table, statements in OWN.items():
        if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (table,)).fetchone():
            _execute(connection, statements)
    derive(connection, progress)


def _execute(connection: sqlite3.Connection, statements: str) -> None:
    """One by one: `executescript` would commit what is open."""
    for statement in statements.split(";"):
        connection.execute(statement)


STEPS: Final[Mapping[int, Step]] = MappingProxyType({0: _from_0, 1: _from_1})
"""By the version that they start from."""


def _back_up(path: Path, version: int, now_us: int) -> Path:
    """A copy of the file with what is in its WAL; the last one serves again where the log has not changed since."""
    with closing(sqlite3.connect(read_only_uri(path), uri=True)) as source:
        extent = _extent(source)
        for earlier in sorted(path.parent.glob(f"{path.name}.version-{version}-*Z"), reverse=True):
            with closing(sqlite3.connect(read_only_uri(earlier), uri=True)) as copy:
                if _extent(copy) == extent:
                    return earlier
        backup = path.with_name(f"{path.name}.version-{version}-{time_text(now_us)}")
        # Of one name, so that one which a kill has left makes room for the next.
        partial = path.with_name(f"{path.name}.version-{version}.partial")
        partial.unlink(missing_ok=True)
        create_private(partial)
        with closing(sqlite3.connect(partial)) as copy:
            # It is nothing until it is whole, and is synced then.
            copy.execute("PRAGMA journal_mode = OFF")
            copy.execute("PRAGMA synchronous = OFF")
            source.backup(copy)
            # One file is the whole copy, also where the original is in WAL mode.
            copy.execute("PRAGMA journal_mode = DELETE")
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.rename(backup)
    sync_directory(path.parent)
    return backup


def _extent(connection: sqlite3.Connection) -> tuple[int, int]:
    """Events are added and never changed, so that two files of one history with the same extent are the same."""
    count, last = connection.execute("SELECT count(*), coalesce(max(position), 0) FROM events").fetchone()
    return count, last
