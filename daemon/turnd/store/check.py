"""Whether the file is sound: a quick check behind a daemon that serves, and a full one on demand (LOG-16)."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from itertools import chain
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import DecodeError

from turnd.store.checksum import MISFIT, columns, is_whole
from turnd.store.queries import OWNER
from turnd.store.rebuild import is_shaped
from turnd.store.schema import DERIVED, read_only_uri
from turnd.v1 import event_pb2

MAX_FAULTS: Final = 100
"""Faults that are named; a file with more is no better known by them."""
_INSTRUCTIONS: Final = 10_000
"""Of SQLite's machine, between two looks at whether the check is to end."""
_PART_EVENTS: Final = 500
_PART_BYTES: Final = 2**20
"""After so much others get a turn, and no transaction is open for that long that would keep the WAL from shrinking."""
_PAUSE_S: Final = 0.0005
_PART: Final = f"SELECT {columns('stored')} FROM events AS stored WHERE position > ? ORDER BY position"  # noqa: S608
_BEFORE_ALL: Final = -(2**63)

_Row = tuple[Any, ...]
"""What `is_whole` takes, whatever is in it."""
_Judge = Callable[[_Row], str]
"""Says what is wrong with a row; empty where nothing is."""


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
    """SQLite's quick_check, whether each session's events are all there, and whether each is as it was stored.

    Raises CheckStopped, sqlite3.Error.
    """
    with closing(_reading(path, stop)) as connection:
        return _faults(connection, stop, "quick_check", _garbled)


def integrity_check(path: Path, stop: threading.Event) -> Sequence[str]:
    """SQLite's integrity_check, the same of the events, and whether each one can be read.

    It reads the whole file; for `turn doctor`. Raises CheckStopped, sqlite3.Error.
    """
    with closing(_reading(path, stop)) as connection:
        return _faults(connection, stop, "integrity_check", _unreadable)


def _faults(
    connection: sqlite3.Connection, stop: threading.Event, pragma: str, judge: _Judge
) -> Sequence[str]:
    faults = _found(_structure(connection, pragma), stop)
    if not faults:
        faults = _found(chain(_contents(connection), _events(connection, stop, judge)), stop)
    return faults


def _found(faults: Iterator[str], stop: threading.Event) -> list[str]:
    if stop.is_set():
        raise CheckStopped
    found: list[str] = []
    try:
        for fault in faults:
            found.append(fault)
            if len(found) == MAX_FAULTS:
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


def _events(connection: sqlite3.Connection, stop: threading.Event, judge: _Judge) -> Iterator[str]:
    for row in _rows(connection, stop):
        if fault := judge(row):
            yield f"{_named(connection, row)} {fault}"


def _garbled(row: _Row) -> str:
    return "" if is_whole(*row) else MISFIT


def _unreadable(row: _Row) -> str:
    if not is_whole(*row):
        return MISFIT
    try:
        event = event_pb2.Event.FromString(row[3])
    except DecodeError as error:
        return f"cannot be read: {error}"
    return "" if event.seq == row[2] else f"says that it is {event.seq}"


def _rows(connection: sqlite3.Connection, stop: threading.Event) -> Iterator[_Row]:
    """Every row as `is_whole` takes it; they are asked for part by part. Raises CheckStopped."""
    last, more = _BEFORE_ALL, True
    while more:
        if stop.wait(_PAUSE_S):
            raise CheckStopped
        more, size = False, 0
        with closing(connection.execute(_PART, (last,))) as part:
            for number, row in enumerate(part, 1):
                yield row
                last = row[0]
                size += len(row[3] or b"")
                if number == _PART_EVENTS or size > _PART_BYTES:
                    more = True
                    break


def _named(connection: sqlite3.Connection, row: _Row) -> str:
    """By what the index says: the row itself may be wrong."""
    session, seq = None, row[2]
    # There may be no table of sessions.
    with suppress(sqlite3.OperationalError):
        session, seq = connection.execute(OWNER, (row[0],)).fetchone() or (session, seq)
    return f"event {seq} of {session or 'a session that is not in the table'}, at position {row[0]}"


def _reading(path: Path, stop: threading.Event) -> sqlite3.Connection:
    connection = sqlite3.connect(read_only_uri(path), uri=True, isolation_level=None)
    connection.set_progress_handler(lambda: int(stop.is_set()), _INSTRUCTIONS)
    return connection
