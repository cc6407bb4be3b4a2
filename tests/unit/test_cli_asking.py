"""Asking on a terminal: which request it is about, and what is drawn while a prompt is open."""

from __future__ import annotations

import asyncio
import io
import os
import pty
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.unit.rpc_fakes import SESSION, served

from turnd.v1 import common_pb2, event_pb2
from turnd_client.cli.asking import AtTerminal
from turnd_client.cli.keyboard import Keyboard
from turnd_client.screen import Screen


class DrawnOn(io.StringIO):
    """Lets a test wait for what is drawn."""

    def __init__(self) -> None:
        super().__init__()
        self._more = asyncio.Event()

    def isatty(self) -> bool:
        return False

    def write(self, text: str) -> int:
        self._more.set()
        return super().write(text)

    async def shows(self, text: str, times: int = 1) -> None:
        async with asyncio.timeout(20):
            while self.getvalue().count(text) < times:
                self._more.clear()
                await self._more.wait()


def approval(name: str) -> event_pb2.Event:
    item = common_pb2.PlanItem(
        provider="workspace", tool="edit_file", preview=f"+{name}\n", bound_to_state=True
    )
    request = event_pb2.ApprovalRequest(request_id=name, item=item)
    return event_pb2.Event(session=SESSION, approval_request=request)


def decided(name: str) -> event_pb2.Event:
    return event_pb2.Event(
        session=SESSION,
        approval_decided=event_pb2.ApprovalDecided(
            request_id=name, outcome=common_pb2.APPROVAL_OUTCOME_DENIED, client="another"
        ),
    )


@asynccontextmanager
async def asking(base: Path) -> AsyncIterator[tuple[DrawnOn, Screen, AtTerminal]]:
    out = DrawnOn()
    screen = Screen(out)
    master, slave = pty.openpty()
    try:
        async with served(base) as it, it.client() as client, Keyboard(slave) as keyboard:
            asker = AtTerminal(client, screen, keyboard)
            task = asyncio.ensure_future(asker.run())
            try:
                yield out, screen, asker
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
    finally:
        os.close(master)
        os.close(slave)


async def test_the_prompt_says_which_of_the_open_requests_it_is_about(short_path: Path) -> None:
    async with asking(short_path) as (out, screen, asker):
        asker.live()
        for name in ("r_01AAAAAAAA1111", "r_01AAAAAAAA2222", "r_01AAAAAAAA3333"):
            screen.event(approval(name))
            asker.event(approval(name))
        await out.shows("approval r_..1111 (1 of 3 open) [y]es")
        screen.event(decided("r_01AAAAAAAA1111"))
        asker.event(decided("r_01AAAAAAAA1111"))
        await out.shows("approval r_..2222 (1 of 2 open) [y]es")
        for name in ("r_01AAAAAAAA2222",):
            screen.event(decided(name))
            asker.event(decided(name))
        await out.shows("approval r_..3333 [y]es")


async def test_whatever_is_drawn_under_a_prompt_has_a_line_of_its_own(short_path: Path) -> None:
    async with asking(short_path) as (out, screen, asker):
        asker.live()
        asker.event(approval("r_01AAAAAAAA1111"))
        await out.shows("[d]iff again: ")
        note = event_pb2.Event(note=event_pb2.Note(text="meanwhile"))
        screen.event(note)
        asker.event(note)
        await out.shows("[d]iff again: ", 2)
        deltas = [event_pb2.Delta(text="streamed\n")]
        chunk = event_pb2.Event(assistant_chunk=event_pb2.AssistantChunk(deltas=deltas))
        screen.event(chunk)
        asker.event(chunk)
        await out.shows("[d]iff again: ", 3)
        screen.end_line()
        asker.again()
        await out.shows("[d]iff again: ", 4)
        screen.event(decided("r_01AAAAAAAA1111"))
        asker.event(decided("r_01AAAAAAAA1111"))
    lines = out.getvalue().splitlines()
    prompt = "  approval r_..1111 [y]es, [n]o, n REASON, [s]ession, [a]lways, [d]iff again: "
    assert lines == [
        prompt,
        "  meanwhile",
        prompt,
        "streamed",
        prompt,
        prompt,
        "  r_01AAAAAAAA1111 denied by another",
    ]
