"""A session's events on stdout, with its requests asked or told: what run and attach share."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import click

from turnd.v1 import event_pb2
from turnd.v1.jsonform import event_to_json
from turnd_client.cli.app import Caller
from turnd_client.cli.asking import Asker, AtTerminal, Elsewhere
from turnd_client.cli.keyboard import Keyboard
from turnd_client.client import Client
from turnd_client.errors import ClientError
from turnd_client.screen import Screen


class Output:
    """Draws events, or prints them as JSON lines, and hands them to whoever asks."""

    def __init__(self, caller: Caller, asker: Asker, screen: Screen | None) -> None:
        self._caller = caller
        self._asker = asker
        self.screen = screen

    def event(self, event: event_pb2.Event) -> None:
        """The next event of the session."""
        if self.screen is None:
            click.echo(event_to_json(event))
        else:
            self.screen.event(event)
        self._asker.event(event)

    def say(self, text: str) -> None:
        """Tells the person something that is not the command's output, on a line of its own."""
        _own_line(self.screen)
        self._caller.say(text)
        self._asker.again()

    def lost(self, error: ClientError) -> None:
        """Tells that the daemon went away and is waited for."""
        _own_line(self.screen)
        self._caller.lost(error)
        self._asker.again()

    def live(self) -> None:
        """History has ended."""
        self._asker.live()


@asynccontextmanager
async def output(caller: Caller, client: Client, *, as_json: bool, asks: bool) -> AsyncIterator[Output]:
    """Asks on the terminal where there is one and people read the output; tells who has to answer elsewhere."""
    screen = None if as_json else Screen(sys.stdout)
    if screen is None or not asks or not (sys.stdin.isatty() and screen.is_terminal):

        def say(text: str) -> None:
            _own_line(screen)
            caller.say(text)

        try:
            yield Output(caller, Elsewhere(say), screen)
        finally:
            if screen is not None:
                screen.end_line()
        return
    async with Keyboard(sys.stdin.fileno()) as keyboard:
        asker = AtTerminal(client, screen, keyboard)
        asking = asyncio.ensure_future(asker.run())
        try:
            yield Output(caller, asker, screen)
        finally:
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking
            screen.end_line()


def _own_line(screen: Screen | None) -> None:
    # A terminal shows stdout and stderr on the same lines; a file has the output only.
    if screen is not None and screen.is_terminal:
        screen.end_line()
