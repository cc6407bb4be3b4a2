"""A new session that goes on from another log, made whole away from the loop (LOG-17, LOG-22).

Nobody else knows the session before it is committed, so what its log will be depends on nothing that the loop may
change meanwhile: a worker numbers, checks and encodes it, and the loop only hands it to the writer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from turnd.ports import MAX_EVENT_BYTES, Clock, EventTooLarge
from turnd.rules.closing import after_history
from turnd.rules.event import Draft, event_type
from turnd.store.batch import Entry
from turnd.store.live import Folded
from turnd.store.pace import Pace
from turnd.v1 import event_pb2


@dataclass(frozen=True, slots=True)
class Beginning:
    """All events of a session that nobody has seen yet, and what they come to."""

    session: str
    key: int
    entries: Sequence[Entry]
    folded: Folded
    size: int
    """Bytes of all blobs."""
    now_us: int
    """Of the events that are the session's own."""


def begin(
    session: str,
    key: int,
    history: deque[event_pb2.Event],
    created: event_pb2.SessionCreated,
    clock: Clock,
    pace: Pace,
) -> Beginning:
    """The history, marked as such, session/created, and what closes whatever the history left open.

    The history is taken out of its deque one by one, so that no event is in memory twice. Raises EventTooLarge,
    Stopped.
    """
    folded = Folded()
    entries: list[Entry] = []
    size = 0

    def add(draft: Draft, now_us: int) -> Folded:
        nonlocal size
        event = folded.event(draft, now_us)
        after = folded.after(event)
        blob = encoded(event)
        size += len(blob)
        entries.append(Entry(key, event, blob))
        pace.passed(len(blob))
        return after

    while history:
        folded = add(Draft(session, history.popleft()), 0)
    now_us = clock.now_us()
    for draft in (Draft(session, created), *after_history(folded.state, session)):
        folded = add(draft, now_us)
    return Beginning(session, key, entries, folded, size, now_us)


def encoded(event: event_pb2.Event) -> bytes:
    """The event as its row has it. Raises EventTooLarge."""
    blob = event.SerializeToString()
    if len(blob) > MAX_EVENT_BYTES:
        raise EventTooLarge(event_type(event), len(blob))
    return blob
