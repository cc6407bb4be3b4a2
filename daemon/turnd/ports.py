"""What the loop needs of the world. Every adapter stands behind one of these; a simulator can stand in for all.

Times are seconds unless a name says otherwise; money is integer nano-USD; JSON is bytes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from typing import Final, Protocol

from google.protobuf.message import Message as Payload

from turnd.rules.commands import Found
from turnd.rules.event import Draft
from turnd.rules.history import HistoryMessage
from turnd.rules.layer import WorkspaceLayer
from turnd.rules.opening import InstructionFile
from turnd.rules.price import PriceTier
from turnd.rules.schedule import Claim
from turnd.rules.state import SessionState
from turnd.rules.status import SessionView
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2, provider_pb2

# --- time and names -----------------------------------------------------------------------------------------


class Clock(Protocol):
    """Wall clock for display, monotonic clock for durations."""

    def now_us(self) -> int:
        """Microseconds since the epoch, UTC."""

    def monotonic(self) -> float:
        """Seconds that never run backwards and do not count suspend."""

    async def sleep(self, seconds: float) -> None:
        """Waits on this clock, so that a simulator can pass time at will."""


class Ids(Protocol):
    """Mints ids that nobody has used."""

    def session(self) -> str:
        """A ULID."""

    def call(self) -> str:
        """A tool call's id, unique in the daemon."""

    def request(self) -> str:
        """An approval's or a question's id."""

    def message(self) -> str:
        """A queued message's id."""


# --- the log ------------------------------------------------------------------------------------------------


class LogFailed(Exception):
    """A commit failed (disk full, I/O error); the state is what is on disk, and nothing was published (LOG-14)."""


MAX_EVENT_BYTES: Final = 8 * 2**20
"""Of an event as it is stored. Half of what one message of the transport takes, so that it can always be sent."""


MAX_HISTORY_EVENTS: Final = 100_000
MAX_HISTORY_BYTES: Final = 64 * 2**20
"""Of the events as they are stored. A session that goes on from another log is in memory until it is committed."""


class EventTooLarge(Exception):
    """An event that is larger than `MAX_EVENT_BYTES`; nothing of its append was accepted (RPC-01)."""

    def __init__(self, kind: str, size: int) -> None:
        super().__init__(f"expected an event of at most {MAX_EVENT_BYTES} bytes, found {kind} of {size}")
        self.kind = kind
        self.size = size


class UnknownSession(Exception):
    """No session has this id."""


@dataclass(frozen=True, slots=True)
class AnsweredRequest:
    """A client's command that an append carries out: the answer is stored in the append's transaction (RPC-04)."""

    request_id: str
    method: str
    digest: bytes
    """Of the request's content: what must be the same where the id comes again."""
    answer: Callable[[Sequence[event_pb2.Event]], bytes]
    """Makes the encoded answer of the numbered events, once they are checked; must not wait, nor fail."""


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """What was answered to a request id."""

    method: str
    digest: bytes
    answer: bytes


class UnreadableSession(Exception):
    """The stored log of this session cannot be gone on from; the text says what is the case and what to do."""


@dataclass(frozen=True, slots=True)
class Subtree:
    """A session with all its descendants: how many sessions these are, and what they have spent."""

    sessions: int
    cost_nano_usd: int
    input_tokens: int
    output_tokens: int
    estimated: bool = False
    """Some of it is an estimate (BOUND-14)."""
    unpriced: bool = False
    """For some of what was used no price is known: it is not in the cost (BOUND-08)."""


@dataclass(frozen=True, slots=True)
class RememberedRule:
    """What a decision for always stored: for calls of sessions of this workspace, profile and directory (GATE-09)."""

    name: str
    workspace: str
    profile: str
    cwd: str
    rule: common.GrantRule
    session: str
    """That asked."""
    client: str
    """Who decided, as it calls itself."""
    at_us: int


class Log(Protocol):
    """The one way into the event log (LOG-04).

    A request of a sub-agent, and its settlement, are told to the root of its tree in the same transaction: whoever
    appends one appends the child/attention with it (GATE-17).
    """

    async def load(self, session: str) -> None:
        """Brings state and view of a session into memory. Raises UnknownSession, UnreadableSession."""

    def state(self, session: str) -> SessionState:
        """The state that rules are checked against, as of the last accepted event. The session must be loaded."""

    def view(self, session: str) -> SessionView:
        """Status, cost, bounds, queue and open requests as of the last accepted event. It must be loaded."""

    async def append(self, *drafts: Draft, answered: AnsweredRequest | None = None) -> list[event_pb2.Event]:
        """Checks, numbers and commits the drafts in one transaction, and publishes them.

        The request that they answer is stored with them, also where there are no drafts.

        A caller that is cancelled does not cancel its append. Drafts may be of several sessions. Raises Violation
        where one breaks a rule (then none of them is stored) and LogFailed where the commit failed. The first
        event of a session must be session/created; the session is loaded by it.
        """

    def read(self, session: str, after_seq: int = 0) -> AsyncIterator[Sequence[event_pb2.Event]]:
        """Pages of committed events after the cursor, in order, up to what is committed when it is asked."""

    async def subtree(self, session: str) -> Subtree:
        """What a session and all its descendants have spent, as committed. Raises UnknownSession."""

    async def remembered_rules(self) -> Sequence[RememberedRule]:
        """What decisions for always stored and nobody removed, as committed (GATE-09).

        An approval/decided with `stored` stores one in its own transaction. Raises LogFailed.
        """


# --- models -------------------------------------------------------------------------------------------------


class ModelFailure(Exception):
    """A model request failed; `error` says how, in the categories of models.md."""

    def __init__(self, error: common.ModelError) -> None:
        super().__init__(error.message)
        self.error = error


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What a model can do. Sizes in tokens."""

    id: str
    context_window: int
    max_output_tokens: int
    tool_use: bool = True
    parallel_tool_calls: bool = True
    vision: bool = False
    documents: bool = False
    thinking: bool = False
    needs_tools_with_history: bool = False
    """The vendor refuses a history with tool calls where the request offers no tools."""


Message = HistoryMessage
"""One message of the history; role is `user` or `assistant`. Results of tools are in user messages."""


@dataclass(frozen=True, slots=True)
class WireTool:
    """A tool as the vendor is told of it."""

    wire_name: str
    provider: str
    tool: str
    description: str
    input_schema: bytes


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request, in canonical form."""

    session: str
    purpose: common.RequestPurpose.ValueType
    number: int
    """How many requests this session made before for this purpose, retries included."""
    depth: int
    profile: str
    system: str
    messages: tuple[Message, ...]
    tools: tuple[WireTool, ...]
    tools_withheld: bool
    parameters: Mapping[str, object] = field(default_factory=dict)
    cache_points: tuple[int, ...] = ()
    """Prefixes at which a prompt cache may be cut, for vendors that want to be told: the number of messages in each,
    0 for the system prompt with the tools, in rising order (see `rules.cache_points`)."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ThinkingSignature:
    signature: bytes


@dataclass(frozen=True, slots=True)
class RedactedThinking:
    data: bytes


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """Begins a call; `key` tells the calls of one message apart."""

    key: int
    vendor_call_id: str
    wire_name: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    key: int
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCallDone:
    key: int


@dataclass(frozen=True, slots=True)
class UsageReport:
    """Token counts; the last one of a stream stands."""

    tokens: common.TokenCounts


@dataclass(frozen=True, slots=True)
class Stop:
    """The end of a stream; a stream that ends without one is broken."""

    reason: common.StopReason.ValueType
    vendor_reason: str = ""


StreamEvent = (
    TextDelta
    | ThinkingDelta
    | ThinkingSignature
    | RedactedThinking
    | ToolCallStart
    | ToolCallDelta
    | ToolCallDone
    | UsageReport
    | Stop
)


class Model(Protocol):
    """One model behind one adapter."""

    @property
    def spec(self) -> ModelSpec:
        """What it can do."""

    async def prepare(self) -> None:
        """Loads what takes long, such as a table of prices, before the first request of a Turn."""

    def price(self, at_us: int, tokens: common.TokenCounts) -> PriceTier | None:
        """The one tier that matches time and size; None where no price is known (BOUND-08)."""

    def answers(self, purpose: common.RequestPurpose.ValueType, profile: str | None) -> bool:
        """Whether it may be asked beside the Steps, for a summary, a title or a check; a transcript may hold none.

        `profile` is that of a sub-agent, None for a root session.
        """

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        """The completion as it arrives. Raises ModelFailure. Closing the iterator ends the request."""


class UnknownModel(Exception):
    """No adapter has a model of this name, or its configuration is wrong; the message says what to do."""


class Models(Protocol):
    """All adapters."""

    def open(self, name: str) -> Model:
        """The model of a name such as `replay:FILE` or `openai-compatible/NAME/MODEL`. Raises UnknownModel."""


# --- instructions -------------------------------------------------------------------------------------------


class Instructions(Protocol):
    """Files in which directories tell agents how to work in them."""

    async def read(self, directory: str, names: Sequence[str]) -> tuple[InstructionFile, ...]:
        """The files of these names in the directory and in those above it, the nearest last.

        Never raises for what is in the way of one: it is left out.
        """


# --- tools --------------------------------------------------------------------------------------------------


class SandboxUnavailable(Exception):
    """No cell can be made here; the text is the probe's, with what to do (SBX-02)."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that a session is offered."""

    provider: str
    version: str
    spec: provider_pb2.ToolSpec

    @property
    def full_name(self) -> str:
        return f"{self.provider}.{self.spec.name}"


@dataclass(frozen=True, slots=True)
class Invocation:
    """One call on its way to a tool."""

    call_id: str
    provider: str
    tool: str
    input: bytes
    turn: int
    step: int
    attempt: int = 1
    preconditions: tuple[common.Precondition, ...] = ()
    timeout_s: float = 120.0
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class ToolFailure:
    """The call failed; see the table of categories in tools.md."""

    category: common.ToolErrorCategory.ValueType
    message: str
    retryable: bool = False
    details: bytes = b""


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """The call ended by itself. `content` is JSON."""

    content: bytes
    is_error: bool = False
    left_state: tuple[common.Precondition, ...] = ()
    spooled_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Preview:
    """What a call would do, as far as its provider says."""

    text: str = ""
    preconditions: tuple[common.Precondition, ...] = ()
    failure: ToolFailure | None = None


@dataclass(frozen=True, slots=True)
class ToolSession:
    """What tools need to know of the session they serve."""

    session: str
    root: str
    """The root of the session's tree, which shares instances."""
    cwd: str
    workspace: str
    environment: Mapping[str, str]
    tools: tuple[str, ...]
    """Globs over provider.tool, from the profile."""
    unattended: bool


Emit = Callable[[Payload], Awaitable[None]]
"""Puts an event of the session's into the log: provider/status, tool/progress, note."""


@dataclass(frozen=True, slots=True)
class ChildRequest:
    """What a call that spawns asks for. `tools` are globs over provider.tool that narrow; None: no further."""

    call_id: str
    profile: str
    prompt: str
    tools: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ChildResult:
    """All that comes back of a sub-agent: its last message, and what its whole subtree spent (SUB-01, SUB-06)."""

    session: str
    status: common.SessionStatus.ValueType
    text: str
    total_cost_nano_usd: int
    total_input_tokens: int
    total_output_tokens: int


class ChildRefused(Exception):
    """No sub-agent was started; the text says why, and what to ask for instead."""


Spawn = Callable[[ChildRequest], Awaitable[ChildResult]]
"""Runs a sub-agent of the session to its end. Raises ChildRefused, LogFailed."""


class ToolSet(Protocol):
    """The tools of one session."""

    def offered(self) -> tuple[Tool, ...]:
        """In a stable order: providers as listed, tools as registered."""

    def find(self, provider: str, tool: str) -> Tool | None:
        """A tool that is offered."""

    def check_input(self, provider: str, tool: str, data: bytes) -> ToolFailure | None:
        """What is wrong with the input of an offered tool, by its schema; None where it fits."""

    async def preview(self, call: Invocation) -> Preview:
        """Never raises for what a provider does wrong; has a time-out of its own."""

    async def invoke(self, call: Invocation) -> ToolOutcome | ToolFailure:
        """Runs the call to its end. Cancelling it ends everything that it started before it returns (TOOL-04)."""

    async def close(self) -> None:
        """The session is over or was unloaded; instances that nobody else uses stop."""


class Tools(Protocol):
    """All providers."""

    async def open(self, session: ToolSession, emit: Emit, spawn: Spawn) -> ToolSet:
        """Starts what the session lists, side by side, and waits for their registrations up to a stated time.

        A provider that does not come is left out and said so by provider/status. Raises SandboxUnavailable.
        """


# --- what policy must know of the disk ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Where:
    """Where a call would run: canonical directories, and the session's environment."""

    cwd: str
    workspace: str
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Facts:
    """What the disk says of a call before policy is evaluated."""

    programs: Mapping[str, Found]
    """Where the session's PATH finds each program, as its commands do; those that it finds nowhere are missing."""
    canonical: str
    """Where the path leads, links followed; empty where none was asked about."""


class Disk(Protocol):
    """Looks at the disk for policy, which itself is pure."""

    async def facts(self, where: Where, programs: Collection[str], path: str | None) -> Facts:
        """Of these names of programs and this path as a tool is given it. Raises OSError, ValueError, TimeoutError."""


# --- workspaces ---------------------------------------------------------------------------------------------


class LayerUnusable(Exception):
    """A workspace's own file is there and cannot be used; the text names file, line and key, and what to do."""


class Layers(Protocol):
    """What workspaces say in files of their own (OPS-04)."""

    async def of(self, workspace: str) -> WorkspaceLayer:
        """The layer of a canonical directory as its file is now; an empty one without a file.

        Raises LayerUnusable: nothing is run on account of half a layer.
        """


# --- hooks --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Veto:
    """A denial by a subscriber; no call ids at plan-ready: the whole plan."""

    subscriber: str
    reason: str
    call_ids: tuple[str, ...] = ()
    failed: bool = False
    """The subscriber failed, which denies (GATE-13)."""


@dataclass(frozen=True, slots=True)
class Dispatched:
    """What one pass over the subscribers of a point gave."""

    changed: Mapping[str, object] | None = None
    """The payload, where a transform changed it."""
    vetoes: tuple[Veto, ...] = ()
    errors: tuple[event_pb2.HookError, ...] = ()
    """Each is to be logged; one of a transform fails the Step (HOOK-04)."""

    @property
    def transform_failed(self) -> event_pb2.HookError | None:
        """The error of a transform, which stopped the chain."""
        return next((e for e in self.errors if e.mode == common.HOOK_MODE_TRANSFORM), None)


@dataclass(frozen=True, slots=True)
class At:
    """Where in a session something happens."""

    session: str
    turn: int | None = None
    step: int | None = None


class Hooks(Protocol):
    """The chain of subscribers."""

    async def dispatch(
        self, point: common.HookPoint.ValueType, at: At, payload: Callable[[], Mapping[str, object]]
    ) -> Dispatched:
        """One pass in the order of declaration (HOOK-02). Never raises for what a subscriber does.

        The payload is made only where somebody subscribes to the point: a history is not written out for nobody.
        """


# --- people -------------------------------------------------------------------------------------------------


class CorrectionRefused(Exception):
    """An input that cannot take the place of the proposed one; the text says why (GATE-08)."""


@dataclass(frozen=True, slots=True)
class Effective:
    """An asked call with an input that a person put in the place of the proposed one, after policy and vetoes."""

    item: common.PlanItem
    digest: str
    """What the approval of it is bound to (GATE-16)."""
    grant: common.GrantRule
    """What scopes wider than once would remember of it."""


Correct = Callable[[bytes], Awaitable[Effective]]
"""Checks an input for the call that a request asks about. Raises CorrectionRefused, LogFailed, Violation."""


class People(Protocol):
    """Whoever answers requests: the clients that are attached, now or later.

    The loop writes the request into the log first; the settlement is in the log when these return.
    """

    def correctable(self, session: str, request_id: str, correct: Correct) -> AbstractContextManager[None]:
        """While it is open, `correct` says what becomes of the request's call with another input (GATE-08)."""

    async def decision(self, session: str, request_id: str) -> event_pb2.ApprovalDecided:
        """Waits for the first decision, without a time-out of its own: the request expires by its own time."""

    async def answer(self, session: str, request_id: str) -> event_pb2.InteractiveAnswered:
        """Waits for the first answer that fits."""


# --- sub-agents ---------------------------------------------------------------------------------------------


class Children(Protocol):
    """The trees of sessions: what is spent in them, and who runs below whom."""

    async def run(self, parent: str, request: ChildRequest) -> ChildResult:
        """Runs a sub-agent for a call in flight of the parent, to its end.

        Waits where as many run as the parent's profile allows (SUB-03). Cancelled, it ends the sub-agent and all
        below it before it returns (SUB-05). Raises ChildRefused, LogFailed.
        """

    def may_spawn(self, session: str) -> bool:
        """Whether a sub-agent of the session could be started: depth and number allow one more (SUB-04)."""

    def spent_nano_usd(self, session: str) -> int:
        """Spend of a live session and all its descendants, as of the last committed usage (BOUND-06)."""

    async def settle(self, parent: str) -> None:
        """Ends every sub-agent that the parent's log has open, also those that nobody runs any more."""


# --- locks --------------------------------------------------------------------------------------------------


class WaitsForItself(Exception):
    """A call would wait for a call that waits for it: one that spawned the session it belongs to (SCHED-11)."""


class Locks(Protocol):
    """What calls of all sessions hold while they run."""

    def running(self, call: str, claim: Claim, chain: Sequence[str]) -> AbstractAsyncContextManager[None]:
        """The call runs inside, beside nothing that its claim conflicts with (SCHED-08).

        `chain` are the spawning calls above its session. Raises WaitsForItself.
        """


# --- trace --------------------------------------------------------------------------------------------------

Attributes = Mapping[str, str | int | float | bool]


class Span(Protocol):
    """One span of a Step's trace."""

    @property
    def traceparent(self) -> str:
        """W3C form, empty without a trace."""

    def event(self, name: str, attributes: Attributes | None = None) -> None:
        """A point in time within the span, with its outcome."""

    def set(self, attributes: Attributes) -> None:
        """Adds attributes."""


class Trace(Protocol):
    """Where spans go (OBS-01). A span is the parent of those opened inside it, in the same task or its children."""

    def span(self, name: str, attributes: Attributes | None = None) -> AbstractContextManager[Span]:
        """Opens a span; an exception that leaves it is its outcome."""


# --- all of it ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class World:
    """Everything outside of the loop."""

    clock: Clock
    ids: Ids
    log: Log
    models: Models
    instructions: Instructions
    tools: Tools
    disk: Disk
    layers: Layers
    hooks: Hooks
    people: People
    locks: Locks
    trace: Trace
