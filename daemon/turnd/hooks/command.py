"""A subscriber that is a command of the user's: JSON on stdin, JSON on stdout (HOOK-02 to HOOK-07).

It runs outside of any sandbox, because it is the user's own: an absolute path from the user's configuration, with an
environment that is stated and a directory that no workspace can write to.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import cast

from turnd.hooks.answer import answer_of
from turnd.hooks.subscriber import Answer, Observed, SubscriberFailed
from turnd.ports import At
from turnd.v1 import common_pb2 as common
from turnd.v1.jsonform import enum_text

DIRECTORY = "/"
SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"
MAX_ANSWER_BYTES = 16 * 2**20
"""Of stdout; a transformed history is the largest there is."""
SAID_BYTES = 2000
"""The end of stderr that a failure shows."""
STDOUT, STDERR = 1, 2
LEFTOVER_S = 1.0
"""So long output is still read after the command has ended, where something that it left behind holds it open."""


@dataclass(frozen=True, slots=True)
class CommandSubscriber:
    """One `[[hooks]]` entry with a command."""

    name: str
    point: common.HookPoint.ValueType
    mode: common.HookMode.ValueType
    timeout_s: float
    command: tuple[str, ...]
    home: str

    async def answer(self, at: At, payload: Mapping[str, object]) -> Answer:
        """Runs the command once. Whatever ends this, also a time-out, ends the command and its process group first.

        Raises SubscriberFailed: missing, error, crash, nonsense.
        """
        said = await self._held(self._told(at, payload))
        if said.returncode < 0:
            raise SubscriberFailed("crash", f"ended by signal {-said.returncode}{said.complaint}")
        if said.returncode:
            raise SubscriberFailed("error", f"exit code {said.returncode}{said.complaint}")
        if self.mode == common.HOOK_MODE_OBSERVE:
            return Observed()
        if said.too_long:
            raise SubscriberFailed("nonsense", f"it answered with more than {MAX_ANSWER_BYTES} bytes")
        return answer_of(self.mode, self.point, said.answer, payload)

    def _told(self, at: At, payload: Mapping[str, object]) -> bytes:
        told = {
            "point": enum_text(common.HookPoint, self.point),
            "mode": enum_text(common.HookMode, self.mode),
            "session": at.session,
            "turn": at.turn,
            "step": at.step,
            "payload": payload,
        }
        return json.dumps(told, ensure_ascii=False, allow_nan=False).encode() + b"\n"

    async def _held(self, told: bytes) -> _Said:
        """Tells the command, and returns what it said when it has ended."""
        starting = asyncio.ensure_future(self._started())
        try:
            transport, talk = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The command may run already, and only its transport knows the group that is to be ended.
            starting.add_done_callback(_end_unheard)
            await asyncio.wait({starting})
            raise
        except OSError as error:
            raise SubscriberFailed("missing", f"{self.command[0]} cannot be run: {error.strerror}") from error
        try:
            talk.tell(transport, told)
            await talk.ended.wait()
            _end_group(transport.get_pid())
            # Whatever left the group may hold the output open for as long as it likes.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LEFTOVER_S):
                    await talk.quiet.wait()
            return talk.said(transport)
        finally:
            if not talk.ended.is_set():
                _end_group(transport.get_pid())
                await talk.ended.wait()
            transport.close()

    async def _started(self) -> tuple[asyncio.SubprocessTransport, _Talk]:
        """Starts the command. Raises OSError."""
        pipe = asyncio.subprocess.PIPE
        return await asyncio.get_running_loop().subprocess_exec(
            _Talk,
            *self.command,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            cwd=DIRECTORY,
            env={"PATH": SEARCH_PATH, "HOME": self.home, "LANG": "C.UTF-8"},
            start_new_session=True,
        )


@dataclass(frozen=True, slots=True)
class _Said:
    returncode: int
    answer: bytes
    too_long: bool
    complaint: str
    """The end of stderr, for a failure's text; empty without any."""


class _Talk(asyncio.SubprocessProtocol):
    """Both ends of one command. The mutable state is what it has said, and whether it is over."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.quiet = asyncio.Event()
        """Nobody can say any more: both outputs are closed."""
        self._open = {STDOUT, STDERR}
        self._answer = bytearray()
        self._too_long = False
        self._stderr = bytearray()

    def tell(self, transport: asyncio.SubprocessTransport, told: bytes) -> None:
        """What it gets on stdin; it need not read it."""
        stdin = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))
        # One that has ended or closed it already is no failure of its own: its answer is what counts.
        for say in (partial(stdin.write, told), stdin.write_eof):
            if not stdin.is_closing():
                say()

    def said(self, transport: asyncio.SubprocessTransport) -> _Said:
        """All of it, once the command has ended."""
        returncode = transport.get_returncode()
        assert returncode is not None, "the command has ended"
        words = bytes(self._stderr).decode(errors="replace").strip()
        return _Said(returncode, bytes(self._answer), self._too_long, f": {words}" if words else "")

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == STDERR:
            self._stderr += data
            del self._stderr[:-SAID_BYTES]
        elif len(self._answer) + len(data) > MAX_ANSWER_BYTES:
            # What is beyond is read and thrown away, so that the command comes to its end.
            self._too_long = True
            self._answer.clear()
        elif not self._too_long:
            self._answer += data

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open.discard(fd)
        if not self._open:
            self.quiet.set()

    def process_exited(self) -> None:
        self.ended.set()


def _end_unheard(starting: asyncio.Future[tuple[asyncio.SubprocessTransport, _Talk]]) -> None:
    """Ends a command that started after nobody wanted its answer any more."""
    if not starting.cancelled() and starting.exception() is None:
        transport, _ = starting.result()
        _end_group(transport.get_pid())
        transport.close()


def _end_group(pid: int) -> None:
    """Ends the command and what it has started in its process group, which it leads."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
