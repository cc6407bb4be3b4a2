"""log, log verify, export: the events of a session."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import click

from turnd.v1 import event_pb2
from turnd.v1.jsonform import event_to_json
from turnd_client.cli.app import Caller, Failed, command, json_option, print_json
from turnd_client.follow import follow
from turnd_client.shapes import verdict_json
from turnd_client.text import one_line, visible

_PART_BYTES = 1024 * 1024
_WIDTH = 160
_SHOWN_FAULTS = 20


class _LogGroup(click.Group):
    """`turn log ID` beside `turn log verify FILE`: whatever is no subcommand belongs to the events."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] in self.commands:
            return super().resolve_command(ctx, args)
        return "log", events, args


@click.group(
    cls=_LogGroup,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    subcommand_metavar="(ID [-f] [--json] | verify FILE)",
    no_args_is_help=True,
)
def log() -> None:
    """Print the events of a session; `-f` goes on as they happen. `turn log verify FILE` checks an exported log."""


@click.command(name="log")
@click.argument("session", metavar="ID")
@click.option(
    "-f", "--follow", "keep_following", is_flag=True, help="Go on with events as they are committed."
)
@click.option("--after", type=click.IntRange(min=0), default=0, help="Only events after this seq.")
@json_option
@command
async def events(caller: Caller, session: str, keep_following: bool, after: int, as_json: bool) -> int:
    """Print the events of a session."""
    draw = (lambda event: click.echo(event_to_json(event))) if as_json else _print_event
    async with caller.client() as client:
        shown = await client.get_session(session)
        end = shown.session.last_seq
        if after >= end and not keep_following:
            return 0
        task = asyncio.current_task()
        assert task is not None
        if keep_following:
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)
        try:
            async for update in follow(client, shown.session.id, after, lost=lambda e: caller.say(str(e))):
                for event in update.events:
                    if keep_following or event.seq <= end:
                        draw(event)
                if not keep_following and update.seq >= end:
                    return 0
        except asyncio.CancelledError:
            return 0
    return 0


def _print_event(event: event_pb2.Event) -> None:
    place = f"{event.turn}" if event.HasField("turn") else "-"
    place += f".{event.step}" if event.HasField("step") else ""
    time = event.time.ToDatetime().strftime("%H:%M:%S.%f")[:-3]
    kind = (event.WhichOneof("data") or "unknown").replace("_", "/", 1)
    mark = "~" if event.synthetic else " "
    click.echo(f"{event.seq:>6} {time} {place:>5} {mark}{kind:<20} {_gist(event)}")


def _gist(event: event_pb2.Event) -> str:
    field = event.WhichOneof("data")
    if field is None:
        return ""
    # The JSON form without what the columns in front already say.
    _, _, data = event_to_json(event).partition('"data": ')
    return one_line(data.removesuffix("}"), _WIDTH)


@log.command()
@click.argument("file", type=click.File("rb"))
@json_option
@command
async def verify(caller: Caller, file: BinaryIO, as_json: bool) -> int:
    """Check a log in JSON Lines (`-` for stdin) against every rule. Exits 1 where one is broken."""
    async with caller.client() as client:
        verdict = await client.verify_lines(_parts(file))
    if as_json:
        print_json(verdict_json(verdict))
        return 1 if verdict.faults else 0
    for fault in verdict.faults[:_SHOWN_FAULTS]:
        where = f"line {fault.line}" if fault.line else f"seq {fault.seq}"
        click.echo(f"{where}: {visible(fault.message)}")
    if verdict.faults:
        more = " (--json lists all)" if len(verdict.faults) > _SHOWN_FAULTS else ""
        raise Failed(f"{len(verdict.faults)} faults in {verdict.events} events{more}")
    unfinished = ", which end inside a turn" if verdict.open else ""
    click.echo(f"ok: {verdict.events} events{unfinished}")
    return 0


def _parts(file: BinaryIO) -> Iterator[bytes]:
    while part := file.read(_PART_BYTES):
        yield part


@click.command()
@click.argument("session", metavar="ID")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="A file instead of stdout."
)
@json_option
@command
async def export(caller: Caller, session: str, output: Path | None, as_json: bool) -> int:
    """Write a session as JSON Lines, losslessly (the output is JSON with and without --json)."""
    async with caller.client() as client:
        if output is None:
            async for part in client.export(session):
                click.echo(part, nl=False)
            return 0
        with output.open("wb") as file:
            async for part in client.export(session):
                file.write(part)
    caller.say(f"wrote {output}")
    return 0
