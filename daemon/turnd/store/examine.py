"""What `turn doctor` finds about the file: each check says what was found, and what to do where that is wrong."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import structlog

from turnd.store.check import CheckStopped, integrity_check
from turnd.store.damage import suspicion
from turnd.store.filesystem import NetworkFileSystem, kind_of, require_local
from turnd.store.health import LARGE_WAL_BYTES
from turnd.store.hold import LOCK_NAME
from turnd.store.opening import is_unchecked
from turnd.store.schema import VERSION, read_only_uri, tables

LOW_SPACE_BYTES: Final = 256 * 2**20
"""With less than this a session with much output can fill the disk."""
_MIB: Final = 2**20
_MOUNTS: Final = Path("/proc/self/mountinfo")
_OPEN_FILES: Final = Path("/proc/self/fd")
_MOVED: Final = (
    "somebody has moved or removed it: what is written now is lost at the next start; export what matters"
)
_NAMED: Final = 5
"""Faults that are written out."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    ok: bool
    finding: str
    advice: str = ""
    """What to do; empty where it is in order."""


@dataclass(frozen=True, slots=True)
class CopyOfLog:
    """A file beside the log that was one: a backup, or a damaged one that was renamed."""

    path: Path
    damaged: bool
    bytes: int
    written_us: int


def copies(database: Path) -> Sequence[CopyOfLog]:
    """Backups and damaged files, with what belongs to each, oldest first."""
    found = []
    for path in database.parent.iterdir():
        rest = path.name.removeprefix(f"{database.name}.")
        damaged = rest.startswith("damaged-")
        if rest != path.name and (damaged or rest.startswith("version-")):
            stat = path.lstat()
            found.append(CopyOfLog(path, damaged, stat.st_size, stat.st_mtime_ns // 1000))
    return sorted(found, key=lambda copy: (copy.written_us, copy.path.name))


def examine(
    database: Path, *, low_space_bytes: int = LOW_SPACE_BYTES, mounts: str | None = None
) -> Iterator[Check]:
    """All checks that need not read the whole file, which a daemon serves at the same time. For a thread."""
    looks: dict[str, Callable[[], Check]] = {
        "log file": lambda: _file(database),
        "schema version": lambda: _version(database),
        "tables": lambda: _tables(database),
        "damage": lambda: _damage(database),
        "journal mode": lambda: _journal(database),
        "wal": lambda: _wal(database),
        "disk space": lambda: _space(database, low_space_bytes),
        "file system": lambda: _file_system(database, mounts),
        "lock": lambda: _lock(database),
        "copies of the log": lambda: _copies(database),
    }
    for name, look in looks.items():
        try:
            yield look()
        except (OSError, sqlite3.Error) as error:
            yield Check(
                name, False, f"cannot be looked at: {error}", "see that the file is there and readable"
            )


def examine_all(database: Path, stop: threading.Event) -> Check:
    """Reads the whole file, which takes its time. For a thread. Raises CheckStopped."""
    size = database.stat().st_size
    log.info("log_check_started", bytes=size)
    try:
        faults = integrity_check(database, stop)
    except CheckStopped:
        log.info("log_check_stopped")
        raise
    except sqlite3.Error as error:
        faults = [str(error)]
    log.info("log_check_ended", bytes=size, faults=len(faults))
    if not faults:
        return Check(
            "integrity",
            True,
            f"all of {size / _MIB:.1f} MiB was read and is sound; every event fits its checksum",
        )
    more = f"; and {len(faults) - _NAMED} more" if len(faults) > _NAMED else ""
    advice = (
        "stop turnd, copy the file away and start it again: what can be read is recovered into a new file"
    )
    return Check("integrity", False, "; ".join(faults[:_NAMED]) + more, advice)


def _file(database: Path) -> Check:
    if _is_gone(database):
        return Check("log file", False, f"{database} is not the file that this daemon writes", _MOVED)
    return Check("log file", True, f"{database}, {database.stat().st_size / _MIB:.1f} MiB")


def _version(database: Path) -> Check:
    found = _pragma(database, "user_version")
    advice = f"this turnd knows version {VERSION}: start the turnd that wrote the file, or restart this one"
    return Check("schema version", found == VERSION, str(found), "" if found == VERSION else advice)


def _tables(database: Path) -> Check:
    """The events, what is derived from them, and what stands beside them, each with its indexes."""
    with closing(sqlite3.connect(":memory:")) as expected:
        expected.executescript(tables())
        wanted = _schema(expected)
    with closing(sqlite3.connect(read_only_uri(database), uri=True)) as connection:
        there = _schema(connection)
    wrong = [name for name, sql in wanted.items() if there.get(name) != sql]
    if not wrong:
        return Check("tables", True, f"all {len(wanted)} tables and indexes are there")
    advice = "restart turnd: what is derived is derived anew, the rest recovered as far as it can be"
    return Check("tables", False, f"missing, or not as this version has them: {', '.join(wrong)}", advice)


def _schema(connection: sqlite3.Connection) -> dict[str, str]:
    return dict(
        connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid")
    )


def _damage(database: Path) -> Check:
    """What a start, a check behind and those who read have found of it; whether the check that is due has ended."""
    reason = suspicion(database)
    if reason:
        advice = (
            "export what matters, then restart turnd: it keeps the damaged file and recovers what can be read"
        )
        return Check("damage", False, reason, advice)
    if is_unchecked(database):
        return Check(
            "damage", True, "none known; turnd did not stop in order, and the check of the file is not done"
        )
    return Check("damage", True, "none known")


def _journal(database: Path) -> Check:
    found = _pragma(database, "journal_mode")
    advice = "another program has changed it: stop turnd, leave the file to turnd alone, and start it again"
    return Check("journal mode", found == "wal", str(found), "" if found == "wal" else advice)


def _wal(database: Path) -> Check:
    wal = database.with_name(f"{database.name}-wal")
    if _is_gone(wal):
        return Check("wal", False, f"{wal} is not the file that this daemon writes", _MOVED)
    size = wal.stat().st_size
    small = size <= LARGE_WAL_BYTES
    advice = "" if small else "end the program that keeps the log open for reading, then the WAL is emptied"
    return Check("wal", small, f"{size / _MIB:.1f} MiB", advice)


def _space(database: Path, low_bytes: int) -> Check:
    room = os.statvfs(database.parent)
    free = room.f_bavail * room.f_frsize
    advice = "" if free >= low_bytes else "make room: sessions wait with an error when the disk is full"
    return Check("disk space", free >= low_bytes, f"{free // _MIB} MiB free", advice)


def _file_system(database: Path, mounts: str | None) -> Check:
    text = _MOUNTS.read_text() if mounts is None else mounts
    kind = kind_of(database.parent.resolve(), text) or "unknown"
    try:
        require_local(database.parent, text)
    except NetworkFileSystem as network:
        return Check("file system", False, kind, str(network))
    return Check("file system", True, kind)


def _lock(database: Path) -> Check:
    """Only the kernel's lock counts; the note in the file says who that is."""
    lock = database.with_name(LOCK_NAME)
    advice = "restart turnd at once: a second one could open the same log"
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return Check("lock", False, f"{lock} is not there", advice)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return Check("lock", True, f"held by pid {_pid(descriptor)}")
    finally:
        os.close(descriptor)
    return Check("lock", False, f"{lock} is not the file that this daemon has locked", advice)


def _is_gone(path: Path) -> bool:
    """This process has the file open, and its name is gone, or another file's by now."""
    for link in _OPEN_FILES.iterdir():
        try:
            if str(link.readlink()) == f"{path.resolve()} (deleted)":
                return True
        except FileNotFoundError:
            # Another thread has closed it.
            continue
    return False


def _pid(descriptor: int) -> str:
    try:
        return str(json.loads(os.pread(descriptor, 4096, 0))["pid"])
    except (ValueError, LookupError, TypeError):
        return "unknown"


def _copies(database: Path) -> Check:
    found = copies(database)
    if not found:
        return Check("copies of the log", True, "none")
    named = ", ".join(
        f"{copy.path.name} ({_day(copy.written_us)}, {copy.bytes / _MIB:.1f} MiB)" for copy in found
    )
    damaged = any(copy.damaged for copy in found)
    advice = "a damaged log was replaced: the daemon's log says what was lost; remove the file when it is not needed"
    return Check("copies of the log", not damaged, named, advice if damaged else "")


def _day(us: int) -> str:
    return datetime.fromtimestamp(us / 1_000_000, UTC).strftime("%Y-%m-%d")


def _pragma(database: Path, name: str) -> object:
    with closing(sqlite3.connect(read_only_uri(database), uri=True)) as connection:
        return connection.execute(f"PRAGMA {name}").fetchone()[0]
