"""Instruction files of directories (`AGENTS.md`): found from a workspace upwards, read without trusting the paths."""

from __future__ import annotations

import asyncio
import codecs
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import structlog

from turnd.cells.beneath import identity, open_exact, open_within
from turnd.rules.opening import InstructionFile

MAX_FILE_BYTES = 64 * 1024
"""Of one file; what is longer is cut, and says so."""
MAX_BYTES = 160 * 1024
"""Of all files of a session; the nearest ones come first."""

log = structlog.get_logger(__name__)


class DirectoryInstructions:
    """Implements the port `Instructions` on the machine's file system.

    Looked at are the directory itself and those above it, up to the home directory or the root of the file system,
    both included. A name is a path below such a directory, and links are followed as long as they stay below it. Above
    the directory itself only files count that belong to the user or to root: `/tmp` is everybody's.
    """

    def __init__(self, home: str) -> None:
        self._home = Path(os.path.realpath(home))

    async def read(self, directory: str, names: Sequence[str]) -> tuple[InstructionFile, ...]:
        """The files, the nearest last. Never raises for what is in the way of one."""
        if not names:
            return ()
        return await asyncio.to_thread(self._read, Path(directory), names)

    def _read(self, directory: Path, names: Sequence[str]) -> tuple[InstructionFile, ...]:
        found: list[InstructionFile] = []
        seen: set[tuple[int, int]] = set()
        left = MAX_BYTES
        for at in self._upwards(directory):
            for name in reversed(names):
                try:
                    data, size = _content(at, name, min(left, MAX_FILE_BYTES), seen, anyones=at == directory)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    log.warning(
                        "an instruction file was left out",
                        path=str(at / name),
                        reason=error.strerror or str(error),
                    )
                    continue
                left -= len(data)
                found.append(InstructionFile(str(at / name), _text(data, size)))
        return tuple(reversed(found))

    def _upwards(self, directory: Path) -> Iterator[Path]:
        for at in (directory, *directory.parents):
            yield at
            if at == self._home:
                return


class _Unwanted(OSError):
    """The file is there, and is not read."""


def _content(
    directory: Path, name: str, limit: int, seen: set[tuple[int, int]], *, anyones: bool
) -> tuple[bytes, int]:
    """The first bytes of a file, and how many it has. Raises OSError; FileNotFoundError where there is none to read."""
    root = open_exact(str(directory))
    try:
        place = open_within(root, name)
    finally:
        os.close(root)
    try:
        status = os.fstat(place)
        if not stat.S_ISREG(status.st_mode):
            raise _Unwanted(0, "it is not a regular file")
        if not anyones and status.st_uid not in (0, os.geteuid()):
            raise _Unwanted(0, "it is another user's, and outside of the workspace")
        if identity(place) in seen:
            raise FileNotFoundError(name)
        seen.add(identity(place))
        if limit <= 0:
            raise _Unwanted(0, f"the files nearer to the workspace have {MAX_BYTES} bytes already")
        # What was looked at is what is read: the descriptor, not the path, is opened again.
        with open(f"/proc/self/fd/{place}", "rb", opener=_without_waiting) as file:
            return file.read(limit), status.st_size
    finally:
        os.close(place)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)


def _text(data: bytes, size: int) -> str:
    """The text, with what is not UTF-8 replaced; half a character where it was cut goes."""
    whole = len(data) >= size
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final=whole).removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")
    return text if whole else f"{text}\n\n[cut off here: the file has {size} bytes, {len(data)} are shown]"
