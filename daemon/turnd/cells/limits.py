"""What keeps a cell within its limits: rlimits on each process, and a look at all of them together."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from turnd.cells.spec import Limits

LOOK_EVERY_S: Final = 0.1
"""Time between two looks at a cell's processes. For so long a cell can be above a limit that only they
enforce.
"""

_PENDING_SIGNALS: Final = 1024
_KIB: Final = 1024
_ENDED: Final = ("Z", "X")


def with_rlimits(prlimit: str, limits: Limits, argv: Sequence[str]) -> list[str]:
    """The argument list that runs `argv` under the limits that the kernel keeps for each process.

    It must run inside the cell, since the number of processes is counted for each user namespace. RLIMIT_DATA
    stands for memory: the address space says nothing (some runtimes reserve gigabytes that they never touch).
    """
    values = {
        "nproc": limits.processes,
        "data": limits.memory,
        "fsize": limits.file_size,
        "cpu": limits.cpu_seconds,
        "nofile": limits.open_files,
        "core": 0,
        "memlock": 0,
        "sigpending": _PENDING_SIGNALS,
        "msgqueue": 0,
    }
    return [prlimit, *(f"--{name}={value}:{value}" for name, value in values.items()), "--", *argv]


@dataclass(frozen=True, slots=True)
class ProcessState:
    """A process of a cell, as its /proc tells."""

    pid: int
    """The number that it has inside."""
    parent: int
    state: str
    threads: int

    @property
    def ended(self) -> bool:
        """It only waits to be collected by its parent."""
        return self.state in _ENDED


class ProcessTable:
    """The processes of one cell, seen from outside through the cell's own /proc. Closed by its owner."""

    def __init__(self, init: int) -> None:
        """Takes the host's process id of the cell's process 1. Raises OSError where that is gone."""
        self._proc = os.open(f"/proc/{init}/root/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        os.close(self._proc)

    def pids(self) -> list[int]:
        """All but process 1, which is the cell's own."""
        names = os.listdir(self._proc)  # noqa: PTH208 - of a descriptor, not a path
        return [int(name) for name in names if name.isdecimal() and name != "1"]

    def states(self) -> Iterator[ProcessState]:
        """All but process 1; those that end meanwhile are left out."""
        for pid in self.pids():
            if (state := self.state(pid)) is not None:
                yield state

    def state(self, pid: int) -> ProcessState | None:
        """What /proc/PID/stat says, or None where the process is gone."""
        text = self._read(pid, "stat")
        if not text:
            return None
        fields = text[text.rindex(b")") + 2 :].split()
        return ProcessState(pid, int(fields[1]), fields[0].decode(), int(fields[17]))

    def memory(self, pid: int) -> int:
        """Bytes of its own memory, quickly: what it shares with others counts whole. 0 where it is gone."""
        return self._sum(pid, "status", (b"RssAnon:", b"RssShmem:"))

    def memory_in_parts(self, pid: int) -> int:
        """The same, exactly: what it shares counts in equal parts. It takes the kernel much longer.

        A process can hide the exact number from other users' eyes; then it is the quick one.
        """
        return self._sum(pid, "smaps_rollup", (b"Pss_Anon:", b"Pss_Shmem:")) or self.memory(pid)

    def open(self, pid: int) -> int:
        """A descriptor of the process's directory, which stays the process's own when its number is used
        again.

        Signals can be sent to it. Raises OSError where the process is gone.
        """
        return os.open(str(pid), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._proc)

    def _sum(self, pid: int, name: str, keys: Collection[bytes]) -> int:
        lines = (line.split() for line in self._read(pid, name).splitlines())
        return sum(int(words[1]) * _KIB for words in lines if words and words[0] in keys)

    def _read(self, pid: int, name: str) -> bytes:
        try:
            descriptor = os.open(f"{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return b""
        try:
            return os.read(descriptor, 1 << 16)
        except ProcessLookupError:
            return b""
        finally:
            os.close(descriptor)


def passed_limit(table: ProcessTable, limits: Limits) -> str | None:
    """The name of the limit that the processes together are above, or None."""
    if len(table.pids()) > limits.processes:
        return "processes"
    states = [state for state in table.states() if not state.ended]
    if sum(state.threads for state in states) > limits.processes:
        return "processes"
    if sum(table.memory(state.pid) for state in states) <= limits.memory:
        return None
    exact = sum(table.memory_in_parts(state.pid) for state in states)
    return "memory" if exact > limits.memory else None


async def watch(table: ProcessTable, limits: Limits) -> str:
    """Looks at the processes until they pass a limit; its name. Cancelled when the cell is over."""
    while (limit := passed_limit(table, limits)) is None:  # noqa: ASYNC110 - nothing tells of their growth
        await asyncio.sleep(LOOK_EVERY_S)
    return limit


def find_prlimit() -> str | None:
    """The path of util-linux's prlimit where every cell has it, or None."""
    return next((path for path in ("/usr/bin/prlimit", "/bin/prlimit") if Path(path).exists()), None)
