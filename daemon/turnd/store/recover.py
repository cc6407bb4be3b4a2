"""What a start does about a daemon that was killed: every Turn it left open is closed (LOG-08, LOG-21)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from turnd.ports import Log
from turnd.rules import closing
from turnd.rules.event import Draft
from turnd.rules.lifecycle import is_ended
from turnd.rules.state import SessionState
from turnd.store.catalogue import Catalogue
from turnd.store.live import BrokenLog
from turnd.v1 import event_pb2, sessions_pb2

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Repaired:
    """One session that was closed, and by how many events."""

    session: str
    events: int


async def repair(event_log: Log, catalogue: Catalogue, unload: Callable[[str], None]) -> Sequence[Repaired]:
    """Closes what is open, each session in one transaction, sub-agents before those that wait for them.

    Which sessions these are is in their table; no other log is read, and none stays in memory. A second run
    finds nothing.
    """
    repaired = []
    for row in await catalogue.unsettled():
        try:
            await event_log.load(row.id)
        except BrokenLog as broken:
            log.exception("log_repair_impossible", session=row.id, problem=str(broken))
            continue
        state = event_log.state(row.id)
        children = await _ended_children(catalogue, state)
        drafts = closing.repair(state, row.id, row.updated_us, children)
        if drafts:
            events = await event_log.append(*drafts)
            log.info("session_repaired", session=row.id, events=len(events))
            repaired.append(Repaired(row.id, len(events)))
        unload(row.id)
    return repaired


async def tell_losses(event_log: Log, losses: Mapping[str, str], unload: Callable[[str], None]) -> None:
    """Notes in each session that was kept in part what is missing, where its readers see it (LOG-16)."""
    for session, text in losses.items():
        await event_log.load(session)
        if not event_log.state(session).ended:
            await event_log.append(Draft(session, event_pb2.Note(text=text), synthetic=True))
        unload(session)


async def _ended_children(catalogue: Catalogue, state: SessionState) -> dict[str, event_pb2.ChildEnded]:
    """What became of the sub-agents whose own logs have ended: their status, and what their subtrees spent."""
    totals = await catalogue.totals(state.children)
    ends = {}
    for child, total in totals.items():
        session = sessions_pb2.Session.FromString((await catalogue.row(child)).session)
        if is_ended(session.status):
            ends[child] = event_pb2.ChildEnded(
                status=session.status,
                total_cost_nano_usd=total.cost_nano_usd,
                total_input_tokens=total.input_tokens,
                total_output_tokens=total.output_tokens,
            )
    return ends
