"""The shim between a process and the kernel (`shim.c`): how it is built, and how the process inside speaks to it."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from enum import IntEnum, IntFlag
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("shim.c")
COMPILER = shutil.which("cc") or shutil.which("gcc")
NEEDS_SHIM = pytest.mark.skipif(
    COMPILER is None, reason="no C compiler for the shim: apt-get install gcc libc6-dev"
)
EVERY = 2**31
"""More calls than any run makes."""


class Kind(IntFlag):
    """Calls into the kernel."""

    WRITE = 1
    SYNC = 2
    TRUNCATE = 4


class Action(IntEnum):
    """What may happen to a call beside failing with an errno."""

    KILL = -1
    TEAR_AND_KILL = -2
    SHORT = -3


def build(directory: Path) -> Path:
    """Compiles the shim."""
    library = directory / "shim.so"
    assert COMPILER is not None
    command = [COMPILER, "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", library, SOURCE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return library


class Shim:
    """For the process inside, which was started with the shim."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._arm = library.shim_arm
        self._arm.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_long, ctypes.c_int]
        self._calls = library.shim_calls
        self._calls.restype = ctypes.c_long
        self._trace = library.shim_trace
        self._mark = library.shim_mark
        self._mark.argtypes = [ctypes.c_char_p]

    def arm(self, kinds: Kind, first: int, action: int, count: int = 1) -> None:
        """From the `first` call of these kinds on (from 1), `count` of them get an errno, or an `Action`."""
        self._arm(kinds, first, count, action)

    def count(self, kinds: Kind) -> None:
        """Counts calls, and lets them pass."""
        self.arm(kinds, EVERY, Action.KILL, 0)

    @property
    def calls(self) -> int:
        """How many calls of those kinds there were since."""
        return int(self._calls())

    def trace(self, file: Path) -> None:
        """Every call from now on is a line of this file."""
        self._trace(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))

    def mark(self, words: str) -> None:
        """A line among those of the calls."""
        self._mark(words.encode())
