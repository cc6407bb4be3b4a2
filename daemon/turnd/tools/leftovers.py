"""Removing what programs left in directories of the daemon's own, whatever they made of it."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from structlog.typing import FilteringBoundLogger

REMOVE_S: Final = 10.0
"""After this long a removal gives up; a start or a close does not wait longer for one."""
_DIRECTORY: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ASIDE: Final = "-left"


def remove_tree(path: Path, log: FilteringBoundLogger, within_s: float = REMOVE_S) -> bool:
    """Removes a file or directory with all that is in it; False where something is left. Never raises OSError.

    What cannot be removed, or not in time, is put aside, so that its name is free, and said in the log; the next
    `remove_aside` tries again. Nothing may write there any more.
    """
    if (why := _removed(path, within_s)) is None:
        return True
    aside = path.parent / (path.parent.name + _ASIDE)
    place = aside / secrets.token_hex(8)
    try:
        aside.mkdir(mode=0o700, exist_ok=True)
        path.rename(place)
    except OSError as error:
        log.warning("cannot remove what was left", path=str(path), reason=why, not_moved=str(error))
    else:
        log.warning(
            "cannot remove what was left; it was put aside", path=str(path), aside=str(place), reason=why
        )
    return False


def remove_aside(directory: Path, log: FilteringBoundLogger, within_s: float = REMOVE_S) -> None:
    """Tries again to remove what earlier removals put aside in a directory."""
    aside = directory / (directory.name + _ASIDE)
    if (why := _removed(aside, within_s)) is not None:
        log.warning("cannot remove what was put aside", path=str(aside), reason=why)


def _removed(path: Path, within_s: float) -> str | None:
    """Why something is left; None: nothing is."""
    removal = _Removal(time.monotonic() + within_s)
    try:
        parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        return str(error)
    try:
        removal.remove(parent, path.name)
    except FileNotFoundError:
        return None
    except (OSError, _Late) as error:
        return removal.first or str(error)
    finally:
        os.close(parent)
    return None


class _Late(Exception):
    """The time is over."""

    def __str__(self) -> str:
        return "there was too much to remove in the time that there is for it"


@dataclass(slots=True)
class _Removal:
    """One removal. The mutable state is what went wrong first.

    A directory's subdirectories are moved up into the topmost one before it is removed: so no path gets long,
    and no more than three descriptors are open, however deep it is.
    """

    until: float
    first: str = ""
    _stuck: set[str] = field(default_factory=set)

    def remove(self, parent: int, name: str) -> None:
        """Raises OSError where something is left, and _Late."""
        if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=parent)
            return
        with _opened(parent, name) as top:
            while below := [found for found in self._files_removed(top) if found not in self._stuck]:
                for subdirectory in below:
                    self._flatten(top, subdirectory)
        os.rmdir(name, dir_fd=parent)

    def _flatten(self, top: int, name: str) -> None:
        """Removes a directory in the topmost one, whose own subdirectories become its neighbours."""
        try:
            with _opened(top, name) as directory:
                for below in self._files_removed(directory):
                    with self._noted():
                        # The move changes the entry that leads up, in a directory that may be read-only.
                        with _opened(directory, below):
                            pass
                        os.rename(below, secrets.token_hex(16), src_dir_fd=directory, dst_dir_fd=top)
            os.rmdir(name, dir_fd=top)
        except OSError as error:
            self._note(error)
            self._stuck.add(name)

    def _files_removed(self, directory: int) -> list[str]:
        """Removes all but directories; the names of these."""
        below = []
        with os.scandir(directory) as entries:
            for entry in entries:
                if time.monotonic() > self.until:
                    raise _Late
                if entry.is_dir(follow_symlinks=False):
                    below.append(entry.name)
                else:
                    with self._noted():
                        os.unlink(entry.name, dir_fd=directory)
        return below

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._note(error)

    def _note(self, error: OSError) -> None:
        self.first = self.first or str(error)


@contextlib.contextmanager
def _opened(parent: int, name: str) -> Iterator[int]:
    """A directory, never through a link, with the rights to empty it given back. Raises OSError."""
    held = os.open(name, os.O_PATH | _DIRECTORY, dir_fd=parent)
    try:
        mode = stat.S_IMODE(os.fstat(held).st_mode)
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            Path(f"/proc/self/fd/{held}").chmod(stat.S_IRWXU)
        directory = os.open(".", os.O_RDONLY | _DIRECTORY, dir_fd=held)
    finally:
        os.close(held)
    try:
        yield directory
    finally:
        os.close(directory)
