"""run: a new session for one prompt."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import click
import grpc

from turnd.v1 import common_pb2, sessions_pb2
from turnd_client.cli.app import Caller, Misused, command, json_option, print_json
from turnd_client.cli.failures import failure_text
from turnd_client.cli.following import Output, output
from turnd_client.cli.model import absolute_model
from turnd_client.cli.quantity import COUNT, DURATION, USD
from turnd_client.cli.sessions import read_text
from turnd_client.client import Client
from turnd_client.errors import ClientError, Refused
from turnd_client.follow import follow
from turnd_client.outcome import ExitCode, Outcome
from turnd_client.shapes import reason_text, session_cost
from turnd_client.text import one_line, without_unseen
from turnd_client.units import counted

_TITLE_WIDTH = 60


@click.command()
@click.argument("prompt")
@click.option("--model", default="", help="Instead of the profile's, e.g. replay:FILE.")
@click.option("--profile", default="", help="A profile of the configuration.")
@click.option("--title", default="", help="For lists; without it the first line of PROMPT.")
@click.option("--max-cost", type=USD, help="Spend of the session; 0 allows a last answer only.")
@click.option("--max-turns", type=COUNT, help="Steps in the session.")
@click.option("--max-time", type=DURATION, help="Of work, not of waiting: 90, 90s, 5m, 2h.")
@click.option(
    "--plan", is_flag=True, help="Read and think only: tools that change something are not offered."
)
@click.option(
    "--unattended", is_flag=True, help="Nobody is there: what would ask is denied. Exits 3 if it was."
)
@click.option("--keep", is_flag=True, help="Leave the session open for more.")
@json_option
@command
async def run(
    caller: Caller,
    prompt: str,
    model: str,
    profile: str,
    title: str,
    max_cost: int | None,
    max_turns: int | None,
    max_time: int | None,
    plan: bool,
    unattended: bool,
    keep: bool,
    as_json: bool,
) -> int:
    """Run PROMPT in a new session in this directory (`-` reads it from stdin).

    Streams the answer and asks for approvals on the terminal; without one, and without --unattended, it waits
    for other clients to answer. Ctrl-C cancels the turn and waits for its end; a second one leaves at once.

    \b
    Exit codes, the first that applies:
      130 cancelled    2 usage    4 a limit    3 blocked, or denied for want of an answer
      1 error or interrupted      0 completed
    """
    text = read_text(prompt)
    bounds = common_pb2.Bounds(max_turns=max_turns, max_cost_nano_usd=max_cost, max_wall_clock_ms=max_time)
    async with caller.client() as client:
        try:
            session = await client.create_session(
                str(Path.cwd()),
                profile=profile,
                model=absolute_model(model),
                title=title or _title(text),
                bounds=bounds,
                environment=caller.environment,
                unattended=unattended,
                plan_mode=plan,
            )
        except Refused as refused:
            if refused.code is grpc.StatusCode.INVALID_ARGUMENT:
                raise Misused(failure_text(refused, caller.environment)) from refused
            raise
        async with output(caller, client, as_json=as_json, asks=not unattended) as out:
            outcome = await _Run(client, session, out, keep=keep).to_the_end(text)
        shown = (await client.get_session(session.id)).session
    if as_json:
        print_json(outcome.result(shown))
    else:
        _summary(caller, outcome, shown)
    return outcome.exit_code()


class _Run:
    """One prompt in one session, until its Turn has ended and the session is closed."""

    def __init__(self, client: Client, session: sessions_pb2.Session, out: Output, *, keep: bool) -> None:
        self._client = client
        self._session = session.id
        self._out = out
        self._keep = keep
        self._interrupts = 0
        self._helpers: set[asyncio.Task[None]] = set()

    async def to_the_end(self, text: str) -> Outcome:
        """Sends the prompt, shows every event, and gives what became of the Turn."""
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        loop.add_signal_handler(signal.SIGINT, self._interrupt, task)
        outcome = Outcome()
        closing = False
        try:
            async for update in follow(self._client, self._session, lost=self._out.lost):
                for event in update.events:
                    self._out.event(event)
                    outcome.advance(event)
                if not outcome.message_id and update.caught_up:
                    # Attached first, so that this client is there when the first request is delivered.
                    self._out.live()
                    outcome.message_id = (await self._client.send_message(self._session, text)).message_id
                elif outcome.ended and (self._keep or outcome.session_ended or outcome.is_paused):
                    return outcome
                elif outcome.ended and not closing:
                    closing = True
                    if not await self._close():
                        return outcome
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            for helper in self._helpers:
                helper.cancel()
        raise AssertionError("following a session has no end")

    def _interrupt(self, task: asyncio.Task[object]) -> None:
        self._interrupts += 1
        if self._interrupts == 1:
            self._out.say("cancelling the turn, and waiting for what it started; Ctrl-C again leaves at once")
            self._help(self._cancel())
        else:
            self._out.say(f"left; the session goes on: `turn attach {self._session}`")
            task.cancel()

    def _help(self, work: Coroutine[Any, Any, None]) -> None:
        helper = asyncio.ensure_future(work)
        self._helpers.add(helper)
        helper.add_done_callback(self._helpers.discard)

    async def _cancel(self) -> None:
        try:
            await self._client.cancel(self._session)
        except ClientError as error:
            self._out.say(str(error))

    async def _close(self) -> bool:
        try:
            await self._client.close_session(self._session)
        except ClientError as error:
            self._out.say(f"the session was not closed: {error}")
            return False
        return True


def _title(prompt: str) -> str:
    lines = (one_line(without_unseen(line), _TITLE_WIDTH) for line in prompt.splitlines())
    return next((line for line in lines if line), "")


def _summary(caller: Caller, outcome: Outcome, session: sessions_pb2.Session) -> None:
    reason = reason_text(outcome.reason)
    cause = f" ({outcome.why})" if outcome.why else ""
    caller.say(
        f"{reason}{cause}: {counted(session.steps, 'step')}, {session_cost(session)}; "
        f"`turn log {session.id}` has every event"
    )
    for denied in outcome.denied.values():
        caller.say(
            f"denied, because nobody was there: {denied['provider']}.{denied['tool']}: {denied['reason']}"
        )
    if session.unpriced:
        caller.say(
            f"no price is known for some of the models of this session: what they cost is not in it; "
            f"`turn cost {session.id} --by model` marks them with a +, and [prices] in the configuration can state it"
        )
    if outcome.exit_code() is ExitCode.LIMIT and outcome.is_paused:
        caller.say("paused: it goes on when it gets a new allowance")
