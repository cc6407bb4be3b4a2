"""The runtime directory of a daemon that holds the lock: socket and token, for this user alone (RPC-06)."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import quote

from turnd.v1 import paths
from turnd.v1.paths import Paths

_TOKEN_BYTES = 32


def prepare_runtime(place: Paths) -> str:
    """Makes or checks the runtime directory, writes a new token into it, and gives the token.

    Raises SocketPathTooLong (V04), UnsafePath (V11) and PathError, which say what to do, and OSError. The lock
    must be held: a living daemon's token must not be replaced.
    """
    paths.check_socket_path(place.socket)
    paths.make_private_directory(place.runtime)
    token = secrets.token_hex(_TOKEN_BYTES)
    # Written beside and renamed, so that a client never reads half of it, and never through somebody's link.
    fresh = place.token.with_name(f"{place.token.name}.new")
    with suppress(FileNotFoundError):
        fresh.unlink()
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(f"{token}\n")
        # The umask can only take rights away from the mode above, its owner's too.
        os.fchmod(file.fileno(), 0o600)
    fresh.rename(place.token)
    return token


def remove_token(place: Paths) -> None:
    """The daemon stops: clients that come now find nobody instead of a refusal."""
    with suppress(FileNotFoundError):
        place.token.unlink()


def address(place: Paths) -> str:
    """The socket in gRPC's notation, whatever characters its path has."""
    return "unix:" + quote(str(place.socket))


@contextmanager
def private_umask() -> Iterator[None]:
    """What is made inside is its owner's alone. Only for calls that do not give up the thread."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)
