"""Commands of sessions: each in a fresh cell, with the session's environment and /tmp, by bash (TOOL-12)."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

from turnd.cells.paths import tool_chains
from turnd.cells.port import Cell, CellExit, CellFailed, Cells, CellStuck
from turnd.cells.spec import CellRefused, CellSpec
from turnd.cells.workspace import Misplaced, Workspace
from turnd.ports import SandboxUnavailable, ToolSession
from turnd.tools.calloutput import OutputStream
from turnd.tools.environment import for_commands
from turnd.v1 import common_pb2 as common
from turnd.v1 import provider_pb2

MAX_COMMAND_BYTES: Final = 96 * 1024
"""The kernel takes 128 KiB for one argument."""
STOP_GRACE_S: Final = 2.0
"""From TERM to KILL."""
_PIECE_BYTES: Final = 64 * 1024
_BASH: Final = "/bin/bash"

# Standard error goes where output goes, so that their order is kept; bash's own words on its jobs go nowhere.
# A job of its own is what TERM can be passed on to. What the command left running may finish by itself for a
# moment (tee at the end of its pipe): then the cell ends.
_AROUND: Final = r"""
exec 2>/dev/null
set -m
before=(/proc/[0-9]*)
/bin/bash -c -- "$1" 2>&1 &
child=$!
trap 'kill -TERM -- "-$child"' TERM
while :; do
  wait "$child"
  status=$?
  kill -0 "$child" 2>/dev/null || break
done
for _ in 1 2 3 4 5 6 7 8 9 10; do
  after=(/proc/[0-9]*)
  [ "${#after[@]}" -le "${#before[@]}" ] && break
  sleep 0.02
done
exit "$status"
"""


class CommandRefused(Exception):
    """A command cannot be run as it was asked for; nothing of it ran."""

    def __init__(self, category: common.ToolErrorCategory.ValueType, message: str) -> None:
        super().__init__(message)
        self.category = category
        self.message = message


class Commands:
    """Runs command lines. Holds no state: a command's cell is all there is of it.

    `temporary` holds the sessions' /tmp directories; `home` is the user's, in which tool chains are looked
    for.
    """

    def __init__(self, cells: Cells, temporary: Path, home: Path) -> None:
        self._cells = cells
        self._temporary = temporary
        self._home = home

    def temporary(self, session: str) -> Path:
        """The directory that all commands of a session see as /tmp."""
        return self._temporary / session

    async def run(
        self,
        session: ToolSession,
        workspace: Workspace,
        request: provider_pb2.RunCommand,
        output: OutputStream,
        within_s: float,
    ) -> provider_pb2.CommandFinished:
        """Runs a command of a session to its end, at most `within_s` seconds; its output goes to `output` as it
        comes.

        Returns when nothing of the command is left, also when this is cancelled (TOOL-04). Raises
        CommandRefused.
        """
        _check(request)
        cell = await self._start(session, workspace, request)
        started = time.monotonic()
        try:
            ended, timed_out = await _to_the_end(cell, output, within_s)
        except CellStuck as error:
            raise CommandRefused(common.TOOL_ERROR_CATEGORY_EXECUTION_FAILED, str(error)) from error
        finally:
            await cell.close()
        shown = output.excerpt()
        return provider_pb2.CommandFinished(
            exit_code=ended.code,
            output=shown.text,
            omitted_bytes=shown.omitted_bytes,
            total_bytes=shown.total_bytes,
            timed_out=timed_out,
            left_behind=ended.left_behind,
            duration_ms=round((time.monotonic() - started) * 1000),
            limit=ended.limit or "",
            ended_from_outside=ended.from_outside,
        )

    async def _start(
        self, session: ToolSession, workspace: Workspace, request: provider_pb2.RunCommand
    ) -> Cell:
        cwd = _directory(session, workspace, request.cwd)
        environment = for_commands(session.environment)
        # It looks through the directories on PATH, which may be many.
        chains = await asyncio.to_thread(tool_chains, environment["PATH"], self._home, Path(workspace.path))
        writes = request.access == provider_pb2.COMMAND_ACCESS_WRITE
        make = CellSpec.command if writes else CellSpec.inspect_command
        try:
            spec = make(
                (_BASH, "-c", _AROUND, "bash", request.command),
                cwd=cwd,
                env={**chains.env, **environment},
                workspace=workspace.path,
                tmp=str(self.temporary(session.session)),
                read=chains.read,
                identity=workspace.identity,
            )
            return await self._cells.start(spec)
        except (CellRefused, CellFailed, SandboxUnavailable) as error:
            message = f"no cell could be made for the command, so it did not run: {error}"
            raise CommandRefused(common.TOOL_ERROR_CATEGORY_EXECUTION_FAILED, message) from error


def _check(request: provider_pb2.RunCommand) -> None:
    if not request.command.strip() or "\0" in request.command:
        raise _invalid("expected a command line without NUL characters")
    if (size := len(request.command.encode())) > MAX_COMMAND_BYTES:
        raise _invalid(
            f"the command line has {size} bytes, more than {MAX_COMMAND_BYTES}; put it into a file"
        )
    if request.access not in (provider_pb2.COMMAND_ACCESS_READ, provider_pb2.COMMAND_ACCESS_WRITE):
        raise _invalid("expected access read or write")


async def _to_the_end(cell: Cell, output: OutputStream, within_s: float) -> tuple[CellExit, bool]:
    """Reads until the cell is over or its time is; True: it was ended for its time."""
    reading = asyncio.create_task(_read(cell.stdout, output))
    waiting = asyncio.create_task(cell.wait())
    try:
        done, _ = await asyncio.wait({waiting}, timeout=within_s)
        ended = waiting.result() if done else await cell.stop(STOP_GRACE_S)
        # The cell is over, so nobody holds the pipe any more: what is in it is all there will be.
        await reading
        return ended, not done
    finally:
        for task in (reading, waiting):
            task.cancel()
        await asyncio.gather(reading, waiting, return_exceptions=True)


async def _read(stream: asyncio.StreamReader, output: OutputStream) -> None:
    while data := await stream.read(_PIECE_BYTES):
        output.feed(data)


def _directory(session: ToolSession, workspace: Workspace, asked: str) -> str:
    """Where in the workspace the command runs, for a clear error. The cell itself shows no other files."""
    try:
        return workspace.directory(session.cwd, asked)
    except Misplaced as misplaced:
        category = (
            common.TOOL_ERROR_CATEGORY_PERMISSION_DENIED
            if misplaced.outside
            else common.TOOL_ERROR_CATEGORY_NOT_FOUND
        )
        raise CommandRefused(category, str(misplaced)) from misplaced


def _invalid(message: str) -> CommandRefused:
    return CommandRefused(common.TOOL_ERROR_CATEGORY_INVALID_ARGUMENTS, message)
