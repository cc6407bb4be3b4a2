"""status, stop and reload: the daemon itself."""

from __future__ import annotations

import sys

import click

from turnd_client.cli.app import Caller, command, json_option, print_json
from turnd_client.client import Client
from turnd_client.connect import connect, connect_or_start
from turnd_client.errors import ConnectionLost, NoDaemon
from turnd_client.screen import Screen
from turnd_client.shapes import daemon_json
from turnd_client.stop import stop_daemon
from turnd_client.text import visible
from turnd_client.units import counted


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
    screen = Screen(sys.stdout)
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
            screen.row(name, visible(value))
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
            caller.say(f"waiting for {counted(sessions, 'running session')} to be settled")

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


@click.command()
@json_option
@command
async def reload(caller: Caller, as_json: bool) -> int:
    """Make the running daemon read its configuration again, and print what changed.

    Where something is wrong with the configuration, that is said and the daemon goes on with what it has.
    """
    try:
        async with await connect(caller.environment, caller.name) as client:
            changed = list((await client.reload()).changed)
    except NoDaemon:
        if as_json:
            print_json({"reloaded": False, "changed": []})
        else:
            click.echo("no daemon is running; the next one reads the configuration when it starts")
        return 0
    if as_json:
        print_json({"reloaded": True, "changed": changed})
        return 0
    for each in changed:
        click.echo(f"changed: {visible(each)}")
    if not changed:
        click.echo("nothing changed")
    return 0
