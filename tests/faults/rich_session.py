"""A session with everything in it, played by the real loop on the real log; jobs of the forge.

Four Turns: parallel reads, a model attempt that fails and one that is tried again, writes that are approved and
denied, a question, a steering and a queued message, parallel keyed writes, drift between approval and run, a read
that is tried again, another session's Turn beside it, and a bound at the end. Then a family: a root with two
sub-agents side by side, one of which has a sub-agent of its own; they read, ask, and are answered at the root.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.faults.preload import Kind, Shim
from tests.faults.stored_sim import StoredSim, started
from tests.sim.world import SimTool, spec, transcript
from tests.unit.stored import database

from turnd.loop.session import LiveSession
from turnd.ports import Invocation, LogFailed, ToolFailure, ToolOutcome
from turnd.rules.event import event_type
from turnd.store.intake import Committed
from turnd.store.log import EventLog
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

SAID: Final = "said"
"""The file that a job says its events into, one line for each that was published."""
ORDER: Final = "order"
"""The file with the order of calls into the kernel and of what the session did."""
STEPS: Final = 9
"""The bound: the Steps of the four Turns, so that the last one is stopped by it."""


def calls(*named: tuple[str, str]) -> dict[str, object]:
    """A completion with these calls: tool and name."""
    return {
        "stream": [{"text": "Now."}, *({"tool": tool, "input": {"name": name}} for tool, name in named)],
        "usage": {"input_tokens": 100, "output_tokens": 5},
    }


DONE: Final = {"stream": [{"text": "done"}], "usage": {"input_tokens": 10, "output_tokens": 2}}
LINES: Final[tuple[dict[str, object], ...]] = (
    {"model": {"pricing": {"input_per_mtok": 3.0, "output_per_mtok": 15.0}}},
    calls(("read", "a"), ("read", "b"), ("read", "c")),
    {
        "stream": [{"text": "lost"}],
        "error": {"category": "overloaded", "message": "busy", "after_deltas": 1},
    },
    calls(("write", "approved"), ("write", "denied"), ("ask", "q"), ("read", "talk")),
    DONE,
    calls(("put", "x"), ("put", "y"), ("read", "d")),
    DONE,
    calls(("write", "drifts"), ("read", "again")),
    calls(("write", "denied"), ("write", "other")),
    DONE,
    calls(("read", "e"), ("read", "f")),
    {"stream": [{"text": "that is all"}], "repeat": True},
)


def spawns(profile: str, *prompts: str) -> dict[str, object]:
    """A completion that starts a sub-agent for each prompt."""
    inputs = [{"prompt": prompt, "profile": profile, "name": prompt} for prompt in prompts]
    return {
        "stream": [{"tool": "spawn", "input": given} for given in inputs],
        "usage": {"input_tokens": 50, "output_tokens": 5},
    }


FAMILY_LINES: Final[tuple[dict[str, object], ...]] = (
    LINES[0],
    spawns("child", "one", "two"),
    DONE | {"repeat": True},
    calls(("read", "g"), ("write", "by a child")) | {"profile": "child"},
    spawns("grandchild", "three") | {"profile": "child"},
    DONE | {"profile": "child"},
    calls(("write", "deep down"), ("ask", "q")) | {"profile": "grandchild"},
    DONE | {"profile": "grandchild"},
)
PROMPTS: Final = ("first", "third", "fourth")
"""The second is queued while the first Turn runs."""


class World:
    """The simulated world of the session: what its tools do, and who answers."""

    def __init__(self, log: EventLog, observe: Callable[[Invocation], None] = lambda call: None) -> None:
        self._observe = observe
        self._drifted: set[str] = set()
        self._talked = False
        self._talking: list[asyncio.Task[None]] = []
        self.live: LiveSession | None = None
        keyed = common.ConcurrencySpec(
            safe=True, key_fields=[common.KeyField(name="name", type=common.KEY_FIELD_TYPE_VALUE)]
        )
        resource = common.TOOL_KIND_RESOURCE
        tools = [
            SimTool(spec("read"), answer=self._answer),
            SimTool(spec("write", resource), answer=self._answer),
            SimTool(spec("put", resource, concurrency=keyed), answer=self._answer),
            SimTool(spec("ask", common.TOOL_KIND_INTERACTIVE), answer=self._answer),
            SimTool(
                spec("spawn", resource, spawns=True, concurrency=common.ConcurrencySpec(safe=True)),
                provider="core",
            ),
        ]
        self.sim = StoredSim(log, tools)
        for name, below in (("child", ["grandchild"]), ("grandchild", [])):
            self.sim.profiles[name] = common.ProfileSnapshot(
                name=name, tools=["*"], may_spawn=below, max_concurrent_subagents=4
            )
        self.sim.people.decide = lambda request: json.loads(request.item.input)["name"] != "denied"

    def _answer(self, call: Invocation) -> ToolOutcome | ToolFailure:
        self._observe(call)
        name = json.loads(call.input)["name"]
        if name == "talk" and not self._talked:
            self._talked = True
            for text, delivery in (
                ("faster", common.DELIVERY_NEXT_STEP),
                ("then", common.DELIVERY_NEXT_TURN),
            ):
                self._talking.append(asyncio.create_task(self._say(text, delivery)))
        if name in ("drifts", "again") and name not in self._drifted:
            self._drifted.add(name)
            if name == "drifts":
                return ToolFailure(common.TOOL_ERROR_CATEGORY_PRECONDITION_FAILED, "changed")
            return ToolFailure(common.TOOL_ERROR_CATEGORY_CONCURRENCY_CONFLICT, "busy")
        return ToolOutcome(json.dumps(f"did {name}").encode())

    async def _say(self, text: str, delivery: common.Delivery.ValueType) -> None:
        assert self.live is not None
        await retried(partial(self.sim.send, self.live, text, delivery))

    async def quiet(self) -> None:
        """Everything that was to be said has been."""
        await asyncio.gather(*self._talking)


async def retried(work: Callable[[], Any]) -> Any:
    """Does it again while the log takes nothing, as a person would."""
    while True:
        try:
            return await work()
        except LogFailed:
            await asyncio.sleep(0)


async def play(log: EventLog, world: World, directory: Path) -> None:
    """All Turns, to the bound."""
    sim = world.sim
    model = transcript(directory, *LINES)
    live = world.live = await retried(partial(sim.session, model, bounds=common.Bounds(max_turns=STEPS)))
    beside = directory / "beside"
    beside.mkdir(exist_ok=True)
    other_model = transcript(beside, calls(("read", "o")), DONE | {"repeat": True})
    other = await retried(partial(sim.session, other_model))
    for prompt in PROMPTS:
        await retried(partial(sim.turn, live, prompt))
        await world.quiet()
        if prompt == "third":
            await retried(partial(sim.turn, other, "meanwhile"))
        await asyncio.wait_for(live.idle(), 20)
    at_home = directory / "family"
    at_home.mkdir(exist_ok=True)
    family_model = transcript(at_home, *FAMILY_LINES)
    family = await retried(
        partial(
            sim.session, family_model, may_spawn=["child"], max_concurrent_subagents=2, max_subagents_total=9
        )
    )
    await retried(partial(sim.turn, family, "divide"))
    await asyncio.gather(live.stop(), other.stop(), family.stop())


# --- jobs ---------------------------------------------------------------------------------------------------


class Said:
    """Says each published event at once, as a client would have seen it."""

    def __init__(self, directory: Path, stop_after: int) -> None:
        self._file = os.open(directory / SAID, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._left = stop_after

    def committed(self, committed: Sequence[Committed]) -> None:
        """One line for each event, up to the one that it stops after."""
        for one in committed:
            line = f"{one.event.session} {one.event.seq} {zlib.crc32(one.blob)}\n"
            os.write(self._file, line.encode())
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class Stopping(sqlite3.Connection):
    """Ends the process right before or right after its n-th commit, in the thread that commits."""

    before = after = 0
    commits = 0

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if sql != "COMMIT":
            return super().execute(sql, *parameters)
        Stopping.commits += 1
        if Stopping.commits == Stopping.before:
            os.kill(os.getpid(), signal.SIGKILL)
        done = super().execute(sql)
        if Stopping.commits == Stopping.after:
            os.kill(os.getpid(), signal.SIGKILL)
        return done


def to_the_end(directory: Path, published: int = 0, before: int = 0, after: int = 0) -> None:
    """Plays everything, or ends by SIGKILL: after so many published events, before or after so many commits."""
    Stopping.before, Stopping.after = before, after
    sqlite3.connect = partial(sqlite3.connect, factory=Stopping)  # type: ignore[assignment]
    asyncio.run(_play(directory, Said(directory, published)))


def under_the_shim(directory: Path, kinds: int, first: int, action: int) -> None:
    """Plays everything with something happening to one call into the kernel; says how many calls there were."""
    shim = Shim()
    shim.arm(Kind(kinds), first, action)
    asyncio.run(_play(directory, Said(directory, 0)))
    (directory / "calls").write_text(str(shim.calls))


def repaired(directory: Path, kinds: int, first: int, action: int) -> None:
    """Starts on what another daemon left, with something happening to one call into the kernel."""
    shim = Shim()
    shim.arm(Kind(kinds), first, action)

    async def run() -> None:
        async with started(directory):
            pass

    asyncio.run(run())


class Marking(sqlite3.Connection):
    """Puts what is inserted and committed, in the thread that does it, among the calls into the kernel."""

    mark: Callable[[str], None] = print

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> sqlite3.Cursor:
        listed = list(rows)
        for blob in (value for row in listed for value in row if isinstance(value, bytes)):
            event = event_pb2.Event.FromString(blob)
            Marking.mark(f"insert {event_type(event)} {_subject(event)}".rstrip())
        return super().executemany(sql, listed)

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        done = super().execute(sql, *parameters)
        if sql == "COMMIT":
            Marking.mark("committed")
        return done


def in_order(directory: Path) -> None:
    """Plays everything, and writes down what was synced, committed, published and dispatched in which order."""
    shim = Shim()
    Marking.mark = shim.mark
    sqlite3.connect = partial(sqlite3.connect, factory=Marking)  # type: ignore[assignment]

    def dispatched(call: Invocation) -> None:
        shim.mark(f"dispatch {call.call_id} {call.attempt}")

    def committed(committed: Sequence[Committed]) -> None:
        for one in committed:
            shim.mark(f"publish {event_type(one.event)} {_subject(one.event)}".rstrip())

    async def run() -> None:
        async with started(directory) as (log, _):
            log.subscribe(committed)
            shim.trace(directory / ORDER)
            await play(log, World(log, dispatched), directory)

    asyncio.run(run())


def through_faults(directory: Path, kinds: int, first: int, action: int, count: int = 1) -> None:
    """Plays everything while calls into the kernel fail; then works on without a new start."""
    shim = Shim()
    said = Said(directory, 0)
    unstored: list[str] = []

    def dispatched(call: Invocation) -> None:
        if not _is_started_on_disk(directory, call):
            unstored.append(call.call_id)

    async def run() -> None:
        async with started(directory) as (log, _):
            log.subscribe(said.committed)
            world = World(log, dispatched)
            shim.arm(Kind(kinds), first, action, count)
            await play(log, world, directory)
            (directory / "calls").write_text(str(shim.calls))
            shim.count(Kind(kinds))
            assert world.live is not None
            live = world.live = await world.sim.resumed(world.live.session)
            await world.sim.turn(live, "and now")
            assert log.view(live.session).last_reason == common.TURN_END_REASON_COMPLETED
            await live.stop()
            assert not unstored, f"dispatched, and not on disk: {unstored}"

    asyncio.run(run())


async def _play(directory: Path, said: Said) -> None:
    async with started(directory) as (log, _):
        log.subscribe(said.committed)
        await play(log, World(log), directory)


def _subject(event: event_pb2.Event) -> str:
    match event.WhichOneof("data"):
        case "tool_started":
            return f"{event.tool_started.call_id} {event.tool_started.attempt}"
        case "tool_call":
            return f"{event.tool_call.call_id} {common.ToolKind.Name(event.tool_call.kind)}"
        case "approval_decided":
            return event.approval_decided.request_id
        case _:
            return f"{event.session} {event.seq}"


def _is_started_on_disk(directory: Path, call: Invocation) -> bool:
    with closing(sqlite3.connect(f"file:{database(directory)}?mode=ro", uri=True)) as connection:
        rows = connection.execute("SELECT event FROM events ORDER BY position DESC LIMIT 50").fetchall()
    events = [event_pb2.Event.FromString(blob) for (blob,) in rows]
    return any(
        (event.tool_started.call_id, event.tool_started.attempt) == (call.call_id, call.attempt)
        for event in events
    )
