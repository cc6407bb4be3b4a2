"""The daemon's files as a whole: what of them is not needed any more, and whether they are in order."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from turnd.ports import AnsweredRequest, LogFailed
from turnd.sessions.daemon import Sandbox
from turnd.sessions.housekeeping import Unused
from turnd.store.examine import Check, copies, examine, examine_all
from turnd.store.gc import EndedTree, SessionChanged, all_sessions, ended_before, kept_for_its_place
from turnd.store.log import EventLog
from turnd.tools.spool import Spool, SpoolDirectory, directory_name
from turnd.v1 import daemon_pb2
from turnd.v1.paths import PathError, Paths, check_private_directory, check_private_file


class Upkeep:
    """Implements `Premises` over the log, the spools and the directories."""

    def __init__(self, paths: Paths, log: EventLog, spool: Spool, sandbox: Sandbox) -> None:
        self._paths = paths
        self._log = log
        self._spool = spool
        self._sandbox = sandbox

    async def unused(self, before_us: int) -> Sequence[Unused]:
        """Ended sessions that are older, spools of no session, and older copies of the log (listed only)."""
        return await asyncio.to_thread(self._unused, before_us)

    async def kept(self, before_us: int) -> str:
        """The ended session that is older and has the newest event of the log; empty: there is none."""
        return await asyncio.to_thread(kept_for_its_place, self._paths.database, before_us)

    async def examine(self, full: bool) -> Sequence[daemon_pb2.DoctorCheck]:
        """Each check; whoever is cancelled ends the reading of the whole file."""
        checks = await asyncio.to_thread(lambda: [*examine(self._paths.database), *self._private()])
        checks += [self._known_problems(), self._cells()]
        if full:
            stop = threading.Event()
            try:
                checks.append(await asyncio.to_thread(examine_all, self._paths.database, stop))
            finally:
                stop.set()
        return [
            daemon_pb2.DoctorCheck(name=check.name, ok=check.ok, finding=check.finding, advice=check.advice)
            for check in checks
        ]

    def _unused(self, before_us: int) -> list[Unused]:
        # Directories first: a session is in the log before it has one, so none of these is only just made.
        spools = {directory.name: directory for directory in self._spool.directories()}
        kept = {directory_name(session) for session in all_sessions(self._paths.database)}
        trees = ended_before(self._paths.database, before_us)
        return [
            *(self._session(tree, spools) for tree in trees),
            *(self._orphan(spool) for name, spool in spools.items() if name not in kept),
            *_copies(self._paths.database, before_us),
        ]

    def _session(self, tree: EndedTree, spools: dict[str, SpoolDirectory]) -> Unused:
        members = [member.id for member in tree.members]
        names = [directory_name(session) for session in members]
        item = daemon_pb2.GcItem(
            kind=daemon_pb2.GC_KIND_SESSION,
            name=tree.id,
            bytes=tree.bytes + sum(spools[name].bytes for name in names if name in spools),
            sessions=len(members),
            removable=True,
            title=tree.title,
        )
        item.last_used.FromMicroseconds(tree.updated_us)
        return Unused(item, members, partial(self._remove_session, tree, names))

    def _orphan(self, spool: SpoolDirectory) -> Unused:
        item = daemon_pb2.GcItem(
            kind=daemon_pb2.GC_KIND_SPOOL,
            name=spool.name,
            path=str(spool.path),
            bytes=spool.bytes,
            removable=True,
        )
        item.last_used.FromMicroseconds(spool.written_us)
        return Unused(item, (), partial(self._remove_orphan, spool.name))

    async def record(self, answered: AnsweredRequest) -> None:
        """Stores what a command has answered so far. Raises LogFailed."""
        await self._log.amend(answered)

    async def _remove_session(
        self, tree: EndedTree, spools: Sequence[str], answered: AnsweredRequest | None
    ) -> str:
        try:
            await self._log.remove(tree, answered)
        except (SessionChanged, sqlite3.Error, OSError) as error:
            return str(error)
        # A daemon that is killed in between leaves spools of no session, which the next gc finds.
        return await self._remove_spools(spools)

    async def _remove_orphan(self, name: str, answered: AnsweredRequest | None) -> str:
        if answered is not None:
            try:
                await self.record(answered)
            except LogFailed as failed:
                return str(failed)
        return await self._remove_spools([name])

    async def _remove_spools(self, names: Sequence[str]) -> str:
        try:
            for name in names:
                await asyncio.to_thread(self._spool.remove_directory, name)
        except OSError as error:
            return f"the output that was kept could not be removed: {error}"
        return ""

    def _private(self) -> Iterator[Check]:
        paths = self._paths
        directory, file = check_private_directory, check_private_file
        for name, path, look in (
            ("state directory", paths.state, directory),
            ("runtime directory", paths.runtime, directory),
            ("log permissions", paths.database, file),
            ("socket", paths.socket, file),
            ("token", paths.token, file),
        ):
            yield _private(name, path, look)

    def _known_problems(self) -> Check:
        problems = self._log.problems()
        advice = "the daemon's own log says more: `turn status` names where it is" if problems else ""
        return Check("known problems", not problems, "; ".join(problems) or "none", advice)

    def _cells(self) -> Check:
        if self._sandbox.problem:
            return Check("sandbox", False, "none: tools that need one do not run", self._sandbox.problem)
        gaps = self._sandbox.unenforced()
        missing = f"; not enforced here: {', '.join(gaps)}" if gaps else ""
        return Check("sandbox", True, self._sandbox.description + missing)


def _private(name: str, path: Path, look: Callable[[Path], None]) -> Check:
    try:
        look(path)
    except FileNotFoundError:
        return Check(name, False, f"{path} is not there", "restart turnd, which makes it")
    except (PathError, OSError) as wrong:
        return Check(name, False, str(path), str(wrong))
    return Check(name, True, str(path))


def _copies(database: Path, before_us: int) -> Iterator[Unused]:
    for copy in copies(database):
        if copy.written_us < before_us:
            item = daemon_pb2.GcItem(
                kind=daemon_pb2.GC_KIND_DAMAGED if copy.damaged else daemon_pb2.GC_KIND_BACKUP,
                name=copy.path.name,
                path=str(copy.path),
                bytes=copy.bytes,
            )
            item.last_used.FromMicroseconds(copy.written_us)
            yield Unused(item)
