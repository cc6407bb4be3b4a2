"""attach: follow a session and answer its requests from a plain terminal."""

from __future__ import annotations

import asyncio
import signal

import click

from turnd.v1 import event_pb2
from turnd_client.cli.app import Caller, command, json_option
from turnd_client.cli.following import output
from turnd_client.cli.session_id import SESSION
from turnd_client.follow import follow


@click.command()
@click.argument("session", metavar="ID", type=SESSION)
@click.option("--after", type=click.IntRange(min=0), default=0, help="Only events after this seq.")
@json_option
@command
async def attach(caller: Caller, session: str, after: int, as_json: bool) -> int:
    """Follow a session, and answer its requests on the terminal. Ctrl-C leaves; the session goes on.

    Ends by itself when the session does.
    """
    async with caller.client() as client:
        shown = await client.get_session(session)
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)
        try:
            async with output(caller, client, as_json=as_json, asks=True) as out:
                ended = False
                async for update in follow(client, shown.session.id, after, lost=out.lost):
                    for event in update.events:
                        out.event(event)
                        ended = _ended(ended, event)
                    if update.caught_up:
                        out.live()
                    if update.caught_up and ended:
                        return 0
        except asyncio.CancelledError:
            caller.say(f"detached; the session goes on: `turn attach {shown.session.id}`")
    return 0


def _ended(before: bool, event: event_pb2.Event) -> bool:
    match event.WhichOneof("data"):
        case "session_ended":
            return True
        case "session_reopened":
            return False
        case _:
            return before
