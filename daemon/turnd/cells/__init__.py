"""Cells: the sandboxes in which providers and commands run (SBX-01 to SBX-04, TOOL-04, TOOL-12).

    cells = Bubblewrap.find()                      # SandboxUnavailable: what to install
    print(await probe(cells))                      # the same: which layer refuses, how to allow it
    spec = CellSpec.command(["make", "test"], cwd=..., env=..., workspace=..., tmp=...)
    async with await cells.start(spec) as cell:    # CellRefused, CellFailed
        ... read cell.stdout and cell.stderr ...
        ended = await cell.wait()                  # or: await cell.stop(grace_s=5)

`CellSpec` has a constructor for each kind of cell: `workspace_provider`, `command`, `inspect_command`,
`third_party`. `tool_chains` and `interpreter_paths` say what to put into their `read`. A mode of making cells
is a `Cells`, a running one a `Cell`; callers name those. Everything must be called on the event loop's
thread.
"""

from turnd.cells.bubblewrap import Bubblewrap
from turnd.cells.paths import ToolChains, interpreter_paths, tool_chains
from turnd.cells.port import Cell, CellExit, CellFailed, Cells, CellStuck
from turnd.cells.probe import Probe, probe
from turnd.cells.spec import HOME, LISTEN_DIR, PROTECTED, Access, CellRefused, CellSpec, Limits
from turnd.ports import SandboxUnavailable

__all__ = [
    "HOME",
    "LISTEN_DIR",
    "PROTECTED",
    "Access",
    "Bubblewrap",
    "Cell",
    "CellExit",
    "CellFailed",
    "CellRefused",
    "CellSpec",
    "CellStuck",
    "Cells",
    "Limits",
    "Probe",
    "SandboxUnavailable",
    "ToolChains",
    "interpreter_paths",
    "probe",
    "tool_chains",
]
