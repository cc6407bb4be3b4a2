"""continue, resume, set: a session goes on where it stopped, or under something else."""

from __future__ import annotations

import os

import click

from turnd.v1 import common_pb2, sessions_pb2
from turnd_client.cli.app import Caller, Misused, command, json_option, print_json
from turnd_client.cli.quantity import COUNT, DURATION, USD
from turnd_client.shapes import session_json, status_text


@click.command("continue")
@click.argument("session", metavar="ID")
@click.option("--max-cost", type=USD, help="New spend of the session, in all: not on top of what is spent.")
@click.option("--max-turns", type=COUNT, help="New number of Steps in the session, in all.")
@click.option("--max-time", type=DURATION, help="New time of work, in all: 90, 90s, 5m, 2h.")
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

    A limit that is not given stays as it is. After a doom loop none is needed: the row of equal calls starts anew.
    The session works on by itself; `turn attach ID` follows it.
    """
    allowance = common_pb2.Bounds(max_turns=max_turns, max_cost_nano_usd=max_cost, max_wall_clock_ms=max_time)
    async with caller.client() as client:
        _print(await client.continue_session(session, allowance), as_json)
    return 0


@click.command()
@click.argument("session", metavar="ID")
@json_option
@command
async def resume(caller: Caller, session: str, as_json: bool) -> int:
    """Go on with a task whose turn was interrupted, cancelled, or ended by an error or at the output limit.

    The session works on by itself; `turn attach ID` follows it.
    """
    async with caller.client() as client:
        _print(await client.resume(session), as_json)
    return 0


@click.command("set")
@click.argument("session", metavar="ID")
@click.option("--profile", help="A profile of the configuration; it brings its limits.")
@click.option("--title", help="The title in lists; empty: none.")
@click.option("--plan/--no-plan", default=None, help="Whether tools that change anything are left out.")
@click.option("--environment", is_flag=True, help="Take PATH and the like anew from this terminal.")
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
    """Change what a session runs under; it holds from the next turn on."""
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
