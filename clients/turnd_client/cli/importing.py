"""import: a session out of a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import click

from turnd_client.cli.app import Caller, command, json_option, print_json
from turnd_client.shapes import imported_json
from turnd_client.text import visible

_PART_BYTES = 1024 * 1024
_SHOWN_FAULTS = 20


@click.command(name="import")
@click.argument("file", type=click.File("rb"))
@click.option("--profile", default="", help="The profile to go on under; without it the default one.")
@click.option("--model", default="", help="The model to go on with; without it the profile's.")
@json_option
@command
async def import_(caller: Caller, file: BinaryIO, profile: str, model: str, as_json: bool) -> int:
    """Make a session out of an exported one (`-` for stdin), to go on with it in this directory.

    What is in the file is history: its approvals, costs and queued messages do not act. Rules that it breaks are
    told, and its events are kept all the same.
    """
    async with caller.client() as client:
        imported = await client.import_session(
            _parts(file), str(Path.cwd()), profile=profile, model=model, environment=caller.environment
        )
    if as_json:
        print_json(imported_json(imported))
        return 0
    click.echo(imported.session.id)
    for fault in imported.faults[:_SHOWN_FAULTS]:
        caller.say(f"line {fault.line}: {visible(fault.message)}")
    if imported.faults:
        more = " (--json lists more)" if imported.faults_in_all > _SHOWN_FAULTS else ""
        caller.say(
            f"imported {imported.events} events as they are, with {imported.faults_in_all} faults{more}; "
            "what the model is sent is put right"
        )
    return 0


def _parts(file: BinaryIO) -> Iterator[bytes]:
    while part := file.read(_PART_BYTES):
        yield part
