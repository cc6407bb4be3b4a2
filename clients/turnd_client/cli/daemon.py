"""status and stop: the daemon itself."""

from __future__ import annotations

import click

from turnd_client.cli.app import Caller, command, json_option, print_json
from turnd_client.client import Client
from turnd_client.connect import connect, connect_or_start
from turnd_client.errors import ConnectionLost, NoDaemon
from turnd_client.shapes import daemon_json
from turnd_client.stop import stop_daemon
from turnd_client.text import visible


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
        *(("unenforced", gap) for gap in found.unenforced),
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

    def running(sessions: int) -> None:
        if sessions:
            caller.say(f"waiting for {sessions} running sessions to be settled")

    try:
        grace_ms = None if grace is None else round(grace * 1000)
        pid = await stop_daemon(caller.environment, caller.name, running, grace_ms)
    except NoDaemon:
        if as_json:
            print_json({"stopped": False, "pid": None})
        else:
            click.echo("no daemon is running")
        return 0
    if as_json:
        print_json({"stopped": True, "pid": pid})
    else:
        click.echo(f"stopped (pid {pid})")
    return 0
