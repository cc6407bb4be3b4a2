"""A title for a session that has none: one request behind the first answer of its first Turn."""

from __future__ import annotations

import asyncio
from contextvars import Context

import structlog

from turnd.loop.aside import Aside, ask
from turnd.loop.ledger import unpriced
from turnd.loop.run import Run
from turnd.ports import LogFailed, Model, ModelFailure
from turnd.rules import title
from turnd.rules.state import Violation
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

log = structlog.get_logger(__name__)

TIME_S = 60.0
"""A title that takes longer is given up."""
GRACE_S = 3.0
"""So long a session that is closed waits for a title that is under way."""


class Titling:
    """Owns the request for a title. The mutable state is its task.

    It delays no Turn, uses up nothing of the wall clock, and a failure is only logged. It is over before the session
    is ended and before its daemon stops.
    """

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def answered(self, run: Run, answer: event_pb2.AssistantMessage) -> None:
        """The model has said something in a Turn; where it is the first answer of a session, a title is asked for."""
        view = run.view
        if view.title or view.is_child or view.turns != 1 or answer.partial or self._task is not None:
            return
        if any(block.text.text.strip() for block in answer.blocks):
            # In a context of its own: it is no part of the Step that happens to be open.
            self._task = asyncio.create_task(
                _name(run, run.model, answer), name=f"title of {run.session}", context=Context()
            )
            self._task.add_done_callback(_say_fault)

    async def end(self, grace_s: float = 0) -> None:
        """Waits for the grace time (seconds), then cancels; what was spent is booked when this returns."""
        task = self._task
        if task is None:
            return
        if grace_s:
            await asyncio.wait({task}, timeout=grace_s)
        task.cancel()
        await asyncio.wait({task})


def _say_fault(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (fault := task.exception()) is not None:
        log.error("a title failed by a fault of the daemon", task=task.get_name(), exc_info=fault)


async def _name(run: Run, model: Model, answer: event_pb2.AssistantMessage) -> None:
    if not model.answers(common.REQUEST_PURPOSE_TITLE, None) or run.limits_reached() or unpriced(run, model):
        return
    opening = next((unit for unit in run.history.units() if unit.turn == run.history.turns), None)
    asked = () if opening is None else opening.messages[0].blocks
    aside = Aside(
        purpose=common.REQUEST_PURPOSE_TITLE,
        system=title.INSTRUCTIONS,
        question=title.question(asked, answer.blocks),
        max_output_tokens=title.MAX_OUTPUT_TOKENS,
    )
    try:
        async with asyncio.timeout(TIME_S):
            said = await ask(run, model, aside)
        found = title.cleaned(said.text)
        if found and not run.view.title:
            await run.append(event_pb2.SessionChanged(title=found))
    except (ModelFailure, LogFailed, Violation, TimeoutError) as failed:
        log.warning("the session got no title", session=run.session, reason=str(failed) or "it took too long")
