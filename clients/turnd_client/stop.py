"""Ending a daemon so that nothing is lost, and waiting until it is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from turnd_client.connect import connect
from turnd_client.endpoint import find_endpoint, find_paths
from turnd_client.errors import NoDaemon, StopFailed

STOP_TIMEOUT_S = 120.0
_POLL_S = 0.05


async def stop_daemon(
    environment: Mapping[str, str], name: str, running: Callable[[int], None], grace_ms: int | None = None
) -> int:
    """Asks the daemon to settle what runs, waits for the end of its process, and gives its pid.

    `running` is told how many sessions have to be settled; the grace (milliseconds) is what their Steps get,
    None for the configured one. Raises NoDaemon, and StopFailed where it lives on.
    """
    async with await connect(environment, name) as client:
        pid = (await client.status()).pid
        running((await client.drain(grace_ms)).running)
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await _gone(environment, pid)
    except TimeoutError:
        raise StopFailed(f"the daemon (pid {pid}) has not ended after {STOP_TIMEOUT_S:.0f} s") from None
    return pid


async def _gone(environment: Mapping[str, str], pid: int) -> None:
    places = find_paths(environment)
    while True:
        try:
            find_endpoint(places)
        except NoDaemon:
            # The socket goes first; the lock, which the next daemon needs, with the process.
            if not _lives(pid):
                return
        await asyncio.sleep(_POLL_S)


def _lives(pid: int) -> bool:
    try:
        # Behind the name, which may hold anything: the state. A zombie has let go of everything.
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")
