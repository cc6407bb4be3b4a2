"""From the launcher's start to the opened gate: what is looked at before anything of the program's runs.

bubblewrap resolves paths by name, and a program that runs in another cell of the same workspace could put a
symbolic link there in between. So the finished cell is looked at from outside: each mount must be the very
file or directory that was meant. Until then only the shell at the gate runs in it.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from turnd.cells.beneath import identity_beneath
from turnd.cells.gate import GO, MAX_MESSAGE, read_up
from turnd.cells.limits import ProcessTable
from turnd.cells.port import CellFailed
from turnd.cells.running import Inside
from turnd.cells.spawn import Pidfd

_MAX_STATUS: Final = 4096
_MAX_COMPLAINT: Final = 2000
_COMPLAINT_S: Final = 2.0
_LOOK_AGAIN_S: Final = 0.001
_SLEEPS: Final = "S"


@dataclass(frozen=True, slots=True)
class Entry:
    """The daemon's ends of a cell that is being made, and what must be found in it."""

    gate: socket.socket
    status: int
    """The file into which bubblewrap writes which process is the cell's process 1."""
    stderr: asyncio.StreamReader
    identities: Mapping[str, tuple[int, int]]
    """Device and inode of each mount, by its path in the cell."""


async def enter(launcher: int, entry: Entry) -> Inside:
    """Waits for the cell, looks at it, and opens the gate. Raises CellFailed; the caller has a time-out."""
    loop = asyncio.get_running_loop()
    shell = read_up(await loop.sock_recv(entry.gate, MAX_MESSAGE))
    if shell is None:
        raise CellFailed(await _complaint(entry.stderr))
    init_pid = _init_pid(entry.status)
    try:
        init = Pidfd(init_pid)
    except ProcessLookupError:
        raise CellFailed("the cell's process 1 ended while the cell was made") from None
    try:
        await _collecting(init_pid, launcher)
        table = ProcessTable(init_pid)
        try:
            _compare(init_pid, entry.identities)
            await loop.sock_sendall(entry.gate, GO)
        except BaseException:
            table.close()
            raise
    except BaseException as error:
        init.close()
        if isinstance(error, OSError) and not isinstance(error, TimeoutError):
            raise CellFailed(f"the finished cell cannot be looked at: {error}") from error
        raise
    return Inside(entry.gate, shell, init, table)


def _init_pid(status: int) -> int:
    """bubblewrap writes it before it lets the cell's first process go on, so it is there when the shell
    speaks.
    """
    first, _, _ = os.pread(status, _MAX_STATUS, 0).partition(b"\n")
    try:
        return int(json.loads(first)["child-pid"])
    except (ValueError, KeyError, TypeError):
        raise CellFailed(
            f"bubblewrap's status is not understood: {first[:200]!r}; version 0.8 or newer is needed"
        ) from None


async def _collecting(init: int, launcher: int) -> None:
    """Waits until process 1 waits for its children: only then has it asked to be ended with the launcher.

    After the shell has spoken nothing else lets it sleep. Without this a daemon that is killed now could
    leave the cell running.
    """
    while True:
        fields = _stat(init)
        if int(fields[1]) != launcher:
            raise CellFailed("the cell's process 1 ended while the cell was made")
        if fields[0].decode() == _SLEEPS:
            return
        await asyncio.sleep(_LOOK_AGAIN_S)


def _stat(pid: int) -> list[bytes]:
    """From the state on; the name before it may hold anything."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()


def _compare(init: int, identities: Mapping[str, tuple[int, int]]) -> None:
    root = os.open(f"/proc/{init}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for path, expected in identities.items():
            try:
                found = identity_beneath(root, path.lstrip("/"))
            except OSError as error:
                raise CellFailed(f"{path} is not reachable in the finished cell: {error.strerror}") from error
            if found != expected:
                raise CellFailed(f"{path} was replaced by something else while the cell was made")
    finally:
        os.close(root)


async def _complaint(stderr: asyncio.StreamReader) -> str:
    """What bubblewrap says of why there is no cell."""
    try:
        async with asyncio.timeout(_COMPLAINT_S):
            said = await stderr.read(_MAX_COMPLAINT)
    except TimeoutError:
        said = b""
    text = said.decode(errors="replace").strip()
    return f"no cell could be made: {text or 'the launcher ended without a word'}"
