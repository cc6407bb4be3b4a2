"""What all commands share: the group, how one runs, how one fails."""

from __future__ import annotations

import asyncio
import errno
import functools
import getpass
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any, Concatenate, ParamSpec, TypeVar

import click

from turnd_client.cli.failures import failure_text, file_failure_text, waiting_text
from turnd_client.cli.told import Failed, JsonGroup, Misused
from turnd_client.client import Client
from turnd_client.connect import connect_or_start
from turnd_client.errors import ClientError

__all__ = [
    "PROGRESS_S",
    "Caller",
    "Failed",
    "Misused",
    "command",
    "json_option",
    "open_standard_streams",
    "print_json",
    "turn",
]

_Parameters = ParamSpec("_Parameters")
_T = TypeVar("_T")
PROGRESS_S = 5.0
"""Between two words about something that takes long."""


class Caller:
    """Who runs a command, and where."""

    def __init__(self, command: str, environment: Mapping[str, str]) -> None:
        self.environment = environment
        # What a client says of itself: enough to tell the windows of one user apart.
        self.name = f"turn {command} ({_user()}, pid {os.getpid()})"

    def say(self, text: str) -> None:
        """Tells the person something that is not the command's output."""
        click.echo(f"turn: {text}", err=True)

    def lost(self, error: ClientError) -> None:
        """Tells that the daemon went away and is waited for."""
        self.say(waiting_text(error, self.environment))

    async def patiently(self, work: Awaitable[_T], progress: Callable[[], str]) -> _T:
        """Waits for something long, and tells a terminal now and then how far it is."""
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({task}, timeout=PROGRESS_S))[0]:
                if sys.stderr.isatty():
                    self.say(progress())
            return await task
        finally:
            task.cancel()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """A connection to the daemon, which is started where none runs."""
        async with await connect_or_start(self.environment, self.name, self.say) as client:
            yield client


def command(
    body: Callable[Concatenate[Caller, _Parameters], Coroutine[Any, Any, int]],
) -> Callable[_Parameters, None]:
    """Makes a click callback of a coroutine that gives an exit code."""

    @functools.wraps(body)
    def callback(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> None:
        caller = Caller(body.__name__.rstrip("_"), dict(os.environ))
        try:
            code = asyncio.run(body(caller, *args, **kwargs))
        except ClientError as error:
            raise Failed(failure_text(error, caller.environment)) from error
        except OSError as error:
            if error.errno == errno.EPIPE:
                # Whoever read the output has seen enough: click ends the command quietly.
                raise
            raise Failed(file_failure_text(error)) from error
        except (KeyboardInterrupt, asyncio.CancelledError):
            sys.exit(130)
        sys.exit(code)

    return callback


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, one object on each line; failures too."
)


def print_json(value: Mapping[str, object]) -> None:
    """One object on one line."""
    click.echo(json.dumps(value, ensure_ascii=False))


def open_standard_streams() -> None:
    """Makes /dev/null of those that are closed: what is opened next must not get their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free, and so this one.
            os.open(os.devnull, os.O_RDWR)
    sys.stdin = sys.stdin or open(0)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w")  # noqa: SIM115


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A uid without a name, as in many containers.
        return f"uid {os.getuid()}"


@click.group(cls=JsonGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("turnd"), prog_name="turn")
def turn() -> None:
    """Run AI agent sessions that a local daemon owns.

    \b
    turn run "fix the failing test"     a new session in this directory
    turn ls                             what sessions there are
    turn attach ID                      follow one, and answer its requests
    turn demo                           see all of it on a sample project

    ID is the id of a session, or as much of its beginning as no other id has. A daemon is started where none
    runs. TURND_HOME=DIR keeps configuration, state and socket under DIR.

    With --json a command that fails prints {"error": {"code", "message", "details"}} on stdout, as the last line;
    `export` without -o prints it on stderr. Exit codes: 0, 1 failed or refused, 2 usage; `turn run --help` has its own.
    """
