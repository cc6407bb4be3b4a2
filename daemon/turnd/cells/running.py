"""A cell that runs: its streams, its end, and the ways to bring that about."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from dataclasses import dataclass
from typing import Final

from turnd.cells.gate import MAX_MESSAGE, read_over
from turnd.cells.limits import ProcessTable, watch
from turnd.cells.output import Output
from turnd.cells.port import CellExit, CellStuck
from turnd.cells.spawn import Pidfd, Spawned
from turnd.cells.spec import Limits

TEARDOWN_S: Final = 10.0
"""The kernel ends a killed cell in milliseconds; after this long a process of it hangs in the kernel."""

_LOOK_AGAIN_S: Final = 0.01
_SIGNAL_BASE: Final = 128


@dataclass(frozen=True, slots=True)
class Inside:
    """What the daemon holds of a cell's inside. Closed when the cell is over."""

    gate: socket.socket
    """The daemon's end of the shell's standard input."""
    shell: int
    """The shell's process id in the cell."""
    init: Pidfd
    """The cell's process 1: its end is the end of every process in the cell."""
    table: ProcessTable

    def close(self) -> None:
        self.gate.close()
        self.init.close()
        self.table.close()


class BubblewrapCell:
    """See `port.Cell`. Made by `Bubblewrap.start` only.

    The mutable state is the task `_life` (until it is done the cell's inside is open, and nobody else closes
    it), and whether the cell was killed by its owner.
    """

    def __init__(
        self, launcher: Spawned, inside: Inside, stdout: Output, stderr: Output, limits: Limits
    ) -> None:
        self._launcher = launcher
        self._inside = inside
        self._stdout = stdout
        self._stderr = stderr
        self._killed = False
        self._life = asyncio.create_task(self._live(limits), name=f"cell {launcher.pid}")

    @property
    def pid(self) -> int:
        return self._launcher.pid

    @property
    def stdout(self) -> asyncio.StreamReader:
        return self._stdout.reader

    @property
    def stderr(self) -> asyncio.StreamReader:
        return self._stderr.reader

    async def wait(self) -> CellExit:
        return await asyncio.shield(self._life)

    async def stop(self, grace_s: float) -> CellExit:
        try:
            async with asyncio.timeout(grace_s):
                # Right after the start the program may not be there yet.
                while not self._life.done() and not self._terminate():  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_AGAIN_S)
                return await self.wait()
        except TimeoutError:
            self.kill()
        return await self.wait()

    def kill(self) -> None:
        if not self._life.done():
            self._killed = True
            self._inside.init.kill()

    async def close(self) -> None:
        self.kill()
        try:
            await self.wait()
        finally:
            self._stdout.close()
            self._stderr.close()

    async def __aenter__(self) -> BubblewrapCell:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _terminate(self) -> bool:
        """TERM to the program; False where there is none."""
        for state in self._inside.table.states():
            if state.parent != self._inside.shell:
                continue
            try:
                directory = self._inside.table.open(state.pid)
            except FileNotFoundError:
                continue
            try:
                signal.pidfd_send_signal(directory, signal.SIGTERM)
            except ProcessLookupError:
                continue
            finally:
                os.close(directory)
            return True
        return False

    async def _live(self, limits: Limits) -> CellExit:
        inside = self._inside
        try:
            code, left_behind, limit = None, False, None
            try:
                message, limit = await self._over(limits)
                if (code := read_over(message)) is not None:
                    left_behind = any(
                        not state.ended and state.pid != inside.shell for state in inside.table.states()
                    )
            finally:
                # Process 1 goes first, while its parent is there to collect it.
                inside.init.kill()
                launcher_code = await self._gone()
        finally:
            inside.close()
        from_outside = code is None and limit is None and not self._killed
        if code is None:
            code = launcher_code if launcher_code >= 0 else _SIGNAL_BASE - launcher_code
        number = code - _SIGNAL_BASE
        ended_by = number if number in signal.valid_signals() else None
        return CellExit(code, ended_by, left_behind, limit, from_outside)

    async def _over(self, limits: Limits) -> tuple[bytes, str | None]:
        """What the shell said last (nothing, where it was ended), and the limit that was passed."""
        loop = asyncio.get_running_loop()
        watching = asyncio.create_task(watch(self._inside.table, limits))
        saying = asyncio.create_task(loop.sock_recv(self._inside.gate, MAX_MESSAGE))
        try:
            await asyncio.wait((watching, saying), return_when=asyncio.FIRST_COMPLETED)
            if saying.done():
                return _message(saying), None
            return b"", watching.result()
        finally:
            for task in (watching, saying):
                task.cancel()
            await asyncio.gather(watching, saying, return_exceptions=True)

    async def _gone(self) -> int:
        """Waits until the launcher and with it all of the cell is gone; the launcher's exit code."""
        try:
            async with asyncio.timeout(TEARDOWN_S):
                code = await self._launcher.end()
                await self._inside.init.end()
        except TimeoutError:
            raise CellStuck(
                f"the cell of process {self.pid} was killed {TEARDOWN_S:.0f} s ago and is not gone: a "
                "process of it hangs in the kernel, as on a file system that does not answer"
            ) from None
        return code


def _message(saying: asyncio.Task[bytes]) -> bytes:
    try:
        return saying.result()
    except ConnectionResetError:
        # It was ended before it had read that it may start.
        return b""
