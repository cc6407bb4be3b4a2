"""Which parts of a writable workspace stay read-only, and how that cannot be moved out of the way (SBX-03).

A protected path that exists when the cell starts is mounted on itself read-only, and every directory between
it and the workspace is mounted on itself writable first: a mount point cannot be renamed or removed, so
neither can `mv .git x && mkdir .git` put another in its place. What holds for git, where `.git` is protected:

- a repository (a `.git` directory with HEAD, `config` or `hooks`; a program can take away the first, but not
  the others): `hooks`, `config`, `config.worktree`, `info/attributes`, and the same of each submodule in
  `modules`, and what points at its repository in each of `worktrees`; what git would obey and is missing is
  made empty first, so that it cannot be made by the program;
- a `.git` file (a linked worktree, a submodule's checkout) is itself read-only; what it points at is only
  there if it lies in the workspace or was granted to read;
- any other `.git` directory is no repository yet: it is not protected, so that `git init` works;
- `commondir` in a main repository has no honest use and sends git to hooks and configuration of somebody's
  choice. No mount can prevent its making without breaking git, so a workspace that has one is refused until
  it is gone.

What is not protected, because it does not exist yet: a repository made by the program itself, editor files
made by it, repositories nested elsewhere in the workspace (name them in `CellSpec.protected`), and
directories of hooks that a repository's own configuration names (`core.hooksPath`). Those are as trustworthy
as all else that a program wrote; the next cell protects them as they then are.

A protected path that is, or leads through, a symbolic link is refused: it could be replaced but not mounted
upon.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from turnd.cells.beneath import open_beneath
from turnd.cells.spec import CellRefused

_MAX_REPOSITORIES = 256
_MAX_DEPTH = 8
_MAX_CONFIG = 1 << 20
_ONE_REPOSITORY = ("hooks", "config", "config.worktree", "info/attributes")
_ONE_WORKTREE = ("commondir", "gitdir", "config.worktree")


@dataclass(frozen=True, slots=True)
class Guarded:
    """One mount of a workspace's path on itself."""

    path: str
    """Absolute."""
    writable: bool
    identity: tuple[int, int]
    """Device and inode that must be found there in the finished cell."""


def guard(root: int, workspace: str, protected: Sequence[str]) -> list[Guarded]:
    """The mounts that protect `protected` (relative paths) in a workspace, outermost first.

    `root` is a descriptor of the very directory that is to be mounted at `workspace`. Raises CellRefused.
    """
    read_only: dict[str, tuple[int, int]] = {}
    for relative in protected:
        paths = _git_paths(root, relative) if PurePosixPath(relative).name == ".git" else (relative,)
        for path in paths:
            if (found := _look(root, path)) is not None:
                read_only[path] = identity_of(found)
    writable: dict[str, tuple[int, int]] = {}
    for path in read_only:
        for parent in PurePosixPath(path).parents:
            name = str(parent)
            if name != "." and name not in read_only and (found := _look(root, name)) is not None:
                writable[name] = identity_of(found)
    mounts = [Guarded(str(Path(workspace, path)), True, seen) for path, seen in writable.items()]
    mounts += [Guarded(str(Path(workspace, path)), False, seen) for path, seen in read_only.items()]
    return sorted(mounts, key=lambda mount: mount.path.count("/"))


def identity_of(status: os.stat_result) -> tuple[int, int]:
    """Device and inode of what was looked at."""
    return status.st_dev, status.st_ino


def _look(root: int, path: str) -> os.stat_result | None:
    """What is at `path`, or None where nothing is. Raises CellRefused where a symbolic link is in the way."""
    try:
        descriptor = open_beneath(root, path)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise CellRefused(
                f"the workspace's protected path {path} is or leads through a symbolic link, which cannot be "
                "protected; put the directory or file itself there, or take it out of the workspace"
            ) from error
        raise CellRefused(
            f"the workspace's protected path {path} cannot be opened: {error.strerror}"
        ) from error
    try:
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def _is_directory(root: int, path: str) -> bool:
    found = _look(root, path)
    return found is not None and stat.S_ISDIR(found.st_mode)


def _git_paths(root: int, git: str) -> Iterator[str]:
    found = _look(root, git)
    if found is None:
        return
    if not stat.S_ISDIR(found.st_mode):
        yield git
        return
    if not _is_repository(root, git):
        return
    yield from _repository(root, git)
    for name in _names(root, f"{git}/worktrees"):
        yield from (f"{git}/worktrees/{name}/{file}" for file in _ONE_WORKTREE)
    for count, module in enumerate(_submodules(root, f"{git}/modules", 0)):
        if count == _MAX_REPOSITORIES:
            raise CellRefused(
                f"{git}/modules holds more than {_MAX_REPOSITORIES} repositories; that is too many to protect"
            )
        yield from _repository(root, module)


def _is_repository(root: int, git: str) -> bool:
    return any(_look(root, f"{git}/{name}") is not None for name in ("HEAD", "config", "hooks"))


def _repository(root: int, git: str) -> Iterator[str]:
    if _look(root, f"{git}/commondir") is not None:
        raise CellRefused(
            f"the workspace's {git}/commondir makes git obey another repository's hooks and configuration; "
            "a main repository has no such file: remove it if you did not make it"
        )
    _complete(root, git)
    yield from (f"{git}/{name}" for name in _ONE_REPOSITORY)


def _submodules(root: int, directory: str, depth: int) -> Iterator[str]:
    """Repositories below a `modules` directory; a submodule's name may have slashes, and have submodules
    itself.
    """
    if depth > _MAX_DEPTH:
        raise CellRefused(
            f"{directory} is nested deeper than {_MAX_DEPTH} levels; that is too deep to protect"
        )
    for name in _names(root, directory):
        path = f"{directory}/{name}"
        if not _is_directory(root, path):
            continue
        if _is_repository(root, path):
            yield path
            yield from _submodules(root, f"{path}/modules", depth + 1)
        else:
            yield from _submodules(root, path, depth + 1)


def _names(root: int, directory: str) -> list[str]:
    if not _is_directory(root, directory):
        return []
    descriptor = open_beneath(root, directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return sorted(os.listdir(descriptor))  # noqa: PTH208 - of a descriptor, not a path
    finally:
        os.close(descriptor)


def _complete(root: int, git: str) -> None:
    """Makes what git would obey and is not there, so that there is something to mount upon."""
    try:
        if _look(root, f"{git}/config") is None:
            _make(root, git, "config", directory=False)
        if b"worktreeconfig" in _read(root, f"{git}/config").lower():
            _make(root, git, "config.worktree", directory=False)
        _make(root, git, "hooks", directory=True)
    except OSError as error:
        raise CellRefused(
            f"the workspace's {git} lacks hooks or config, and none can be made: {error.strerror}"
        ) from error


def _make(root: int, git: str, name: str, *, directory: bool) -> None:
    parent = open_beneath(root, git, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if directory:
            os.mkdir(name, 0o755, dir_fd=parent)
        else:
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644, dir_fd=parent))
    except FileExistsError:
        return
    finally:
        os.close(parent)


def _read(root: int, path: str) -> bytes:
    descriptor = open_beneath(root, path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.read(descriptor, _MAX_CONFIG)
    finally:
        os.close(descriptor)
