"""What one opening of a session works with: the world, the projections, the Turn's own state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from google.protobuf.message import Message as Payload

from turnd.loop.breakers import Breakers
from turnd.loop.meter import Meter
from turnd.loop.settings import LoopSettings
from turnd.ports import At, Children, Dispatched, Model, ToolSet, World
from turnd.rules.bounds import Spent, hits
from turnd.rules.doom import DoomLoop
from turnd.rules.event import Draft
from turnd.rules.history import History
from turnd.rules.state import SessionState
from turnd.rules.status import SessionView
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2


class StepFailed(Exception):
    """The Step cannot go on, and with it the Turn ends `error` (or `blocked`); `stop` says why."""

    def __init__(self, stop: event_pb2.ErrorStop) -> None:
        super().__init__(stop.message)
        self.stop = stop


class LimitFired(Exception):
    """A bound fired before a model request inside a Step."""

    def __init__(self, reached: tuple[common.LimitHit, ...]) -> None:
        super().__init__("a bound fired")
        self.reached = reached


@dataclass(slots=True)
class Run:
    """The working set of a live session. It keeps no numbers of its own: those are asked of the log."""

    world: World
    session: str
    settings: LoopSettings
    history: History
    """Carried forward with every committed event of the session, whoever appended it."""
    breakers: Breakers
    doom: DoomLoop
    meter: Meter
    """Of the open Step; a new one is made when a Step opens."""
    children: Children
    above: Meter | None = None
    """Of the Step that this session works for, where it is a sub-agent's."""
    _model: Model | None = None
    _tools: ToolSet | None = None
    system: str = ""
    """What opens every request of this Turn: the system prompt and the instruction files, read when it began."""

    @property
    def model(self) -> Model:
        assert self._model is not None, "the model is opened before the first Step of a Turn"
        return self._model

    @property
    def tools(self) -> ToolSet:
        assert self._tools is not None, "the tools are opened before the first Step of a Turn"
        return self._tools

    def equip(self, model: Model, tools: ToolSet, system: str) -> None:
        """What the Steps of this Turn use."""
        self._model, self._tools, self.system = model, tools, system

    @property
    def state(self) -> SessionState:
        return self.world.log.state(self.session)

    @property
    def view(self) -> SessionView:
        return self.world.log.view(self.session)

    def new_meter(self) -> None:
        """A Step begins, or ended: what is measured from here on is another's."""
        self.meter = Meter(self.world.clock, self.above)

    @property
    def path(self) -> list[SessionView]:
        """The session and those above it, up to the root of its tree."""
        view = self.view
        return [view, *(self.world.log.view(ancestor) for ancestor in reversed(view.ancestors))]

    @property
    def at(self) -> At:
        """Where the session is now, for hooks."""
        state = self.state
        return At(self.session, state.open_turn, state.open_step)

    async def append(self, *payloads: Payload, synthetic: bool = False) -> list[event_pb2.Event]:
        """Commits events of this session in one transaction. Raises Violation and LogFailed."""
        return await self.world.log.append(*(Draft(self.session, payload, synthetic) for payload in payloads))

    async def dispatch(
        self, point: common.HookPoint.ValueType, payload: Callable[[], Mapping[str, object]]
    ) -> Dispatched:
        """Runs the hook chain of a point and logs what failed in it (HOOK-03, HOOK-04)."""
        with self.meter.active():
            dispatched = await self.world.hooks.dispatch(point, self.at, payload)
        if dispatched.errors:
            await self.append(*dispatched.errors)
        return dispatched

    def wall_clock_left_ms(self) -> int | None:
        """What is left of max_wall_clock_s; None where there is no such bound."""
        view = self.view
        if not view.bounds.HasField("max_wall_clock_ms"):
            return None
        return max(view.bounds.max_wall_clock_ms - view.active_ms - self.meter.active_ms, 0)

    def limits_reached(self) -> tuple[common.LimitHit, ...]:
        """The bounds that have fired, the first of which names the status; empty while none has (BOUND-01).

        What the tree has spent counts against every session on the path to the root, whoever spent it (BOUND-06).
        """
        view, *above = self.path
        own = Spent(
            steps=view.steps,
            cost_nano_usd=self.children.spent_nano_usd(view.id),
            wall_clock_ms=view.active_ms + self.meter.active_ms,
        )
        shared = [(one.bounds, self.children.spent_nano_usd(one.id)) for one in above]
        return hits(view.bounds, own, self.doom.fired(view.profile.doom_loop.threshold), shared)
