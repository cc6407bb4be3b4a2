"""The directory that a session was given, and places in it, whatever other programs do around it."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from turnd.cells.beneath import identity, open_exact, open_within
from turnd.cells.spec import holds


class Misplaced(Exception):
    """A path no longer is, or never was, a directory of the session's; the message says which and why."""

    def __init__(self, message: str, *, outside: bool) -> None:
        super().__init__(message)
        self.outside = outside
        """It leads out of the workspace; otherwise there is no such directory."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """A workspace as it was when it was looked at first: its canonical path, and which directory has it.

    A path that was checked once is never resolved again: whoever can write above the workspace could put a
    symbolic link in its place, and have something else mounted (SBX-03).
    """

    path: str
    identity: tuple[int, int]

    @classmethod
    def at(cls, path: str) -> Self:
        """The directory that has this canonical path now. Raises Misplaced."""
        descriptor = _opened(path)
        try:
            return cls(path, identity(descriptor))
        finally:
            os.close(descriptor)

    def directory(self, base: str, asked: str) -> str:
        """The path, without links, of a directory in the workspace; `asked` may be relative to `base`.

        Links are followed as long as they stay inside. Raises Misplaced.
        """
        root = _opened(self.path)
        try:
            if identity(root) != self.identity:
                raise Misplaced(
                    f"the workspace {self.path} is another directory than the one that the session was given: it "
                    "was moved or removed, and this one put in its place",
                    outside=True,
                )
            return self._within(root, str(Path(base, asked)), asked or base)
        finally:
            os.close(root)

    def _within(self, root: int, path: str, shown: str) -> str:
        outside = f"the directory {shown} is outside of the workspace {self.path}"
        if not holds(self.path, path.rstrip("/")):
            raise Misplaced(outside, outside=True)
        relative = path[len(self.path) :].strip("/") or "."
        try:
            descriptor = open_within(root, relative, os.O_PATH | os.O_DIRECTORY)
        except OSError as error:
            if error.errno in (errno.EXDEV, errno.ELOOP):
                raise Misplaced(outside, outside=True) from error
            raise Misplaced(f"there is no directory {shown}: {error.strerror}", outside=False) from error
        try:
            found = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        finally:
            os.close(descriptor)
        if not holds(self.path, found):
            raise Misplaced(outside, outside=True)
        return found


def _opened(path: str) -> int:
    try:
        return open_exact(path)
    except OSError as error:
        if error.errno == errno.ELOOP:
            why = "leads through a symbolic link now, and did not when the session was made"
        else:
            why = f"is not a directory that can be used any more: {error.strerror}"
        raise Misplaced(f"the workspace {path} {why}", outside=True) from error
