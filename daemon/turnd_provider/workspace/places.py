"""Paths of a workspace: resolved, kept inside, and opened so that what was checked is what is opened.

The cell's mounts are what keeps this process away from other files; the checks here are for clear errors,
and against a link that is put in place between check and use. openat2 with RESOLVE_BENEATH would do both in
one call, but the cell's seccomp filter answers it with ENOSYS (it cannot look into the structure of flags).
So: resolve every link first, check that the result is inside, then walk down from the workspace with
O_NOFOLLOW, one directory at a time.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from turnd_provider.errors import ToolError

_DIRECTORY: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A FIFO must not make the open wait for a writer.
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Located(Protocol):
    """Where relative paths begin and where the workspace is."""

    @property
    def cwd(self) -> Path: ...

    @property
    def workspace(self) -> Path: ...


@dataclass(frozen=True, slots=True)
class Place:
    """A path inside the workspace, without links; the file may not exist."""

    path: Path
    root: Path
    shown: str
    """Relative to the workspace, for messages and results."""


@dataclass(frozen=True, slots=True)
class Held:
    """The directory of a place, held open, and the name in it: what is done with both is done to that
    place.
    """

    place: Place
    directory: int
    name: str


def locate(where: Located, path: str) -> Place:
    """Resolves a path as a tool was given it. Raises ToolError where it is no path, or leaves the
    workspace.
    """
    if not path or "\0" in path:
        raise ToolError.invalid_arguments(f"expected a path, found {path!r}")
    root = Path(os.path.realpath(where.workspace))
    try:
        resolved = Path(os.path.realpath(where.cwd / path))
    except OSError as error:
        raise _failed(path, error) from error
    if not resolved.is_relative_to(root):
        raise ToolError.permission_denied(
            f"{readable(path)} leads to {readable(str(resolved))}, which is outside of the workspace {root}; "
            "only paths inside it can be used"
        )
    return Place(resolved, root, readable(str(resolved.relative_to(root))))


@contextlib.contextmanager
def hold(place: Place, *, make_parents: bool = False) -> Iterator[Held]:
    """Holds the directory of a place open. Raises ToolError, also where a link was put into the way."""
    parts = place.path.relative_to(place.root).parts
    if not parts:
        raise ToolError.invalid_arguments(f"{place.shown} is the workspace itself, not a file in it")
    directory = os.open(place.root, _DIRECTORY)
    try:
        for part in parts[:-1]:
            if make_parents:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=directory)
            below = os.open(part, _DIRECTORY, dir_fd=directory)
            os.close(directory)
            directory = below
        yield Held(place, directory, parts[-1])
    except OSError as error:
        raise _failed(place.shown, error) from error
    finally:
        os.close(directory)


@contextlib.contextmanager
def open_file(held: Held) -> Iterator[int]:
    """A descriptor of the regular file at a held place, for reading. Raises ToolError."""
    try:
        descriptor = os.open(held.name, _READ, dir_fd=held.directory)
    except OSError as error:
        raise _failed(held.place.shown, error) from error
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise ToolError.invalid_arguments(
                f"{held.place.shown} is a directory; list_dir shows what is in it"
            )
        if not stat.S_ISREG(mode):
            raise ToolError.invalid_arguments(f"{held.place.shown} is not a regular file")
        yield descriptor
    finally:
        os.close(descriptor)


def readable(text: str) -> str:
    """A file name as valid Unicode: bytes that are none are replaced."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _failed(path: str, error: OSError) -> ToolError:
    shown = readable(path)
    match error.errno:
        case errno.ENOENT:
            return ToolError.not_found(f"{shown} does not exist")
        case errno.ENOTDIR:
            return ToolError.invalid_arguments(f"{shown}: a part of the path is not a directory")
        case errno.ELOOP:
            return ToolError.failed(
                f"{shown} was changed into a link, or is a loop of links; look at it again"
            )
        case errno.EACCES | errno.EPERM:
            return ToolError.permission_denied(f"{shown}: {error.strerror}")
        case errno.EROFS:
            return ToolError.permission_denied(f"{shown} is protected: it can be read but not changed")
        case _:
            return ToolError.failed(f"{shown}: {error.strerror or error}")
