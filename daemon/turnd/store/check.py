"""Whether the file is sound: a quick check behind a daemon that serves, and a full one on demand (LOG-16)."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from turnd.store.rebuild import is_shaped
from turnd.store.schema import DERIVED, read_only_uri
from turnd.v1 import event_pb2

MAX_FAULTS: Final = 100
"""Faults that are named; a file with more is no better known by them."""
_INSTRUCTIONS: Final = 10_000
"""Of SQLite's machine, between two looks at whether the check is to end."""


class CheckStopped(Exception):
    """The check was told to end before it was done."""


class BackgroundCheck:
    """A quick check in a thread of its own, on a connection of its own that can only read.

    `done` gets what is wrong, nothing where the file is sound; CheckStopped, or the sqlite3.Error for which it
    could not be done.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stop = threading.Event()
        self.done: Future[Sequence[str]] = Future()
        self._thread = threading.Thread(target=self._run, name="turnd-log-check", daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self) -> None:
        """Ends it soon; `done` is done then."""
        self._stop.set()

    def join(self) -> None:
        """Waits for the thread."""
        self._thread.join()

    def _run(self) -> None:
        try:
            self.done.set_result(quick_check(self._path, self._stop))
        except Exception as error:  # noqa: BLE001 - it goes to whoever waits for the outcome
            self.done.set_exception(error)


def quick_check(path: Path, stop: threading.Event) -> Sequence[str]:
    """SQLite's quick_check, and whether each session's events are all there. Raises CheckStopped, sqlite3.Error."""
    with closing(_reading(path, stop)) as connection:
        return _faults(connection, stop, "quick_check")


def integrity_check(path: Path, stop: threading.Event) -> Sequence[str]:
    """SQLite's integrity_check, whether each session's events are all there, and each one can be read.

    It reads the whole file; for `turn doctor`. Raises CheckStopped, sqlite3.Error.
    """
    with closing(_reading(path, stop)) as connection:
        faults = [*_faults(connection, stop, "integrity_check")]
        if len(faults) < MAX_FAULTS:
            faults += _found(_unreadable(connection), MAX_FAULTS - len(faults), stop)
        return faults


def _faults(connection: sqlite3.Connection, stop: threading.Event, pragma: str) -> Sequence[str]:
    faults = _found(_structure(connection, pragma), MAX_FAULTS, stop)
    if not faults:
        faults = _found(_contents(connection), MAX_FAULTS, stop)
    return faults


def _found(faults: Iterator[str], limit: int, stop: threading.Event) -> list[str]:
    if stop.is_set():
        raise CheckStopped
    found: list[str] = []
    try:
        for fault in faults:
            found.append(fault)
            if len(found) == limit:
                break
    except sqlite3.OperationalError:
        if stop.is_set():
            raise CheckStopped from None
        raise
    except sqlite3.DatabaseError as error:
        found.append(str(error))
    return found


def _structure(connection: sqlite3.Connection, pragma: str) -> Iterator[str]:
    for (line,) in connection.execute(f"PRAGMA {pragma}({MAX_FAULTS})"):
        if line != "ok":
            yield line


def _contents(connection: sqlite3.Connection) -> Iterator[str]:
    for table in DERIVED:
        if not is_shaped(connection, table):
            yield f"the table {table} is missing, or not as this version has it"
            return
    yield from holes(connection)


def holes(connection: sqlite3.Connection) -> Iterator[str]:
    """Sessions whose events do not run from 1 to the last without a gap, by the index alone."""
    query = (
        "SELECT events.session, min(seq), max(seq), count(*), id, last_seq FROM events "
        "LEFT JOIN sessions ON sessions.key = events.session GROUP BY events.session"
    )
    for key, first, last, count, session, last_seq in connection.execute(query):
        name = session or f"the session with key {key}"
        if first != 1 or count != last:
            yield f"{name}: {count} events between seq {first} and {last}, expected {last} from 1 on"
        elif last_seq != last:
            yield f"{name}: the table of sessions ends at seq {last_seq}, its events at {last}"
    orphans = "SELECT id, last_seq FROM sessions WHERE NOT EXISTS (SELECT 1 FROM events WHERE session = key)"
    for session, last_seq in connection.execute(orphans):
        yield f"{session}: none of its {last_seq} events is there"


def _unreadable(connection: sqlite3.Connection) -> Iterator[str]:
    for position, session, seq, blob in connection.execute(
        "SELECT position, session, seq, event FROM events"
    ):
        try:
            event = event_pb2.Event.FromString(blob)
        except DecodeError as error:
            yield f"the event at position {position} cannot be read: {error}"
            continue
        if event.seq != seq:
            yield f"the event at position {position} is number {seq} of session {session} and says {event.seq}"


def _reading(path: Path, stop: threading.Event) -> sqlite3.Connection:
    connection = sqlite3.connect(read_only_uri(path), uri=True, isolation_level=None)
    connection.set_progress_handler(lambda: int(stop.is_set()), _INSTRUCTIONS)
    return connection
