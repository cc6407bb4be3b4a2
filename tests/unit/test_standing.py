"""Commands and answers over a disk that stalls and fails: none rests on what is only accepted (LOG-11, LOG-14)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
from google.protobuf.message import Message
from tests.sim.world import Sim, SimLayers, SimTool, transcript
from tests.unit.slow_disk import Disk, disk_below
from tests.unit.stored import TickingClock, created, opened, status

from turnd.archive import LogArchive
from turnd.ports import LogFailed
from turnd.rules.event import Draft
from turnd.sessions.approvals import Approvals
from turnd.sessions.commands import Commands
from turnd.sessions.live import LiveSessions
from turnd.sessions.presence import Presence
from turnd.sessions.refusal import Code, CommandRefused
from turnd.sessions.requests import Requests
from turnd.sessions.surroundings import Surroundings
from turnd.store import writer as writer_module
from turnd.store.log import EventLog
from turnd.system import UlidIds
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2, sessions_pb2

pytestmark = pytest.mark.timeout(60)

PAUSED, COMPLETED, FAILED = (
    common.SESSION_STATUS_PAUSED,
    common.SESSION_STATUS_COMPLETED,
    common.SESSION_STATUS_FAILED,
)
INTERRUPTED = common.TURN_END_REASON_INTERRUPTED
DONE = {"stream": [{"text": "done"}], "repeat": True}


@dataclass
class Office:
    """Where commands are taken."""

    log: EventLog
    commands: Commands
    disk: Disk
    settling: asyncio.Event
    """A command waits for what is in flight."""
    sim: Sim

    async def shown(self) -> sessions_pb2.GetSessionResponse:
        return await self.commands.get_session(sessions_pb2.GetSessionRequest(session="S"))

    async def on_disk(self) -> int:
        return await self.log.head("S")

    async def accepted(self, append: Awaitable[Any]) -> asyncio.Future[Any]:
        """Begins an append that does not reach the disk."""
        before = self.log.state("S").seq
        self.disk.stall()
        task = asyncio.ensure_future(append)
        async with asyncio.timeout(10):
            while self.log.state("S").seq == before:
                await asyncio.sleep(0.001)
        return task

    async def waiting(self, command: Awaitable[Any]) -> asyncio.Future[Any]:
        """Begins a command, which neither ends nor is refused while the disk stalls."""
        task = asyncio.ensure_future(command)
        settling = asyncio.ensure_future(self.settling.wait())
        await asyncio.wait({task, settling}, timeout=10, return_when=asyncio.FIRST_COMPLETED)
        assert not task.done(), task
        assert settling.done()
        return task


@pytest.fixture
async def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Office]:
    disk = disk_below(monkeypatch, Disk())
    async with office_over(tmp_path, disk) as office:
        settle = office.log.settle

        async def noted(session: str) -> None:
            office.settling.set()
            await settle(session)

        monkeypatch.setattr(office.log, "settle", noted)
        yield office


@asynccontextmanager
async def office_over(
    directory: Path,
    disk: Disk,
    tools: Sequence[SimTool] = (),
    lines: Sequence[Mapping[str, object]] = (DONE,),
    *,
    begin: bool = True,
    drain_s: float = 10,
) -> AsyncIterator[Office]:
    """Commands over the log of this directory, with a session S whose model says these lines.

    Where it is not to `begin`, S is there already.
    """
    model = transcript(directory, *lines)
    profile = common.ProfileSnapshot(name="default", model=f"replay:{model}", tools=["*"])
    around = Surroundings(
        profiles=lambda: ("default", {"default": profile}),
        environment=dict,
        sandbox=lambda: ("bubblewrap", []),
        layers=SimLayers(),
        home="/nowhere",
        own_directories=(),
    )
    sim = Sim(tools)
    async with opened(directory, TickingClock()) as log:
        approvals = Approvals(log, TickingClock(), Presence())
        world = replace(sim.world, log=log, ids=UlidIds(), people=approvals)
        live = LiveSessions(world, lambda: sim.settings, dict)
        log.subscribe(lambda committed: live.committed([one.event for one in committed]))
        commands = Commands(
            log,
            world.ids,
            world.models,
            live,
            approvals,
            LogArchive(log),
            cast(Any, None),
            around,
            Requests(log),
        )
        if begin:
            await log.append(Draft("S", event_pb2.SessionCreated(cwd=str(directory), profile=profile)))
            await log.append(status("S", common.SESSION_STATUS_IDLE))
        try:
            yield Office(log, commands, disk, asyncio.Event(), sim)
        finally:
            await live.drain(drain_s)
            await approvals.close()


# --- what is shown -----------------------------------------------------------------------------------------------


@pytest.mark.req("LOG-11")
async def test_what_is_shown_of_a_session_is_on_the_disk(office: Office) -> None:
    before = await office.shown()
    request = sessions_pb2.UpdateSessionRequest(session="S", title="new")
    update = await office.accepted(office.commands.update_session(request))
    shown = await office.shown()
    assert shown == before
    assert (shown.session.title, shown.as_of_seq) == ("", await office.on_disk())
    office.disk.move(failing=1)
    with pytest.raises(LogFailed):
        await update
    update = await office.accepted(office.commands.update_session(request))
    office.disk.move()
    assert (await update).session.title == "new"
    shown = await office.shown()
    assert (shown.session.title, shown.as_of_seq) == ("new", before.as_of_seq + 1)


@pytest.mark.req("LOG-11")
async def test_an_answer_shows_nothing_that_came_after_it_and_is_not_stored(office: Office) -> None:
    """The session in an answer is as it is on the disk, whatever was accepted behind the command."""
    office.disk.stall()
    first = asyncio.ensure_future(
        office.commands.update_session(sessions_pb2.UpdateSessionRequest(session="S", title="one"))
    )
    async with asyncio.timeout(10):
        while not office.log.in_flight("S"):
            await asyncio.sleep(0.001)
    # Another writer of the session, right when the first is told of its commit.
    behind: list[asyncio.Future[Any]] = []

    def again(_: object) -> None:
        if not behind:
            office.disk.stall()
            changed = event_pb2.SessionChanged(title="two")
            behind.append(asyncio.ensure_future(office.log.append(Draft("S", changed))))

    office.log.subscribe(again)
    office.disk.move()
    assert (await first).session.title == "one"
    assert office.log.view("S").title == "two"
    office.disk.move()
    await behind[0]


@pytest.mark.req("LOG-11")
async def test_a_fork_takes_what_is_on_the_disk(office: Office) -> None:
    update = await office.accepted(
        office.commands.update_session(sessions_pb2.UpdateSessionRequest(session="S", title="new"))
    )
    head = await office.on_disk()
    with pytest.raises(CommandRefused, match=f"from 1 to {head},"):
        await office.commands._forking.run(
            "S", sessions_pb2.ForkRequest(session="S", seq=head + 1), cast(Any, None)
        )
    office.disk.move()
    await update


# --- what is refused ---------------------------------------------------------------------------------------------

ITEM = common.PlanItem(call_id="c", tool="write", decision=common.POLICY_ACTION_ASK)
CALL = event_pb2.ToolCall(call_id="c", tool="write", kind=common.TOOL_KIND_RESOURCE, input=b"{}")


def approval() -> Sequence[Message]:
    asked = event_pb2.ApprovalRequest(request_id="r", item=ITEM)
    asked.expires.FromMicroseconds(2**52)
    return [
        event_pb2.TurnStart(turn=0),
        event_pb2.StepStart(turn=0, step=1),
        CALL,
        event_pb2.PlanReady(items=[ITEM]),
        asked,
    ]


def question() -> Sequence[Message]:
    asked = event_pb2.InteractiveRequest(request_id="r", call_id="c")
    asked.expires.FromMicroseconds(2**52)
    call = event_pb2.ToolCall(call_id="c", tool="ask", kind=common.TOOL_KIND_INTERACTIVE, input=b"{}")
    return [event_pb2.TurnStart(turn=0), event_pb2.StepStart(turn=0, step=1), call, asked]


def decided() -> Message:
    return event_pb2.ApprovalDecided(
        request_id="r", call_id="c", outcome=common.APPROVAL_OUTCOME_APPROVED, client="the first"
    )


def answered() -> Message:
    return event_pb2.InteractiveAnswered(
        request_id="r", call_id="c", outcome=common.ANSWER_OUTCOME_ANSWERED, client="the first", output=b"1"
    )


def turn_that_ended(reason: common.TurnEndReason.ValueType) -> Sequence[Message]:
    return [event_pb2.TurnStart(turn=0), event_pb2.TurnStopping(reason=reason), *end_of_turn(reason)]


def end_of_turn(reason: common.TurnEndReason.ValueType) -> Sequence[Message]:
    return [
        event_pb2.TurnEnd(turn=0, reason=reason),
        event_pb2.SessionStatusChanged(status=common.SESSION_STATUS_IDLE),
    ]


def end(value: common.SessionStatus.ValueType) -> Message:
    return event_pb2.SessionEnded(status=value)


HELLO = common.ContentBlock(text=common.TextBlock(text="hello"))


@dataclass(frozen=True)
class Case:
    """A command that an event of another one is in the way of."""

    before: Sequence[Message]
    first: Sequence[Message]
    second: Callable[[Commands], Awaitable[Any]]
    refusal: str


RUNNING = event_pb2.SessionStatusChanged(status=common.SESSION_STATUS_RUNNING)
CASES = {
    "Decide": Case(
        [RUNNING, *approval()],
        [decided()],
        lambda to: to.decide(sessions_pb2.DecideRequest(session="S", approval="r", approve=False)),
        "approval r was settled before: approved by the first",
    ),
    "Answer": Case(
        [RUNNING, *question()],
        [answered()],
        lambda to: to.answer(sessions_pb2.AnswerRequest(session="S", question="r", output=b"2")),
        "question r was settled before: answered by the first",
    ),
    "Cancel": Case(
        [RUNNING, event_pb2.TurnStart(turn=0), event_pb2.TurnStopping(reason=INTERRUPTED)],
        end_of_turn(INTERRUPTED),
        lambda to: to.cancel(sessions_pb2.CancelRequest(session="S")),
        "nothing to cancel|is idle",
    ),
    "SendMessage": Case(
        [],
        [end(FAILED)],
        lambda to: to.send_message(sessions_pb2.SendMessageRequest(session="S", blocks=[HELLO])),
        "failed",
    ),
    "Continue": Case(
        [event_pb2.SessionStatusChanged(status=PAUSED)],
        [end(COMPLETED)],
        lambda to: to.continue_session(
            sessions_pb2.ContinueRequest(session="S", allowance=common.Bounds(max_turns=9))
        ),
        "completed",
    ),
    "Resume": Case(
        [RUNNING, *turn_that_ended(INTERRUPTED)],
        [end(FAILED)],
        lambda to: to.resume(sessions_pb2.ResumeRequest(session="S")),
        "failed",
    ),
    "UpdateSession": Case(
        [],
        [end(COMPLETED)],
        lambda to: to.update_session(sessions_pb2.UpdateSessionRequest(session="S", title="x")),
        "completed",
    ),
    "CloseSession": Case(
        [],
        [end(COMPLETED)],
        lambda to: to.close_session(sessions_pb2.CloseSessionRequest(session="S")),
        "completed",
    ),
    "ClearQueue": Case(
        [],
        [end(COMPLETED)],
        lambda to: to.clear_queue(sessions_pb2.ClearQueueRequest(session="S")),
        "completed",
    ),
}


@pytest.mark.req("LOG-14", "GATE-07", "LOOP-14")
@pytest.mark.parametrize("failing", [0, 1], ids=["stored", "failed"])
@pytest.mark.parametrize("name", CASES)
async def test_a_command_is_refused_for_what_is_on_the_disk_only(
    office: Office, name: str, failing: int
) -> None:
    """While the first one is not settled the second waits; it is refused where the first is stored, and by its name."""
    case = CASES[name]
    for payload in case.before:
        await office.log.append(Draft("S", payload))
    first = await office.accepted(office.log.append(*(Draft("S", payload) for payload in case.first)))
    second = await office.waiting(case.second(office.commands))
    office.disk.move(failing=failing)
    if failing:
        with pytest.raises(LogFailed):
            await first
        await asyncio.wait_for(second, 20)
    else:
        await first
        with pytest.raises(CommandRefused, match=case.refusal) as refused:
            await asyncio.wait_for(second, 20)
        assert refused.value.code is Code.FAILED_PRECONDITION


# --- a log that takes nothing ------------------------------------------------------------------------------------


@pytest.mark.req("LOG-14", "V05")
async def test_the_session_says_that_the_log_takes_nothing_as_long_as_that_is_so(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "IDLE_S", 0.02)
    assert not (await office.shown()).problems
    office.disk.ill = True
    with pytest.raises(LogFailed):
        await office.log.append(Draft("S", event_pb2.Note(text="x")))
    (problem,) = (await office.shown()).problems
    assert "takes nothing" in problem
    assert "disk is full" in problem
    assert problem in office.log.problems()
    office.disk.ill = False
    # Nobody has to write anything.
    async with asyncio.timeout(10):
        while (await office.shown()).problems:
            await asyncio.sleep(0.01)
    assert not office.log.problems()


@pytest.mark.req("LOG-14")
async def test_an_append_that_is_wrong_in_itself_is_no_problem_of_the_log(office: Office) -> None:
    await office.log.append(created("T"))
    office.log.unload("T")
    with pytest.raises(LogFailed):
        await office.log.append(created("T"))
    assert not (await office.shown()).problems
