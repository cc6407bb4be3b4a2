"""Builds the daemon, in dependency order. The only file that knows all parts."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import structlog

from turnd.archive import LogArchive, SpoolOutputs
from turnd.cells.instructions import DirectoryInstructions
from turnd.cells.probed import ProbedCells
from turnd.config import Config, ConfigError, load
from turnd.config.trust import TrustFile
from turnd.configured import (
    changes,
    endpoints,
    hook_subscribers,
    loop_settings,
    named_workspaces,
    profiles,
    raises,
    refuse_unsupported,
)
from turnd.hooks import journal
from turnd.hooks.chain import Chain
from turnd.hooks.subscriber import Subscriber
from turnd.layers import WorkspaceLayers
from turnd.models.catalogue import Catalogue
from turnd.models.keys import Keys
from turnd.ports import LogFailed, World
from turnd.rpc.server import BindFailed, RpcServer
from turnd.sessions.approvals import Approvals
from turnd.sessions.commands import Commands
from turnd.sessions.daemon import About, DaemonCommands
from turnd.sessions.housekeeping import Housekeeping
from turnd.sessions.live import LiveSessions
from turnd.sessions.locks import LockTable
from turnd.sessions.policies import Policies
from turnd.sessions.presence import Presence
from turnd.sessions.refusal import invalid
from turnd.sessions.requests import Requests
from turnd.sessions.surroundings import Surroundings
from turnd.sessions.tail import Tail
from turnd.sessions.trust import Trust
from turnd.store.filesystem import NetworkFileSystem
from turnd.store.hold import Hold
from turnd.store.intake import Committed
from turnd.store.log import EventLog
from turnd.store.migrate import MigrationFailed
from turnd.store.schema import NotALog, SchemaTooNew
from turnd.system import SystemClock, UlidIds
from turnd.telemetry import Redactor, open_trace
from turnd.tools.core import Core
from turnd.tools.definition import workspace_provider
from turnd.tools.disk import HostDisk
from turnd.tools.environment import allowed
from turnd.tools.registry import ToolPaths, ToolRegistry
from turnd.tools.spool import Spool
from turnd.tools.tasklist import last_tasks
from turnd.upkeep import Upkeep
from turnd.v1.paths import PathError, Paths

log = structlog.get_logger(__name__)

TAIL_BYTES = 32 * 2**20
CALL_GRACE_S = 1.0
TRACE_FLUSH_S = 2.0

START_FAILURES = (
    PathError,
    BindFailed,
    NetworkFileSystem,
    SchemaTooNew,
    NotALog,
    MigrationFailed,
    LogFailed,
    sqlite3.Error,
    OSError,
)
"""What `App.start` raises; each says to people what is wrong."""


class App:
    """One daemon. Raises ConfigError where it cannot be built as configured.

    The mutable state is the configuration in force, which `reload` replaces, and whether a stop was asked for.
    """

    def __init__(
        self, paths: Paths, hold: Hold, version: str, redactor: Redactor, environment: Mapping[str, str]
    ) -> None:
        self._paths = paths
        self._version = version
        self._redactor = redactor
        self._config = load(paths.config_file)
        refuse_unsupported(self._config)
        self._jitter = random.SystemRandom().random
        self._settings = loop_settings(self._config, self._jitter)
        self._stop = asyncio.Event()
        self._grace_s: float | None = None

        self._clock = SystemClock()
        self._log = EventLog(
            hold,
            self._clock,
            accept_network_file_system=self._config.storage.accept_network_file_system,
        )
        self._trace = open_trace(self._config.telemetry.endpoint, version, redactor)
        self._models = Catalogue(self._clock, Keys(environment), endpoints(self._config))
        self._cells = ProbedCells()
        self._spool = Spool(paths.spool)
        self._tools = ToolRegistry(
            self._cells,
            ToolPaths(runtime=paths.runtime, state=paths.state, home=Path.home()),
            [workspace_provider()],
            self._spool,
            Core(version, self._spool, partial(last_tasks, self._log)),
            lambda: raises(self._config),
            structlog.get_logger("turnd.tools"),
        )
        self._layers = WorkspaceLayers(
            lambda: profiles(self._config)[1], TrustFile(paths.state / "trust.json"), self._clock
        )
        self._presence = Presence()
        self._approvals = Approvals(self._log, self._clock, self._presence)
        self._hooks = Chain(self._subscribers(self._config), self._trace)
        self._world = World(
            clock=self._clock,
            ids=UlidIds(),
            log=self._log,
            models=self._models,
            instructions=DirectoryInstructions(str(Path.home())),
            tools=self._tools,
            disk=HostDisk(),
            layers=self._layers,
            hooks=self._hooks,
            people=self._approvals,
            locks=LockTable(),
            trace=self._trace,
        )
        self._live = LiveSessions(self._world, lambda: self._settings, lambda: profiles(self._config)[1])
        self._requests = Requests(self._log)
        self._server: RpcServer | None = None

    @property
    def stop_requested(self) -> bool:
        """The daemon drains or is about to."""
        return self._stop.is_set()

    def request_stop(self, grace_s: float | None) -> None:
        """Begins to drain; None: with the usual grace."""
        self._grace_s = grace_s
        self._stop.set()

    async def stopping(self) -> float | None:
        """Waits until a stop is asked for; the grace that was asked for with it."""
        await self._stop.wait()
        return self._grace_s

    async def start(self) -> None:
        """Opens and repairs the log, tries the sandbox, then serves. Raises one of START_FAILURES."""
        for repaired in await self._log.start():
            log.warning("a turn was cut off and has been closed", session=repaired.session)
        self._log.subscribe(self._committed)
        await self._open_sandbox_and_tools()
        self._server = self._make_server()
        await self._server.start()
        self._redactor.learn(self._paths.token.read_text(encoding="ascii").strip())
        log.info(
            "serving", version=self._version, socket=str(self._paths.socket), sandbox=self._cells.description
        )

    async def _open_sandbox_and_tools(self) -> None:
        await self._cells.find()
        if self._cells.problem:
            log.error("no sandbox: no tools that need one will run", problem=self._cells.problem)
        await self._tools.start()

    def _make_server(self) -> RpcServer:
        archive = LogArchive(self._log)
        surroundings = Surroundings(
            profiles=lambda: profiles(self._config),
            environment=allowed,
            sandbox=lambda: (self._cells.description, self._cells.unenforced()),
            layers=self._layers,
            home=str(Path.home()),
            own_directories=(str(self._paths.config), str(self._paths.state), str(self._paths.runtime)),
            workspaces=lambda: named_workspaces(self._config, str(Path.home())),
        )
        sessions = Commands(
            self._log,
            self._world.ids,
            self._models,
            self._live,
            self._approvals,
            archive,
            SpoolOutputs(self._spool),
            surroundings,
            self._requests,
        )
        about = About(
            version=self._version,
            socket=str(self._paths.socket),
            state_dir=str(self._paths.state),
            started_us=self._clock.now_us(),
        )
        upkeep = Upkeep(self._paths, self._log, self._spool, self._cells)
        daemon = DaemonCommands(
            about,
            self._live,
            archive,
            self._cells,
            self.request_stop,
            lambda: self.stop_requested,
            self._reload_for_client,
            lambda: [*self._log.problems(), *self._layers.problems()],
            Housekeeping(upkeep, self._live, self._clock, self._requests),
            Policies(self._world, self._log, lambda: self._settings.policy, surroundings, self._requests),
            Trust(self._layers, surroundings),
        )
        tail = Tail(self._log, TAIL_BYTES)
        return RpcServer(self._paths, self._version, sessions, daemon, tail, self._presence)

    def _subscribers(self, config: Config) -> list[Subscriber]:
        """The built-in ones first, then those of the configuration."""
        return [*journal.subscribers(), *hook_subscribers(config, str(Path.home()))]

    def reload(self) -> list[str]:
        """Reads the configuration again: new Turns and sessions use it. Names the sections that changed.

        Raises ConfigError and OSError; then the old one stays in force.
        """
        config = load(self._paths.config_file)
        refuse_unsupported(config)
        settings = loop_settings(config, self._jitter)
        self._models.configure(endpoints(config))
        self._hooks.configure(self._subscribers(config))
        changed = changes(self._config, config)
        self._config, self._settings = config, settings
        log.info("the configuration was reloaded", changed=changed)
        return changed

    def _reload_for_client(self) -> list[str]:
        try:
            return self.reload()
        except (ConfigError, OSError) as wrong:
            raise invalid("config", f"not reloaded, the old configuration stays in force:\n{wrong}") from None

    async def drain(self, grace_s: float) -> None:
        """Open Turns get the grace time (seconds), then are interrupted; their last events still reach clients."""
        try:
            await self._live.drain(grace_s)
        except* Exception as faults:
            log.error("sessions could not be stopped; repair closes them at the next start", exc_info=faults)

    async def close(self) -> None:
        """Ends the server, then what it used, in the reverse order of building."""
        if self._server is not None:
            await self._server.stop(CALL_GRACE_S)
        await self._requests.close()
        await self._approvals.close()
        await self._tools.close()
        await self._models.close()
        await self._log.close()
        await self._trace.close(TRACE_FLUSH_S)

    def _committed(self, committed: Sequence[Committed]) -> None:
        events = [one.event for one in committed]
        self._live.committed(events)
        # Requests of another log are history: nobody is asked about them, and they do not expire (LOG-22).
        self._approvals.committed([event for event in events if not event.HasField("imported")])
