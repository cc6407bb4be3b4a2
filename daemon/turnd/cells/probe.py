"""Whether cells can be made here, tried for real, and if not, which layer refuses and how to allow it
(SBX-02).
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from turnd.cells import seccomp
from turnd.cells.bubblewrap import MODE, Bubblewrap
from turnd.cells.port import CellFailed
from turnd.cells.spec import CellSpec
from turnd.ports import SandboxUnavailable

PROBE_S: Final = 30.0
_OLDEST: Final = (0, 8, 0)
_MAX_OUTPUT: Final = 4096


@dataclass(frozen=True, slots=True)
class Probe:
    """A mode that works here."""

    mode: str
    version: str
    unenforced: tuple[str, ...]
    """What the mode does not enforce for this user on this machine, in plain sentences."""


async def probe(cells: Bubblewrap | None = None) -> Probe:
    """Runs `true` in a cell, with everything that a command's cell has.

    Raises SandboxUnavailable, whose text says which layer failed and how to allow it.
    """
    try:
        seccomp.program(seccomp.Network(connect=False, listen=False))
    except seccomp.UnknownArchitecture as error:
        raise SandboxUnavailable(str(error)) from error
    cells = cells or Bubblewrap.find()
    version = await cells.version()
    if version < _OLDEST:
        raise SandboxUnavailable(
            f"bubblewrap {_dotted(version)} is too old: {_dotted(_OLDEST)} or newer is needed"
        )
    with tempfile.TemporaryDirectory(prefix="turnd-probe-") as directory:
        try:
            async with asyncio.timeout(PROBE_S), await cells.start(_true_in(directory)) as cell:
                ended = await cell.wait()
                said = (await cell.stderr.read(_MAX_OUTPUT)).decode(errors="replace").strip()
        except CellFailed as error:
            raise SandboxUnavailable(explain(str(error))) from error
        except TimeoutError:
            raise SandboxUnavailable(f"a cell that runs `true` did not end within {PROBE_S:.0f} s") from None
    if ended.code != 0:
        raise SandboxUnavailable(f"`true` ended with {ended.code} in a cell: {said or 'without a word'}")
    return Probe(MODE, _dotted(version), cells.unenforced())


def explain(complaint: str, system: Path = Path("/")) -> str:
    """The launcher's complaint, the layer that it comes from, and what would allow it, each on a line.

    `system` is where the machine's settings are looked at.
    """
    layers = [text for pattern, text in _LAYERS if re.search(pattern, complaint)]
    return "\n".join([complaint, *layers[:1], *_settings(system)])


def _true_in(directory: str) -> CellSpec:
    base = Path(directory).resolve()
    workspace, tmp = base / "workspace", base / "tmp"
    workspace.mkdir()
    tmp.mkdir()
    env = {"PATH": "/usr/bin:/bin"}
    return CellSpec.command(["true"], cwd=str(workspace), env=env, workspace=str(workspace), tmp=str(tmp))


def _settings(system: Path) -> Iterator[str]:
    """What this machine's own settings say about user namespaces."""
    for name, forbids, advice in _SETTINGS:
        try:
            value = (system / "proc/sys" / name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if value == forbids:
            yield f"/proc/sys/{name} is {value}: {advice}"
    if any((system / mark).exists() for mark in (".dockerenv", "run/.containerenv")):
        yield (
            "This is a container: start it so that it may make user namespaces and mounts in them, as with "
            "--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt "
            "systempaths=unconfined."
        )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)


_SETTINGS: Final = (
    (
        "kernel/unprivileged_userns_clone",
        "0",
        "user namespaces are root's only; `sysctl kernel.unprivileged_userns_clone=1` allows them.",
    ),
    (
        "user/max_user_namespaces",
        "0",
        "user namespaces are off; `sysctl user.max_user_namespaces=15000` allows them.",
    ),
    (
        "kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "AppArmor lets only programs with a profile make user namespaces; give bwrap one in /etc/apparmor.d "
        "(`flags=(unconfined)`, `userns,`), or `sysctl kernel.apparmor_restrict_unprivileged_userns=0`.",
    ),
)
"""Setting, the value that forbids user namespaces, and what to do."""

_LAYERS: Final = (
    (
        r"No permissions to creat\w* (a )?new namespace|[Cc]reating new namespace failed",
        "The kernel refuses user namespaces to this user.",
    ),
    (
        r"setting up [ug]id map|setgroups",
        "The user namespace was made, but its users cannot be set: AppArmor or SELinux restricts it.",
    ),
    (
        r"RTM_NEWADDR|loopback",
        "The network namespace was made, but not its loopback: AppArmor restricts the user namespace.",
    ),
    (
        r"max_user_namespaces|disable-userns",
        "Further user namespaces in the cell cannot be switched off: that needs a writable /proc/sys.",
    ),
    (
        r"PR_SET_SECCOMP|seccomp",
        "The kernel refuses the system call filter: it was built without CONFIG_SECCOMP_FILTER.",
    ),
    (
        r"mount|pivot_root|unshare failed",
        "Mounts are refused, as inside a container that may not mount or whose /proc is masked.",
    ),
)
"""What the launcher says, and the layer that it comes from; the first that fits."""
