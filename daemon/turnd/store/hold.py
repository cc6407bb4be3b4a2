"""The one daemon of a log: a kernel lock beside the file, taken before anything else is touched (OPS-02)."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

LOCK_NAME: Final = "turnd.lock"
_MAX_NOTE_BYTES: Final = 4096


class DaemonRunning(Exception):
    """Another daemon holds the log. Its pid, version and socket are as it wrote them; empty while it starts."""

    def __init__(self, lock: Path, pid: int | None, version: str, socket: str) -> None:
        who = (
            f"turnd {version} with pid {pid}" if pid is not None else "another turnd, which is just starting,"
        )
        where = f" on {socket}" if socket else ""
        super().__init__(f"{who} is running{where} and holds {lock}; stop it with `turn stop`, or use it")
        self.pid = pid
        self.version = version
        self.socket = socket


@dataclass(frozen=True, slots=True)
class Hold:
    """The right to open one log. The kernel drops it with the process, however that ends."""

    database: Path
    used_before: bool
    """Somebody has held it before, ever."""
    _descriptor: int

    @classmethod
    def take(cls, database: Path, *, version: str, socket: str) -> Self:
        """Locks the log at this path, whose directory must exist. Raises DaemonRunning at once if it is held.

        What an earlier daemon left in the lock file means nothing: only the kernel's lock counts.
        """
        lock = database.with_name(LOCK_NAME)
        used_before = lock.exists()
        while True:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(descriptor, lock):
                    _write_note(descriptor, {"pid": os.getpid(), "version": version, "socket": socket})
                    return cls(database, used_before, descriptor)
            except BlockingIOError:
                holder = _read_note(descriptor)
                os.close(descriptor)
                raise _running(lock, holder) from None
            except BaseException:
                os.close(descriptor)
                raise
            # Someone removed the file between open and lock: what is locked now is not what others would open.
            os.close(descriptor)

    def release(self) -> None:
        """Lets the next daemon in. The file stays: removing it would let two daemons lock two files."""
        os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _write_note(descriptor: int, note: dict[str, object]) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(note).encode(), 0)


def _read_note(descriptor: int) -> dict[str, object]:
    try:
        note = json.loads(os.pread(descriptor, _MAX_NOTE_BYTES, 0))
    except ValueError:
        return {}
    return note if isinstance(note, dict) else {}


def _running(lock: Path, note: dict[str, object]) -> DaemonRunning:
    pid = note.get("pid")
    return DaemonRunning(
        lock, pid if isinstance(pid, int) else None, str(note.get("version", "")), str(note.get("socket", ""))
    )
