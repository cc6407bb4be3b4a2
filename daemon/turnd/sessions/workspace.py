"""Which directories a session may be given to change."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from turnd.sessions.refusal import invalid

_SYSTEM: Final = frozenset(("dev", "proc", "sys", "run", "boot", "etc", "bin", "sbin"))
_SOURCES: Final = (Path("/usr/src"), Path("/usr/local/src"))
"""Below these, projects are kept by custom."""
_SHOWN: Final = 200
_INSTEAD: Final = "start in the directory of the project"


def canonical(cwd: str) -> str:
    """The one path of a directory, whether it is there or not. Raises CommandRefused for what is no absolute path."""
    if "\0" in cwd:
        raise invalid("cwd", "the directory must be a path, and a path cannot hold a NUL character")
    if not Path(cwd).is_absolute():
        raise invalid("cwd", f"the directory must be absolute, got {cwd[:_SHOWN]!r}")
    try:
        return os.path.realpath(cwd)
    except (OSError, ValueError) as error:
        raise invalid("cwd", f"{cwd[:_SHOWN]} cannot be looked at: {_reason(error)}") from error


def checked(cwd: str, home: str, own: Iterable[str], named: Iterable[str] = ()) -> str:
    """The canonical directory. Raises CommandRefused for one that no session may have (operations.md).

    `own` are directories of the daemon: a workspace that holds one of them, or lies in one, would hand its tools the
    log or the token. `named` are directories that the configuration names as workspaces although they hold the home
    directory.
    """
    path = Path(canonical(cwd))
    try:
        directory = path.is_dir()
    except (OSError, ValueError) as error:
        raise invalid("cwd", f"{cwd[:_SHOWN]} cannot be looked at: {_reason(error)}") from error
    if not directory:
        raise invalid("cwd", f"{cwd[:_SHOWN]} is not a directory on this machine")
    if _is_system(path):
        raise invalid(
            "cwd",
            f"{path} cannot be a workspace: it is the system's own; {_INSTEAD}",
        )
    _refuse_wide(path, home, own, named)
    return str(path)


def _is_system(path: Path) -> bool:
    """Whether a canonical path is of the operating system (whose `lib`s have many names)."""
    if len(path.parts) < 2:
        return False
    top = path.parts[1]
    if top == "usr":
        return not any(len(path.parts) > len(src.parts) and path.is_relative_to(src) for src in _SOURCES)
    return top in _SYSTEM or top.startswith("lib")


def _reason(error: OSError | ValueError) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def _refuse_wide(path: Path, home: str, own: Iterable[str], named: Iterable[str]) -> None:
    if path == Path("/"):
        raise invalid("cwd", f"/ cannot be a workspace: {_INSTEAD}")
    holds_home = Path(os.path.realpath(home)).is_relative_to(path)
    if holds_home and path not in (Path(os.path.realpath(each)) for each in named):
        raise invalid(
            "cwd",
            f"{path} is or holds the home directory and cannot be a workspace: {_INSTEAD}, or name it under "
            "`workspaces` in your configuration",
        )
    for mine in (Path(os.path.realpath(each)) for each in own):
        if path.is_relative_to(mine):
            raise invalid("cwd", f"{path} cannot be a workspace: it is of turnd's own files; {_INSTEAD}")
        if mine.is_relative_to(path):
            raise invalid(
                "cwd",
                f"{path} cannot be a workspace: turnd keeps its own files under it, in {mine}; {_INSTEAD}, or "
                "keep them elsewhere (TURND_HOME)",
            )
