"""The socket and the token beside it, with the checks that make them trustworthy (V11)."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

from turnd.v1 import paths
from turnd.v1.paths import PathError, Paths
from turnd_client.errors import NoDaemon, UnsafeEndpoint

_MAX_TOKEN_BYTES = 256
_CONNECT_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A socket on which somebody listens."""

    paths: Paths

    @property
    def target(self) -> str:
        """The address in gRPC's notation."""
        return "unix:" + quote(str(self.paths.socket))

    def token(self) -> str:
        """The token that the daemon which is running now wants. Raises UnsafeEndpoint and NoDaemon."""
        path = self.paths.token
        try:
            paths.check_private_file(path)
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise NoDaemon(f"no token at {path}: the daemon is not ready, or was stopped") from None
        except (OSError, PathError) as error:
            raise UnsafeEndpoint(f"the token cannot be used: {error}") from error
        with os.fdopen(descriptor, "rb") as file:
            return file.read(_MAX_TOKEN_BYTES).decode("ascii", "replace").strip()


def find_paths(environment: Mapping[str, str]) -> tuple[Paths, ...]:
    """Where a daemon of this user may be, most likely first. Raises UnsafeEndpoint without any place."""
    try:
        return paths.candidates(environment, os.geteuid())
    except PathError as error:
        raise UnsafeEndpoint(str(error)) from error


def find_endpoint(places: tuple[Paths, ...]) -> Endpoint:
    """The first of the places whose socket accepts a connection.

    Raises UnsafeEndpoint where a directory or a socket that exists is not this user's alone (there is no
    falling back from that), and NoDaemon where nobody listens.
    """
    for place in places:
        try:
            # The length comes first: a path that is too long cannot be tried at all (V04).
            paths.check_socket_path(place.socket)
            if _is_there(place) and _accepts(place):
                return Endpoint(place)
        except PathError as error:
            raise UnsafeEndpoint(str(error)) from error
    raise NoDaemon(f"no daemon listens at {', '.join(str(place.socket) for place in places)}")


def _is_there(place: Paths) -> bool:
    try:
        paths.check_private_directory(place.runtime)
        paths.check_private_file(place.socket)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError as error:
        raise UnsafeEndpoint(f"cannot look at {error.filename}: it belongs to somebody else") from error
    return True


def _accepts(place: Paths) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_TIMEOUT_S)
        try:
            probe.connect(str(place.socket))
        except (ConnectionRefusedError, FileNotFoundError):
            # A stale socket: whoever bound it is gone (V02).
            return False
        except (TimeoutError, BlockingIOError):
            # Somebody holds it; whether it answers is the handshake's to find out.
            return True
    return True
