"""What plain SQLite takes for the same rows: nothing that keeps them can be cheaper."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from enum import Enum
from pathlib import Path
from time import perf_counter, process_time

Rows = Sequence[tuple[int, int, int, bytes]]
"""Position, session, seq and blob, as the log has them."""

_TABLE = """
CREATE TABLE events (
    position INTEGER PRIMARY KEY, session INTEGER NOT NULL, seq INTEGER NOT NULL, event BLOB NOT NULL
);
CREATE UNIQUE INDEX events_of_session ON events (session, seq);
"""
_INSERT = "INSERT INTO events VALUES (?, ?, ?, ?)"


class Grade(Enum):
    """How durable a commit is; the value is SQLite's `synchronous`."""

    ORDINARY = "NORMAL"
    COMMITMENT = "FULL"


def stored_rows(database: Path) -> Rows:
    """The rows of a log that is closed."""
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(
            "SELECT position, session, seq, event FROM events ORDER BY position"
        ).fetchall()


def in_one_transaction(path: Path, rows: Rows, grade: Grade) -> tuple[float, float]:
    """Seconds for all rows, by executemany; and seconds of CPU."""
    with closing(_new_file(path, grade)) as connection:
        begin, cpu_begin = perf_counter(), process_time()
        connection.execute("BEGIN")
        connection.executemany(_INSERT, rows)
        connection.execute("COMMIT")
        return perf_counter() - begin, process_time() - cpu_begin


def in_one_each(path: Path, rows: Rows, grade: Grade) -> list[float]:
    """Seconds for each row, in a transaction of its own."""
    times = []
    with closing(_new_file(path, grade)) as connection:
        for row in rows:
            begin = perf_counter()
            connection.execute(_INSERT, row)
            times.append(perf_counter() - begin)
    return times


def select(database: Path) -> float:
    """Seconds for reading every event of the only session in a closed log, as blobs."""
    with closing(sqlite3.connect(database)) as connection:
        begin = perf_counter()
        connection.execute("SELECT event FROM events WHERE session = 1 ORDER BY seq").fetchall()
        return perf_counter() - begin


def _new_file(path: Path, grade: Grade) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    # The floor is without checkpoints, which the log's figures include.
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.executescript(_TABLE)
    connection.execute(f"PRAGMA synchronous = {grade.value}")
    return connection
