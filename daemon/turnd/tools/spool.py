"""The whole output of calls, in capped files under the state directory; read by its own session only
(TOOL-05).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MAX_BYTES: Final = 64 * 1024 * 1024
"""For each call; what comes after is counted only."""
MAX_PAGE_BYTES: Final = 1024 * 1024
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TOTAL_SUFFIX: Final = ".total"


class NoSpool(Exception):
    """This session has no spooled output of this call."""


@dataclass(frozen=True, slots=True)
class SpoolPage:
    """A piece of spooled output. Sizes in bytes."""

    data: bytes
    offset: int
    spooled_bytes: int
    total_bytes: int
    """All that there was; more than was spooled where the cap was reached."""


class SpoolWriter:
    """Takes the output of one call; its file is made when the first bytes come.

    A disk that is full does not end the call: the rest is counted, and `total_bytes` tells.
    """

    def __init__(self, path: Path, cap: int) -> None:
        self._path = path
        self._cap = cap
        self._descriptor: int | None = None
        self._stopped = False
        self.spooled = 0
        self.total = 0

    def write(self, data: bytes) -> None:
        """Takes one more piece."""
        self.total += len(data)
        part = data[: self._cap - self.spooled]
        if not part or self._stopped:
            return
        try:
            if self._descriptor is None:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
                self._descriptor = os.open(self._path, flags, 0o600)
            while part:
                written = os.write(self._descriptor, part)
                self.spooled += written
                part = part[written:]
        except OSError:
            self._stopped = True

    def close(self) -> None:
        """Nothing more comes."""
        if self._descriptor is None:
            return
        os.close(self._descriptor)
        self._descriptor = None
        if self.total > self.spooled:
            # Where the disk is full this fails as well; then the total is not known to later readers.
            with contextlib.suppress(OSError):
                _total_path(self._path).write_text(str(self.total), encoding="ascii")


@dataclass(frozen=True, slots=True)
class SpoolDirectory:
    """The spooled output of one session."""

    name: str
    path: Path
    bytes: int
    written_us: int
    """When something in it was written last, in microseconds since the epoch."""


class Spool:
    """All spooled output. `root` is a directory of the daemon's own."""

    def __init__(self, root: Path, cap: int = MAX_BYTES) -> None:
        self._root = root
        self._cap = cap

    def writer(self, session: str, call_id: str) -> SpoolWriter:
        """A writer for one call; nothing is on disk until something is written."""
        return SpoolWriter(self._path(session, call_id), self._cap)

    def read(self, session: str, call_id: str, offset: int = 0, limit: int = 0) -> SpoolPage:
        """A piece of a call's output, of at most `limit` and MAX_PAGE_BYTES bytes; 0: as much as fits.
        Raises NoSpool.
        """
        path = self._path(session, call_id)
        wanted = min(limit or MAX_PAGE_BYTES, MAX_PAGE_BYTES)
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(min(offset, size))
                data = file.read(wanted)
        except FileNotFoundError as error:
            raise NoSpool(f"session {session} has no spooled output of call {call_id}") from error
        return SpoolPage(data, min(offset, size), size, _total(path, size))

    def directories(self) -> list[SpoolDirectory]:
        """What there is of all sessions; reads the directories."""
        try:
            entries = sorted(self._root.iterdir())
        except FileNotFoundError:
            return []
        return [_measured(entry) for entry in entries if entry.is_dir() and not entry.is_symlink()]

    def remove_directory(self, name: str) -> None:
        """Removes the output that is in one directory, if it is there. Raises OSError where that fails."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._root / name)

    def remove(self, session: str) -> None:
        """Removes all output of a session."""
        shutil.rmtree(self._root / _name(session), ignore_errors=True)

    def _path(self, session: str, call_id: str) -> Path:
        return self._root / _name(session) / _name(call_id)


def directory_name(session: str) -> str:
    """The name of the directory that has a session's output."""
    return _name(session)


def _measured(directory: Path) -> SpoolDirectory:
    size, written_ns = 0, directory.stat().st_mtime_ns
    for file in directory.iterdir():
        # It can be gone by now: a session goes on while it is looked at.
        with contextlib.suppress(FileNotFoundError):
            found = file.lstat()
            size += found.st_size
            written_ns = max(written_ns, found.st_mtime_ns)
    return SpoolDirectory(directory.name, directory, size, written_ns // 1000)


def _name(text: str) -> str:
    return text if _NAME.fullmatch(text) else hashlib.sha256(text.encode()).hexdigest()


def _total_path(path: Path) -> Path:
    return path.with_name(path.name + _TOTAL_SUFFIX)


def _total(path: Path, size: int) -> int:
    try:
        return max(size, int(_total_path(path).read_text(encoding="ascii")))
    except (OSError, ValueError):
        return size
