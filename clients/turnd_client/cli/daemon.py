"""status and stop: the daemon itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from turnd_client.cli.app import Caller, Failed, command, json_option, print_json
from turnd_client.client import Client
from turnd_client.connect import connect, connect_or_start
from turnd_client.endpoint import find_endpoint, find_paths
from turnd_client.errors import ConnectionLost, NoDaemon
from turnd_client.shapes import daemon_json
from turnd_client.text import visible

_POLL_S = 0.05
_STOP_TIMEOUT_S = 120.0


@click.command()
@json_option
@command
async def status(caller: Caller, as_json: bool) -> int:
    """Show the daemon: version, pid, socket, sessions, sandbox. Works with a daemon of any version."""
    async with await _any_daemon(caller) as client:
        found = await client.status()
    if as_json:
        print_json(daemon_json(found))
        return 0
    rows = [
        ("version", f"{found.version} (protocol {found.protocol})"),
        ("pid", str(found.pid)),
        ("socket", found.socket),
        ("state", found.state_dir),
        ("sessions", f"{found.sessions}, {found.running} running"),
        ("sandbox", found.sandbox),
        ("unenforced", "; ".join(found.unenforced)),
        ("draining", "yes" if found.draining else ""),
        *(("problem", problem) for problem in found.problems),
    ]
    for name, value in rows:
        if value:
            click.echo(f"{name:<11} {visible(value)}")
    return 0


async def _any_daemon(caller: Caller) -> Client:
    try:
        return await connect(caller.environment, caller.name)
    except (NoDaemon, ConnectionLost):
        return await connect_or_start(caller.environment, caller.name, caller.say)


@click.command()
@click.option(
    "--grace", type=click.FloatRange(min=0), help="Seconds that running steps get (default: as configured)."
)
@json_option
@command
async def stop(caller: Caller, grace: float | None, as_json: bool) -> int:
    """Stop the daemon after what runs was settled, and wait for its end. Nothing is lost."""
    try:
        client = await connect(caller.environment, caller.name)
    except NoDaemon:
        if as_json:
            print_json({"stopped": False, "pid": None})
        else:
            click.echo("no daemon is running")
        return 0
    async with client:
        pid = (await client.status()).pid
        drained = await client.drain(None if grace is None else round(grace * 1000))
    if drained.running:
        caller.say(f"waiting for {drained.running} running sessions to be settled")
    try:
        async with asyncio.timeout(_STOP_TIMEOUT_S):
            await _gone(caller, pid)
    except TimeoutError:
        raise Failed(f"the daemon (pid {pid}) has not ended after {_STOP_TIMEOUT_S:.0f} s") from None
    if as_json:
        print_json({"stopped": True, "pid": pid})
    else:
        click.echo(f"stopped (pid {pid})")
    return 0


async def _gone(caller: Caller, pid: int) -> None:
    places = find_paths(caller.environment)
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
    except FileNotFoundError:
        return False
    return state not in ("Z", "X")
