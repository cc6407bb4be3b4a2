"""demo: the whole loop on a sample project, with a recorded model and a daemon of its own."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import click

from turnd.v1 import sessions_pb2
from turnd_client.cli.app import Caller, Failed, command, json_option, print_json
from turnd_client.cli.asking import AtTerminal
from turnd_client.cli.keyboard import Keyboard
from turnd_client.client import Client
from turnd_client.connect import connect, connect_or_start
from turnd_client.demo.play import Evidence, approve_everything
from turnd_client.demo.project import PROMPT, TEST_TOOL, NoPython, write_project, write_transcript
from turnd_client.errors import ClientError, ConnectionLost, NoDaemon
from turnd_client.follow import follow
from turnd_client.screen import Screen
from turnd_client.shapes import Json
from turnd_client.stop import stop_daemon
from turnd_client.text import visible
from turnd_client.units import usd, usd_text

_SECOND_CLIENT = "turn demo (second client)"


@click.command()
@click.option(
    "--keep/--remove",
    default=True,
    help="Leave the project and the log for a look at them afterwards (the default), or remove them.",
)
@json_option
@command
async def demo(caller: Caller, keep: bool, as_json: bool) -> int:
    """See a whole session on a sample project. Needs no key, and touches nothing of yours.

    A daemon of the demo's own starts; a recorded model reads a small project with a failing test, edits a
    file after you approve the diff, runs the tests in the sandbox, and reports. Exits 0 only if all of that
    happened.
    """
    base = Path(tempfile.mkdtemp(prefix="turn-demo-"))
    # With --json the show goes to stderr, and one object about it to stdout.
    show = _Show(caller, base, Screen(sys.stderr if as_json else sys.stdout))
    try:
        result = await show.run()
        if as_json:
            print_json({**result, "directory": str(base) if keep else None})
        return 0 if result["ok"] else 1
    except NoPython as error:
        raise Failed(str(error)) from error
    finally:
        with suppress(NoDaemon, ConnectionLost):
            await stop_daemon(show.environment, caller.name, lambda _: None)
        if keep:
            show.say_where()
        else:
            shutil.rmtree(base)


class _Show:
    """One run of the demo under one directory."""

    def __init__(self, caller: Caller, base: Path, screen: Screen) -> None:
        self._caller = caller
        self._base = base
        self._project = base / "project"
        self._screen = screen
        self._session = ""
        self.environment: Mapping[str, str] = {**caller.environment, "TURND_HOME": str(base / "home")}

    async def run(self) -> Json:
        """The whole show; what became of it."""
        self._project.mkdir()
        write_project(self._project)
        transcript = self._base / "model.jsonl"
        write_transcript(transcript, self.environment.get("PATH", ""))
        self._head("A sample project with a failing test")
        self._screen.line(
            f"{self._project}: {', '.join(sorted(path.name for path in self._project.iterdir()))}"
        )
        self._head("The daemon")
        async with await connect_or_start(self.environment, self._caller.name, self._screen.line) as client:
            await self._show_daemon(client)
            evidence = await self._show_session(client, f"replay:{transcript}")
            if not evidence.denied:
                await self._show_log(client)
            self._head("Done")
            return self._verdict(evidence, (await client.get_session(self._session)).session)

    async def _show_daemon(self, client: Client) -> None:
        status = await client.status()
        self._screen.line(f"turnd {status.version}, pid {status.pid}, socket {status.socket}")
        if not status.sandbox:
            raise Failed("no sandbox can be made here:\n" + "\n".join(status.problems))
        self._screen.line(f"sandbox in force: {visible(status.sandbox)}")
        for gap in status.unenforced:
            self._screen.wrapped(f"not enforced here: {visible(gap)}", "  ")

    async def _show_session(self, client: Client, model: str) -> Evidence:
        session = await client.create_session(
            str(self._project), model=model, title="demo", environment=self._caller.environment
        )
        self._session = session.id
        self._head(f"Session {session.id}")
        evidence = Evidence()
        async with self._person(client) as person:
            async for update in follow(client, session.id, lost=self._lost):
                for event in update.events:
                    if evidence.denied:
                        break
                    self._screen.event(event)
                    if person is not None:
                        person.event(event)
                    evidence.advance(event)
                if not evidence.outcome.message_id and update.caught_up:
                    if person is not None:
                        person.live()
                    sent = await client.send_message(session.id, PROMPT)
                    evidence.outcome.message_id = sent.message_id
                elif evidence.outcome.ended or evidence.denied:
                    # The recorded model knows no other way to go on from a denial.
                    break
        await client.close_session(session.id)
        return evidence

    @asynccontextmanager
    async def _person(self, client: Client) -> AsyncIterator[AtTerminal | None]:
        """Who answers: whoever sits at the terminal, or else a second client."""
        if sys.stdin.isatty() and self._screen.is_terminal:
            async with Keyboard(sys.stdin.fileno()) as keyboard:
                person = AtTerminal(client, self._screen, keyboard)
                async with _running(person.run()):
                    yield person
            return
        self._screen.line(
            "No terminal here, so nobody can be asked: a second client of the demo's own approves."
        )
        second = await connect(self.environment, _SECOND_CLIENT)
        async with second, _running(approve_everything(second, self._session)):
            yield None

    async def _show_log(self, client: Client) -> None:
        self._head("The log")
        lines = [part async for part in client.export(self._session)]
        verdict = await client.verify_lines(lines)
        if verdict.faults:
            raise Failed(f"the log breaks a rule: {verdict.faults[0].message}")
        self._screen.line(f"exported and verified: {verdict.events} events, every rule holds")

    def _verdict(self, evidence: Evidence, session: sessions_pb2.Session) -> Json:
        outcome = evidence.outcome
        missing = evidence.missing(self._project)
        if evidence.denied:
            self._screen.wrapped(_denied_text(evidence.denied))
        elif missing:
            self._screen.line(f"It did not all happen; missing: {', '.join(missing)}.")
            if outcome.cause:
                self._screen.line(visible(outcome.cause))
        else:
            cost = usd_text(session.cost_nano_usd)
            self._screen.line(f"answer: {visible(outcome.text)}")
            self._screen.line(f"cost:   {cost} (as if the recorded model were paid)")
        return {
            "ok": not missing,
            "missing": missing,
            "session": session.id,
            "cost_usd": usd(session.cost_nano_usd),
            "text": outcome.text,
        }

    def _lost(self, error: ClientError) -> None:
        self._screen.end_line()
        self._caller.lost(error)

    def say_where(self) -> None:
        """How to look at it afterwards."""
        home = self.environment["TURND_HOME"]
        self._screen.line()
        self._screen.line(f"The daemon is stopped; project and log are in {self._base}. To look at them:")
        if self._session:
            self._screen.line(f"  export TURND_HOME={home}")
            self._screen.line(f"  turn log {self._session}                every event, in order")
            self._screen.line(f"  turn show {self._session}               status and cost")
            self._screen.line(f"  turn export {self._session} | turn log verify -")
        self._screen.line(f"  turn stop; rm -r {self._base}           when you have seen enough")

    def _head(self, text: str) -> None:
        self._screen.line()
        self._screen.line(f"== {text}", "bold")


def _denied_text(tool: str) -> str:
    if tool == TEST_TOOL:
        return (
            "You denied the run of the tests, so the demo ends here; the edit that you approved is in the "
            "sample project. `turn demo` shows all of it."
        )
    return (
        "You denied the edit, so the demo ends here; nothing was changed. A real model would be told, and look "
        "for another way. `turn demo` shows all of it."
    )


@asynccontextmanager
async def _running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
