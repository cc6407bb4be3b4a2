"""Open requests of a session: asking whoever sits at the terminal, or saying that somebody else has to answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from turnd.v1 import common_pb2, event_pb2, sessions_pb2
from turnd_client.answers import NotAnAnswer, answer_json
from turnd_client.cli.keyboard import Keyboard
from turnd_client.client import Client
from turnd_client.errors import ClientError, Refused
from turnd_client.screen import Screen

_CHOICES = "[y]es, [n]o, n REASON, [s]ession, [a]lways, [d]iff again: "
_SHORT_ID = 4
SESSION, ALWAYS = common_pb2.APPROVAL_SCOPE_SESSION, common_pb2.APPROVAL_SCOPE_ALWAYS
REMEMBERED = {
    SESSION: "remembered until the session ends",
    ALWAYS: "remembered for this workspace, directory and profile",
}
"""How the rule of each scope wider than once is led in."""


class Requests:
    """The open requests of a session with its descendants', from its events alone. Order is that of asking."""

    def __init__(self) -> None:
        self.open: dict[str, sessions_pb2.OpenRequest] = {}

    def advance(self, event: event_pb2.Event) -> str:
        """Takes the next event; gives the id of the request that it settled, or nothing."""
        match event.WhichOneof("data"):
            case "approval_request":
                self._add(sessions_pb2.OpenRequest(session=event.session, approval=event.approval_request))
            case "interactive_request":
                request = event.interactive_request
                self._add(sessions_pb2.OpenRequest(session=event.session, interactive=request))
            case "approval_decided":
                return self._settle(event.approval_decided.request_id)
            case "interactive_answered":
                return self._settle(event.interactive_answered.request_id)
            case "child_attention":
                return self._attention(event.child_attention)
            case _:
                pass
        return ""

    def _attention(self, attention: event_pb2.ChildAttention) -> str:
        if attention.state == event_pb2.ATTENTION_STATE_SETTLED:
            return self._settle(attention.request_id)
        request = sessions_pb2.OpenRequest(session=attention.path[-1], path=attention.path)
        if attention.HasField("approval"):
            request.approval.CopyFrom(attention.approval)
        else:
            request.interactive.CopyFrom(attention.interactive)
        self._add(request)
        return ""

    def _add(self, request: sessions_pb2.OpenRequest) -> None:
        self.open[request_id(request)] = request

    def _settle(self, settled: str) -> str:
        self.open.pop(settled, None)
        return settled


def request_id(request: sessions_pb2.OpenRequest) -> str:
    """The id that Decide and Answer want."""
    if request.HasField("approval"):
        return request.approval.request_id
    return request.interactive.request_id


class Asker(Protocol):
    """What a command does with open requests."""

    def event(self, event: event_pb2.Event) -> None:
        """Takes the next event of the session."""

    def live(self) -> None:
        """From here on events are new: what is open now is really open."""

    def again(self) -> None:
        """Something was written below the prompt: it is drawn again where one is open."""


class Elsewhere:
    """Nobody sits here: says which command, given somewhere else, answers each request."""

    def __init__(self, say: Teller) -> None:
        self._say = say
        self._requests = Requests()
        self._told: set[str] = set()
        self._live = False

    def event(self, event: event_pb2.Event) -> None:
        """Takes the next event of the session."""
        self._requests.advance(event)
        self._tell()

    def live(self) -> None:
        """From here on events are new."""
        self._live = True
        self._tell()

    def again(self) -> None:
        """Has no prompt."""

    def _tell(self) -> None:
        for name, request in self._requests.open.items():
            if not self._live or name in self._told:
                continue
            self._told.add(name)
            if request.HasField("approval"):
                item = request.approval.item
                commands = f"`turn approve {request.session} {name}` or `turn deny {request.session} {name}`"
                self._say(f"waiting for another client to decide on {item.provider}.{item.tool}: {commands}")
            else:
                self._say(
                    f"waiting for another client to answer: `turn answer {request.session} {name} TEXT`"
                )


class Teller(Protocol):
    """Where a command says what is not its output."""

    def __call__(self, text: str, /) -> None: ...


class AtTerminal:
    """Asks about one request after the other; one that somebody else settles is asked no longer."""

    def __init__(self, client: Client, screen: Screen, keyboard: Keyboard) -> None:
        self._client = client
        self._screen = screen
        self._keyboard = keyboard
        self._requests = Requests()
        self._live = False
        self._changed = asyncio.Event()
        self._asking: asyncio.Task[None] | None = None
        self._asking_about = ""
        self._prompt: Callable[[], str] | None = None

    def event(self, event: event_pb2.Event) -> None:
        """Takes the next event of the session."""
        settled = self._requests.advance(event)
        if settled and settled == self._asking_about and self._asking is not None:
            self._asking.cancel()
            self._prompt = None
        self._changed.set()
        self.again()

    def live(self) -> None:
        """From here on events are new."""
        self._live = True
        self._changed.set()

    def again(self) -> None:
        """Draws the prompt again where one is open and something was drawn below it."""
        if self._prompt is not None and not self._screen.is_prompting:
            self._screen.prompt(self._prompt())

    async def run(self) -> None:
        """Asks until it is cancelled. Raises what a connection raises."""
        while True:
            self._changed.clear()
            waiting = next(iter(self._requests.open.items()), None)
            if not self._live or waiting is None:
                await self._changed.wait()
                continue
            self._asking_about, request = waiting
            self._asking = asyncio.ensure_future(self._ask(request))
            try:
                await asyncio.wait({self._asking})
                if not self._asking.cancelled():
                    self._asking.result()
            finally:
                self._asking.cancel()
                with suppress(asyncio.CancelledError):
                    await self._asking

    async def _ask(self, request: sessions_pb2.OpenRequest) -> None:
        self._keyboard.discard()
        try:
            if request.HasField("approval"):
                await self._ask_approval(request)
            else:
                await self._ask_question(request)
        except Refused as refused:
            self._screen.line(f"  {refused}", "red")
        except ClientError as error:
            # The request is open still, and is asked again when the daemon is back.
            self._screen.line(f"  not decided: {error}", "red")
            return
        # Its settlement comes as an event, whoever settled it; until then it is not asked again.
        self._requests.open.pop(request_id(request), None)

    async def _ask_approval(self, request: sessions_pb2.OpenRequest) -> None:
        while True:
            typed = await self._typed(lambda: f"  {self._named(request)} {_CHOICES}")
            word, _, reason = typed.strip().partition(" ")
            match word.lower():
                case "y" | "yes":
                    await self._decide(request, approve=True)
                    return
                case "n" | "no":
                    await self._decide(request, approve=False, reason=reason.strip())
                    return
                case "s" | "session":
                    if await self._remembered(request, SESSION):
                        return
                case "a" | "always":
                    if await self._remembered(request, ALWAYS):
                        return
                case "d" | "diff":
                    self._screen.open_request(request)
                case _:
                    self._screen.line(
                        "  y approves this once, n denies it, s and a approve it and the like of it"
                    )

    async def _remembered(
        self, request: sessions_pb2.OpenRequest, scope: common_pb2.ApprovalScope.ValueType
    ) -> bool:
        """Shows the rule before it is remembered (A09); False where that is not wanted then."""
        self._screen.grant(request.approval.grant, REMEMBERED[scope])
        sure = await self._typed(lambda: "  remember this? [y]es, anything else goes back: ")
        if sure.strip().lower() not in ("y", "yes"):
            return False
        await self._decide(request, approve=True, scope=scope)
        return True

    async def _decide(
        self,
        request: sessions_pb2.OpenRequest,
        *,
        approve: bool,
        scope: common_pb2.ApprovalScope.ValueType = common_pb2.APPROVAL_SCOPE_ONCE,
        reason: str = "",
    ) -> None:
        # Its settlement must not end the call that brings it about.
        self._asking_about = ""
        await self._client.decide(
            request.session, request.approval.request_id, approve=approve, scope=scope, reason=reason
        )

    async def _ask_question(self, request: sessions_pb2.OpenRequest) -> None:
        while True:
            text = await self._typed(lambda: f"  {self._named(request)} answer: ")
            try:
                output = answer_json(text, request.interactive.output_schema)
            except NotAnAnswer as wrong:
                self._screen.line(f"  {wrong}", "red")
                continue
            self._asking_about = ""
            await self._client.answer(request.session, request.interactive.request_id, output)
            return

    def _named(self, request: sessions_pb2.OpenRequest) -> str:
        """Which of the open requests is asked about: `approval r_..7XYZ (2 of 3 open)`."""
        name = request_id(request)
        kind = "approval" if request.HasField("approval") else "question"
        names = list(self._requests.open)
        place = f" ({names.index(name) + 1} of {len(names)} open)" if len(names) > 1 else ""
        return f"{kind} {_short(name)}{place}"

    async def _typed(self, prompt: Callable[[], str]) -> str:
        self._prompt = prompt
        self._screen.prompt(prompt())
        try:
            line = await self._keyboard.line()
        finally:
            self._prompt = None
        if line is None:
            # The terminal is gone; other clients can still answer, this one cannot.
            await asyncio.Event().wait()
        assert line is not None
        self._screen.typed()
        return line


def _short(name: str) -> str:
    # Ids that were made at the same time differ at their ends.
    mark, _, rest = name.rpartition("_")
    return f"{mark}_..{rest[-_SHORT_ID:]}" if mark and len(rest) > _SHORT_ID else name
