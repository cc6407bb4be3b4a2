"""Room for the next request: old results are left out, older Turns are summarised by the model (MODEL-08).

It runs between two Steps, before line 1; and once inside of a Step whose request the vendor refused as too long. What
is done is `context/compacted` in the log, which itself keeps everything. What to do is decided by `rules.compact`.
"""

from __future__ import annotations

from turnd.loop.aside import Aside, Said, ask
from turnd.loop.context import context_budget
from turnd.loop.ledger import refuse_unpriced
from turnd.loop.run import LimitFired, Run, StepFailed
from turnd.ports import ModelFailure
from turnd.rules import estimate, summary
from turnd.rules.compact import Budget, Span, pruning, replaced, span, tokens
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2
from turnd.v1.jsonform import enum_text

MAX_ROUNDS = 2
"""Summaries before one Step."""
PRUNED, SUMMARISED = "pruned", "summarised"


async def make_room(run: Run) -> None:
    """Before line 1 of a Step. Nothing where the history is within its budget.

    Raises StepFailed `context_length_exceeded` where what is left does not fit, LimitFired where a bound fired before
    a request for a summary.
    """
    budget = context_budget(run)
    if tokens(run.history.units()) <= budget.due:
        return
    await _compact(run, budget)
    left = tokens(run.history.units())
    if left > budget.room:
        raise StepFailed(_too_long(run, left, budget))


async def leave_out_results(run: Run) -> None:
    """Before the final Step, in which nothing is spent but on the answer: no model is asked for a summary."""
    await _prune(run, context_budget(run))


async def shorten(run: Run) -> bool:
    """Inside of a Step whose request was refused as too long: the history is compacted as if it were twice as long.

    False where nothing could be gained. Raises StepFailed and LimitFired as `make_room` does.
    """
    before = tokens(run.history.units())
    await _compact(run, context_budget(run).shorter(before))
    return tokens(run.history.units()) < before


async def _compact(run: Run, budget: Budget) -> None:
    await _prune(run, budget)
    for number in range(1, MAX_ROUNDS + 1):
        if not await _summarise(run, budget, last=number == MAX_ROUNDS):
            return


async def _prune(run: Run, budget: Budget) -> None:
    units = run.history.units()
    found = pruning(units, run.history.turns, budget)
    if found is None:
        return
    before = tokens(units)
    after = before - found.saved
    why = ""
    if after > budget.due and not _may_summarise(run):
        why = f"no further results can be left out, and {run.model.spec.id} answers no requests for summaries"
    await run.append(
        event_pb2.ContextCompacted(
            from_seq=found.first_seq,
            to_seq=found.last_seq,
            method=PRUNED,
            tokens_before=before,
            tokens_after=after,
            stopped_because=why,
            pruned_call_ids=found.call_ids,
        )
    )


async def _summarise(run: Run, budget: Budget, *, last: bool) -> bool:
    """One round. False where there was nothing to do, or nothing was gained: then another would gain nothing."""
    history = run.history
    units = history.units()
    found = span(units, history.turns, budget, history.summarised_in_vain)
    if found is None or not _may_summarise(run):
        return False
    before = tokens(units)
    blocks: tuple[common.ContentBlock, ...] = ()
    after, why, over = before, "", False
    try:
        said = await _ask(run, found, budget)
    except ModelFailure as failed:
        category = enum_text(common.ModelErrorCategory, failed.error.category)
        why = f"the request for a summary failed ({category}): {failed.error.message}"
    else:
        blocks = summary.replacement(said.text, cut=said.cut)
        left = replaced(units, found, blocks)
        after = tokens(left)
        over = after > budget.due and (last or span(left, history.turns, budget) is None)
        if not said.text:
            why = "the model answered nothing"
        elif after >= before:
            why = "the summary is no shorter than what it would replace"
    gained = not why
    if gained and over:
        done = f"{MAX_ROUNDS} summaries were made" if last else "nothing further can be summarised"
        why = f"{done}; the history has {after} tokens, more than its budget of {budget.due}"
    await run.append(
        event_pb2.ContextCompacted(
            from_seq=found.first_seq,
            to_seq=found.last_seq,
            method=SUMMARISED,
            replacement=blocks if gained else (),
            tokens_before=before,
            tokens_after=after if gained else before,
            stopped_because=why,
        )
    )
    return gained


async def _ask(run: Run, found: Span, budget: Budget) -> Said:
    """The summary. Failed requests are tried again as those of Steps are; each is an agent/request of its own.

    Bounds are looked at before each (BOUND-01). Raises ModelFailure, LimitFired, StepFailed.
    """
    spec = run.model.spec
    answer = min(spec.max_output_tokens, budget.summary)
    room = spec.context_window - answer - estimate.tokens(summary.INSTRUCTIONS)
    aside = Aside(
        purpose=common.REQUEST_PURPOSE_COMPACTION,
        system=summary.INSTRUCTIONS,
        question=summary.question(found.units, int(room * run.settings.context_share)),
        max_output_tokens=budget.summary,
    )
    refuse_unpriced(run)
    attempt = 1
    while True:
        if reached := run.limits_reached():
            raise LimitFired(reached)
        try:
            with run.meter.active():
                return await ask(run, run.model, aside)
        except ModelFailure as failed:
            retry = run.settings.retry
            delay_ms = retry.delay(
                attempt, failed.error, run.settings.jitter, rest_ms=run.wall_clock_left_ms()
            )
            if delay_ms is None:
                raise
        await run.world.clock.sleep(delay_ms / 1000)
        attempt += 1


def _may_summarise(run: Run) -> bool:
    view = run.view
    return run.model.answers(common.REQUEST_PURPOSE_COMPACTION, view.profile.name if view.depth > 0 else None)


def _too_long(run: Run, left: int, budget: Budget) -> event_pb2.ErrorStop:
    return event_pb2.ErrorStop(
        source="model",
        category="context_length_exceeded",
        message=f"{run.model.spec.id}: the conversation comes to about {left} tokens, and {budget.room} is what its "
        f"window of {run.model.spec.context_window} has left beside the answer, the tools and the system prompt. What "
        "could be left out was left out. Ask for less at once, start a new session, or use a model with a larger "
        "window",
    )
