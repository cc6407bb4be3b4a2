"""All providers: who needs which, who shares what, and when each is started and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from structlog.typing import FilteringBoundLogger

from turnd.cells.port import Cells
from turnd.cells.workspace import Misplaced, Workspace
from turnd.ports import (
    Emit,
    Invocation,
    Preview,
    SandboxUnavailable,
    Spawn,
    ToolFailure,
    ToolOutcome,
    ToolSession,
)
from turnd.rules.raised import Raise
from turnd.tools import invoke as calls
from turnd.tools.core import Core
from turnd.tools.definition import ProviderDefinition
from turnd.tools.exec import Commands
from turnd.tools.flight import Use
from turnd.tools.instance import Instance, started
from turnd.tools.leftovers import remove_aside, remove_tree
from turnd.tools.listening import ListenDirectory
from turnd.tools.registration import Registration
from turnd.tools.spool import Spool
from turnd.tools.supervised import Supervised, Unavailable, told
from turnd.tools.toolset import Backend, SessionTools, names_provider
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

_SOCKETS: Final = "p"
_TEMPORARY: Final = "tmp"


@dataclass(frozen=True, slots=True)
class ToolPaths:
    """Directories of the daemon's own: `runtime` for sockets (a short path), `state` for spooled output and
    the sessions' /tmp; and the user's `home`, in which tool chains are looked for.
    """

    runtime: Path
    state: Path
    home: Path


class ToolRegistry:
    """See `ports.Tools`. The mutable state is the table of providers, one for each name and tree of
    sessions. `raises` gives what the configuration in force raises of their tools.
    """

    def __init__(
        self,
        cells: Cells,
        paths: ToolPaths,
        providers: Sequence[ProviderDefinition],
        spool: Spool,
        core: Core,
        raises: Callable[[], Sequence[Raise]],
        log: FilteringBoundLogger,
    ) -> None:
        self._cells = cells
        self._runtime = Path(os.path.realpath(paths.runtime)) / _SOCKETS
        self._temporary = Path(os.path.realpath(paths.state)) / _TEMPORARY
        self._spool = spool
        self._providers = tuple(providers)
        self._core = core
        self._raises = raises
        self._log = log
        self._commands = Commands(cells, self._temporary, paths.home)
        self._running: dict[tuple[str, str], Supervised] = {}

    async def start(self) -> None:
        """Removes what a daemon that was killed left behind: sockets, and the /tmp of its sessions."""
        for left in (self._runtime, self._temporary):
            await asyncio.to_thread(remove_aside, left.parent, self._log)
            await asyncio.to_thread(remove_tree, left, self._log)

    async def close(self) -> None:
        """Stops every provider; returns when nothing of them is left."""
        running = list(self._running.values())
        self._running.clear()
        await asyncio.gather(*(provider.close() for provider in running))

    async def open(self, session: ToolSession, emit: Emit, spawn: Spawn) -> SessionTools:
        """See `ports.Tools.open`."""
        needed = [d for d in self._providers if any(names_provider(glob, d.name) for glob in session.tools)]
        backends: list[Backend] = []
        if needed:
            use = Use(session, _workspace(session), emit, spawn)
            self._commands.temporary(session.session).mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                found = await asyncio.gather(*(self._backend(definition, use) for definition in needed))
            except BaseException:
                await self._leave(session, needed)
                raise
            backends += [backend for backend in found if backend is not None]
        if any(names_provider(glob, self._core.registration.name) for glob in session.tools):
            backends.append(self._core.of(session, spawn))
        return SessionTools(session.tools, backends, self._raises, partial(self._leave, session, needed))

    async def _backend(self, definition: ProviderDefinition, use: Use) -> Backend | None:
        provider = self._supervised(definition, use)
        provider.listen(use.session.session, use.emit)
        status = event_pb2.ProviderStatus(provider=definition.name)
        try:
            instance = await provider.live()
        except Unavailable as error:
            status.state, status.message = error.state, str(error)
            await told(use.emit, status, self._log, use.session.session)
            return None
        status.state, status.version = "ready", instance.registration.version
        await told(use.emit, status, self._log, use.session.session)
        return ProviderTools(provider, instance.registration, use, self._spool)

    def _supervised(self, definition: ProviderDefinition, use: Use) -> Supervised:
        key = (use.session.root, definition.name)
        if key not in self._running:
            start = partial(self._started, definition, use.session.root, use.workspace)
            self._running[key] = Supervised(definition.name, start, self._log)
        return self._running[key]

    def _started(
        self,
        definition: ProviderDefinition,
        root: str,
        workspace: Workspace,
        number: str,
        shown: Registration | None,
    ) -> contextlib.AbstractAsyncContextManager[Instance]:
        place = ListenDirectory.make(self._runtime, self._log, root, definition.name, number)
        return started(
            definition,
            cells=self._cells,
            commands=self._commands,
            place=place,
            workspace=workspace,
            shown=shown,
            log=self._log,
        )

    async def _leave(self, session: ToolSession, needed: Sequence[ProviderDefinition]) -> None:
        """The session no longer uses anything; what nobody uses is stopped, and its /tmp is removed."""
        unused: list[Supervised] = []
        for definition in needed:
            key = (session.root, definition.name)
            provider = self._running.get(key)
            if provider is not None and provider.forget(session.session):
                unused.append(self._running.pop(key))
        self._core.forget(session.session)
        await asyncio.gather(*(provider.close() for provider in unused))
        await asyncio.to_thread(remove_tree, self._commands.temporary(session.session), self._log)


class ProviderTools:
    """A process's tools, for one session."""

    def __init__(self, provider: Supervised, registration: Registration, use: Use, spool: Spool) -> None:
        self._provider = provider
        self.registration = registration
        self._use = use
        self._spool = spool

    async def preview(self, call: Invocation) -> Preview:
        """See ToolSet.preview. Empty also where the provider is not there."""
        if (failure := calls.check_input(self.registration.tools[call.tool], call.input)) is not None:
            return Preview(failure=failure)
        try:
            async with asyncio.timeout(calls.PREVIEW_TIMEOUT_S):
                instance = await self._provider.live()
        except (Unavailable, SandboxUnavailable, TimeoutError):
            return Preview()
        return await calls.preview(instance, self._use.session, call)

    async def invoke(self, call: Invocation) -> ToolOutcome | ToolFailure:
        """See ToolSet.invoke."""
        try:
            async with asyncio.timeout(call.timeout_s):
                instance = await self._provider.live()
        except (Unavailable, SandboxUnavailable, TimeoutError) as error:
            message = f"{call.tool} did not run: {str(error) or f'provider {call.provider} is restarting'}"
            return ToolFailure(common.TOOL_ERROR_CATEGORY_PROCESS_CRASHED, message)
        tool = instance.registration.tools.get(call.tool)
        if tool is None:
            message = f"provider {call.provider} came back without {call.tool}"
            return ToolFailure(common.TOOL_ERROR_CATEGORY_NOT_FOUND, message)
        return await calls.invoke(instance, tool, self._use, call, self._spool)


def _workspace(session: ToolSession) -> Workspace:
    try:
        return Workspace.at(session.workspace)
    except Misplaced as misplaced:
        raise SandboxUnavailable(str(misplaced)) from misplaced
