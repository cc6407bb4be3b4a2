"""Starting a daemon where none answers."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from turnd.v1 import paths
from turnd.v1.paths import PathError, Paths
from turnd_client.errors import StartFailed

UNIT = "turnd.service"
LOG_NAME = "turnd.log"
"""In the state directory: what a daemon that a client started writes to stderr."""

_SYSTEMCTL_TIMEOUT_S = 20.0
_LOG_TAIL_BYTES = 4000
_EXIT_ALREADY_RUNNING = 3


@dataclass(frozen=True, slots=True)
class Spawned:
    """A daemon that this client started; it outlives the client."""

    process: subprocess.Popen[bytes]
    log: Path
    log_offset: int

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def lost_the_race(self) -> bool:
        """It ended because another daemon holds the lock, which is as good (V02)."""
        return self.process.poll() == _EXIT_ALREADY_RUNNING

    def said(self) -> str:
        """The end of what it wrote."""
        with self.log.open("rb") as file:
            file.seek(max(self.log_offset, file.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
            return _for_people(file.read().decode("utf-8", "replace").strip())


def _for_people(text: str) -> str:
    """What a daemon's log says of its end: text as it is, of the lines for programs the errors."""
    told = [line for line in map(_told, text.splitlines()) if line]
    return "\n".join(told) or text


def _told(line: str) -> str:
    try:
        entry = json.loads(line)
    except ValueError:
        return line
    if not isinstance(entry, dict) or entry.get("level") not in ("error", "critical"):
        return ""
    return ": ".join(str(entry[name]) for name in ("event", "error", "problem", "exception") if name in entry)


async def start_service(environment: Mapping[str, str]) -> bool:
    """Starts the user's service; False where it is not installed, or no service manager answers.

    Raises StartFailed where the service manager tried and could not.
    """
    # A daemon of its own home is no business of the user's service.
    if environment.get("TURND_HOME") or shutil.which("systemctl", path=environment.get("PATH")) is None:
        return False
    if await _systemctl("cat", environment) != 0:
        return False
    if await _systemctl("start", environment) != 0:
        raise StartFailed(
            f"`systemctl --user start {UNIT}` failed: see `systemctl --user status {UNIT}` and "
            f"`journalctl --user -u {UNIT}`"
        )
    return True


async def _systemctl(verb: str, environment: Mapping[str, str]) -> int:
    process = await asyncio.create_subprocess_exec(
        "systemctl",
        "--user",
        verb,
        UNIT,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env=dict(environment),
    )
    try:
        return await asyncio.wait_for(process.wait(), _SYSTEMCTL_TIMEOUT_S)
    except TimeoutError:
        process.kill()
        return await process.wait()


def spawn_daemon(place: Paths, environment: Mapping[str, str]) -> Spawned:
    """Starts `turnd serve` in a session of its own, so that nothing of this terminal ends it."""
    try:
        paths.make_private_directory(place.state)
    except (OSError, PathError) as error:
        raise StartFailed(f"the state directory cannot be used: {error}") from error
    log = place.state / LOG_NAME
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "ab") as output:
        offset = output.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            [sys.executable, "-m", "turnd.main", "serve"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            # What this client says to its own gRPC is not for the daemon.
            env={name: value for name, value in environment.items() if not name.startswith("GRPC_")},
            start_new_session=True,
        )
    return Spawned(process, log, offset)
