"""How each provider is started."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import turnd.v1
from turnd.cells.paths import interpreter_paths
from turnd.cells.spec import CellSpec


class Column(Protocol):
    """A kind of cell for a provider: one of CellSpec's constructors."""

    def __call__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        workspace: str,
        listen_dir: str,
        read: Sequence[str],
        pass_fds: Sequence[int],
        identity: tuple[int, int],
    ) -> CellSpec: ...


@dataclass(frozen=True, slots=True)
class ProviderDefinition:
    """A provider as it is configured. `command` is run in a cell of the kind `column`, which also sees
    `read`.
    """

    name: str
    command: tuple[str, ...]
    column: Column
    read: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)


def workspace_provider() -> ProviderDefinition:
    """The first-party provider for files and commands, run by the interpreter that runs the daemon.

    Where turnd is installed in place, its cell sees the provider's and the contract's packages of the source
    tree, and nothing else of it. The interpreter is isolated: a module in the workspace is never taken for
    one of ours.
    """
    provider = importlib.util.find_spec("turnd_provider")
    if provider is None or not provider.submodule_search_locations:
        raise RuntimeError("turnd_provider is not installed beside turnd; install the distribution again")
    contract = Path(turnd.v1.__path__[0])
    sources: list[str | Path] = [
        provider.submodule_search_locations[0],
        contract,
        contract.parent / "__init__.py",
    ]
    return ProviderDefinition(
        name="workspace",
        command=(sys.executable, "-I", "-m", "turnd_provider.workspace"),
        column=CellSpec.workspace_provider,
        read=interpreter_paths(sources),
    )
