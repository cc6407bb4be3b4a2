"""Cells that were tried first: what the probe found at start decides whether any cell is made (SBX-02)."""

from __future__ import annotations

from turnd.cells.bubblewrap import Bubblewrap
from turnd.cells.port import Cell, Cells
from turnd.cells.probe import probe
from turnd.cells.spec import CellSpec
from turnd.ports import SandboxUnavailable

NONE = "none"


class ProbedCells:
    """Implements `Cells`. Until `find` has found a mode, and where it finds none, every start is refused with
    why.

    The mutable state is the mode in force, or what is in its way.
    """

    def __init__(self) -> None:
        self._cells: Cells | None = None
        self._why = "the sandbox has not been tried yet"
        self.description = NONE
        """The mode and its version, as sessions and `turn status` show it."""

    async def find(self) -> None:
        """Really runs a confined program; finds out what can be had here. Never raises for what cannot."""
        try:
            cells = Bubblewrap.find()
            found = await probe(cells)
        except SandboxUnavailable as unavailable:
            self._cells, self._why, self.description = None, str(unavailable), NONE
            return
        self._cells, self._why = cells, ""
        self.description = f"{found.mode} {found.version}"

    @property
    def problem(self) -> str:
        """Why no cell can be made; empty where cells can."""
        return self._why

    @property
    def mode(self) -> str:
        return NONE if self._cells is None else self._cells.mode

    def unenforced(self) -> tuple[str, ...]:
        """What the mode does not enforce here."""
        return () if self._cells is None else self._cells.unenforced()

    async def start(self, spec: CellSpec) -> Cell:
        """See `Cells.start`. Raises SandboxUnavailable with the probe's text."""
        if self._cells is None:
            raise SandboxUnavailable(self._why)
        return await self._cells.start(spec)
