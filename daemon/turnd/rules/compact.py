"""What of a history makes room when it fills its budget, and in which order (MODEL-08).

First the results of old tool calls are left out, which costs nothing; then older Turns are summarised, and last the
earlier Steps of the Turn that is open. Units stay whole, so no call is ever parted from its result. What is decided
follows from the history and the budget alone: the same log is compacted in the same way again, and a history that
was compacted is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from turnd.rules.history import USER, HistoryMessage, Unit
from turnd.rules.history_blocks import Blocks

KEPT_STEPS: Final = 3
"""Steps of the open Turn that are never summarised."""
KEPT_RESULTS_SHARE: Final = 0.25
"""Of the budget: so much of the newest results is not left out, and all that the last Step brought."""
AIM_SHARE: Final = 0.7
"""Of the budget: what compaction comes down to. It costs the prompt cache, so it makes room for a while."""
RESERVED_BY_DEFAULT: Final = 4
"""Where nobody asks for a length of the answer, no more than this part of the window is kept free for it."""
RESERVED_AT_MOST: Final = 2
"""No more than this part of the window is kept free for an answer."""
SUMMARY_SHARE: Final = 0.1
"""Of the budget: what a summary may come to."""
SMALLEST_SUMMARY: Final = 256
LONGEST_SUMMARY: Final = 4096


@dataclass(frozen=True, slots=True)
class Budget:
    """What the messages of a request may come to, in tokens."""

    due: int
    """Above it the history is compacted."""
    aim: int
    """What compaction comes down to, where it can."""
    room: int
    """Above it the request does not fit the model's window."""

    @property
    def summary(self) -> int:
        """What one summary may come to."""
        return min(LONGEST_SUMMARY, max(SMALLEST_SUMMARY, int(self.due * SUMMARY_SHARE)))

    def shorter(self, tokens: int) -> Budget:
        """For a history of so many tokens that was refused as too long, whatever the estimate says."""
        return Budget(due=min(self.due, tokens // 2), aim=min(self.aim, tokens // 2), room=self.room)


def budget(
    window: int, share: float, *, most_output: int, asked_output: int | None, system: int, tools: int
) -> Budget:
    """A share of the window, less what is kept free for the answer, the tools and the system prompt; all in tokens.

    `asked_output` is the length of the answer that the request asks for, `most_output` what the model is capable of.
    """
    if asked_output is None:
        reserved = min(most_output, window // RESERVED_BY_DEFAULT)
    else:
        reserved = min(asked_output, window // RESERVED_AT_MOST)
    taken = reserved + system + tools
    due = max(int(window * share) - taken, 0)
    return Budget(due=due, aim=int(due * AIM_SHARE), room=max(window - taken, 0))


def tokens(units: Sequence[Unit]) -> int:
    """The estimate of a history."""
    return sum(unit.tokens for unit in units)


@dataclass(frozen=True, slots=True)
class Pruning:
    """Results to leave out."""

    call_ids: tuple[str, ...]
    """Oldest first, by the ids that the model sees."""
    first_seq: int
    last_seq: int
    saved: int


def pruning(units: Sequence[Unit], turn: int, budget: Budget) -> Pruning | None:
    """The results that are left out, oldest first, until the aim is reached; None where there is nothing to do.

    `turn` is the number of the open Turn.
    """
    total = tokens(units)
    if total <= budget.due:
        return None
    over = total - budget.aim
    call_ids: list[str] = []
    seqs: list[int] = []
    saved = 0
    for unit in units[: _first_kept_result(units, turn, budget)]:
        for call_id, gain in unit.prunable.items():
            if saved >= over:
                break
            call_ids.append(call_id)
            seqs.append(unit.seq)
            saved += gain
    return Pruning(tuple(call_ids), seqs[0], seqs[-1], saved) if call_ids else None


@dataclass(frozen=True, slots=True)
class Span:
    """Units that a summary takes the place of."""

    units: tuple[Unit, ...]
    first_seq: int
    last_seq: int
    """Of the last event before what stays."""

    @property
    def tokens(self) -> int:
        """The estimate of its size."""
        return tokens(self.units)


def span(units: Sequence[Unit], turn: int, budget: Budget, tried_at: int = 0) -> Span | None:
    """What is summarised next; None where there is nothing to do, or nothing left that may be.

    `turn` is the number of the open Turn: those before it go first, and of it the Steps after what opened it.
    Since it was tried in vain, at the event `tried_at`, something must have come to it. Never one summary alone: that
    would change nothing.
    """
    if tokens(units) <= budget.due:
        return None
    older = sum(1 for unit in units if unit.turn < turn)
    for start, ends in ((0, _ends_of_turns(units, older)), _steps_of_turn(units, older)):
        found = _shortest(units, start, [end for end in ends if units[end - 1].seq > tried_at], budget)
        if found is not None:
            return found
    return None


def replaced(units: Sequence[Unit], span: Span, blocks: Blocks) -> tuple[Unit, ...]:
    """The units with a summary in the place of the span."""
    summary = Unit(span.first_seq, span.units[-1].turn, (HistoryMessage(USER, blocks),), summary=True)
    return (
        *(unit for unit in units if unit.seq < span.first_seq),
        summary,
        *(unit for unit in units if unit.seq > span.last_seq),
    )


def _shortest(units: Sequence[Unit], start: int, ends: Sequence[int], budget: Budget) -> Span | None:
    """The shortest span whose summary brings the history down to the aim; else the longest there is."""
    total = tokens(units)
    lawful = [end for end in ends if _worth_it(units[start:end], budget)]
    for end in lawful:
        if total - tokens(units[start:end]) + budget.summary <= budget.aim:
            return _span(units, start, end)
    return _span(units, start, lawful[-1]) if lawful else None


def _worth_it(units: Sequence[Unit], budget: Budget) -> bool:
    """More than summaries, and longer than a summary may be."""
    return not all(unit.summary for unit in units) and tokens(units) > budget.summary


def _span(units: Sequence[Unit], start: int, end: int) -> Span:
    last = units[end].seq - 1 if end < len(units) else units[end - 1].seq
    return Span(tuple(units[start:end]), units[start].seq, last)


def _ends_of_turns(units: Sequence[Unit], older: int) -> list[int]:
    """Where each Turn before the open one ends."""
    return [end for end in range(1, older + 1) if end == older or units[end].turn != units[end - 1].turn]


def _steps_of_turn(units: Sequence[Unit], older: int) -> tuple[int, list[int]]:
    """Where the Steps of the open Turn begin, behind what opened it, and where each ends that may be summarised."""
    start = older
    while start < len(units) and _said_by_user(units[start]):
        start += 1
    steps = [at for at in range(start, len(units)) if not _said_by_user(units[at])]
    kept = steps[-KEPT_STEPS] if len(steps) > KEPT_STEPS else start
    return start, [at + 1 for at in range(start, kept) if not _said_by_user(units[at])]


def _said_by_user(unit: Unit) -> bool:
    return not unit.summary and len(unit.messages) == 1 and unit.messages[0].role == USER


def _first_kept_result(units: Sequence[Unit], turn: int, budget: Budget) -> int:
    """From here on results are kept: the newest up to a share, and in any case those that the model just asked for."""
    kept, share = 0, int(budget.due * KEPT_RESULTS_SHARE)
    first = len(units)
    for at in _with_results(units):
        kept += units[at].messages[-1].tokens
        just_asked_for = first == len(units) and units[at].turn == turn
        if kept > share and not just_asked_for:
            break
        first = at
    return first


def _with_results(units: Sequence[Unit]) -> Iterator[int]:
    """Indices of the units with calls, newest first."""
    return (at for at in range(len(units) - 1, -1, -1) if len(units[at].messages) > 1)
