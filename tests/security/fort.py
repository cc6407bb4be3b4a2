"""A workspace with things around it that no cell may reach, and programs that try to from inside."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnd.cells import Bubblewrap, CellExit, CellSpec, Limits, interpreter_paths
from turnd.cells.syscalls import NUMBERS

ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
PYTHON = (sys.executable, "-I", "-S", "-c")
READ = interpreter_paths()

PRELUDE = f"""
import ctypes, errno, json, os, platform, socket, sys
NUMBERS = {NUMBERS!r}
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

def attempt(action, *arguments, **named):
    try:
        action(*arguments, **named)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))
    return "done"

def call(name, *arguments):
    number = NUMBERS[name][0 if platform.machine() == "x86_64" else 1]
    if libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments)) == -1:
        raise OSError(ctypes.get_errno(), name)

def open_file(path, flags, mode=0o644):
    os.close(os.open(path, flags, mode))

found = {{}}
"""


@dataclass(frozen=True, slots=True)
class Result:
    """What a program in a cell said, and how it ended."""

    out: str
    err: str
    end: CellExit

    @property
    def found(self) -> Any:
        """What an attacking program printed as JSON."""
        assert self.end.code == 0, self.err
        return json.loads(self.out)


@dataclass(frozen=True, slots=True)
class Fort:
    """Two directories for a session's cells, in one that holds what they must not reach."""

    cells: Bubblewrap
    base: Path

    @property
    def workspace(self) -> Path:
        return self.base / "workspace"

    @property
    def tmp(self) -> Path:
        return self.base / "session-tmp"

    @property
    def listen_dir(self) -> Path:
        return self.base / "listen"

    def build(self) -> None:
        for directory in (self.workspace, self.tmp, self.listen_dir):
            directory.mkdir()

    def command(self, argv: Sequence[str], limits: Limits | None = None) -> CellSpec:
        """A command of the session's that may write into the workspace."""
        return CellSpec.command(
            argv,
            cwd=str(self.workspace),
            env=ENV,
            workspace=str(self.workspace),
            tmp=str(self.tmp),
            read=READ,
            limits=limits,
        )

    def inspect(self, argv: Sequence[str]) -> CellSpec:
        """A command of the session's that may not."""
        return CellSpec.inspect_command(
            argv,
            cwd=str(self.workspace),
            env=ENV,
            workspace=str(self.workspace),
            tmp=str(self.tmp),
            read=READ,
        )

    def provider(self, argv: Sequence[str], pass_fds: Sequence[int] = ()) -> CellSpec:
        """The workspace's provider."""
        return CellSpec.workspace_provider(
            argv,
            env=ENV,
            workspace=str(self.workspace),
            listen_dir=str(self.listen_dir),
            read=READ,
            pass_fds=pass_fds,
        )

    def third_party(self, argv: Sequence[str], *, network: bool) -> CellSpec:
        """Somebody else's provider, without a workspace."""
        return CellSpec.third_party(
            argv, env=ENV, listen_dir=str(self.listen_dir), network=network, read=READ
        )

    async def run(self, spec: CellSpec) -> Result:
        """Runs a program with little output to its end."""
        async with await self.cells.start(spec) as cell:
            end = await cell.wait()
            out, err = await cell.stdout.read(), await cell.stderr.read()
        return Result(out.decode(), err.decode(), end)

    async def shell(self, script: str, limits: Limits | None = None) -> Result:
        """A shell command in a writable command cell."""
        return await self.run(self.command(["/bin/sh", "-c", script], limits))

    async def attack(self, code: str) -> Any:
        """Python that fills `found`, in a writable command cell."""
        return (await self.run(self.command(attacking(code)))).found


def attacking(code: str) -> list[str]:
    """The argument list for a Python program that fills `found` and prints it."""
    return [*PYTHON, f"{PRELUDE}\n{code}\nprint(json.dumps(found))"]
