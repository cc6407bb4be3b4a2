"""The tables of the log, their version, and how a connection to them is opened."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Final

VERSION: Final = 2
APPLICATION_ID: Final = 0x7475726E
"""`turn`, in the file's header: by it a file of turnd's is told from any other database."""
BUSY_TIMEOUT_MS: Final = 5000
"""How long a transaction waits for someone else who writes into the file, which nobody should."""
PAGE_BYTES: Final = 4096
"""Of the pages of a new file."""
NEW: Final = -1
"""What `version_of` says of a file without anything in it."""
_FORMATS: Final = slice(18, 20)
"""Where the header of a file has the versions of its format, for writing and for reading."""
_WITNESS: Final = b"CREATE TABLE usage_ledger"
_WITNESS_BYTES: Final = 64 * 2**10
"""How far into the file its schema is looked for, where the header is damaged."""

EVENTS: Final = """
CREATE TABLE events (
    position INTEGER PRIMARY KEY,
    session INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    event BLOB NOT NULL,
    checksum INTEGER NOT NULL
);
CREATE UNIQUE INDEX events_of_session ON events (session, seq);
"""
"""The truth. A row is never changed; it goes only when its whole session is removed, on demand (`gc`).

`checksum` is `checksum.row_checksum` of the other columns, as they were stored.
"""

DERIVED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "sessions": """
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
""",
        "usage_ledger": """
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
""",
        "plan_items": """
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
""",
        "producers": """
CREATE TABLE producers (
    session INTEGER NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    version TEXT NOT NULL,
    first_seq INTEGER NOT NULL,
    PRIMARY KEY (session, kind, name, version)
) WITHOUT ROWID;
""",
    }
)
"""What the events say, by table; each can be dropped and derived anew."""

OWN: Final[Mapping[str, str]] = MappingProxyType(
    {
        "requests": """
CREATE TABLE requests (
    request_id TEXT PRIMARY KEY,
    method TEXT NOT NULL,
    digest BLOB NOT NULL,
    answer BLOB NOT NULL,
    at_us INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX requests_by_age ON requests (at_us);
""",
        "policy_rules": """
CREATE TABLE policy_rules (
    name TEXT PRIMARY KEY,
    workspace TEXT NOT NULL,
    profile TEXT NOT NULL,
    cwd TEXT NOT NULL,
    rule BLOB NOT NULL,
    session TEXT NOT NULL,
    client TEXT NOT NULL,
    at_us INTEGER NOT NULL
) WITHOUT ROWID;
""",
    }
)
"""What stands beside the events and cannot be derived from them."""


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


class Damaged(Exception):
    """The file is turnd's, and something in it cannot be read or is missing; the message says what (LOG-16)."""


def open_for_writing(path: Path) -> sqlite3.Connection:
    """The writer's connection, the file made where there is none. It belongs to the calling thread.

    Checkpoints and `synchronous` are the writer's to choose. Raises SchemaTooNew, NotALog, Damaged,
    sqlite3.Error; ValueError for an older file, which `opening.open_file` migrates.
    """
    if not path.exists() or version_of(path) == NEW:
        _make(path)
    version = version_of(path)
    if version != VERSION:
        raise ValueError(f"{path} has schema version {version}, and must be migrated to {VERSION} first")
    connection = sqlite3.connect(path, isolation_level=None, cached_statements=256)
    try:
        connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        _require_wal_mode(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _make(path: Path) -> None:
    """Makes a log without events, whole or not at all.

    What a kill leaves half made lies under another name: under its own, its rollback journal would be in the way of
    every later start, which looks at the file before it writes.
    """
    half = path.with_name(f"{path.name}.new")
    for ending in ("", "-journal", "-wal", "-shm"):
        half.with_name(half.name + ending).unlink(missing_ok=True)
    create_private(half)
    with closing(sqlite3.connect(half, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.executescript(f"BEGIN IMMEDIATE;{tables()}{stamp()}COMMIT;")
        _require_wal_mode(connection, half)
    for ending in ("-journal", "-wal", "-shm"):
        left = path.with_name(path.name + ending)
        if left.exists():
            # It would be applied to the new file. It says nothing: the old file is empty, or there is none.
            left.replace(left.with_name(f"{left.name}.orphan"))
    half.replace(path)
    sync_directory(path.parent)


def _require_wal_mode(connection: sqlite3.Connection, path: Path) -> None:
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise sqlite3.OperationalError(f"{path} cannot be used in WAL mode here, only as {mode}")


def read_only_uri(path: Path) -> str:
    """How readers open the file: they can neither write nor checkpoint."""
    return f"{path.absolute().as_uri()}?mode=ro"


def tables() -> str:
    """The statements that make every table of this version."""
    return EVENTS + "".join(DERIVED.values()) + "".join(OWN.values())


def stamp() -> str:
    """The statements that say whose file it is, and in which version."""
    return f"PRAGMA application_id = {APPLICATION_ID};PRAGMA user_version = {VERSION};"


def create_private(path: Path) -> None:
    """Makes an empty file that nobody else can read, unless it is there."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return
    # The name must survive a power cut as surely as the first commitment in the file does.
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Makes the names in it survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def version_of(path: Path) -> int:
    """The file's version, or NEW; read without changing a byte: closing an ordinary connection would checkpoint.

    Raises SchemaTooNew, NotALog, Damaged, and sqlite3.OperationalError where it cannot be opened.
    """
    if path.stat().st_size == 0:
        return NEW
    with closing(sqlite3.connect(read_only_uri(path), uri=True)) as connection:
        try:
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            rows = connection.execute("SELECT name FROM sqlite_schema").fetchall()
        except sqlite3.DatabaseError as error:
            # Of these statements the general error can only be about a header that SQLite does not understand.
            about_file = error.sqlite_errorcode == sqlite3.SQLITE_ERROR
            if isinstance(error, sqlite3.OperationalError) and not about_file:
                raise
            if is_ours(path):
                raise Damaged(str(error)) from None
            raise NotALog(path, str(error)) from None
    names = {name for (name,) in rows}
    # SQLite takes a format that it does not know for one that it may not write, and says so at the first commit only.
    with path.open("rb") as file:
        formats = file.read(_FORMATS.stop)[_FORMATS]
    if not set(formats) <= {1, 2}:
        raise Damaged(f"its header names the file formats {formats[0]} and {formats[1]}, expected 1 or 2")
    if application == 0 and version == 0 and not names:
        return NEW
    # Before files were stamped, version 1 was told by its tables; and a stamp may be damaged.
    told = {"events", "sessions"} if application == 0 else {"events", *DERIVED, *OWN}
    if application != APPLICATION_ID and not (version and told <= names):
        raise NotALog(path, f"a database with application id {application:#x} and schema version {version}")
    if version < 0:
        raise Damaged(f"its header names the schema version {version}")
    if version > VERSION:
        raise SchemaTooNew(path, version)
    return int(version)


def is_ours(path: Path) -> bool:
    """The file was turnd's before it was damaged: its stamp or its tables are still to be seen."""
    with path.open("rb") as file:
        start = file.read(_WITNESS_BYTES)
    return start[68:72] == APPLICATION_ID.to_bytes(4, "big") or _WITNESS in start
