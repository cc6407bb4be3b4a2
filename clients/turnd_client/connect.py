"""From nothing to a client whose handshake was answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from turnd.v1.daemon_pb2 import StatusResponse
from turnd.v1.paths import Paths
from turnd_client.client import Client
from turnd_client.endpoint import find_endpoint, find_paths
from turnd_client.errors import ConnectionLost, NoDaemon, OtherProtocol, StartFailed
from turnd_client.start import Spawned, spawn_daemon, start_service
from turnd_client.wire import PROTOCOL

Say = Callable[[str], None]
_Connected = tuple[Client, StatusResponse]

START_TIMEOUT_S = 30.0
"""A daemon that does not answer for so long after it was started has failed."""

HANDSHAKE_TIMEOUT_S = 10.0
_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.25


async def connect(environment: Mapping[str, str], name: str) -> Client:
    """A client of the daemon that runs, of any version. Raises NoDaemon, UnsafeEndpoint, ConnectionLost."""
    return (await _handshake(find_paths(environment), name))[0]


async def connect_or_start(environment: Mapping[str, str], name: str, say: Say) -> Client:
    """A client of the daemon that runs, or of one that is started now; `say` is told of a start.

    Five clients that do this at once start one daemon: its lock decides, and those who lost the race
    connect to the winner (V02). Raises StartFailed and OtherProtocol beside what `connect` raises.
    """
    places = find_paths(environment)
    try:
        client, status = await _handshake(places, name)
    except (NoDaemon, ConnectionLost):
        client, status = await _start(places, environment, name, say)
    if status.protocol != PROTOCOL:
        await client.close()
        raise OtherProtocol(
            f"the daemon {status.version} speaks protocol {status.protocol}, this client {PROTOCOL}: "
            "use the `turn` of the daemon's version, or `turn stop` it so that this one's is started"
        )
    return client


async def _start(
    places: tuple[Paths, ...], environment: Mapping[str, str], name: str, say: Say
) -> _Connected:
    spawned: Spawned | None = None
    if await start_service(environment):
        say("no daemon answered: started turnd.service")
    else:
        spawned = spawn_daemon(places[0], environment)
    deadline = asyncio.get_running_loop().time() + START_TIMEOUT_S
    pause = _FIRST_PAUSE_S
    while True:
        gave_up = spawned is not None and spawned.ended and not spawned.lost_the_race
        try:
            # Also where the daemon gave up: another one may answer by now.
            client, status = await _handshake(places, name)
        except (NoDaemon, ConnectionLost) as error:
            if gave_up and spawned is not None:
                raise StartFailed(f"the daemon did not start:\n{spawned.said()}") from error
            if asyncio.get_running_loop().time() > deadline:
                where = "`journalctl --user -u turnd`" if spawned is None else str(spawned.log)
                raise StartFailed(
                    f"the daemon did not answer within {START_TIMEOUT_S:.0f} s; see {where}"
                ) from error
        else:
            # Only now is it known who won: another client's daemon, or one that was too busy to answer at first.
            if spawned is not None and status.pid == spawned.process.pid:
                say(f"no daemon was running: started one (pid {status.pid}, log {spawned.log})")
            return client, status
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE_S)


async def _handshake(places: tuple[Paths, ...], name: str) -> _Connected:
    client = Client(find_endpoint(places), name)
    try:
        return client, await client.status(HANDSHAKE_TIMEOUT_S)
    except BaseException:
        await client.close()
        raise
