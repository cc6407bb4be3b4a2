"""Reading and replacing whole files of a workspace: their state, and the atomic change from one to the
next.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

from turnd_provider.errors import ToolError
from turnd_provider.workspace.places import Held, Place, hold, open_file

MAX_EDIT_BYTES: Final = 16 * 1024 * 1024
ABSENT: Final = "absent"
"""The state of a file that is not there."""


@dataclass(frozen=True, slots=True)
class Content:
    """A file's bytes and permissions; `data` None: there is no file."""

    data: bytes | None
    mode: int = 0

    @property
    def state(self) -> str:
        """The words for preconditions: what is in the file, or that there is none."""
        return ABSENT if self.data is None else state_of(self.data)


def state_of(data: bytes) -> str:
    """The state of a file with this content."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def read(held: Held) -> Content:
    """What is at a held place. Raises ToolError for anything but a regular file that may be edited, or
    nothing.
    """
    try:
        with open_file(held) as descriptor:
            status = os.fstat(descriptor)
            if status.st_size > MAX_EDIT_BYTES:
                raise ToolError.failed(
                    f"{held.place.shown} has {status.st_size} bytes; at most {MAX_EDIT_BYTES} are edited"
                )
            with os.fdopen(os.dup(descriptor), "rb") as file:
                return Content(file.read(), stat.S_IMODE(status.st_mode))
    except ToolError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return Content(None)
        raise


def peek(place: Place) -> Content:
    """What is at a place now, without making anything; nothing where its directory is missing. Raises
    ToolError.
    """
    try:
        with hold(place) as held:
            return read(held)
    except ToolError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return Content(None)
        raise


class FileLocks:
    """One lock for each file that is being changed. The mutable state is the table, under a lock of its
    own.
    """

    def __init__(self) -> None:
        self._table: WeakValueDictionary[Path, threading.Lock] = WeakValueDictionary()
        self._guard = threading.Lock()

    @contextlib.contextmanager
    def held(self, path: Path) -> Iterator[None]:
        """Keeps every other change of this file out: check and change are one step for this process."""
        with self._guard:
            lock = self._table.get(path)
            if lock is None:
                lock = self._table[path] = threading.Lock()
        with lock:
            yield


def check(place: Place, found: Content, preconditions: Mapping[str, str]) -> None:
    """Raises ToolError precondition_failed where the file is not as it was when the change was shown
    (GATE-16).
    """
    if not preconditions:
        return
    expected = preconditions.get(str(place.path))
    if expected is None:
        raise ToolError.precondition_failed(
            f"{place.shown} is another file than the one the change was shown for; nothing was changed"
        )
    if expected != found.state:
        raise ToolError.precondition_failed(
            f"{place.shown} has changed since the change was shown; nothing was changed, read it again"
        )


def replace(held: Held, old: Content, data: bytes) -> None:
    """Puts new content in the place of a file, whole or not at all, with the old permissions. Raises
    ToolError.

    A reader sees the old file or the new one. Hard links to the old file keep the old content.
    """
    if old.data is not None and not old.mode & 0o222:
        raise ToolError.permission_denied(
            f"{held.place.shown} is read-only (mode {old.mode:04o}); chmod it first"
        )
    temporary = f".turnd-{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o666, dir_fd=held.directory)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if old.data is not None:
                os.fchmod(file.fileno(), old.mode & 0o777)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, held.name, src_dir_fd=held.directory, dst_dir_fd=held.directory)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=held.directory)
        if error.errno == errno.EBUSY:
            raise ToolError.permission_denied(
                f"{held.place.shown} is protected: it cannot be replaced"
            ) from error
        raise
