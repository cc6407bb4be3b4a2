"""continue, resume, set: a session goes on where it stopped, or under something else."""

from __future__ import annotations

import os

import click

from turnd.v1 import common_pb2, sessions_pb2
from turnd_client.cli.app import Caller, Misused, command, json_option, print_json
from turnd_client.cli.quantity import COUNT, DURATION, USD
from turnd_client.cli.session_id import SESSION
from turnd_client.shapes import session_json, status_text


@click.command("continue")
@click.argument("session", metavar="ID", type=SESSION)
@click.option("--max-cost", type=USD, help="What the session may cost in all, with what it has cost already.")
@click.option("--max-turns", type=COUNT, help="How many steps it may have in all, with those it has had.")
@click.option(
    "--max-time", type=DURATION, help="How long it may work in all, with what it has worked: 90, 90s, 5m, 2h."
)
@json_option
@command
async def continue_(
    caller: Caller,
    session: str,
    max_cost: int | None,
    max_turns: int | None,
    max_time: int | None,
    as_json: bool,
) -> int:
    """Go on with a session that a limit has paused or ended, under new limits.

    \b
    turn continue ID --max-cost 5      one that had 2 USD may now spend 5 in all

    `turn show ID` says what is left of each limit. One that is not given stays as it is. After a doom loop none is
    needed: the row of equal calls starts anew. The session works on by itself; `turn attach ID` follows it. One
    that no limit has stopped goes on with `turn resume ID`.
    """
    allowance = common_pb2.Bounds(max_turns=max_turns, max_cost_nano_usd=max_cost, max_wall_clock_ms=max_time)
    async with caller.client() as client:
        _print(await client.continue_session(session, allowance), as_json)
    return 0


@click.command()
@click.argument("session", metavar="ID", type=SESSION)
@json_option
@command
async def resume(caller: Caller, session: str, as_json: bool) -> int:
    """Go on with a task whose turn was interrupted, cancelled, or ended by an error or at the output limit.

    No new message is needed: the model is told that it was cut off, and takes the task up in a turn of its own. The
    session works on by itself; `turn attach ID` follows it. One that a limit has stopped goes on with
    `turn continue ID`.
    """
    async with caller.client() as client:
        _print(await client.resume(session), as_json)
    return 0


@click.command("set")
@click.argument("session", metavar="ID", type=SESSION)
@click.option("--profile", metavar="NAME", help="A profile of the configuration; it brings its limits.")
@click.option("--title", metavar="TEXT", help="The title in lists; empty: none.")
@click.option(
    "--plan/--no-plan",
    default=None,
    help="Plan mode: the model reads and thinks, and tools that change something are not offered.",
)
@click.option(
    "--environment",
    is_flag=True,
    help="Take the variables that commands get, such as PATH, anew from this terminal.",
)
@json_option
@command
async def set_(
    caller: Caller,
    session: str,
    profile: str | None,
    title: str | None,
    plan: bool | None,
    environment: bool,
    as_json: bool,
) -> int:
    """Change what a session runs under: one or more of these; what is not given stays as it is.

    It holds from the next turn on; a turn that runs ends as it began. Limits alone are changed by
    `turn continue ID`, where one has stopped the session.
    """
    if profile is None and title is None and plan is None and not environment:
        raise Misused("nothing to change: give --profile, --title, --plan, --no-plan or --environment")
    async with caller.client() as client:
        changed = await client.update_session(
            session,
            profile=profile,
            environment=dict(os.environ) if environment else None,
            plan_mode=plan,
            title=title,
        )
    _print(changed, as_json)
    return 0


def _print(session: sessions_pb2.Session, as_json: bool) -> None:
    if as_json:
        print_json(session_json(session))
    else:
        click.echo(f"{session.id} {status_text(session.status)}")
