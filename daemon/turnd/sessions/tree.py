"""Trees of sessions: sub-agents, who may start one, what a tree has spent (SUB-01 to SUB-07, BOUND-06, BOUND-07)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import structlog

from turnd.loop.session import LiveSession
from turnd.ports import ChildRefused, ChildRequest, ChildResult, Ids, Layers, LayerUnusable, Log, Subtree
from turnd.rules.event import Draft
from turnd.rules.layer import WorkspaceLayer
from turnd.rules.lifecycle import is_ended
from turnd.rules.state import Violation
from turnd.rules.status import SessionView
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

log = structlog.get_logger(__name__)

TITLE_CHARACTERS = 80
MAX_PROMPT_BYTES = 1 * 2**20

Profiles = Callable[[], Mapping[str, common.ProfileSnapshot]]
"""The profiles of the configuration in force, by name."""


@dataclass(slots=True)
class _Below:
    """What the descendants of a live session have spent."""

    cost_nano_usd: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(slots=True, eq=False)
class _Child:
    """A sub-agent that runs: its session, and the task that follows it from its start to child/ended."""

    session: str
    live: LiveSession | None = None
    stopped: common.CancelCause.ValueType | None = None
    life: asyncio.Task[ChildResult] | None = None


class Tree:
    """Implements the port `Children`. The mutable state: what is spent below each live session, how many sessions
    the tree of each live root has, who waits and who runs below each session.
    """

    def __init__(
        self,
        log: Log,
        ids: Ids,
        layers: Layers,
        live: Callable[[str], Awaitable[LiveSession]],
        profiles: Profiles,
    ) -> None:
        self._log = log
        self._ids = ids
        self._layers = layers
        self._live = live
        self._profiles = profiles
        self._below: dict[str, _Below] = {}
        self._members: dict[str, int] = {}
        self._places: dict[str, asyncio.Semaphore] = {}
        self._running: dict[str, set[_Child]] = {}

    # --- accounts ---

    async def enter(self, session: str) -> None:
        """A session comes into memory; what its descendants spent before is read once."""
        if session in self._below:
            return
        subtree = await self._log.subtree(session)
        own = self._log.view(session)
        if session in self._below:
            return
        self._below[session] = _Below(
            subtree.cost_nano_usd - own.cost_nano_usd,
            subtree.input_tokens - own.tokens.input,
            subtree.output_tokens - own.tokens.output,
        )
        if not own.ancestors:
            self._members[session] = subtree.sessions - 1

    def leave(self, session: str) -> None:
        """The session goes from memory; its log has all of it."""
        self._below.pop(session, None)
        self._members.pop(session, None)
        self._places.pop(session, None)

    def committed(self, events: Sequence[event_pb2.Event]) -> None:
        """Takes what a sub-agent spent from every session on the path to the root, in one pass (BOUND-06)."""
        for event in events:
            if event.WhichOneof("data") != "usage" or event.HasField("imported"):
                continue
            usage = event.usage
            for ancestor in self._log.view(event.session).ancestors:
                below = self._below.get(ancestor)
                if below is not None:
                    below.cost_nano_usd += usage.cost_nano_usd
                    below.input_tokens += usage.tokens.input_tokens
                    below.output_tokens += usage.tokens.output_tokens

    def spent_nano_usd(self, session: str) -> int:
        return self.subtree(session).cost_nano_usd

    def subtree(self, session: str) -> Subtree:
        """What a live session and all below it have spent, as of the last committed usage."""
        own, below = self._log.view(session), self._below.get(session) or _Below()
        return Subtree(
            sessions=1 + self._members.get(session, 0),
            cost_nano_usd=own.cost_nano_usd + below.cost_nano_usd,
            input_tokens=own.tokens.input + below.input_tokens,
            output_tokens=own.tokens.output + below.output_tokens,
        )

    # --- sub-agents ---

    def may_spawn(self, session: str) -> bool:
        return not self._why_not(self._log.view(session))

    async def run(self, parent: str, request: ChildRequest) -> ChildResult:
        above = await self._live(parent)
        layer = await self._layer(self._log.view(parent))
        view = self._log.view(parent)
        if why := self._why_not(view):
            raise ChildRefused(why)
        profile = self._profile(view, above, layer, request)
        # Counted before anything is waited for, so that calls side by side cannot pass the limit together.
        self._members[view.root] = self._members.get(view.root, 0) + 1
        child = _Child(self._ids.session())
        try:
            async with self._place(view):
                return await self._until_ended(parent, child, profile, request)
        finally:
            if child.life is None:
                self._members[view.root] -= 1

    async def settle(self, parent: str) -> None:
        for child in list(self._running.get(parent, ())):
            await self._stop(parent, child)
        for lost in list(self._log.state(parent).children.values()):
            live = await self._live(lost.child)
            await live.end(self._cause(parent))
            await self._tell_parent(parent, lost.call_id, lost.child)

    def _why_not(self, view: SessionView) -> str:
        if view.depth_left <= 0:
            return (
                f"a session at depth {view.depth} of this tree may not start sub-agents "
                f"(max_depth {view.depth + view.depth_left})"
            )
        if not view.profile.may_spawn:
            return f"profile {view.profile.name!r} may spawn no profile (may_spawn)"
        root = self._log.view(view.root)
        most, made = root.profile.max_subagents_total, self._members.get(view.root, 0)
        if made >= most:
            return (
                f"this tree has had {made} sub-agents, which is all it may have (max_subagents_total {most})"
            )
        return ""

    async def _layer(self, view: SessionView) -> WorkspaceLayer:
        try:
            return await self._layers.of(view.workspace)
        except LayerUnusable as unusable:
            raise ChildRefused(str(unusable)) from None

    def _place(self, view: SessionView) -> asyncio.Semaphore:
        """Where the sub-agents of a session wait for their turn; as many run as its profile says (SUB-03)."""
        most = max(view.profile.max_concurrent_subagents, 1)
        return self._places.setdefault(view.id, asyncio.Semaphore(most))

    def _profile(
        self, view: SessionView, above: LiveSession, layer: WorkspaceLayer, request: ChildRequest
    ) -> common.ProfileSnapshot:
        """What the child runs under: its own profile as the workspace has it, within what the parent has left
        (BOUND-07, SUB-02, OPS-04).
        """
        if len(request.prompt.encode()) > MAX_PROMPT_BYTES:
            raise ChildRefused(f"the prompt is longer than {MAX_PROMPT_BYTES} bytes")
        if not request.prompt.strip():
            raise ChildRefused("the prompt is empty")
        name = request.profile or view.profile.may_spawn[0]
        found = self._profiles().get(name)
        if name not in view.profile.may_spawn or found is None:
            lawful = ", ".join(sorted(set(view.profile.may_spawn) & set(self._profiles())))
            raise ChildRefused(f"no profile {name!r} may be spawned here; choose one of: {lawful or 'none'}")
        profile = common.ProfileSnapshot()
        profile.CopyFrom(layer.over(found))
        profile.model = profile.model or view.profile.model
        depth = view.depth_left - 1
        profile.max_depth = min(depth, profile.max_depth) if profile.HasField("max_depth") else depth
        profile.bounds.limit_mode = common.LIMIT_MODE_HARD
        left_ms = above.wall_clock_left_ms()
        if left_ms is not None:
            own = profile.bounds.max_wall_clock_ms
            profile.bounds.max_wall_clock_ms = (
                min(own, left_ms) if profile.bounds.HasField("max_wall_clock_ms") else left_ms
            )
        tools = [tool for tool in above.offered() if _named(tool, profile.tools)]
        if request.tools is not None:
            tools = [tool for tool in tools if _named(tool, request.tools)]
        profile.ClearField("tools")
        profile.tools.extend(tools)
        return profile

    async def _until_ended(
        self, parent: str, child: _Child, profile: common.ProfileSnapshot, request: ChildRequest
    ) -> ChildResult:
        """Follows the child in a task of its own: a cancel ends the child, and then this."""
        siblings = self._running.setdefault(parent, set())
        siblings.add(child)
        child.life = asyncio.create_task(
            self._life(parent, child, profile, request), name=f"sub-agent {child.session}"
        )
        try:
            return await asyncio.shield(child.life)
        except asyncio.CancelledError:
            await self._stop(parent, child)
            raise
        finally:
            siblings.discard(child)
            if not siblings:
                self._running.pop(parent, None)

    async def _life(
        self, parent: str, child: _Child, profile: common.ProfileSnapshot, request: ChildRequest
    ) -> ChildResult:
        await self._start(parent, child.session, profile, request)
        live = child.live = await self._live(child.session)
        if child.stopped is None:
            live.poke()
            await live.idle()
        await live.end(self._cause(parent) if child.stopped is None else child.stopped)
        return await self._tell_parent(parent, request.call_id, child.session)

    async def _start(
        self, parent: str, session: str, profile: common.ProfileSnapshot, request: ChildRequest
    ) -> None:
        """The child and its prompt, and in its parent's log that it was started, in one transaction."""
        view = self._log.view(parent)
        prompt = common.ContentBlock(text=common.TextBlock(text=request.prompt))
        created = event_pb2.SessionCreated(
            cwd=view.cwd,
            workspace=view.workspace,
            title=request.prompt.strip().splitlines()[0][:TITLE_CHARACTERS],
            profile=profile,
            parent=parent,
            parent_call_id=request.call_id,
            ancestors=(*view.ancestors, parent),
            depth=view.depth + 1,
            environment=dict(view.environment),
            unattended=view.unattended,
            plan_mode=view.planning,
            sandbox=view.sandbox,
            unenforced=view.unenforced,
        )
        started = event_pb2.ChildStarted(call_id=request.call_id, child=session, profile=profile.name)
        queued = event_pb2.InboxQueued(
            message_id=self._ids.message(), blocks=[prompt], delivery=common.DELIVERY_NEXT_TURN
        )
        try:
            await self._log.append(
                Draft(parent, started),
                Draft(session, created),
                Draft(session, event_pb2.SessionStatusChanged(status=common.SESSION_STATUS_IDLE)),
                Draft(session, queued),
            )
        except Violation:
            state = self._log.state(parent)
            if state.stopping is None and request.call_id in state.calls:
                raise
            raise ChildRefused("no sub-agent is started any more: the turn is being stopped") from None

    async def _stop(self, parent: str, child: _Child) -> None:
        """Ends a running child with all below it; returns when its parent's log has child/ended."""
        assert child.life is not None, "only a child that was started is followed"
        child.stopped = self._cause(parent)
        if child.live is not None:
            await child.live.end(child.stopped)
        await asyncio.wait({child.life})
        fault = None if child.life.cancelled() else child.life.exception()
        if fault is not None and not isinstance(fault, ChildRefused):
            log.error("a sub-agent could not be ended", session=child.session, error=str(fault))

    def _cause(self, parent: str) -> common.CancelCause.ValueType:
        """Why a child is ended: its parent's Turn is stopping, or the call that started it is gone."""
        stopping = self._log.state(parent).stopping
        if stopping is None:
            return common.CANCEL_CAUSE_PARENT_LOST
        if stopping.cancel.cause == common.CANCEL_CAUSE_SHUTDOWN:
            return common.CANCEL_CAUSE_SHUTDOWN
        return common.CANCEL_CAUSE_PARENT

    async def _tell_parent(self, parent: str, call_id: str, session: str) -> ChildResult:
        """Writes child/ended once the child's log has ended."""
        view, spent = self._log.view(session), self.subtree(session)
        assert is_ended(view.status), f"sub-agent {session} has not ended"
        ended = event_pb2.ChildEnded(
            call_id=call_id,
            child=session,
            status=view.status,
            total_cost_nano_usd=spent.cost_nano_usd,
            total_input_tokens=spent.input_tokens,
            total_output_tokens=spent.output_tokens,
        )
        try:
            await self._log.append(Draft(parent, ended))
        except Violation:
            # The parent's Turn was settled meanwhile, and child/ended with it.
            if session in self._log.state(parent).children:
                raise
        return ChildResult(
            session=session,
            status=view.status,
            text=view.final_text,
            total_cost_nano_usd=spent.cost_nano_usd,
            total_input_tokens=spent.input_tokens,
            total_output_tokens=spent.output_tokens,
        )


def _named(tool: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(tool, glob) for glob in globs)
