"""import: a session out of a file."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO

import click

from turnd.v1 import sessions_pb2
from turnd_client.cli.app import Caller, Failed, command, json_option, print_json
from turnd_client.cli.faults import fault_lines, faults_text
from turnd_client.cli.model import absolute_model
from turnd_client.client import Client
from turnd_client.errors import Refused
from turnd_client.shapes import imported_json
from turnd_client.text import visible
from turnd_client.units import counted

_PART_BYTES = 1024 * 1024
_OF_THE_FILE = ("lines", "end", "end.bytes")
"""Fields of the request that say what is wrong with the file."""


@click.command(name="import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--profile", default="", help="The profile to go on under; without it the default one.")
@click.option("--model", default="", help="The model to go on with; without it the profile's.")
@json_option
@command
async def import_(caller: Caller, file: str, profile: str, model: str, as_json: bool) -> int:
    """Make a session out of an exported one (`-` for stdin), to go on with it in this directory.

    What is in the file is history: its approvals, costs and queued messages do not act. Rules that it breaks are
    told, and its events are kept all the same. The new session's id is printed; `turn send ID TEXT` goes on with it.
    """
    name = "standard input" if file == "-" else visible(file)
    with nullcontext(sys.stdin.buffer) if file == "-" else await _opened(caller, file) as opened:
        async with caller.client() as client:
            imported = await _imported(caller, client, _Upload(name, opened), profile, model)
    if as_json:
        print_json(imported_json(imported))
        return 0
    click.echo(imported.session.id)
    for line in fault_lines(imported.faults):
        caller.say(f"{name}: {line}")
    if imported.faults:
        found = faults_text(imported.causes, imported.faults_in_all)
        caller.say(
            f"imported {counted(imported.events, 'event')} as they are, with {found} (`turn log verify --all` lists "
            "all); what the model is sent is put right"
        )
    return 0


async def _imported(
    caller: Caller, client: Client, upload: _Upload, profile: str, model: str
) -> sessions_pb2.ImportResponse:
    work = client.import_session(
        upload,
        str(Path.cwd()),
        profile=profile,
        model=absolute_model(model),
        environment=caller.environment,
    )
    try:
        return await caller.patiently(work, upload.progress)
    except Refused as refused:
        if refused.field not in _OF_THE_FILE:
            raise
        text = str(refused).removeprefix(f"{refused.field}: ")
        raise Failed(f"{upload.name}: {text}") from refused


class _Upload:
    """The file in parts, which are taken as the daemon reads them: what was sent is what it has looked at."""

    def __init__(self, name: str, file: BinaryIO) -> None:
        self.name = name
        self._file = file
        status = os.fstat(file.fileno())
        self._of = f" of {_mib(status.st_size)}" if stat.S_ISREG(status.st_mode) else ""
        self._sent = 0
        self._ended = False

    def __iter__(self) -> Iterator[bytes]:
        while part := self._next():
            self._sent += len(part)
            yield part
        self._ended = True

    def progress(self) -> str:
        """How far it is."""
        if self._ended:
            return f"{_mib(self._sent)} are with the daemon, which makes a session of them"
        return f"{_mib(self._sent)}{self._of} are with the daemon, which checks them as they come"

    def _next(self) -> bytes:
        try:
            return self._file.read(_PART_BYTES)
        except OSError as error:
            # An error of reading knows no name.
            raise OSError(error.errno, error.strerror, self.name) from error


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


async def _opened(caller: Caller, file: str) -> BinaryIO:
    """The file, open; a named pipe once somebody writes into it, without a time-out: that is up to the person."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    opened = os.fdopen(descriptor, "rb")
    try:
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            await _written(caller, file, descriptor)
        os.set_blocking(descriptor, True)
    except BaseException:
        opened.close()
        raise
    return opened


async def _written(caller: Caller, file: str, descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    try:
        # One turn of the loop tells what is there already, as it is behind `<(command)`.
        await asyncio.sleep(0)
        if not readable.is_set():
            caller.say(f"reading the pipe {visible(file)}, once somebody writes into it")
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)
