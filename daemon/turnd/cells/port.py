"""What the daemon sees of cells, whatever mode makes them. `Bubblewrap` is one mode; another fits behind the
same.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from turnd.cells.spec import CellSpec


class CellFailed(Exception):
    """A cell was refused by the system while it was made; nothing of the program ran (SBX-02)."""


class CellStuck(Exception):
    """The kernel did not end a killed cell in time: a process of it sits in an uninterruptible call."""


@dataclass(frozen=True, slots=True)
class CellExit:
    """How a cell ended."""

    code: int
    """As a shell says it, 0 to 255: 128 + N where signal N ended the program."""
    signal: int | None
    """The signal that ended the program. A program that itself exits with 128 + N looks the same."""
    left_behind: bool
    """The program was over, but processes that it had started were not: they were ended with the cell."""
    limit: str | None
    """The limit that the whole cell passed and was killed for: `memory` or `processes`."""
    from_outside: bool = False
    """The cell was ended by something else than its owner, before it told how its program ended: somebody killed
    it, the system ran out of memory, or the program killed what it runs in. Then `code` says nothing of the
    program.
    """


class Cell(Protocol):
    """A running cell. Whoever starts one owns it, and ends it with `close` (or `async with`) (TOOL-04)."""

    @property
    def pid(self) -> int:
        """The daemon's own child that holds the cell; when it ends, however, all of the cell ends."""

    @property
    def stdout(self) -> asyncio.StreamReader:
        """The program's output; its buffer is bounded, so that a flood waits in the program."""

    @property
    def stderr(self) -> asyncio.StreamReader:
        """The program's error output, bounded likewise."""

    async def wait(self) -> CellExit:
        """Waits until the program is over and nothing of the cell is left. Pipes that are held open do not
        delay it. No time-out: the caller has the deadline. Raises CellStuck.
        """

    async def stop(self, grace_s: float) -> CellExit:
        """TERM to the program, and KILL to the whole cell after `grace_s` seconds. Raises CellStuck."""

    def kill(self) -> None:
        """KILL to the whole cell, at once; `wait` tells when it is gone. Harmless when it is over."""

    async def close(self) -> None:
        """Kills what still runs, waits for it, and drops output that was not read."""

    async def __aenter__(self) -> Cell: ...

    async def __aexit__(self, *_: object) -> None: ...


class Cells(Protocol):
    """A mode of making cells."""

    @property
    def mode(self) -> str:
        """The name of the mode, as sessions and `turn doctor` show it."""

    async def start(self, spec: CellSpec) -> Cell:
        """Makes the cell and starts the program in it.

        Raises CellRefused (the specification), CellFailed (the system, for this cell) and SandboxUnavailable
        (the mode does not work here at all).
        """

    def unenforced(self) -> tuple[str, ...]:
        """What this mode does not enforce for this user on this machine, in plain sentences."""
