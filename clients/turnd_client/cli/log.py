"""log, log verify, export: the events of a session."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import click
from click.shell_completion import CompletionItem

from turnd.v1 import event_pb2, sessions_pb2
from turnd.v1.jsonform import event_to_json, message_to_text
from turnd_client.cli.app import Caller, Failed, command, json_option, print_json
from turnd_client.cli.failures import failure_text
from turnd_client.cli.faults import SHOWN, fault_lines, faults_text
from turnd_client.cli.session_id import SESSION, SessionId
from turnd_client.errors import ClientError
from turnd_client.follow import follow
from turnd_client.shapes import verdict_json
from turnd_client.text import one_line
from turnd_client.times import local_text
from turnd_client.units import counted

_PART_BYTES = 1024 * 1024
_WIDTH = 160
_NO_LOG = "expected events in JSON Lines, found none: this is no log"


class _LogGroup(click.Group):
    """`turn log ID` beside `turn log verify FILE`: whatever is no subcommand is the events' own."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args and args[0] in self.commands:
            return super().make_context(info_name, args, parent, **extra)
        return events.make_context(info_name, args, parent, **extra)


class _Events(click.Command):
    """Says of the subcommand, too, how it is used."""

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_usage(ctx, formatter)
        formatter.write_usage(ctx.command_path, "verify [OPTIONS] FILE", prefix=" " * len("Usage: "))


class _SessionOrVerify(SessionId):
    """Completes the subcommand beside the ids, as what comes first may be either."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        verify = [CompletionItem("verify", help="Check an exported log.")]
        others = super().shell_complete(ctx, param, incomplete)
        return [*(verify if "verify".startswith(incomplete) else ()), *others]


@click.command(name="log", cls=_Events)
@click.argument("session", metavar="ID", type=_SessionOrVerify())
@click.option(
    "-f", "--follow", "keep_following", is_flag=True, help="Go on with events as they are committed."
)
@click.option(
    "--after",
    type=click.IntRange(min=0),
    default=0,
    metavar="SEQ",
    help="Only events after this one; past the last event it is an error.",
)
@json_option
@command
async def events(caller: Caller, session: str, keep_following: bool, after: int, as_json: bool) -> int:
    """Print the events of a session. `turn log verify FILE` checks an exported log.

    One line for each: its number, when, its turn and step, its type and what is in it, cut to the line; --json has
    all of it. A ~ marks what turnd wrote to close what was left open, a | history: events of the session or file that
    this one was forked or imported from.
    """
    draw = (lambda event: click.echo(event_to_json(event))) if as_json else _print_event
    async with caller.client() as client:
        shown = await client.get_session(session)
        end = shown.session.last_seq
        if after == end and not keep_following:
            return 0
        task = asyncio.current_task()
        assert task is not None
        if keep_following:
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)
        try:
            async for update in follow(client, shown.session.id, after, lost=caller.lost):
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
    time = local_text(event.time, "milliseconds")
    kind = (event.WhichOneof("data") or "unknown").replace("_", "/", 1)
    mark = "|" if event.HasField("imported") else "~" if event.synthetic else " "
    click.echo(f"{event.seq:>6} {time} {place:>5} {mark}{kind:<20} {_gist(event)}")


def _gist(event: event_pb2.Event) -> str:
    field = event.WhichOneof("data")
    if field is None:
        return ""
    return one_line(message_to_text(getattr(event, field)), _WIDTH)


@click.group(cls=_LogGroup)
def log() -> None:
    """Print the events of a session, or check an exported log."""


@log.command()
@click.argument("file", type=click.File("rb"))
@click.option(
    "--history", is_flag=True, help="Judge history too, as the log that it was; it is exempt otherwise."
)
@click.option("--all", "every", is_flag=True, help="List the faults that follow from others, too.")
@json_option
@command
async def verify(caller: Caller, file: BinaryIO, history: bool, every: bool, as_json: bool) -> int:
    """Check a log in JSON Lines (`-` for stdin) against every rule. Exits 1 where one is broken.

    Each fault is told with its line. One that would be none without an earlier fault is counted with that one;
    --all lists it, and --json does always, with its cause.
    """
    async with caller.client() as client:
        verdict = await client.verify_lines(_parts(file), judge_history=history)
    if not verdict.events and not verdict.faults:
        if not as_json:
            raise Failed(_NO_LOG)
        verdict.faults.add(message=_NO_LOG)
    if as_json:
        print_json(verdict_json(verdict))
        return 1 if verdict.faults else 0
    for line in fault_lines(verdict.faults, every=every):
        click.echo(line)
    events_text = counted(verdict.events, "event") + _history_text(verdict, judged=history)
    if verdict.faults:
        more = " (--all lists all)" if verdict.causes > SHOWN and not every else ""
        raise Failed(f"{faults_text(verdict.causes, verdict.faults_in_all)}, in {events_text}{more}")
    unfinished = ", which end inside a turn" if verdict.open else ""
    click.echo(f"ok: {events_text}{unfinished}")
    return 0


def _history_text(verdict: sessions_pb2.VerifyResponse, *, judged: bool) -> str:
    if not verdict.history:
        return ""
    which = "which was judged too" if judged else "which is exempt (--history judges it too)"
    return f", of which {verdict.history} are history, {which}"


def _parts(file: BinaryIO) -> Iterator[bytes]:
    try:
        while part := file.read(_PART_BYTES):
            yield part
    except OSError as error:
        # Reading does not say which file it was.
        raise OSError(error.errno, error.strerror, file.name) from error


@click.command()
@click.argument("session", metavar="ID", type=SESSION)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="A file instead of stdout."
)
@json_option
@command
async def export(caller: Caller, session: str, output: Path | None, as_json: bool) -> int:
    """Write a session as JSON Lines, losslessly (the output is JSON with and without --json).

    `turn log verify` checks such a file, `turn import` makes a session of it.
    """
    async with caller.client() as client:
        if output is None:
            try:
                async for part in client.export(session):
                    click.echo(part, nl=False)
            except ClientError as error:
                # The log is on stdout, where nothing else belongs.
                raise Failed(failure_text(error, caller.environment), beside_output=True) from error
            return 0
        with ExitStack() as closing:
            file: BinaryIO | None = None
            async for part in client.export(session):
                # Not before: a session that is not there leaves the file as it is.
                file = file or closing.enter_context(output.open("wb"))
                file.write(part)
    caller.say(f"wrote {output}")
    return 0
