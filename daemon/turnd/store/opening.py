"""What a start does before anybody uses the file: migrates it, recovers it, derives what is missing beside its events.

A daemon that stops in order leaves no WAL: the last connection that is closed removes it. A WAL that is there says
that the last one was killed, that the power went, or that another process is just reading; then a check is due, and
`turnd.db.unchecked` says so until one has run to its end (LOG-16).

Only what can be seen at once is looked at here, so that a start does not take the longer the longer the log is: the
header, the schema, the WAL, the table of sessions and whether each row of it agrees with the last event, and the
events of those sessions that a repair is about to append to.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import structlog
from google.protobuf.message import DecodeError

from turnd.store.checksum import MISFIT, columns, is_whole, of_session
from turnd.store.damage import finish_interrupted, put_stand_in, recover, suspect, suspicion
from turnd.store.migrate import MigrationFailed, migrate
from turnd.store.rebuild import Progress, Rebuilt, is_shaped, rebuild
from turnd.store.schema import (
    APPLICATION_ID,
    DERIVED,
    NEW,
    OWN,
    VERSION,
    Damaged,
    NotALog,
    create_private,
    is_ours,
    open_for_writing,
    version_of,
)
from turnd.store.walfile import holds_more, read_wal, wal_of
from turnd.v1 import event_pb2

log = structlog.get_logger(__name__)

_STALE = """
    SELECT (SELECT count(*) FROM sessions
            WHERE last_seq IS NOT (SELECT max(seq) FROM events WHERE session = key))
        OR (SELECT coalesce(max(session), 0) FROM events) > (SELECT coalesce(max(key), 0) FROM sessions)
"""

_LOST: Final = MappingProxyType(
    {
        "requests": "a command that was carried out before, and is sent again with its request id, is carried out "
        "twice",
        "policy_rules": "what people had approved for always is asked about again",
    }
)
"""What it means that a table of OWN is empty."""
_LAST: Final = f"SELECT {columns('stored')} FROM events AS stored ORDER BY position DESC LIMIT 1"  # noqa: S608 - our own names


@dataclass(frozen=True, slots=True)
class Opened:
    """What was found and done. `notes` are for whoever runs the daemon: damage, what was kept of it and what lost."""

    unclean: bool
    """A daemon did not stop in order, and the file has not been checked since."""
    notes: Sequence[str]
    losses: Mapping[str, str]
    """By session that was kept in part: what its readers must know."""


def open_file(path: Path, now_us: Callable[[], int], *, used_before: bool = False) -> Opened:
    """Makes the file one that this turnd can use; a new one is left for the writer to make.

    `used_before`: a turnd has run here before, so that there should be one.

    Raises SchemaTooNew and NotALog, which leave it untouched; MigrationFailed, which leaves it as it was; OSError
    or sqlite3.Error where it cannot be opened, or there is no room to recover it.
    """
    notes: list[str] = []
    if path.exists() and not path.is_file():
        raise NotALog(path, "it is no ordinary file")
    finished = finish_interrupted(path)
    if finished:
        notes.append(finished)
        log.error("log_recovered", problem=finished)
    if gone := _gone(path):
        wal = read_wal(wal_of(path))
        if not wal.frames and not wal.lost:
            if used_before:
                notes.append(f"{gone}, and a new one was made; if it was moved, stop turnd and put it back")
                log.error("log_gone", problem=notes[-1])
            return Opened(unclean=False, notes=notes, losses={})
        suspect(path, f"{gone}, and its WAL holds committed events")
        put_stand_in(path)
    try:
        reason = _why_not_sound(path, now_us, notes)
    except sqlite3.Error as error:
        # SQLite does not say which file it was.
        raise type(error)(f"the log {path} cannot be opened: {error}") from error
    losses: Mapping[str, str] = {}
    if reason:
        if not is_ours(path):
            raise NotALog(path, reason)
        log.error("log_damaged", problem=reason)
        recovery = recover(path, reason, now_us(), _told("log_recovery"))
        notes.append(str(recovery))
        losses = recovery.losses
        log.error("log_recovered", problem=str(recovery))
    return Opened(is_unchecked(path), notes, losses)


def checked(path: Path) -> None:
    """The check that was due has run to its end, whatever it found."""
    _unchecked(path).unlink(missing_ok=True)


def rebuild_file(path: Path, now_us: Callable[[], int], progress: Progress) -> tuple[Sequence[str], Rebuilt]:
    """Opens the file as a start does, and derives every table beside the events anew; the notes, and what differed.

    The caller holds the log. Raises what `open_file` does.
    """
    found = open_file(path, now_us)
    with closing(open_for_writing(path)) as connection:
        rebuilt = rebuild(connection, progress)
    if rebuilt.damaged:
        suspect(path, rebuilt.damaged[0])
    return found.notes, rebuilt


def is_unchecked(path: Path) -> bool:
    """A daemon did not stop in order, and no check has run to its end since."""
    return _unchecked(path).exists()


def _unchecked(path: Path) -> Path:
    return path.with_name(f"{path.name}.unchecked")


def _gone(path: Path) -> str:
    """That there is no file, or one without content, which turnd never makes; an empty text where there is more."""
    if not path.exists():
        return f"the log {path} was missing"
    return "" if path.stat().st_size else f"the log {path} was empty"


def _why_not_sound(path: Path, now_us: Callable[[], int], notes: list[str]) -> str:
    """Migrates and derives what it takes, and notes it; what is wrong with the file, or an empty text."""
    killed = wal_of(path).exists()
    try:
        # First of all: a newer file is not touched, whatever else there is to say of it.
        version = version_of(path)
        if version == NEW:
            return ""
        if killed:
            create_private(_unchecked(path))
        if suspicion(path):
            return suspicion(path)
        if holds_more(path) and read_wal(wal_of(path)).lost:
            return "the WAL is garbled, with committed transactions behind that place"
        if version < VERSION:
            backup = migrate(path, version, now_us(), _told("log_migration"))
            log.warning("log_migrated", from_version=version, to_version=VERSION, backup=str(backup))
        with closing(open_for_writing(path)) as connection:
            _derive_what_is_missing(connection, notes)
            _require_readable(connection)
    except Damaged as damaged:
        return str(damaged)
    except MigrationFailed as failed:
        if type(failed.__cause__) is not sqlite3.DatabaseError:
            raise
        return str(failed.__cause__)
    except sqlite3.DatabaseError as error:
        # Subclasses say what the machine cannot do just now; the class itself, that the file is not as it should be.
        if type(error) is not sqlite3.DatabaseError:
            raise
        return str(error)
    return ""


def _derive_what_is_missing(connection: sqlite3.Connection, notes: list[str]) -> None:
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    if not {"events", "events_of_session"} <= tables:
        raise Damaged("the table of events or its index is missing")
    for table in OWN.keys() - tables:
        connection.executescript(f"BEGIN IMMEDIATE;{OWN[table]}COMMIT;")
        note = f"the log's table {table} was missing, and has been made anew and empty: {_LOST[table]}"
        notes.append(note)
        log.error("log_table_made", problem=note)
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    wrong = [table for table in DERIVED if not is_shaped(connection, table)]
    if not wrong and connection.execute(_STALE).fetchone() == (0,):
        return
    rebuilt = rebuild(connection, _told("log_rebuild"))
    if rebuilt.damaged:
        raise Damaged(rebuilt.damaged[0])
    differed = "; ".join(str(difference) for difference in rebuilt.differences)
    note = f"tables of the log were not what its events say, and have been derived anew: {differed}"
    notes.append(note)
    log.error("log_tables_derived_anew", problem=note)


def _require_readable(connection: sqlite3.Connection) -> None:
    """The end of the log, and the sessions that a repair appends to, must be whole. Raises Damaged."""
    last = connection.execute(_LAST).fetchone()
    if last is not None and not is_whole(*last):
        raise Damaged(f"the last event, at position {last[0]}, {MISFIT}")
    # Every lookup goes through this table, and it is small.
    faults = [line for (line,) in connection.execute("PRAGMA integrity_check(sessions)") if line != "ok"]
    if faults:
        raise Damaged(f"the table of sessions: {faults[0]}")
    for (key,) in connection.execute("SELECT key FROM sessions WHERE unsettled").fetchall():
        for expected, (seq, *row) in enumerate(connection.execute(of_session(), (key,)), 1):
            if seq != expected:
                raise Damaged(f"event {expected} of the session with key {key} is missing")
            if not is_whole(*row) or row[1:3] != [key, seq]:
                raise Damaged(f"event {seq} of the session with key {key} {MISFIT}")
            try:
                event = event_pb2.Event.FromString(row[3])
            except DecodeError as error:
                raise Damaged(f"event {seq} of the session with key {key} cannot be read: {error}") from None
            if event.seq != seq:
                raise Damaged(f"event {seq} of the session with key {key} says that it is {event.seq}")


def _told(what: str) -> Callable[[int, int], None]:
    return lambda done, total: log.info(what, done=done, events=total)
