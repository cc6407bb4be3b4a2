"""The tables of the log, their version, and how a connection to them is opened."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

VERSION: Final = 1
BUSY_TIMEOUT_MS: Final = 5000
"""How long a transaction waits for someone else who writes into the file, which nobody should."""

_TABLES: Final = """
CREATE TABLE sessions (
    key INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    parent TEXT NOT NULL,
    depth INTEGER NOT NULL,
    profile TEXT NOT NULL,
    status INTEGER NOT NULL,
    cwd TEXT NOT NULL,
    unsettled INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    cost_nano_usd INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    created_us INTEGER NOT NULL,
    updated_us INTEGER NOT NULL,
    session BLOB NOT NULL
);
CREATE INDEX sessions_unsettled ON sessions (depth, key) WHERE unsettled;
CREATE INDEX sessions_of_parent ON sessions (parent) WHERE parent <> '';
CREATE TABLE events (
    position INTEGER PRIMARY KEY,
    session INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    event BLOB NOT NULL
);
CREATE UNIQUE INDEX events_of_session ON events (session, seq);
CREATE TABLE usage_ledger (
    position INTEGER PRIMARY KEY,
    session INTEGER NOT NULL,
    turn INTEGER,
    step INTEGER,
    time_us INTEGER NOT NULL,
    purpose TEXT NOT NULL,
    model TEXT NOT NULL,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cache_read_tokens INTEGER NOT NULL,
    cache_write_tokens INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL,
    cost_nano_usd INTEGER NOT NULL,
    free INTEGER NOT NULL,
    estimated INTEGER NOT NULL,
    unpriced INTEGER NOT NULL
);
CREATE INDEX usage_of_session ON usage_ledger (session);
CREATE TABLE plan_items (
    session INTEGER NOT NULL,
    call_id TEXT NOT NULL,
    turn INTEGER,
    step INTEGER,
    place INTEGER NOT NULL,
    provider TEXT NOT NULL,
    tool TEXT NOT NULL,
    kind TEXT NOT NULL,
    risk TEXT NOT NULL,
    decision TEXT NOT NULL,
    decided_by TEXT NOT NULL,
    decided_by_name TEXT NOT NULL,
    reason TEXT NOT NULL,
    outcome TEXT NOT NULL,
    PRIMARY KEY (session, call_id)
) WITHOUT ROWID;
CREATE TABLE producers (
    session INTEGER NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    version TEXT NOT NULL,
    first_seq INTEGER NOT NULL,
    PRIMARY KEY (session, kind, name, version)
) WITHOUT ROWID;
CREATE TABLE requests (
    request_id TEXT PRIMARY KEY,
    method TEXT NOT NULL,
    digest BLOB NOT NULL,
    answer BLOB NOT NULL,
    at_us INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX requests_by_age ON requests (at_us);
"""


class SchemaTooNew(Exception):
    """The file was written by a newer turnd; it was not touched (LOG-15)."""

    def __init__(self, path: Path, found: int) -> None:
        super().__init__(
            f"{path} has schema version {found}, this turnd knows {VERSION}; "
            "start the newer turnd that wrote it, or move the file away"
        )
        self.found = found


class NotALog(Exception):
    """The file is a database, or none at all, that turnd did not make; it was not touched."""

    def __init__(self, path: Path, found: str) -> None:
        super().__init__(
            f"{path} is not turnd's log: {found}; move it away, or choose another state directory"
        )


def open_for_writing(path: Path) -> sqlite3.Connection:
    """The writer's connection, the file made where there is none. It belongs to the calling thread.

    Checkpoints and `synchronous` are the writer's to choose. Raises SchemaTooNew, NotALog, sqlite3.Error.
    """
    _create_private(path)
    version = _version_untouched(path)
    connection = sqlite3.connect(path, isolation_level=None, cached_statements=256)
    try:
        connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise sqlite3.OperationalError(f"{path} cannot be used in WAL mode here, only as {mode}")
        if version == 0:
            connection.executescript(f"BEGIN IMMEDIATE;{_TABLES}PRAGMA user_version = {VERSION};COMMIT;")
    except BaseException:
        connection.close()
        raise
    return connection


def read_only_uri(path: Path) -> str:
    """How readers open the file: they can neither write nor checkpoint."""
    return f"{path.absolute().as_uri()}?mode=ro"


def _create_private(path: Path) -> None:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return
    # The name must survive a power cut as surely as the first commitment in the file does.
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _version_untouched(path: Path) -> int:
    """The file's version, read without changing a byte: closing an ordinary connection would checkpoint."""
    if path.stat().st_size == 0:
        return 0
    with closing(sqlite3.connect(read_only_uri(path), uri=True)) as connection:
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            raise NotALog(path, str(error)) from None
    if version > VERSION:
        raise SchemaTooNew(path, version)
    if version == 0 and tables:
        raise NotALog(path, "a database without turnd's schema version")
    return int(version)
