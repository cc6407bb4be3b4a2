"""A live session: one task that takes queued messages and runs their Turns, one after another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import structlog
from google.protobuf.message import Message as Payload

from turnd.loop.breakers import Breakers
from turnd.loop.ledger import unpriced
from turnd.loop.meter import Meter
from turnd.loop.outcome import Ending, failed
from turnd.loop.run import Run, StepFailed
from turnd.loop.settings import LoopSettings
from turnd.loop.settle import (
    close_turn,
    end_session,
    session_payload,
    settle_failed_turn,
    settle_stopped_turn,
    stop_for_cancel,
)
from turnd.loop.title import GRACE_S, Titling
from turnd.loop.turn import resolve_turn
from turnd.ports import (
    AnsweredRequest,
    Children,
    EventTooLarge,
    LogFailed,
    Model,
    SandboxUnavailable,
    ToolSession,
    ToolSet,
    UnknownModel,
    World,
)
from turnd.rules.doom import DoomLoop
from turnd.rules.event import Draft
from turnd.rules.history import History
from turnd.rules.lifecycle import queue_waits
from turnd.rules.opening import system_text
from turnd.rules.state import Violation
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2, sessions_pb2

log = structlog.get_logger(__name__)

LOG_RETRY_S = 1.0
"""How often the end of a Turn is tried again while the log takes nothing (LOG-14)."""


class LiveSession:
    """Owns the Turns of one session.

    The mutable state is: the runner task while there is work and the task that lets go afterwards, the open Turn's
    task and that of its work, how many commands are opening a Turn, and the working set, which is made when a Turn
    begins and there is none. Commands write into the log and poke; nothing else reaches into a session. `above` is the
    meter of the Step that a sub-agent works for.
    """

    def __init__(
        self,
        world: World,
        settings: Callable[[], LoopSettings],
        children: Children,
        session: str,
        above: Meter | None = None,
    ) -> None:
        self._world = world
        self._settings = settings
        self._children = children
        self.session = session
        self._above = above
        self._runner: asyncio.Task[None] | None = None
        self._turn: asyncio.Task[None] | None = None
        self._work: asyncio.Task[Ending | None] | None = None
        self._run: Run | None = None
        self._arriving: list[event_pb2.Event] | None = None
        self._titling = Titling()
        self._tools: ToolSet | None = None
        self._tools_for: tuple[tuple[str, ...], Mapping[str, str]] = ((), {})
        self._asked = False
        self._beginning = 0
        self._taken_up = asyncio.Event()
        self._opened = asyncio.Event()
        self._rest: asyncio.Task[None] | None = None
        self._letting_go = False
        self._closing = False
        self._stopped = False

    @property
    def busy(self) -> bool:
        """Turns are running, or about to."""
        return self._runner is not None and not self._runner.done()

    @property
    def meter(self) -> Meter | None:
        """Of the open Step, for what works below it; None where the session has no working set."""
        return None if self._run is None else self._run.meter

    def offered(self) -> tuple[str, ...]:
        """The tools that the session has now, as provider.tool; none before its first Turn."""
        return () if self._tools is None else tuple(tool.full_name for tool in self._tools.offered())

    def wall_clock_left_ms(self) -> int | None:
        """What is left of max_wall_clock_s; None where there is no such bound, or no working set."""
        return None if self._run is None else self._run.wall_clock_left_ms()

    def poke(self) -> None:
        """A person sent something, or a command opened a Turn: there may be work."""
        if self._world.log.state(self.session).open_turn is None:
            self._asked = True
        if not self.busy and not self._stopped:
            self._runner = asyncio.create_task(self._run_queue(), name=f"session {self.session}")
            self._runner.add_done_callback(lambda _: self._look_again())

    async def begin(
        self, opening: Sequence[Draft], answered: AnsweredRequest | None
    ) -> list[event_pb2.Event]:
        """A command opens a Turn with these events; then it is worked on. Raises Violation, LogFailed."""
        if self._stopped or self._closing:
            raise Violation("turn/start while the session is being ended")
        self._beginning += 1
        try:
            events = await self._world.log.append(*opening, answered=answered)
            self.poke()
        finally:
            self._beginning -= 1
            self._look_again()
        return events

    async def idle(self) -> None:
        """Waits until no Turn is open and none is about to start; no time-out, a Turn may take as long as it does."""
        while self.busy:
            assert self._runner is not None
            await asyncio.wait({self._runner})

    async def last_turn(self) -> None:
        """Lets the open Turn end by itself, and no other start."""
        self._stopped = True
        await self.idle()

    async def cancel(
        self,
        cause: common.CancelCause.ValueType,
        client: str,
        before: Sequence[Draft] = (),
        answered: AnsweredRequest | None = None,
    ) -> bool:
        """Stops the open Turn and waits until it is closed (LOOP-07). False where none is open.

        Events that come before turn/stopping and the command that is answered are stored with it.
        """
        await self._until_taken_up()
        turn = self._turn
        if turn is None or turn.done():
            return await self._settle_lost_turn(cause, client, before, answered)
        # A Turn that is just being opened cannot be stopped before it is in the log; opening takes one commit.
        await self._opened.wait()
        stopped = await stop_for_cancel(self._world, self.session, cause, client, before, answered)
        if stopped and self._work is not None:
            self._work.cancel()
        await asyncio.wait({turn})
        return True

    async def _until_taken_up(self) -> None:
        """Waits while a Turn is in the log that has no task yet, and somebody is there who will see to that."""
        while self._world.log.state(self.session).open_turn is not None:
            working = self._turn is not None and not self._turn.done()
            if working or not (self.busy or self._beginning):
                return
            await self._taken_up.wait()

    def _look_again(self) -> None:
        """Whoever waits for a Turn's task: there is one, or somebody who could have made it has gone."""
        taken_up, self._taken_up = self._taken_up, asyncio.Event()
        taken_up.set()

    async def _settle_lost_turn(
        self,
        cause: common.CancelCause.ValueType,
        client: str,
        before: Sequence[Draft],
        answered: AnsweredRequest | None,
    ) -> bool:
        """Closes a Turn whose task is gone, so that nothing stays running for ever. False where none is open."""
        if self._world.log.state(self.session).open_turn is None:
            return False
        if not (self._stopped or self._closing):
            # One that a command has begun just before the session is ended never gets a task.
            log.error("a turn has lost its task; it is closed", session=self.session)
        await self._titling.end()
        await stop_for_cancel(self._world, self.session, cause, client, before, answered)
        await settle_stopped_turn(self._world, self._children, self.session)
        self._run = None
        return True

    async def end(self, cause: common.CancelCause.ValueType) -> None:
        """A sub-agent's work is over, or is ended for this cause: its Turn, all below it, and its session (SUB-05)."""
        await self.stop(cause)
        if not self._world.log.state(self.session).ended:
            await end_session(self._world, self.session, common.SESSION_STATUS_CANCELLED)

    async def stop(self, cause: common.CancelCause.ValueType = common.CANCEL_CAUSE_SHUTDOWN) -> None:
        """The daemon drains, or the parent is gone: the open Turn is stopped, no other starts, tools are let go."""
        self._stopped = True
        await self.cancel(cause, "")
        await self.idle()
        await self._titling.end()
        await self._wake()
        await self._close_tools()

    async def close(
        self,
        status: common.SessionStatus.ValueType,
        client: str = "",
        answered: AnsweredRequest | None = None,
    ) -> None:
        """Ends the session, after its session-end hook (LOOP-06); an open Turn is cancelled first.

        No Turn begins meanwhile: what is queued until the end is cleared with it.
        """
        self._closing = True
        try:
            await self.cancel(common.CANCEL_CAUSE_USER, client)
            await self.idle()
            await self._titling.end(GRACE_S)
            if not self._world.log.state(self.session).ended:
                await end_session(self._world, self.session, status, client, answered)
            await self._wake()
            await self._close_tools()
            self._run = None
        finally:
            self._closing = False

    async def _run_queue(self) -> None:
        """Turns for what is queued, until the queue is empty or must wait for a person; then the session rests."""
        await self._wake()
        await self._run_turns()
        if not self._stopped and not self._closing:
            self._rest = asyncio.create_task(self._let_go_when_idle(), name=f"rest of {self.session}")

    async def _wake(self) -> None:
        rest = self._rest
        if rest is not None:
            if not self._letting_go:
                rest.cancel()
            await asyncio.wait({rest})

    async def _let_go_when_idle(self) -> None:
        """After a while without a Turn providers stop and the history leaves the memory; both come back by need."""
        await self._world.clock.sleep(self._settings().idle_s)
        self._letting_go = True
        self._run = None
        await self._close_tools()
        self._letting_go = False

    async def _run_turns(self) -> None:
        waits = False
        while not self._stopped and not self._closing:
            view, state = self._world.log.view(self.session), self._world.log.state(self.session)
            opened = state.open_turn is not None
            if state.ended or not (opened or (view.queue and not waits)):
                return
            message = None if opened else view.queue[0]
            self._asked = False
            self._opened.clear()
            self._turn = asyncio.create_task(self._one_turn(message), name=f"turn of {self.session}")
            self._turn.add_done_callback(lambda _: self._opened.set())
            self._look_again()
            await asyncio.wait({self._turn})
            if not self._turn.cancelled() and (fault := self._turn.exception()) is not None:
                log.error("a turn could not be opened or closed", session=self.session, exc_info=fault)
                return
            if self._world.log.state(self.session).ended:
                await self._close_tools()
                self._run = None
                return
            # Whoever sent something after the Turn's end is the person that the queue would wait for.
            waits = queue_waits(self._world.log.view(self.session).last_reason) and not self._asked

    async def _one_turn(self, message: sessions_pb2.QueuedMessage | None) -> None:
        """Works on a Turn in a task of its own, which a cancel may end; then closes the Turn, which nothing ends.

        Without a message the Turn is open already: a command has begun it.
        """
        try:
            run = self._run = self._run or await self._make_run()
            self._work = asyncio.create_task(
                resolve_turn(run, message, self._prepare), name=f"work of {self.session}"
            )
            await asyncio.wait({self._work})
            if run.state.limit is not None:
                # The session ends with this Turn, and nothing may come after its end.
                await self._titling.end()
            if (ending := self._ending(self._work)) is not None:
                await close_turn(run, ending)
        except LogFailed as failure:
            self._opened.set()
            await self._settle_when_the_log_takes_it(failure)

    def _ending(self, work: asyncio.Task[Ending | None]) -> Ending | None:
        """How the work ended, as the Turn's end; None where no Turn was opened. Raises LogFailed: then nothing can be
        said yet.
        """
        if work.cancelled():
            # Whoever cancelled has written why, and that stands; this is for a loop that is torn down.
            return Ending(common.TURN_END_REASON_INTERRUPTED)
        fault = work.exception()
        match fault:
            case None:
                return work.result()
            case LogFailed():
                raise fault
            case _ if self._world.log.state(self.session).open_turn is None:
                # It was not even opened, so there is nothing to end; its message waits for a person.
                raise fault
            case Violation() if self._world.log.state(self.session).stopping is not None:
                # A cancel came between two events of the work: the log took no more of it.
                return Ending(common.TURN_END_REASON_ABORTED)
            case EventTooLarge():
                log.error("a turn came to an event that is too large", session=self.session, error=str(fault))
                text = f"{fault}; what came before it is in the log"
                return failed(event_pb2.ErrorStop(source="log", category="event_too_large", message=text))
            case _:
                log.error("a turn failed by a fault of the daemon", session=self.session, exc_info=fault)
                kind = type(fault).__name__
                return failed(
                    event_pb2.ErrorStop(
                        source="daemon", category=kind, message=f"a fault of the daemon: {fault}"
                    )
                )

    def observe(self, event: event_pb2.Event) -> None:
        """Every committed event of the session, in order: the history is carried forward by it (LOG-13)."""
        if self._run is not None:
            self._run.history.advance(event)
            if event.HasField("assistant_message"):
                self._titling.answered(self._run, event.assistant_message)
        elif self._arriving is not None:
            self._arriving.append(event)

    async def _make_run(self) -> Run:
        """The working set; its history is read once, and from here on carried forward event by event."""
        self._arriving = []
        settings = self._settings()
        history, breakers, seq = History(), Breakers(settings.max_consecutive_denials), 0
        async for page in self._world.log.read(self.session):
            for event in page:
                history.advance(event)
                breakers.recount(event)
                seq = event.seq
        for event in self._arriving:
            if event.seq > seq:
                history.advance(event)
                breakers.recount(event)
        self._arriving = None
        return Run(
            world=self._world,
            session=self.session,
            settings=settings,
            history=history,
            breakers=breakers,
            doom=DoomLoop(),
            meter=Meter(self._world.clock, self._above),
            children=self._children,
            above=self._above,
        )

    async def _prepare(self, run: Run) -> None:
        """Before the first Step of a Turn: model and tools are there, session-start has fired once (LOOP-06)."""
        self._opened.set()
        view = run.view
        try:
            model = self._world.models.open(view.profile.model)
        except UnknownModel as unknown:
            raise StepFailed(
                event_pb2.ErrorStop(source="model", category="unknown_model", message=str(unknown))
            ) from unknown
        await model.prepare()
        self._warn_of_unknown_price(run, model)
        wanted = tuple(view.profile.tools), view.environment
        if self._tools is not None and self._tools_for != wanted:
            await self._close_tools()
        if self._tools is None:
            self._tools, self._tools_for = await self._open_tools(run), wanted
        files = await self._world.instructions.read(view.workspace, view.profile.instructions)
        run.equip(model, self._tools, system_text(view.profile.system_prompt, files))
        if not view.begun:
            await run.dispatch(common.HOOK_POINT_SESSION_START, lambda: session_payload(view))

    def _warn_of_unknown_price(self, run: Run, model: Model) -> None:
        """Once for a Turn; where there is a cost bound, the Step is refused instead (BOUND-08)."""
        known = model.price(self._world.clock.now_us(), common.TokenCounts()) is not None
        if not known and not unpriced(run, model):
            log.warning(
                "no price is known for the model: what this turn costs is not counted",
                session=self.session,
                turn=run.state.open_turn,
                model=model.spec.id,
            )

    async def _open_tools(self, run: Run) -> ToolSet:
        async def emit(payload: Payload) -> None:
            await run.append(payload)

        view = run.view
        session = ToolSession(
            session=self.session,
            root=view.root,
            cwd=view.cwd,
            workspace=view.workspace,
            environment=dict(view.environment),
            tools=tuple(view.profile.tools),
            unattended=view.unattended,
        )
        try:
            return await self._world.tools.open(session, emit, partial(self._children.run, self.session))
        except SandboxUnavailable as unavailable:
            raise StepFailed(
                event_pb2.ErrorStop(source="sandbox", category="unavailable", message=str(unavailable))
            ) from unavailable

    async def _settle_when_the_log_takes_it(self, failure: LogFailed) -> None:
        log.error(
            "the log takes no events; the turn ends when it does again",
            session=self.session,
            error=str(failure),
        )
        while not self._stopped:
            await self._world.clock.sleep(LOG_RETRY_S)
            try:
                await self._titling.end()
                await settle_failed_turn(self._world, self._children, self.session, failure)
                self._run = None
                return
            except LogFailed:
                continue

    async def _close_tools(self) -> None:
        tools, self._tools = self._tools, None
        if tools is not None:
            await tools.close()
