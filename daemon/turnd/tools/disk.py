"""What policy must know of the disk: where programs lie that a command names, and where paths lead."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Collection
from pathlib import Path
from typing import Final

from immutables import Map

from turnd.cells.spec import SYSTEM, TMP, holds
from turnd.ports import Facts, Where
from turnd.rules.commands import Found
from turnd.tools.environment import for_commands

LOOK_S: Final = 10.0
"""A file system that does not answer for so long is one that policy fails on, which denies."""
_SYSTEM: Final = (*SYSTEM, "/bin", "/sbin")


class HostDisk:
    """See `ports.Disk`. Holds no state: what was true of the disk a moment ago need not be now."""

    async def facts(self, where: Where, programs: Collection[str], path: str | None) -> Facts:
        """See `ports.Disk.facts`."""
        async with asyncio.timeout(LOOK_S):
            return await asyncio.to_thread(_facts, where, programs, path)


def _facts(where: Where, programs: Collection[str], path: str | None) -> Facts:
    search = for_commands(where.environment)["PATH"].split(os.pathsep)
    workspace = os.path.realpath(where.workspace)
    found = {name: at for name in programs if (at := _find(name, search, workspace)) is not None}
    canonical = "" if path is None else os.path.realpath(Path(where.cwd, path))
    return Facts(Map(found), canonical)


def _find(name: str, search: Collection[str], workspace: str) -> Found | None:
    """The first on the PATH, and whether a tool of the session's could decide that.

    A cell does not show every directory of the host, so what lies before is no reason to pass over a directory
    that tools can write; but the system's directories are always there.
    """
    first: Found | None = None
    for entry in search:
        if not entry.startswith("/"):
            # A relative entry is wherever the command has gone to.
            return Found(first.path if first else "", writable=True)
        candidate = f"{os.path.normpath(entry)}/{name}"
        directory = os.path.realpath(entry)
        inside = holds(workspace, os.path.normpath(entry)) or holds(workspace, directory)
        if not inside and (holds(TMP, os.path.normpath(entry)) or holds(TMP, directory)):
            # Its files are the session's own there, which this process does not see.
            return Found(first.path if first else candidate, writable=True)
        if not _runs(candidate):
            continue
        target = os.path.realpath(candidate)
        if inside or holds(workspace, target) or holds(TMP, target):
            return Found(first.path if first else candidate, writable=True)
        first = first or Found(candidate, writable=False)
        if any(holds(system, directory) for system in _SYSTEM):
            break
    return first


def _runs(path: str) -> bool:
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) and bool(mode & 0o111)
