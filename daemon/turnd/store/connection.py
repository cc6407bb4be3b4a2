"""The writer's connection: its transactions, its grade of durability, its checkpoints, and a new one when it breaks.

The mutable state is the connection, which is missing from when it broke until the file can be opened again, its
grade, and whether a commit that failed may still be in the WAL. All of it belongs to the writer's thread.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import structlog

from turnd.store.health import WalWatch
from turnd.store.schema import (
    BUSY_TIMEOUT_MS,
    PAGE_BYTES,
    Damaged,
    NotALog,
    SchemaTooNew,
    open_for_writing,
)
from turnd.store.walend import WalEnd

CUT_TRIES: Final = 10
CUT_PAUSE_S: Final = 0.02
"""Between two tries to cut off what a failed commit wrote; its caller hears of the failure after them."""

log = structlog.get_logger(__name__)

Grade = Literal["NORMAL", "FULL"]
"""What a transaction survives: the end of the process, or a power cut as well (LOG-12)."""


class FileChanged(OSError):
    """The file that was opened again is not the one that was written into before."""


class WritingConnection:
    """The only connection that writes into the file, or checkpoints it.

    Raises SchemaTooNew, NotALog, Damaged, sqlite3.Error, ValueError where the file cannot be opened.
    """

    def __init__(self, path: Path, wal: WalWatch) -> None:
        self._path = path
        self._wal = wal
        self._connection: sqlite3.Connection | None = open_for_writing(path)
        self._grade = ""
        self._uncut = False
        try:
            self._position = _last_position(self._connection)
            self._end = WalEnd(path)
        except BaseException:
            self._connection.close()
            raise

    @property
    def position(self) -> int:
        """Of the last event that is committed."""
        return self._position

    @property
    def broken(self) -> bool:
        """The next transaction has to open the file again first."""
        return self._connection is None

    @property
    def uncut(self) -> bool:
        """What failed last may be in the file when this process is killed; nothing is written until it is cut off."""
        return self._uncut

    @contextmanager
    def transaction(self, grade: Grade) -> Iterator[sqlite3.Connection]:
        """All or nothing of what is done inside; what failed is not there either after a kill, unless `uncut`.

        Raises sqlite3.Error and OSError, FileChanged among them, or what the inside raised.
        """
        connection = self._opened()
        self._set_grade(connection, grade)
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException as error:
            self._roll_back(connection)
            if isinstance(error, sqlite3.Error | OSError):
                self._cut_off_what_failed()
            raise

    def advanced(self, position: int) -> None:
        """Takes where the log ends after a transaction that is committed."""
        self._position = position

    def checkpoint(self, mode: Literal["PASSIVE", "TRUNCATE"]) -> None:
        """Moves the WAL into the file, on this connection only: two that do it can corrupt it.

        One that cannot be done is said, and done later.
        """
        try:
            self._checkpoint(self._opened(), mode)
        except (sqlite3.Error, OSError) as error:
            log.warning("log_checkpoint_failed", error=str(error))

    def close(self) -> None:
        """Lets the file go; this process has no other connection to it."""
        if self._uncut:
            self._cut_off_what_failed()
        self._give_up()
        self._end.close()

    def _give_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _opened(self) -> sqlite3.Connection:
        # Before the file is opened again, too: where nobody else has it open, that takes whatever is in the WAL.
        if self._uncut:
            self._cut()
        if self._connection is None:
            self._connection = self._open_again()
            self._grade = ""
            log.info("log_reopened")
        return self._connection

    def _open_again(self) -> sqlite3.Connection:
        # A file that is not there must not be made anew: its disk may only be gone for a while.
        self._path.stat()
        try:
            connection = open_for_writing(self._path)
        except Damaged as damaged:
            raise sqlite3.DatabaseError(str(damaged)) from damaged
        except (SchemaTooNew, NotALog, ValueError) as other:
            raise FileChanged(str(other)) from other
        try:
            found = _last_position(connection)
            if found != self._position:
                raise FileChanged(
                    f"{self._path} ended at position {self._position}, and now at {found}: it is another file; put "
                    "the file back, or restart turnd to go on with this one"
                )
            self._end.follow()
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_grade(self, connection: sqlite3.Connection, grade: Grade) -> None:
        if grade != self._grade:
            connection.execute(f"PRAGMA synchronous = {grade}")
            self._grade = grade

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        """Back to what is on disk; a connection that cannot even do that is given up."""
        if not connection.in_transaction:
            return
        try:
            connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            log.warning("log_connection_broken", error=str(error))
            self._give_up()

    def _cut_off_what_failed(self) -> None:
        """Before anybody is told of the failure; where it cannot be done, the next transaction tries it first."""
        self._uncut = True
        for _ in range(CUT_TRIES):
            try:
                self._cut()
            except OSError as error:
                log.warning("log_wal_not_cut", error=str(error))
                time.sleep(CUT_PAUSE_S)
            else:
                return

    def _cut(self) -> None:
        self._end.cut()
        self._uncut = False

    def _checkpoint(self, connection: sqlite3.Connection, mode: str) -> None:
        # A reader that keeps its transaction open must not keep the writer waiting (LOG-10).
        connection.execute("PRAGMA busy_timeout = 0")
        try:
            busy, frames, moved = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        finally:
            connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        self._wal.checkpointed(frames * PAGE_BYTES, whole=not busy and frames == moved)


def _last_position(connection: sqlite3.Connection) -> int:
    (last,) = connection.execute("SELECT coalesce(max(position), 0) FROM events").fetchone()
    return int(last)
