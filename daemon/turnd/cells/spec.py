"""What a cell is to be: frozen values, checked before anything is started."""

from __future__ import annotations

import enum
import os.path
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Self

HOME = "/tmp/home"  # noqa: S108 - a path of the cell's, not of the host's
"""HOME of every program in a cell. It lives as long as the cell's /tmp does, and only as long as the cell where that
looks at a session's /tmp without leave to change the workspace.
"""

TMP = "/tmp"  # noqa: S108 - the same
LISTEN_DIR = "/run/turnd"
"""Where a provider finds the directory that its socket goes into."""

SYSTEM = ("/usr", "/opt", "/nix/store")
"""Host directories that every cell sees, read-only, where they exist."""

MAX_PASS_FDS = 6
"""So many descriptors leave the launcher one number below ten of its own."""

PROTECTED = (
    ".git",
    ".turnd",
    ".vscode/tasks.json",
    ".vscode/settings.json",
    ".vscode/launch.json",
    ".zed/tasks.json",
    ".zed/settings.json",
    ".idea/workspace.xml",
    ".idea/runConfigurations",
    ".nvim.lua",
    ".nvimrc",
    ".exrc",
)
"""Paths of a workspace that a program of the user's obeys (see `turnd.cells.protect` for what holds for
each).
"""

_KERNEL = ("/proc", "/dev", "/sys")
_WHOLE = ("/usr", "/etc", *_KERNEL, TMP, LISTEN_DIR)
_MIB = 1 << 20


class CellRefused(Exception):
    """This specification cannot be made into a cell; the message says what to change (SBX-02)."""


class Access(enum.Enum):
    """What a cell may do with the workspace's files."""

    NONE = "none"
    READ = "read"
    WRITE = "write"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a cell may use. Sizes in bytes; `memory` holds for each process and for the sum of them."""

    memory: int = 4096 * _MIB
    processes: int = 512
    """Processes and threads together."""
    file_size: int = 1024 * _MIB
    cpu_seconds: int = 3600
    """For each process."""
    open_files: int = 4096
    """For each process."""
    tmp_size: int = 512 * _MIB
    """Of a private /tmp; a session's /tmp is a host directory, and not bounded by this."""
    shm_size: int = 64 * _MIB

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value <= 0:
                raise CellRefused(f"limit {name} must be above zero, but is {value}")


@dataclass(frozen=True, slots=True)
class CellSpec:
    """One cell. Use a named constructor: each is a column of the design's table of cells (SBX-01).

    `env` is the whole environment of the program but for HOME and TMPDIR, which are the cell's; nothing is
    inherited. `workspace` is a canonical host path, mounted at the same path inside; with `identity` it must
    still be the directory of that device and inode, whatever has its path by now. `tmp` is a host
    directory mounted on /tmp, or None for a private tmpfs of `limits.tmp_size`. `read` are further host
    paths, mounted read-only at the same paths; those below the workspace are left to `access`. `listen_dir`
    is a host directory, bound writable at LISTEN_DIR. With `network` the cell shares the host's network and
    may connect(); without it there is neither. `sockets` lets it bind and listen. `pass_fds` are pipes that
    the program inherits under the same numbers. `protected` are paths relative to the workspace that stay
    read-only where they exist.

    Raises CellRefused for values that contradict each other.
    """

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    workspace: str | None
    access: Access
    tmp: str | None
    read: tuple[str, ...]
    listen_dir: str | None
    network: bool
    sockets: bool
    pass_fds: tuple[int, ...]
    limits: Limits
    protected: tuple[str, ...] = field(default=PROTECTED)
    identity: tuple[int, int] | None = None

    @classmethod
    def workspace_provider(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        workspace: str,
        listen_dir: str,
        read: Sequence[str] = (),
        pass_fds: Sequence[int] = (),
        limits: Limits | None = None,
        protected: Sequence[str] = PROTECTED,
        identity: tuple[int, int] | None = None,
    ) -> Self:
        """The provider that edits files: workspace writable, private /tmp, a socket to listen on."""
        return cls(
            argv=tuple(argv),
            cwd=workspace,
            env=env,
            workspace=workspace,
            access=Access.WRITE,
            tmp=None,
            read=tuple(read),
            listen_dir=listen_dir,
            network=False,
            sockets=True,
            pass_fds=tuple(pass_fds),
            limits=limits or Limits(),
            protected=tuple(protected),
            identity=identity,
        )

    @classmethod
    def command(
        cls,
        argv: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        workspace: str,
        tmp: str,
        read: Sequence[str] = (),
        limits: Limits | None = None,
        protected: Sequence[str] = PROTECTED,
        identity: tuple[int, int] | None = None,
    ) -> Self:
        """A command that may change the workspace: the session's environment and /tmp, no sockets at all."""
        return cls(
            argv=tuple(argv),
            cwd=cwd,
            env=env,
            workspace=workspace,
            access=Access.WRITE,
            tmp=tmp,
            read=tuple(read),
            listen_dir=None,
            network=False,
            sockets=False,
            pass_fds=(),
            limits=limits or Limits(),
            protected=tuple(protected),
            identity=identity,
        )

    @classmethod
    def inspect_command(
        cls,
        argv: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        workspace: str,
        tmp: str,
        read: Sequence[str] = (),
        limits: Limits | None = None,
        identity: tuple[int, int] | None = None,
    ) -> Self:
        """A command for which the workspace is read-only; otherwise as `command` (SBX-07)."""
        return cls(
            argv=tuple(argv),
            cwd=cwd,
            env=env,
            workspace=workspace,
            access=Access.READ,
            tmp=tmp,
            read=tuple(read),
            listen_dir=None,
            network=False,
            sockets=False,
            pass_fds=(),
            limits=limits or Limits(),
            identity=identity,
        )

    @classmethod
    def third_party(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        listen_dir: str,
        workspace: str | None = None,
        access: Access = Access.READ,
        network: bool = False,
        read: Sequence[str] = (),
        pass_fds: Sequence[int] = (),
        limits: Limits | None = None,
        protected: Sequence[str] = PROTECTED,
        identity: tuple[int, int] | None = None,
    ) -> Self:
        """Anybody else's provider: private /tmp, a socket to listen on, workspace and network as configured.

        Without a workspace it is the `web` column; `access` counts only with one.
        """
        return cls(
            argv=tuple(argv),
            cwd=TMP if workspace is None or access is Access.NONE else workspace,
            env=env,
            workspace=workspace,
            access=Access.NONE if workspace is None else access,
            tmp=None,
            read=tuple(read),
            listen_dir=listen_dir,
            network=network,
            sockets=True,
            pass_fds=tuple(pass_fds),
            limits=limits or Limits(),
            protected=tuple(protected),
            identity=identity,
        )

    @property
    def connect(self) -> bool:
        """Whether connect() is allowed: exactly where there is a network."""
        return self.network

    @property
    def mounted_workspace(self) -> str | None:
        """The workspace, where it is to be seen at all."""
        return None if self.access is Access.NONE else self.workspace

    def __post_init__(self) -> None:
        object.__setattr__(self, "env", MappingProxyType(dict(self.env)))
        _check_program(self)
        _check_descriptors(self)
        _check_workspace(self)
        for path in self.read:
            _check_read(self, path)
        if self.tmp is not None and self.listen_dir is not None and _overlap(self.tmp, self.listen_dir):
            raise CellRefused(
                f"the session's /tmp {self.tmp} and the socket's directory {self.listen_dir} overlap"
            )
        for relative in self.protected:
            if relative != os.path.normpath(relative) or relative.startswith(("/", "..")) or relative == ".":
                raise CellRefused(
                    f"protected path {relative!r} must be relative to the workspace and below it"
                )


def holds(upper: str, lower: str) -> bool:
    """Whether the directory `upper` is `lower` or above it; both absolute and normalised."""
    return upper == lower or lower.startswith(upper.rstrip("/") + "/")


def _overlap(one: str, other: str) -> bool:
    return holds(one, other) or holds(other, one)


def _check_program(spec: CellSpec) -> None:
    if not spec.argv or not spec.argv[0]:
        raise CellRefused("a cell needs a program to run, but argv is empty")
    for text in (*spec.argv, *spec.env.values()):
        if "\0" in text:
            raise CellRefused("arguments and environment values cannot hold a NUL character")
    for name in spec.env:
        if not name or "=" in name or "\0" in name:
            raise CellRefused(f"{name!r} is not the name of an environment variable")
    _check_absolute("the working directory", spec.cwd)


def _check_descriptors(spec: CellSpec) -> None:
    if len(spec.pass_fds) > MAX_PASS_FDS:
        raise CellRefused(
            f"a cell takes at most {MAX_PASS_FDS} descriptors, but {len(spec.pass_fds)} were given"
        )
    if len(set(spec.pass_fds)) != len(spec.pass_fds) or any(number < 3 for number in spec.pass_fds):
        raise CellRefused(f"descriptors to pass must be distinct and above 2, but are {spec.pass_fds}")


def _check_workspace(spec: CellSpec) -> None:
    for name, path in (("the session's /tmp", spec.tmp), ("the socket's directory", spec.listen_dir)):
        if path is not None:
            _check_absolute(name, path)
    workspace = spec.workspace
    if workspace is None:
        if spec.access is not Access.NONE:
            raise CellRefused(f"access {spec.access.value} needs a workspace")
        return
    _check_absolute("the workspace", workspace)
    for system in _WHOLE:
        if holds(workspace, system):
            raise CellRefused(
                f"the workspace {workspace} would cover {system} of the cell; choose a directory of its own"
            )
    for kernel in (*_KERNEL, LISTEN_DIR):
        if holds(kernel, workspace):
            raise CellRefused(f"the workspace {workspace} lies in {kernel}, which is the cell's own")
    for name, path in (("the session's /tmp", spec.tmp), ("the socket's directory", spec.listen_dir)):
        if path is not None and _overlap(workspace, path):
            raise CellRefused(
                f"the workspace {workspace} and {name} {path} overlap: neither may be the other or hold it, "
                "or files would be reachable around the workspace's protection"
            )


def _check_read(spec: CellSpec, path: str) -> None:
    _check_absolute("a path to read", path)
    if any(holds(root, path) for root in SYSTEM):
        return
    for system in _WHOLE:
        if holds(path, system):
            raise CellRefused(
                f"the path to read {path} would cover {system} of the cell; name what is needed in it"
            )
    for kernel in (*_KERNEL, LISTEN_DIR):
        if holds(kernel, path):
            raise CellRefused(f"the path to read {path} lies in {kernel}, which is the cell's own")
    for own in (spec.tmp, spec.listen_dir):
        if own is not None and _overlap(path, own):
            raise CellRefused(f"the path to read {path} and turnd's own directory {own} overlap")


def _check_absolute(what: str, path: str) -> None:
    if not path.startswith("/") or path != os.path.normpath(path) or path.startswith("//") or "\0" in path:
        raise CellRefused(f"{what} must be an absolute path without '.', '..' or '//', but is {path!r}")
