"""Where turnd's files are, and who may touch them: the rules that daemon and clients share.

`TURND_HOME=DIR` puts everything under DIR (`config/`, `state/`, `run/`). Otherwise the XDG base directories
apply: `$XDG_CONFIG_HOME/turnd`, `$XDG_STATE_HOME/turnd`, and `$XDG_RUNTIME_DIR/turnd` or, where that is
unset, `$XDG_STATE_HOME/turnd/run`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MAX_SOCKET_PATH_BYTES = 107
"""The kernel's `sun_path` has 108 bytes, one of them for the terminating zero (V04)."""

PRIVATE_DIRECTORY_MODE = 0o700


class PathError(Exception):
    """A path cannot be used as it is; the message says what was found and what to do."""


class UnsafePath(PathError):
    """A file or directory belongs to someone else, or others can reach it (V11)."""


class SocketPathTooLong(PathError):
    """The kernel cannot bind or reach a socket at this path (V04)."""


@dataclass(frozen=True, slots=True)
class Paths:
    """The three directories of one daemon, and the files in them that more than one part needs to know."""

    config: Path
    state: Path
    runtime: Path

    @property
    def config_file(self) -> Path:
        """The user's configuration; it need not exist."""
        return self.config / "config.toml"

    @property
    def database(self) -> Path:
        """The event log."""
        return self.state / "turnd.db"

    @property
    def lock(self) -> Path:
        """Held by the living daemon. It guards the log, so it lies beside it."""
        return self.state / "turnd.lock"

    @property
    def spool(self) -> Path:
        """Directory of the complete outputs of tool calls."""
        return self.state / "spool"

    @property
    def socket(self) -> Path:
        """Where the daemon answers clients."""
        return self.runtime / "turnd.sock"

    @property
    def token(self) -> Path:
        """What a client shows with each call."""
        return self.runtime / "token"


def resolve(environ: Mapping[str, str]) -> Paths:
    """The paths of the daemon that an environment means. Raises PathError where there is no home."""
    turnd_home = environ.get("TURND_HOME", "")
    if turnd_home:
        base = Path(turnd_home).absolute()
        return Paths(config=base / "config", state=base / "state", runtime=base / "run")
    state = _xdg(environ, "XDG_STATE_HOME", ".local/state") / "turnd"
    runtime_base = _absolute(environ.get("XDG_RUNTIME_DIR", ""))
    return Paths(
        config=_xdg(environ, "XDG_CONFIG_HOME", ".config") / "turnd",
        state=state,
        runtime=state / "run" if runtime_base is None else runtime_base / "turnd",
    )


def candidates(environ: Mapping[str, str], uid: int) -> tuple[Paths, ...]:
    """The paths at which a client looks for a daemon, most likely first.

    Daemon and client may have been started with different environments: an editor hands on HOME and little
    else, a service manager sets XDG_RUNTIME_DIR where a plain shell has none.
    """
    first = resolve(environ)
    if environ.get("TURND_HOME", ""):
        return (first,)
    runtimes = dict.fromkeys((first.runtime, Path(f"/run/user/{uid}/turnd"), first.state / "run"))
    return tuple(Paths(config=first.config, state=first.state, runtime=runtime) for runtime in runtimes)


def check_socket_path(path: Path) -> None:
    """Raises SocketPathTooLong where a Unix socket cannot have this path; lengths are in bytes (V04)."""
    length = len(os.fsencode(path))
    if length > MAX_SOCKET_PATH_BYTES:
        raise SocketPathTooLong(
            f"the socket path {path} has {length} bytes, the kernel takes {MAX_SOCKET_PATH_BYTES} at most "
            "(characters outside of ASCII count for several); "
            "set XDG_RUNTIME_DIR or TURND_HOME to a shorter path"
        )


def make_private_directory(path: Path) -> None:
    """Makes a directory for this user alone, with its parents, whatever the umask; checks one that is there.

    Raises UnsafePath where it belongs to someone else or others can reach it, PathError where it is
    no directory.
    """
    if not os.path.lexists(path):
        if not path.parent.exists():
            make_private_directory(path.parent)
        path.mkdir(mode=PRIVATE_DIRECTORY_MODE, exist_ok=True)
    check_private_directory(path)


def check_private_directory(path: Path) -> None:
    """Raises UnsafePath or PathError unless the path is a directory that only this user can reach (V11)."""
    found = _stat_of_own(path)
    if not stat.S_ISDIR(found.st_mode):
        raise PathError(f"expected a directory at {path}, found something else; move it away")
    _check_mode(path, found, "700")


def check_private_file(path: Path) -> None:
    """Raises UnsafePath unless the file or socket belongs to this user and only this user can reach it (V11).

    Raises FileNotFoundError where nothing is there.
    """
    _check_mode(path, _stat_of_own(path), "600")


def _stat_of_own(path: Path) -> os.stat_result:
    # A link in a directory that others can write is as good as its owner, whatever it leads to.
    for found in (path.lstat(), path.stat()):
        if found.st_uid != os.geteuid():
            raise UnsafePath(
                f"{path} belongs to user {found.st_uid}, expected {os.geteuid()}; "
                "remove it, or use another XDG_RUNTIME_DIR, XDG_STATE_HOME or TURND_HOME"
            )
    return path.stat()


def _check_mode(path: Path, found: os.stat_result, wanted: str) -> None:
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        raise UnsafePath(
            f"{path} has mode {mode:o}, so others can reach it; expected {wanted}: chmod {wanted} {path}"
        )


def _xdg(environ: Mapping[str, str], variable: str, default: str) -> Path:
    given = _absolute(environ.get(variable, ""))
    if given is not None:
        return given
    home = _absolute(environ.get("HOME", ""))
    if home is None:
        raise PathError(f"neither {variable} nor HOME is an absolute path; set HOME or TURND_HOME")
    return home / default


def _absolute(text: str) -> Path | None:
    # The XDG specification says that a relative path is to be ignored.
    return Path(text) if text.startswith("/") else None
