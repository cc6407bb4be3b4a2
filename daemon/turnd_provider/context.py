"""What a tool is given beside its arguments."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from turnd.v1 import provider_pb2
from turnd_provider.kernel import Kernel, KernelRefused

__all__ = ["BlockingContext", "Call", "CommandResult", "Context", "KernelRefused"]

MAX_TIMEOUT_S: Final = 86_400.0
"""The longest time-out of a command that is told to the daemon; its call's deadline comes long before."""

Channel = Literal["stdout", "stderr"]
Access = Literal["read", "write"]
Send = Callable[[provider_pb2.InvokeResponse], Awaitable[None]]

_ACCESS: Mapping[Access, provider_pb2.CommandAccess.ValueType] = {
    "read": provider_pb2.COMMAND_ACCESS_READ,
    "write": provider_pb2.COMMAND_ACCESS_WRITE,
}

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command that the daemon ran has ended."""

    exit_code: int
    """128 + signal where a signal ended it."""
    output: str
    """Standard output and error as they came; of long output the head and the tail."""
    omitted_bytes: int
    total_bytes: int
    timed_out: bool
    left_behind: bool
    """It left processes in the background, which were ended with its cell."""
    duration_ms: int
    limit: str
    """The limit that the cell was ended for; empty: none."""
    ended_from_outside: bool
    """Its cell was killed, not by the daemon, before the command had ended; `exit_code` says nothing of it."""


@dataclass(frozen=True, slots=True)
class Call:
    """The facts of one call."""

    session: str
    turn: int
    step: int
    call_id: str
    attempt: int
    cwd: Path
    workspace: Path
    traceparent: str
    preconditions: Mapping[str, str] = field(default_factory=dict)
    """The state of each target at plan time, as the tool's preview told it; compare before acting."""

    @classmethod
    def of(cls, context: provider_pb2.CallContext, preconditions: Mapping[str, str] | None = None) -> Call:
        """The call of a message's context."""
        return cls(
            session=context.session,
            turn=context.turn,
            step=context.step,
            call_id=context.call_id,
            attempt=context.attempt,
            cwd=Path(context.cwd),
            workspace=Path(context.workspace),
            traceparent=context.traceparent,
            preconditions=dict(preconditions or {}),
        )


class Context:
    """What an async tool can see and do; a preview gets one that cannot send or run anything.

    The facts of the call are in `call`, the provider's checked configuration and granted secrets in `config`
    and `secrets`.
    """

    def __init__(
        self,
        call: Call,
        *,
        config: Mapping[str, Any],
        secrets: Mapping[str, str],
        kernel: Kernel | None,
        send: Send | None,
    ) -> None:
        self.call = call
        self.config = config
        self.secrets = secrets
        self._kernel = kernel
        self._send = send

    @property
    def cwd(self) -> Path:
        """The directory that relative paths are relative to."""
        return self.call.cwd

    @property
    def workspace(self) -> Path:
        """The directory that tools may read or change."""
        return self.call.workspace

    async def progress(self, message: str, fraction: float | None = None) -> None:
        """Tells how far the call is; `fraction` is from 0 to 1."""
        note = provider_pb2.Progress(message=message, fraction=fraction)
        await self._to_daemon(provider_pb2.InvokeResponse(progress=note))

    async def output(self, data: bytes | str, channel: Channel = "stdout") -> None:
        """A piece of output as it arises; any bytes are legal."""
        raw = data.encode("utf-8", "replace") if isinstance(data, str) else data
        chunk = provider_pb2.OutputChunk(data=raw, channel=channel)
        await self._to_daemon(provider_pb2.InvokeResponse(output=chunk))

    async def partial(self, content: object) -> None:
        """What is done so far, as JSON; told if the call does not reach its end."""
        part = provider_pb2.PartialResult(content=json.dumps(content).encode())
        await self._to_daemon(provider_pb2.InvokeResponse(partial=part))

    async def exit_status(self, code: int) -> None:
        """How the process that did the work has ended; at most once, and last."""
        status = provider_pb2.ExitStatus(code=code)
        await self._to_daemon(provider_pb2.InvokeResponse(exit_status=status))

    async def run_command(
        self, command: str, *, access: Access, cwd: str = "", timeout_s: float = 0
    ) -> CommandResult:
        """Has the daemon run a command line by bash in a fresh cell; the tool must declare `runs_commands`.

        `access` is what the command may do to the workspace; `cwd` is absolute or relative to the call's
        directory; `timeout_s` 0 means until the call's deadline, which also ends what has more time. Raises
        KernelRefused, and ValueError for a time-out below 0. Cancelling the wait ends the command.
        """
        request = provider_pb2.RunCommand(
            call_id=self.call.call_id,
            command=command,
            cwd=cwd,
            access=_ACCESS[access],
            timeout_ms=_milliseconds(timeout_s),
        )
        answer = await self._ask(provider_pb2.KernelResponse(run_command=request))
        ended = answer.command_finished
        return CommandResult(
            exit_code=ended.exit_code,
            output=ended.output,
            omitted_bytes=ended.omitted_bytes,
            total_bytes=ended.total_bytes,
            timed_out=ended.timed_out,
            left_behind=ended.left_behind,
            duration_ms=ended.duration_ms,
            limit=ended.limit,
            ended_from_outside=ended.ended_from_outside,
        )

    async def note(self, text: str, data: object = None) -> None:
        """Puts a note into the log of the session whose call this is. Raises KernelRefused."""
        encoded = b"" if data is None else json.dumps(data).encode()
        emit = provider_pb2.Emit(call_id=self.call.call_id, text=text, data=encoded)
        await self._ask(provider_pb2.KernelResponse(emit=emit))

    async def _to_daemon(self, event: provider_pb2.InvokeResponse) -> None:
        if self._send is None:
            raise RuntimeError("a preview has no effects: it sends nothing")
        await self._send(event)

    async def _ask(self, message: provider_pb2.KernelResponse) -> provider_pb2.KernelRequest:
        if self._kernel is None:
            raise RuntimeError("a preview has no effects: it asks the daemon for nothing")
        return await self._kernel.call(message)


def _milliseconds(timeout_s: float) -> int:
    if not timeout_s >= 0:
        raise ValueError(f"a time-out is a number of seconds from 0 on, found {timeout_s!r}")
    return math.ceil(min(timeout_s, MAX_TIMEOUT_S) * 1000)


class BlockingContext:
    """What a tool that is an ordinary function can see and do; it runs in a thread of its own.

    A thread cannot be ended from outside: long work looks at `cancelled` now and then and returns when it is
    set.
    """

    def __init__(self, context: Context, loop: asyncio.AbstractEventLoop, cancelled: threading.Event) -> None:
        self._context = context
        self._loop = loop
        self.cancelled = cancelled
        self.call = context.call
        self.config = context.config
        self.secrets = context.secrets

    @property
    def cwd(self) -> Path:
        """The directory that relative paths are relative to."""
        return self.call.cwd

    @property
    def workspace(self) -> Path:
        """The directory that tools may read or change."""
        return self.call.workspace

    def progress(self, message: str, fraction: float | None = None) -> None:
        """As Context.progress."""
        self._wait(self._context.progress(message, fraction))

    def output(self, data: bytes | str, channel: Channel = "stdout") -> None:
        """As Context.output."""
        self._wait(self._context.output(data, channel))

    def partial(self, content: object) -> None:
        """As Context.partial."""
        self._wait(self._context.partial(content))

    def exit_status(self, code: int) -> None:
        """As Context.exit_status."""
        self._wait(self._context.exit_status(code))

    def run_command(
        self, command: str, *, access: Access, cwd: str = "", timeout_s: float = 0
    ) -> CommandResult:
        """As Context.run_command."""
        return self._wait(self._context.run_command(command, access=access, cwd=cwd, timeout_s=timeout_s))

    def note(self, text: str, data: object = None) -> None:
        """As Context.note."""
        self._wait(self._context.note(text, data))

    def _wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        # No time-out: the call's own deadline cancels the work, and then this raises.
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
