"""Reading a file that a workspace has for turnd, without trusting what lies at its path."""

from __future__ import annotations

import asyncio
import errno
import os
import stat

from turnd.cells.beneath import open_beneath, open_exact

READ_S = 10.0
"""A file system that does not answer for so long has no file to read."""


class UnreadableFile(Exception):
    """Something is at the path, and is not a file that can be read; the text says what, without the path."""


async def read_workspace_file(workspace: str, name: str, limit: int) -> bytes | None:
    """All bytes of a regular file below a canonical directory, beside the event loop; None where there is none.

    No symbolic link is followed, also not one that stays within: what it leads to would not be protected in cells.
    Raises UnreadableFile.
    """
    try:
        async with asyncio.timeout(READ_S):
            return await asyncio.to_thread(_read, workspace, name, limit)
    except TimeoutError:
        raise UnreadableFile(f"the file system has not answered for {READ_S:g} s") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UnreadableFile(
                "it is, or lies behind, a symbolic link: put the file itself there"
            ) from None
        raise UnreadableFile(f"it cannot be read: {error.strerror}") from None


def _read(workspace: str, name: str, limit: int) -> bytes | None:
    try:
        root = open_exact(workspace)
        try:
            place = open_beneath(root, name)
        finally:
            os.close(root)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        if not stat.S_ISREG(os.fstat(place).st_mode):
            raise UnreadableFile("it is not a regular file: put the file itself there")
        # What was looked at is what is read: the descriptor, not the path, is opened again.
        with open(f"/proc/self/fd/{place}", "rb", opener=_without_waiting) as file:
            data = file.read(limit + 1)
    finally:
        os.close(place)
    if len(data) > limit:
        raise UnreadableFile(f"it is larger than {limit} bytes")
    return data


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
