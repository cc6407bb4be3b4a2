"""Which directories a session may be given to change."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from turnd.sessions.refusal import CommandRefused, invalid


def checked(cwd: str, home: str, own: Iterable[str]) -> str:
    """The canonical directory. Raises CommandRefused for one that no session may have (operations.md).

    `own` are directories of the daemon: a workspace that holds one of them would hand its tools the log or the token.
    """
    if not Path(cwd).is_absolute():
        raise invalid("cwd", f"the directory must be absolute, got {cwd!r}")
    path = Path(os.path.realpath(cwd))
    if not path.is_dir():
        raise invalid("cwd", f"{cwd} is not a directory on this machine")
    return _refuse_wide(path, home, own)


def _refuse_wide(path: Path, home: str, own: Iterable[str]) -> str:
    why: CommandRefused | None = None
    if path == Path("/"):
        why = invalid("cwd", "/ cannot be a workspace: start in the directory of the project")
    elif path == Path(os.path.realpath(home)):
        why = invalid(
            "cwd", f"the home directory {path} cannot be a workspace: start in the directory of the project"
        )
    else:
        for mine in own:
            if Path(os.path.realpath(mine)).is_relative_to(path):
                why = invalid(
                    "cwd", f"{path} cannot be a workspace: turnd keeps its own files under it, in {mine}"
                )
    if why is not None:
        raise why
    return str(path)
