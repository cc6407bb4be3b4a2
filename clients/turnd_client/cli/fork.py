"""fork: a session that goes its own way from an event of another."""

from __future__ import annotations

import click

from turnd_client.cli.app import Caller, command, json_option, print_json
from turnd_client.cli.session_id import SESSION
from turnd_client.shapes import session_json


@click.command()
@click.argument("session", metavar="ID", type=SESSION)
@click.option(
    "--at",
    "seq",
    type=click.IntRange(min=1),
    metavar="SEQ",
    help="The last event that both share, as `turn log` numbers them; without it the last one.",
)
@json_option
@command
async def fork(caller: Caller, session: str, seq: int | None, as_json: bool) -> int:
    """Make a new session with the history of another, up to one of its events.

    It works in the same directory, under what held at that event. What was open there is closed in the new session.
    Decisions that were remembered, and the cost, stay behind; the other session does not change. `turn send ID TEXT`
    goes on in the new one, whose id is printed.
    """
    async with caller.client() as client:
        made = await client.fork(session, seq or 0)
    if as_json:
        print_json(session_json(made))
    else:
        click.echo(made.id)
    return 0
