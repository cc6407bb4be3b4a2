"""The socket of a provider: where it is put, how its readiness is told, and how it is dialled safely."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import stat
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
from structlog.typing import FilteringBoundLogger

from turnd.tools.leftovers import remove_tree

SOCKET: Final = "s"
MAX_SOCKET_PATH_BYTES: Final = 107
MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""The largest message either way; the SDK has the same limit."""
_READY: Final = b"ready\n"
_CHANNEL: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Descriptor numbers come back: a shared pool would give a new provider the connection of an old one.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
)


class NotReady(Exception):
    """A provider did not say that it is ready, or what it listens on is no socket; the message says which."""


@dataclass(frozen=True, slots=True)
class ListenDirectory:
    """A private directory for one socket, with a short name: the path of a socket has at most 107 bytes."""

    path: Path
    log: FilteringBoundLogger

    @classmethod
    def make(cls, runtime: Path, log: FilteringBoundLogger, *identity: str) -> ListenDirectory:
        """Makes it, empty; `identity` tells it from every other one. Raises NotReady where the path is too
        long.
        """
        name = hashlib.sha256("\0".join(identity).encode()).hexdigest()[:12]
        path = runtime / name
        if (size := len(os.fsencode(path / SOCKET))) > MAX_SOCKET_PATH_BYTES:
            raise NotReady(
                f"the socket path {path / SOCKET} has {size} bytes, and the system takes {MAX_SOCKET_PATH_BYTES}; "
                "choose a shorter runtime directory"
            )
        runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_tree(path, log)
        path.mkdir(mode=0o700)
        return cls(path, log)

    def remove(self) -> None:
        """Removes it with what is in it; blocks for as long as that takes."""
        remove_tree(self.path, self.log)

    def open_socket(self) -> int:
        """A descriptor that stands for the very socket that is there now; the caller closes it. Raises
        NotReady.

        The provider can put anything into the directory, also a link to somebody else's socket: links are not
        followed, and what is not a socket is refused (SBX-03).
        """
        directory = os.open(self.path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            descriptor = os.open(SOCKET, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        except OSError as error:
            raise NotReady(f"it said it is ready, but there is no socket: {error.strerror}") from error
        finally:
            os.close(directory)
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise NotReady("what it listens on is not a socket, but a link or a file")
        return descriptor


class ReadyPipe:
    """A pipe on which a provider says one line once it accepts connections."""

    def __init__(self) -> None:
        self._ours, self.theirs = os.pipe()
        os.set_blocking(self._ours, False)
        self._theirs_open = True

    def given(self) -> None:
        """The provider has its end: ours of it is closed, so that its death is seen."""
        if self._theirs_open:
            os.close(self.theirs)
            self._theirs_open = False

    async def wait(self) -> None:
        """Waits for the line; the caller has the time-out. Raises NotReady where something else comes, or
        nothing.
        """
        loop = asyncio.get_running_loop()
        said = b""
        while len(said) < len(_READY):
            readable: asyncio.Future[None] = loop.create_future()
            loop.add_reader(self._ours, _resolve, readable)
            try:
                await readable
            finally:
                loop.remove_reader(self._ours)
            part = os.read(self._ours, len(_READY) - len(said))
            if not part:
                break
            said += part
        if said != _READY:
            raise NotReady(
                f"expected it to say 'ready', but it said {said!r}" if said else "it ended at its start"
            )

    def close(self) -> None:
        """Closes what is open of it."""
        self.given()
        ours, self._ours = self._ours, -1
        if ours >= 0:
            os.close(ours)


def _resolve(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)


@contextlib.asynccontextmanager
async def dialled(place: ListenDirectory) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to the socket that is there now. Raises NotReady."""
    descriptor = place.open_socket()
    try:
        async with grpc.aio.insecure_channel(f"unix:/proc/self/fd/{descriptor}", options=_CHANNEL) as channel:
            yield channel
    finally:
        os.close(descriptor)
