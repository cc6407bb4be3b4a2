"""Starting a program and learning of its end, on any event loop, without forking the daemon.

The program is started by vfork and exec from the thread of the loop: a fork would run the handlers that gRPC
registers for it, and the signal that tells a child of its parent's death follows the thread, not the process.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self


@dataclass(frozen=True, slots=True)
class Standard:
    """Descriptors that a child has as its standard input, output and error output."""

    stdin: int
    stdout: int
    stderr: int


class Spawned:
    """A child of the daemon. `end` must be awaited once it is over, or a zombie is left."""

    def __init__(self, argv: Sequence[str], standard: Standard, pass_fds: Sequence[int]) -> None:
        """Starts it in a session of its own (a terminal's interrupt is for the daemon), with no environment
        but a PATH. Raises OSError.
        """
        self._process = subprocess.Popen(
            argv,
            stdin=standard.stdin,
            stdout=standard.stdout,
            stderr=standard.stderr,
            pass_fds=pass_fds,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin"},
            cwd="/",
            start_new_session=True,
        )
        try:
            self._pidfd: int | None = os.pidfd_open(self._process.pid)
        except OSError:
            self._process.kill()
            self._process.wait()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """Harmless after its end."""
        self._process.kill()

    async def end(self) -> int:
        """Waits for its end and collects it; the exit code, or minus the signal that ended it.

        No time-out: the caller has one.
        """
        if self._process.returncode is None and self._pidfd is not None:
            await readable(self._pidfd)
            self._process.wait()
        # `kill` collects a process that is over, too.
        pidfd, self._pidfd = self._pidfd, None
        if pidfd is not None:
            os.close(pidfd)
        code = self._process.returncode
        assert code is not None
        return code


class Pidfd:
    """A process that is not the daemon's child, held so that its number cannot come to mean another."""

    def __init__(self, pid: int) -> None:
        """Raises ProcessLookupError where there is none."""
        self._descriptor = os.pidfd_open(pid)
        self._pid = pid

    def kill(self) -> None:
        """Harmless after its end.

        A process must run once more to end. Among the thousands of a fork bomb that could take minutes, in
        which they go on; so it is to run first, where that is allowed: as root, whom no limit keeps from a
        bomb.
        """
        try:
            signal.pidfd_send_signal(self._descriptor, 0)
            with suppress(PermissionError):
                os.sched_setscheduler(self._pid, os.SCHED_RR, os.sched_param(1))
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
        except ProcessLookupError:
            return

    async def end(self) -> None:
        """Waits for its end. No time-out: the caller has one."""
        await readable(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


class Memfile:
    """Bytes behind a descriptor that a child can be given; closed with the `with` block."""

    def __init__(self, name: str, content: bytes) -> None:
        self.number = os.memfd_create(name, os.MFD_CLOEXEC)
        view = memoryview(content)
        while view:
            view = view[os.write(self.number, view) :]
        os.lseek(self.number, 0, os.SEEK_SET)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.number)


async def readable(descriptor: int) -> None:
    """Waits until a descriptor can be read; a pidfd can when its process is over."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(descriptor, _settle, ready)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
