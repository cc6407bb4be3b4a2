"""trust and untrust: what a directory's own configuration would widen, and the user's word for it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import click

from turnd.v1 import daemon_pb2
from turnd.v1.jsonform import enum_text
from turnd_client.cli.app import Caller, Failed, Misused, command, json_option, print_json
from turnd_client.cli.table import print_table
from turnd_client.text import visible
from turnd_client.times import local_text

_NOBODY = "nobody is here to confirm it: look at what is shown, and give --yes"
_NO_FILE = "has no .turnd/config.toml: there is nothing to trust"


@click.command()
@click.argument("directory", metavar="[DIR]", default=".")
@click.option("--list", "listed", is_flag=True, help="List what is trusted, and whether it still is that.")
@click.option("--yes", is_flag=True, help="Trust without asking; needed where this is no terminal.")
@json_option
@command
async def trust(caller: Caller, directory: str, listed: bool, yes: bool, as_json: bool) -> int:
    """Show what .turnd/config.toml in DIR would widen, ask, and trust this very content.

    Without trust the file can only narrow what your own configuration gives. A file that changes needs trust again.
    """
    if listed:
        return await _list(caller, as_json)
    async with caller.client() as client:
        found = await client.trust(_absolute(directory))
        if not found.file:
            raise Failed(f"{visible(found.workspace)} {_NO_FILE}")
        asked = bool(found.widens) and not found.trusted and not yes
        if not as_json or (asked and sys.stdin.isatty()):
            _show(found, to_stderr=as_json)
        if asked and not sys.stdin.isatty():
            raise Misused(_NOBODY)
        wanted = bool(found.widens) and not found.trusted
        if wanted and (yes or click.confirm("trust this file, as it is now?", err=True)):
            found = await client.trust(found.workspace, digest=found.digest)
            if not as_json:
                click.echo(f"trusted: {visible(found.file)}")
    if as_json:
        print_json(_json(found))
    return 0 if found.trusted or not found.widens else 1


@click.command()
@click.argument("directory", metavar="[DIR]", default=".")
@json_option
@command
async def untrust(caller: Caller, directory: str, as_json: bool) -> int:
    """End the trust in DIR: its file can only narrow again, from the next call on."""
    async with caller.client() as client:
        ended = await client.untrust(_absolute(directory))
    if as_json:
        print_json({"untrusted": ended.workspace})
    else:
        click.echo(f"not trusted any more: {visible(ended.workspace)}")
    return 0


def _absolute(directory: str) -> str:
    return str(Path(directory).absolute())


async def _list(caller: Caller, as_json: bool) -> int:
    async with caller.client() as client:
        workspaces = (await client.trusted()).workspaces
    if as_json:
        for each in workspaces:
            print_json({"workspace": each.workspace, "state": _state(each), "digest": each.digest})
    elif workspaces:
        rows = [(_state(each), local_text(each.at), visible(each.workspace)) for each in workspaces]
        print_table((("STATE", "TRUSTED", "DIRECTORY"), *rows))
    else:
        click.echo("no directory is trusted")
    return 0


def _show(found: daemon_pb2.TrustResponse, *, to_stderr: bool) -> None:
    counting = [each for each in found.now_in_force if each not in found.widens]
    _lines("-", "counts already, and only narrows:", counting, to_stderr)
    heading = "trusted, and widens:" if found.trusted else "would widen, if you trust it:"
    _lines("+", heading, found.widens, to_stderr)
    _lines("!", "never counts:", found.refused, to_stderr)
    if not found.widens:
        click.echo(f"{visible(found.file)} widens nothing: it needs no trust", err=to_stderr)


def _lines(mark: str, heading: str, lines: Iterable[str], to_stderr: bool) -> None:
    lines = list(lines)
    if lines:
        click.echo(heading, err=to_stderr)
    for line in lines:
        click.echo(f"  {mark} {visible(line)}", err=to_stderr)


def _state(each: daemon_pb2.TrustedWorkspace) -> str:
    return enum_text(daemon_pb2.TrustState, each.state)


def _json(found: daemon_pb2.TrustResponse) -> dict[str, object]:
    return {
        "workspace": found.workspace,
        "file": found.file,
        "digest": found.digest,
        "trusted": found.trusted,
        "in_force": list(found.now_in_force),
        "widens": list(found.widens),
        "refused": list(found.refused),
    }
