"""One session for each line of the design's event sequences, played by the real loop in the simulated world.

`python -m tests.golden.scenes` (in the root of the project) records them again into this directory.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.sim.test_corrections import asked, asking, bound, decide
from tests.sim.world import MemoryLog, Sim, SimLayers, SimTool, spec, transcript
from tests.unit.session_log import brief

from turnd.hooks.subscriber import Answer
from turnd.loop.session import LiveSession
from turnd.ports import At, ToolFailure, ToolOutcome
from turnd.rules.closing import repair
from turnd.rules.event import Draft, event_type
from turnd.rules.history import History
from turnd.rules.lifecycle import Transition
from turnd.rules.state import SessionState, apply
from turnd.rules.status import SessionView, advance
from turnd.sessions.fork import Forking
from turnd.sessions.going_on import GoingOn
from turnd.sessions.importing import Arrived, Importing
from turnd.sessions.requests import Answering
from turnd.sessions.surroundings import Surroundings
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2, sessions_pb2
from turnd.v1.jsonform import enum_text, event_from_json, event_to_json

HERE: Final = Path(__file__).parent
PROJECTIONS: Final = HERE / "sequences.json"
"""What each of the recorded logs is projected to."""

RESOURCE, INTERACTIVE = common.TOOL_KIND_RESOURCE, common.TOOL_KIND_INTERACTIVE
READ = SimTool(spec("read"))
WRITE = SimTool(spec("write", RESOURCE))
ASK = SimTool(spec("ask", INTERACTIVE))
REPORT = SimTool(spec("report", RESOURCE, terminates_turn=True))
DONE: Final[dict[str, object]] = {
    "stream": [{"text": "done"}],
    "usage": {"input_tokens": 10, "output_tokens": 2},
}


@dataclass
class Theatre:
    """Where scenes are played, and who is still on stage."""

    directory: Path
    lives: list[LiveSession]


Scene = Callable[[Theatre], Awaitable[list[event_pb2.Event]]]
SCENES: Final[dict[str, Scene]] = {}


def scene(play: Scene) -> Scene:
    """Its name is that of its file."""
    SCENES[play.__name__] = play
    return play


def calls(*named: tuple[str, str]) -> dict[str, object]:
    stream = [{"tool": tool, "input": {"name": name}} for tool, name in named]
    return {"stream": stream, "usage": {"input_tokens": 20, "output_tokens": 5}}


@dataclass
class Stage:
    """A session in its world."""

    sim: Sim
    live: LiveSession

    @property
    def events(self) -> list[event_pb2.Event]:
        return self.sim.log.events[self.live.session]

    async def until(self, kind: str) -> None:
        while kind not in self.sim.types(self.live):
            await asyncio.sleep(0)

    async def cancel(self) -> list[event_pb2.Event]:
        await self.live.cancel(common.CANCEL_CAUSE_USER, "test")
        await self.live.idle()
        return self.events


async def stage(
    theatre: Theatre,
    *lines: Mapping[str, object],
    tools: Sequence[SimTool] = (),
    subscribers: Sequence[Any] = (),
    **session: Any,
) -> Stage:
    sim = Sim(tools, subscribers=subscribers)
    attend(sim)
    live = await sim.session(transcript(theatre.directory, *lines), **session)
    theatre.lives.append(live)
    return Stage(sim, live)


def attend(sim: Sim) -> None:
    """A client is there: each request is delivered to it before it decides."""
    settle = sim.people.settle

    async def deliver(session: str, request: event_pb2.ApprovalRequest, approve: bool) -> None:
        delivered = event_pb2.ApprovalDelivered(request_id=request.request_id, client="test")
        await sim.log.append(Draft(session, delivered))
        await settle(session, request, approve)

    sim.people.settle = deliver  # type: ignore[method-assign]


async def one_turn(at: Stage) -> list[event_pb2.Event]:
    await at.sim.turn(at.live)
    return at.events


@scene
async def reads_and_writes(theatre: Theatre) -> list[event_pb2.Event]:
    asked = calls(("write", "w"), ("read", "r"))
    return await one_turn(await stage(theatre, asked, DONE, tools=[READ, WRITE]))


@scene
async def end_of_a_session(theatre: Theatre) -> list[event_pb2.Event]:
    at = await stage(theatre, DONE)
    await at.sim.turn(at.live)
    await at.live.close(common.SESSION_STATUS_COMPLETED)
    return at.events


@scene
async def a_question(theatre: Theatre) -> list[event_pb2.Event]:
    return await one_turn(await stage(theatre, calls(("ask", "q")), DONE, tools=[ASK]))


@scene
async def a_conflict_of_a_read(theatre: Theatre) -> list[event_pb2.Event]:
    conflict = ToolFailure(common.TOOL_ERROR_CATEGORY_CONCURRENCY_CONFLICT, "busy")
    outcomes = iter([conflict, ToolOutcome(b'"read"')])
    tool = SimTool(spec("read"), answer=lambda call: next(outcomes))
    return await one_turn(await stage(theatre, calls(("read", "r")), DONE, tools=[tool]))


@scene
async def drift(theatre: Theatre) -> list[event_pb2.Event]:
    changed = ToolFailure(common.TOOL_ERROR_CATEGORY_PRECONDITION_FAILED, "changed")
    outcomes = iter([changed, ToolOutcome(b'"written"')])
    tool = SimTool(spec("write", RESOURCE), answer=lambda call: next(outcomes))
    return await one_turn(await stage(theatre, calls(("write", "w")), DONE, tools=[tool]))


@scene
async def a_corrected_input(theatre: Theatre) -> list[event_pb2.Event]:
    """The second of two equal requests resolves with the rule that the first decision leaves for the session."""
    sim = Sim([SimTool(spec("write", RESOURCE), preview=bound)])
    async with asking(sim) as approvals:
        asks = calls(("write", "first"), ("write", "second"), ("write", "second"))
        live = await sim.session(transcript(theatre.directory, asks, DONE))
        theatre.lives.append(live)
        await sim.send(live, "go")
        requests = [await asked(sim, live, count) for count in (1, 2, 3)]
        first, second = (
            next(r for r in requests if json.loads(r.item.input)["name"] == name)
            for name in ("first", "second")
        )
        await decide(approvals, live, first, {"name": "other"})
        await decide(approvals, live, second, scope=common.APPROVAL_SCOPE_SESSION)
        await live.idle()
    return sim.log.events[live.session]


@scene
async def steering(theatre: Theatre) -> list[event_pb2.Event]:
    at = await stage(theatre, calls(("read", "r")), DONE, tools=[SimTool(spec("read"), hold=True)])
    await at.sim.send(at.live, "go")
    await at.sim.tools.until_running(1)
    await at.sim.send(at.live, "faster", common.DELIVERY_NEXT_STEP)
    at.sim.tools.release("r")
    await at.live.idle()
    return at.events


@scene
async def a_retry_of_the_model(theatre: Theatre) -> list[event_pb2.Event]:
    error = {"category": "overloaded", "message": "busy", "after_deltas": 1}
    return await one_turn(await stage(theatre, {"stream": [{"text": "lost"}], "error": error}, DONE))


@scene
async def a_bound(theatre: Theatre) -> list[event_pb2.Event]:
    bounds = common.Bounds(max_turns=1)
    return await one_turn(await stage(theatre, calls(("read", "r")), DONE, tools=[READ], bounds=bounds))


@scene
async def a_bound_before_the_first_step(theatre: Theatre) -> list[event_pb2.Event]:
    return await one_turn(await stage(theatre, DONE, bounds=common.Bounds(max_turns=0)))


@scene
async def a_soft_limit(theatre: Theatre) -> list[event_pb2.Event]:
    bounds = common.Bounds(max_turns=1, limit_mode=common.LIMIT_MODE_SOFT)
    return await one_turn(await stage(theatre, calls(("read", "r")), DONE, tools=[READ], bounds=bounds))


@scene
async def cancel_while_the_model_streams(theatre: Theatre) -> list[event_pb2.Event]:
    at = await stage(theatre, {"stream": [{"text": "half a thought"}], "hang_s": 3600})

    async def sleep(seconds: float) -> None:
        if seconds > 60:
            await asyncio.Event().wait()

    at.sim.clock.sleep = sleep  # type: ignore[method-assign]
    await at.sim.send(at.live, "go")
    await at.until("assistant/chunk")
    return await at.cancel()


@scene
async def cancel_while_tools_run(theatre: Theatre) -> list[event_pb2.Event]:
    tools = [SimTool(spec("write", RESOURCE), hold=True)]
    at = await stage(theatre, calls(("write", "w1"), ("write", "w2")), tools=tools)
    await at.sim.send(at.live, "go")
    await at.sim.tools.until_running(1)
    return await at.cancel()


@scene
async def cancel_while_a_request_is_open(theatre: Theatre) -> list[event_pb2.Event]:
    at = await stage(theatre, calls(("write", "w")), tools=[WRITE])
    at.sim.people.decide = lambda request: None
    await at.sim.send(at.live, "go")
    await at.sim.people.until_asked(1)
    return await at.cancel()


@scene
async def report_among_others(theatre: Theatre) -> list[event_pb2.Event]:
    asked = calls(("write", "w1"), ("report", "t"), ("write", "w2"))
    return await one_turn(await stage(theatre, asked, tools=[WRITE, REPORT]))


@scene
async def output_limit_with_calls(theatre: Theatre) -> list[event_pb2.Event]:
    cut = calls(("write", "w1"), ("write", "w2")) | {"stop": "max_tokens"}
    return await one_turn(await stage(theatre, cut, tools=[WRITE]))


class Failing:
    """A transform that cannot answer."""

    name, point, mode = "failing", common.HOOK_POINT_PRE_MODEL_CALL, common.HOOK_MODE_TRANSFORM
    timeout_s = 1.0

    async def answer(self, at: At, payload: Mapping[str, object]) -> Answer:
        raise RuntimeError("broken")


@scene
async def a_failing_transform(theatre: Theatre) -> list[event_pb2.Event]:
    return await one_turn(await stage(theatre, DONE, subscribers=[Failing()]))


@scene
async def unattended(theatre: Theatre) -> list[event_pb2.Event]:
    asked = calls(("write", "w"))
    return await one_turn(await stage(theatre, asked, DONE, tools=[WRITE], unattended=True))


@scene
async def a_breaker(theatre: Theatre) -> list[event_pb2.Event]:
    denied = [calls(("write", f"w{number}")) for number in range(3)]
    at = await stage(theatre, *denied, DONE, tools=[WRITE])
    at.sim.people.decide = lambda request: False
    return await one_turn(at)


@scene
async def a_crash_and_the_turn_after_it(theatre: Theatre) -> list[event_pb2.Event]:
    asked = calls(("read", "r1"), ("read", "r2"), ("write", "w"))
    at = await stage(theatre, asked, tools=[SimTool(spec("read"), hold=True), WRITE])
    await at.sim.send(at.live, "go")
    await at.sim.tools.until_running(2)
    left = [_copy(event) for event in at.events]
    await at.cancel()

    after = Sim([READ, WRITE])
    log = _log_of(left, after)
    session = at.live.session
    drafts = repair(log.state(session), session, left[-1].time.ToMicroseconds())
    await log.append(*drafts)
    live = await _woken(theatre, after, session, asked, DONE)
    await after.turn(live, "go on")
    return log.events[session]


@scene
async def reopen(theatre: Theatre) -> list[event_pb2.Event]:
    at = await stage(theatre, DONE, DONE)
    await at.sim.turn(at.live)
    await at.live.close(common.SESSION_STATUS_COMPLETED)
    await at.sim.log.append(Draft(at.live.session, event_pb2.SessionReopened(client="test")))
    await at.sim.turn(at.live, "one more thing")
    return at.events


@scene
async def import_of_a_broken_log(theatre: Theatre) -> list[event_pb2.Event]:
    asked = calls(("read", "r1"), ("read", "r2"))
    at = await stage(theatre, asked, DONE, tools=[READ])
    await at.sim.turn(at.live)
    whole = [_copy(event) for event in at.events]
    results = [event for event in whole if event.HasField("tool_result")]
    broken = [event for event in whole if event is not results[0]]
    end = next(index for index, event in enumerate(broken) if event.HasField("step_end"))
    broken[end:end] = [results[1]]

    after = Sim([READ])
    created = event_pb2.SessionCreated(
        cwd="/here", workspace="/here", profile=whole[0].session_created.profile
    )
    session = "S2"
    await after.log.begin(session, deque(broken[:-4]), created, lambda _: None)
    live = await _woken(theatre, after, session, DONE)
    await after.turn(live, "go on")
    return after.log.events[session]


@scene
async def import_of_a_lawful_log(theatre: Theatre) -> list[event_pb2.Event]:
    at = await stage(theatre, calls(("write", "w"), ("read", "r")), DONE, tools=[READ, WRITE])
    await at.sim.turn(at.live)
    file = Arrived(deque(map(_copy, at.events)), b"", [], 0, 0)

    after = Sim([READ, WRITE])
    around = _surroundings(at.events[0].session_created.profile)
    importing = Importing(after.log, after.world.ids, after.world.models, around)
    start = sessions_pb2.ImportStart(client="test", cwd="/here")
    made = await importing.run(start, file, Answering("", "Import", b""))
    live = await _woken(theatre, after, made.session.id, DONE)
    await after.turn(live, "go on")
    return after.log.events[live.session]


@scene
async def a_fork(theatre: Theatre) -> list[event_pb2.Event]:
    """At a call that has begun, while its session goes on."""
    at = await stage(theatre, calls(("write", "w"), ("read", "r")), DONE, DONE, tools=[READ, WRITE])
    await at.sim.turn(at.live)
    (started, *_) = (event for event in at.events if event.HasField("tool_started"))
    forking = Forking(at.sim.log, at.sim.world.ids, _surroundings(at.sim.log.view(at.live.session).profile))
    request = sessions_pb2.ForkRequest(client="test", session=at.live.session, seq=started.seq)
    made = await forking.run(at.live.session, request, Answering("", "Fork", b""))
    live = await _woken(theatre, at.sim, made.session.id, DONE)
    await at.sim.turn(live, "go on")
    return at.sim.log.events[live.session]


class _Anywhere(Surroundings):
    """Directories need not be there."""

    def directory(self, cwd: str) -> str:
        return cwd


def _surroundings(profile: common.ProfileSnapshot) -> Surroundings:
    return _Anywhere(
        profiles=lambda: ("default", {"default": profile}),
        environment=dict,
        sandbox=lambda: ("simulated", []),
        layers=SimLayers(),
        home="/nowhere",
        own_directories=(),
    )


@scene
async def a_compaction(theatre: Theatre) -> list[event_pb2.Event]:
    model = {"model": {"context_window": 4000, "max_output_tokens": 1000}}
    said = {"stream": [{"text": "w" * 2000}], "usage": {"input_tokens": 10, "output_tokens": 2}}
    summary = {
        "purpose": "compaction",
        "stream": [{"text": "in short"}],
        "usage": {"input_tokens": 1000, "output_tokens": 50},
    }
    at = await stage(theatre, model, *[said] * 5, summary, DONE)
    for number in range(6):
        await at.sim.turn(at.live, f"wish {number}")
    return at.events


@scene
async def a_title(theatre: Theatre) -> list[event_pb2.Event]:
    named = {
        "purpose": "title",
        "stream": [{"text": "Fix the test"}],
        "usage": {"input_tokens": 30, "output_tokens": 4},
    }
    at = await stage(theatre, DONE, DONE, named)
    await at.sim.turn(at.live)
    await at.until("session/changed")
    await at.sim.turn(at.live, "go on")
    return at.events


def _copy(event: event_pb2.Event) -> event_pb2.Event:
    copy = event_pb2.Event()
    copy.CopyFrom(event)
    return copy


def _log_of(events: Sequence[event_pb2.Event], sim: Sim) -> MemoryLog:
    """The simulated world's log, as a start finds it."""
    folded = SessionState(), SessionView()
    for event in events:
        folded = apply(folded[0], event), advance(folded[1], event)
    session = events[0].session
    sim.log.events[session] = list(events)
    sim.log._folded[session] = folded
    return sim.log


async def _woken(theatre: Theatre, sim: Sim, session: str, *lines: Mapping[str, object]) -> LiveSession:
    """The session's runner after a start, under a model that gives these answers."""
    transcript(theatre.directory, *lines)
    live = await sim.live.get(session)
    theatre.lives.append(live)
    return live


SPAWN = SimTool(
    spec("spawn", RESOURCE, spawns=True, concurrency=common.ConcurrencySpec(safe=True)), provider="core"
)


async def family(theatre: Theatre) -> Stage:
    """A root whose one sub-agent asks before it writes."""
    spawns = {"tool": "spawn", "input": {"prompt": "write it", "profile": "worker"}}
    at = await stage(
        theatre,
        {"stream": [spawns], "usage": {"input_tokens": 20, "output_tokens": 5}},
        DONE,
        calls(("write", "w")) | {"profile": "worker"},
        DONE | {"profile": "worker"},
        tools=[SPAWN, WRITE],
        may_spawn=["worker"],
        max_subagents_total=4,
        max_concurrent_subagents=1,
    )
    at.sim.profiles["worker"] = common.ProfileSnapshot(name="worker", tools=["*"])
    await at.sim.turn(at.live)
    return at


@scene
async def a_child_that_asks(theatre: Theatre) -> list[event_pb2.Event]:
    return (await family(theatre)).events


@scene
async def the_child_itself(theatre: Theatre) -> list[event_pb2.Event]:
    at = await family(theatre)
    (child,) = [session for session in at.sim.log.events if at.sim.log.view(session).parent]
    return at.sim.log.events[child]


@scene
async def a_soft_limit_and_the_turn_after_it(theatre: Theatre) -> list[event_pb2.Event]:
    soft = common.Bounds(max_turns=1, limit_mode=common.LIMIT_MODE_SOFT)
    at = await stage(theatre, calls(("read", "r")), DONE, tools=[READ], bounds=soft)
    await at.sim.turn(at.live)
    going_on = GoingOn(at.sim.log, at.sim.live.tree)
    more = common.Bounds(max_turns=5)
    await going_on.continue_(at.live, Transition(common.SESSION_STATUS_RUNNING), more, "test", None)
    await at.live.idle()
    return at.events


@scene
async def a_bound_and_the_turn_after_it(theatre: Theatre) -> list[event_pb2.Event]:
    at = await stage(
        theatre, calls(("read", "r")), DONE, DONE, tools=[READ], bounds=common.Bounds(max_turns=1)
    )
    await at.sim.turn(at.live)
    going_on = GoingOn(at.sim.log, at.sim.live.tree)
    reopened = Transition(common.SESSION_STATUS_RUNNING, reopen=True)
    await going_on.continue_(at.live, reopened, common.Bounds(max_turns=5), "test", None)
    await at.live.idle()
    return at.events


@scene
async def resume(theatre: Theatre) -> list[event_pb2.Event]:
    at = await stage(theatre, calls(("read", "r")), DONE, tools=[SimTool(spec("read"), hold=True)])
    await at.sim.send(at.live, "go")
    await at.until("tool/started")
    await at.cancel()
    going_on = GoingOn(at.sim.log, at.sim.live.tree)
    await going_on.resume(at.live, Transition(common.SESSION_STATUS_RUNNING), "test", None)
    await at.live.idle()
    return at.events


# --- what is kept of them -------------------------------------------------------------------------------------


async def played(name: str) -> list[str]:
    """The lines of a scene's log, played now."""
    with tempfile.TemporaryDirectory(prefix="turnd-scene-") as directory:
        theatre = Theatre(Path(directory), [])
        events = await asyncio.wait_for(SCENES[name](theatre), 30)
        for live in theatre.lives:
            await live.stop()
        for event in events:
            if event.HasField("agent_request"):
                # It covers the transcript's path, which is another one each time.
                event.agent_request.digest = ""
        return [event_to_json(event).replace(f"{directory}/", "") for event in events]


def recorded(name: str) -> list[str]:
    """The lines of a scene's log, as they were recorded."""
    return (HERE / f"{name}.jsonl").read_text().splitlines()


def order(lines: Sequence[str]) -> list[str]:
    """What happened where: types, places, and whose doing it was."""
    told = []
    for event in map(event_from_json, lines):
        place = f"{event.turn}" if event.HasField("turn") else "-"
        place += f".{event.step}" if event.HasField("step") else ""
        marks = " synthetic" if event.synthetic else ""
        marks += " imported" if event.HasField("imported") else ""
        told.append(f"{place} {event_type(event)}{marks}")
    return told


def projections(lines: Sequence[str]) -> dict[str, object]:
    """What a log means: numbers, status, cost, and the history that the model is sent, in short."""
    state, view, history = SessionState(), SessionView(), History()
    for event in map(event_from_json, lines):
        state, view = apply(state, event), advance(view, event)
        history.advance(event)
    return {
        "next_turn": state.next_turn,
        "open_turn": state.open_turn,
        "ended": state.ended,
        "status": enum_text(common.SessionStatus, view.status),
        "last_reason": enum_text(common.TurnEndReason, view.last_reason),
        "turns": view.turns,
        "steps": view.steps,
        "cost_nano_usd": view.cost_nano_usd,
        "tokens": [view.tokens.input, view.tokens.output],
        "queued": len(view.queue),
        "history": [[m.role, *(brief(block) for block in m.blocks)] for m in history.messages()],
    }


async def record() -> None:
    """Writes all of them anew."""
    meanings = {}
    for name in SCENES:
        lines = await played(name)
        (HERE / f"{name}.jsonl").write_text("".join(line + "\n" for line in lines))
        meanings[name] = projections(lines)
    PROJECTIONS.write_text(json.dumps(meanings, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    asyncio.run(record())
