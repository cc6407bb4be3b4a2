"""The daemon's directories: found by the rules that clients share, and made safe before they are used."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from turnd.v1.paths import (
    PathError,
    Paths,
    UnsafePath,
    check_socket_path,
    make_private_directory,
    resolve,
)


def prepare(environ: Mapping[str, str]) -> Paths:
    """The paths that an environment means, with state and runtime directory there and private (V11).

    Raises PathError, with what to do, where the socket could not be bound (V04; nothing is made then), and
    where a directory is missing, is someone else's, or can be reached by others.
    """
    paths = resolve(environ)
    check_socket_path(paths.socket)
    if paths.runtime != paths.state / "run" and not environ.get("TURND_HOME", ""):
        _check_runtime_base(paths)
    _check_config(paths)
    for directory in (paths.state, paths.runtime):
        try:
            make_private_directory(directory)
        except OSError as error:
            raise PathError(f"cannot make the directory {directory}: {error.strerror}") from error
    return paths


def _check_runtime_base(paths: Paths) -> None:
    base = paths.runtime.parent
    try:
        found = base.stat()
    except OSError as error:
        raise PathError(
            f"XDG_RUNTIME_DIR is {base}, which cannot be used: {error.strerror}; "
            "log in so that it is made, or unset it"
        ) from None
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
        raise UnsafePath(
            f"XDG_RUNTIME_DIR is {base}, which belongs to user {found.st_uid} with mode "
            f"{stat.S_IMODE(found.st_mode):o}; expected user {os.geteuid()}, and nobody else who may write; "
            "unset it, or use TURND_HOME"
        )


def _check_config(paths: Paths) -> None:
    # Whoever can write the configuration decides what runs; reading it harms nobody, as it holds no secrets.
    for path in (paths.config, paths.config_file):
        try:
            found = path.stat()
        except FileNotFoundError:
            continue
        if found.st_uid not in (os.geteuid(), 0) or stat.S_IMODE(found.st_mode) & 0o022:
            raise UnsafePath(
                f"{path} belongs to user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):o}; expected "
                f"user {os.geteuid()}, and nobody else who may write: chmod go-w {path}"
            )
