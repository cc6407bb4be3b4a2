"""The history that a model is sent: a projection of the log, carried forward event by event (MODEL-06).

Whatever crashed, was cancelled, denied or imported, it is valid for the vendor: roles alternate and a user
opens, every tool_use has its tool_result in the next message, in declaration order (LOOP-05), ids are unique,
nothing is empty. What a block becomes is in `history_blocks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from turnd.rules import canon, estimate
from turnd.rules import history_blocks as blocks_of
from turnd.rules.history_blocks import Blocks
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

USER: Final = "user"
ASSISTANT: Final = "assistant"


@dataclass(frozen=True)
class HistoryMessage:
    """One message of the history; role is `user` or `assistant`. Results of tools are in user messages.

    What it costs and what it hashes to is made once, so that a Step costs the same however long the history is.
    """

    role: str
    blocks: Blocks

    @cached_property
    def tokens(self) -> int:
        """The estimate of its size."""
        return estimate.message_tokens(self.blocks)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 over role and blocks."""
        return canon.message_digest(self.role, self.blocks)


@dataclass(frozen=True)
class Unit:
    """Messages that stand or fall together: one alone, or one with calls and the one with their results."""

    seq: int
    """Of the event that said it; where a compaction begins and ends is told by it."""
    turn: int
    """How many Turns had begun when it was said: units of one Turn have the same number."""
    messages: tuple[HistoryMessage, ...]
    pruned: frozenset[str] = frozenset()
    """The calls whose results were left out, by the ids that the model sees."""
    kept: Mapping[str, str] = field(default_factory=dict)
    """Of calls whose whole output is kept apart: the call's own id by the id that the model sees."""
    summary: bool = False
    """It stands for others that were summarised."""

    @cached_property
    def tokens(self) -> int:
        """The estimate of its size."""
        return sum(message.tokens for message in self.messages)

    @property
    def prunable(self) -> Mapping[str, int]:
        """What leaving out each result would save, in tokens, by the id of its call that the model sees."""
        if len(self.messages) < 2:
            return {}
        return {
            block.tool_result.call_id: saved
            for block in self.messages[-1].blocks
            if block.tool_result.call_id not in self.pruned
            and (saved := estimate.block_tokens(block) - estimate.block_tokens(self._left_out(block))) > 0
        }

    def without(self, call_ids: frozenset[str]) -> Unit:
        """The unit with the results of these calls left out; itself where it has none of them."""
        found = call_ids & self.prunable.keys()
        if not found:
            return self
        said, results = self.messages
        blocks = tuple(
            self._left_out(block) if block.tool_result.call_id in found else block for block in results.blocks
        )
        return replace(
            self, messages=(said, HistoryMessage(results.role, blocks)), pruned=self.pruned | found
        )

    def _left_out(self, block: common.ContentBlock) -> common.ContentBlock:
        return blocks_of.pruned(block, self.kept.get(block.tool_result.call_id, ""))


@dataclass(slots=True)
class _Exchange:
    """A message with calls whose results are still coming in."""

    seq: int
    said: HistoryMessage
    shown_ids: dict[str, str]
    """The id that the model sees by the call's own id, in declaration order."""
    inputs: dict[str, bytes] = field(default_factory=dict)
    """The effective input of each call with an open attempt."""
    results: dict[str, common.ContentBlock] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    """The own id of each call whose whole output is kept apart, by the id that the model sees."""

    def messages(self) -> tuple[HistoryMessage, ...]:
        """The pair, with an error result for each call that has none."""
        results = tuple(
            self.results.get(call_id) or blocks_of.missing_result(shown, started=call_id in self.inputs)
            for call_id, shown in self.shown_ids.items()
        )
        return self.said, HistoryMessage(USER, results)


@dataclass(slots=True)
class _Stream:
    """The text of the attempt that is streaming, by content block."""

    seq: int
    attempt: int
    texts: dict[int, list[str]] = field(default_factory=dict)


class History:
    """The messages of one session so far.

    The mutable state is: the finished units and the messages they make, which only grow (a compaction apart);
    how many of them were there before the open Turn; and the open tail: the exchange whose results are coming in,
    and the text of the attempt that streams.
    """

    def __init__(self) -> None:
        self.seq = 0
        """Of the last event taken. Every event of the log has to be taken: read on after it."""
        self.turns = 0
        """How many Turns have begun."""
        self.summarised_in_vain = 0
        """The event that says that a summary was tried and nothing was gained; 0: none was."""
        self._units: list[Unit] = []
        self._finished: list[HistoryMessage] = []
        self._before_turn = 0
        self._exchange: _Exchange | None = None
        self._stream: _Stream | None = None
        self._shown_ids: set[str] = set()
        self._cancelled = False
        self._plan_mode = _PlanMode()

    def advance(self, event: event_pb2.Event) -> None:
        """Takes the next event of the session's log, in order. Costs the same however long the log is."""
        self.seq = event.seq
        kind = event.WhichOneof("data")
        take = None if kind is None else _TAKES.get(kind)
        if take is not None:
            take(self, event)

    def messages(self) -> tuple[HistoryMessage, ...]:
        """Everything the model is told, in order.

        From Step to Step the blocks only grow at the end: what was there before stays byte for byte, until
        context/compacted. Calls that have no result yet are given one that says so.
        """
        if self._exchange is None:
            return tuple(self._finished)
        messages = list(self._finished)
        _extend(messages, self._exchange.messages())
        return tuple(messages)

    def units(self) -> tuple[Unit, ...]:
        """What can be compacted, in order: everything but an exchange whose results are coming in."""
        return tuple(self._units)

    def before_turn(self) -> tuple[HistoryMessage, ...]:
        """The messages that no event of the open Turn adds to: they stay as they are until it is compacted."""
        return tuple(self._finished[: self._before_turn])

    def _turn_start(self, event: event_pb2.Event) -> None:
        self._finish_step(event)
        self.turns += 1
        self._mark_turn()

    def _mark_turn(self) -> None:
        """What a user said last may be joined by what opens the Turn, so it does not count as finished."""
        finished: list[HistoryMessage] = []
        for unit in self._units:
            if unit.turn >= self.turns:
                break
            _extend(finished, unit.messages)
        if finished and finished[-1].role == USER:
            finished.pop()
        self._before_turn = len(finished)

    def _session_created(self, event: event_pb2.Event) -> None:
        self._plan_mode.of_session = event.session_created.plan_mode

    def _session_changed(self, event: event_pb2.Event) -> None:
        if event.session_changed.HasField("plan_mode"):
            self._plan_mode.of_session = event.session_changed.plan_mode

    def _user_message(self, event: event_pb2.Event) -> None:
        self._finish_step(event)
        said = event.user_message
        notes: list[str] = []
        if not event.synthetic:
            if self._cancelled:
                notes.append(blocks_of.CANCELLED_NOTE)
            notes += self._plan_mode.notes(said, event.seq)
        self._cancelled = False
        told = tuple(blocks_of.text(note) for note in notes) + blocks_of.user(said.blocks)
        self._add(event.seq, HistoryMessage(USER, told))

    def _agent_request(self, event: event_pb2.Event) -> None:
        if event.agent_request.purpose == common.REQUEST_PURPOSE_STEP:
            self._stream = None

    def _agent_retry(self, event: event_pb2.Event) -> None:
        """The text of an abandoned attempt stays in the log only."""
        self._stream = None

    def _assistant_chunk(self, event: event_pb2.Event) -> None:
        chunk = event.assistant_chunk
        stream = self._stream
        if stream is None or stream.attempt != chunk.attempt:
            stream = self._stream = _Stream(event.seq, chunk.attempt)
        for delta in chunk.deltas:
            if delta.text:
                stream.texts.setdefault(delta.index, []).append(delta.text)

    def _assistant_message(self, event: event_pb2.Event) -> None:
        self._stream = None
        self._settle()
        message = event.assistant_message
        if message.partial:
            self._add(event.seq, HistoryMessage(ASSISTANT, blocks_of.partial(_texts(message.blocks))))
            return
        shown_ids: dict[str, str] = {}
        said = blocks_of.assistant(message.blocks, self._show(shown_ids))
        answer = HistoryMessage(ASSISTANT, said)
        if shown_ids:
            self._exchange = _Exchange(event.seq, answer, shown_ids)
        else:
            self._add(event.seq, answer)

    def _tool_started(self, event: event_pb2.Event) -> None:
        started = event.tool_started
        if self._exchange is not None:
            self._exchange.inputs[started.call_id] = started.input

    def _tool_retry(self, event: event_pb2.Event) -> None:
        """The attempt had no effect, so its call counts as not started again."""
        if self._exchange is not None:
            self._exchange.inputs.pop(event.tool_retry.call_id, None)

    def _tool_result(self, event: event_pb2.Event) -> None:
        result = event.tool_result
        exchange = self._exchange
        if exchange is None or result.call_id in exchange.results:
            return
        shown = exchange.shown_ids.get(result.call_id)
        if shown is not None:
            ran_with = exchange.inputs.get(result.call_id, b"")
            exchange.results[result.call_id] = blocks_of.result(shown, result, ran_with)
            if result.spooled_bytes:
                exchange.kept[shown] = result.call_id

    def _finish_step(self, event: event_pb2.Event) -> None:
        """Where a stream was cut without a message (the daemon was killed), what had arrived enters."""
        self._settle()
        stream, self._stream = self._stream, None
        if stream is not None:
            texts = ("".join(parts) for _, parts in sorted(stream.texts.items()))
            self._add(stream.seq, HistoryMessage(ASSISTANT, blocks_of.partial(texts)))

    def _turn_end(self, event: event_pb2.Event) -> None:
        self._finish_step(event)
        self._plan_mode.of_turn = False
        self._cancelled = event.turn_end.reason == common.TURN_END_REASON_ABORTED

    def _context_compacted(self, event: event_pb2.Event) -> None:
        """Replaces whole units, so that no pair is split; what was pruned keeps its place."""
        self._settle()
        compacted = event.context_compacted
        pruned = frozenset(compacted.pruned_call_ids)
        if pruned:
            self._units = [unit.without(pruned) for unit in self._units]
        first, last = compacted.from_seq, compacted.to_seq
        if compacted.replacement:
            before = [unit for unit in self._units if unit.seq < first]
            replaced = [unit for unit in self._units if first <= unit.seq <= last]
            after = [unit for unit in self._units if unit.seq > last]
            turn = replaced[-1].turn if replaced else before[-1].turn if before else 0
            message = HistoryMessage(USER, blocks_of.user(compacted.replacement))
            self._units = [*before, Unit(first, turn, (message,), summary=True), *after]
            self._plan_mode.forget(first, last)
        elif compacted.stopped_because and not pruned:
            self.summarised_in_vain = event.seq
        self._finished = []
        for unit in self._units:
            _extend(self._finished, unit.messages)
        self._mark_turn()

    def _settle(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            self._add(exchange.seq, *exchange.messages(), kept=exchange.kept)

    def _add(self, seq: int, *messages: HistoryMessage, kept: Mapping[str, str] | None = None) -> None:
        self._units.append(Unit(seq, self.turns, messages, kept=kept or {}))
        _extend(self._finished, messages)

    def _show(self, shown_ids: dict[str, str]) -> Callable[[str], str]:
        """Gives each call an id that no call before it has; a log that breaks the rules may repeat them."""

        def show(call_id: str) -> str:
            shown, again = call_id or "call", 1
            while shown in self._shown_ids:
                again += 1
                shown = f"{call_id or 'call'}-{again}"
            self._shown_ids.add(shown)
            shown_ids[call_id if call_id not in shown_ids else shown] = shown
            return shown

        return show


@dataclass(slots=True)
class _PlanMode:
    """Whether the model was told that tools which change anything are not offered."""

    of_session: bool = False
    of_turn: bool = False
    told: bool = False
    told_at: int = 0
    """The seq of the message that told it last."""

    def forget(self, first: int, last: int) -> None:
        """The messages between these events are gone, and with them what they told."""
        if first <= self.told_at <= last:
            self.told = False

    def notes(self, said: event_pb2.UserMessage, seq: int) -> list[str]:
        """What the model is told with this message of a person's: only what is new."""
        self.of_turn = said.plan_mode or (said.steering and self.of_turn)
        planning = self.of_session or self.of_turn
        if planning == self.told:
            return []
        self.told, self.told_at = planning, seq
        return [blocks_of.PLAN_MODE_ON if planning else blocks_of.PLAN_MODE_OFF]


_TAKES: Final[dict[str, Callable[[History, event_pb2.Event], None]]] = {
    "session_created": History._session_created,
    "session_changed": History._session_changed,
    "turn_start": History._turn_start,
    "user_message": History._user_message,
    "agent_request": History._agent_request,
    "agent_retry": History._agent_retry,
    "assistant_chunk": History._assistant_chunk,
    "assistant_message": History._assistant_message,
    "tool_started": History._tool_started,
    "tool_retry": History._tool_retry,
    "tool_result": History._tool_result,
    "step_end": History._finish_step,
    "turn_end": History._turn_end,
    "context_compacted": History._context_compacted,
}
"""By field of Event.data; the model is told nothing of what is not here."""


def _extend(messages: list[HistoryMessage], more: Iterable[HistoryMessage]) -> None:
    """Appends so that roles alternate, a user opens, and no message is empty."""
    for message in more:
        if not message.blocks:
            continue
        if not messages and message.role == ASSISTANT:
            messages.append(HistoryMessage(USER, (blocks_of.text(blocks_of.OPENING),)))
        if messages and messages[-1].role == message.role:
            messages[-1] = HistoryMessage(message.role, messages[-1].blocks + message.blocks)
        else:
            messages.append(message)


def _texts(blocks: Iterable[common.ContentBlock]) -> Iterable[str]:
    return (block.text.text for block in blocks if block.HasField("text"))
