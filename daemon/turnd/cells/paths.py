"""What a cell must see of tool chains and interpreters that lie outside of the system's directories."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from turnd.cells.spec import SYSTEM, holds

SECRET: Final = frozenset(
    {
        *(
            ".ssh",
            ".gnupg",
            ".aws",
            ".azure",
            ".kube",
            ".docker",
            ".config",
            ".password-store",
            ".pki",
            ".mozilla",
        ),
        *(".netrc", ".git-credentials", ".npmrc", ".pypirc", ".terraform.d", ".thunderbird", ".vault-token"),
        *(".cert", ".gcloud", ".oci", ".local/state", ".local/share/keyrings", ".cargo/credentials.toml"),
    }
)
"""Names in a home directory of which nothing is ever mounted for a tool chain's sake."""

_NEVER_WHOLE: Final = frozenset({".", ".local", ".local/share", ".cargo", ".cache", ".gem"})
"""Directories in a home that hold more than one tool, or a tool's credentials beside it."""

_PROGRAMS: Final = ("bin", "sbin", "shims", "Scripts")
_MAX_ENTRIES: Final = 4096
"""Links that are followed out of one directory of programs."""
_MAX_DIRECTORIES: Final = 128


@dataclass(frozen=True, slots=True)
class ToolChains:
    """What a session's PATH needs in its cells beside the system's directories."""

    read: tuple[str, ...] = ()
    """For `CellSpec.read`."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables without which a tool would look for its files in the HOME that a cell does not have."""


def tool_chains(path: str, home: Path, workspace: Path | None = None) -> ToolChains:
    """The tool chains on a PATH, with what their programs are links to and the interpreters behind
    environments.

    A directory of programs is widened to the directory that it belongs to (`~/.nvm/versions/node/v22`, for
    its `bin`) where that is one tool's; anything in or holding a directory of secrets, and a home directory
    as a whole, is left out. Links in the workspace are not followed, since whoever writes there could point
    them anywhere: of an environment there, only a real Python installation counts.
    """
    search = _Search(home, workspace)
    for entry in path.split(os.pathsep):
        if entry.startswith("/"):
            search.directory(Path(os.path.normpath(entry)))
    read = _outermost(search.found)
    rustup = home / ".rustup"
    uses_rust = any(holds(str(home / ".cargo"), found) for found in read) and rustup.is_dir()
    if not uses_rust:
        return ToolChains(read)
    return ToolChains(_outermost({*read, str(rustup)}), {"RUSTUP_HOME": str(rustup)})


def interpreter_paths(sources: Iterable[str | Path] = ()) -> tuple[str, ...]:
    """What the Python interpreter that runs this needs, for a provider in Python, and the given source
    directories.

    The interpreter's prefix, the one that it was made from (and what its links lead to), and its packages.
    Give the directories of packages that are installed in place (editable).
    """
    bases = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]
    bases += [str(Path(prefix).resolve()) for prefix in (sys.prefix, sys.base_prefix)]
    bases += [sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")]
    executable = Path(sys.executable).resolve()
    if executable.parent.name in _PROGRAMS:
        bases.append(str(executable.parent.parent))
    wanted = {os.path.normpath(base) for base in bases} | {str(Path(source).resolve()) for source in sources}
    return _outermost(path for path in wanted if not _is_system(path) and Path(path).exists())


class _Search:
    """Follows a PATH; the mutable state is `found` and what was looked at."""

    def __init__(self, home: Path, workspace: Path | None) -> None:
        self._home = home
        self._workspace = workspace
        self._seen: set[Path] = set()
        self.found: set[str] = set()

    def directory(self, programs: Path) -> None:
        """A directory of programs, by the name that PATH has for it and by its own."""
        for path in (programs, programs.resolve()):
            if path in self._seen or len(self._seen) >= _MAX_DIRECTORIES or not path.is_dir():
                continue
            self._seen.add(path)
            if self._in_workspace(path):
                self._base_of_environment(path.parent, trusted=False)
            elif not _is_system(str(path)):
                root = self._widened(path)
                if self._allowed(root):
                    self.found.add(str(root))
                    self._base_of_environment(root, trusted=True)
                    self._links(path)

    def _links(self, programs: Path) -> None:
        for count, entry in enumerate(os.scandir(programs)):
            if count == _MAX_ENTRIES:
                return
            if entry.is_symlink() and (target := Path(entry.path).resolve()).is_file():
                if self._in_workspace(target) or _is_system(str(target)):
                    continue
                if target.parent.name in _PROGRAMS:
                    self.directory(target.parent)
                elif self._allowed(target):
                    self.found.add(str(target))

    def _widened(self, programs: Path) -> Path:
        root = programs.parent
        one_tool = any(
            (root / name).exists() for name in ("lib", "libexec", "pyvenv.cfg", "conda-meta", "plugins")
        )
        if programs.name in _PROGRAMS and one_tool and self._allowed(root) and not self._is_shared(root):
            return root
        return programs

    def _base_of_environment(self, root: Path, *, trusted: bool) -> None:
        """The installation that a Python environment was made from, as its own file says."""
        for base in _environment_bases(root):
            elsewhere = not self._in_workspace(base) and not _is_system(str(base)) and self._allowed(base)
            if elsewhere and (trusted or _is_python(base)):
                self.directory(base / "bin")

    def _in_workspace(self, path: Path) -> bool:
        return self._workspace is not None and holds(str(self._workspace), str(path))

    def _relative(self, path: Path) -> str | None:
        """As seen from the home directory; None for what lies elsewhere."""
        for home in (self._home, self._home.resolve()):
            if path.is_relative_to(home):
                return str(path.relative_to(home))
        return None

    def _is_shared(self, path: Path) -> bool:
        return self._relative(path) in _NEVER_WHOLE

    def _allowed(self, path: Path) -> bool:
        # A link's name says nothing of what is mounted under it: both must be harmless.
        return self._harmless(path) and self._harmless(path.resolve())

    def _harmless(self, path: Path) -> bool:
        if any(holds(str(path), str(home)) for home in (self._home, self._home.resolve())):
            return False
        relative = self._relative(path)
        return relative is None or not any(
            holds(secret, relative) or holds(relative, secret) for secret in SECRET
        )


def _environment_bases(root: Path) -> Iterator[Path]:
    try:
        lines = (root / "pyvenv.cfg").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        key, _, value = line.partition("=")
        if key.strip() == "home" and value.strip().startswith("/"):
            named = Path(os.path.normpath(value.strip()))
            yield named.parent
            yield named.resolve().parent
            for name in ("python3", "python"):
                if (named / name).exists():
                    yield (named / name).resolve().parent.parent


def _is_python(root: Path) -> bool:
    return any(root.glob("lib/python3.*/os.py"))


def _is_system(path: str) -> bool:
    return any(holds(system, path) for system in (*SYSTEM, "/bin", "/sbin", "/lib", "/lib64"))


def _outermost(paths: Iterable[str]) -> tuple[str, ...]:
    kept: list[str] = []
    for path in sorted(paths):
        if not any(holds(upper, path) for upper in kept):
            kept.append(path)
    return tuple(kept)
