"""What is wrong with a log, for people: each fault once, and how many others only follow from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from turnd.v1 import sessions_pb2
from turnd_client.text import visible
from turnd_client.units import counted

SHOWN = 20
"""Faults that a terminal gets without being asked for all."""


def fault_lines(faults: Sequence[sessions_pb2.LogFault], *, every: bool = False) -> Iterator[str]:
    """One line for each fault that is one by itself; with `every` also for those that follow from others."""
    if every:
        for fault in faults:
            cause = f" (follows from {_place(faults[fault.follows_from - 1])})" if fault.follows_from else ""
            yield f"{'  ' if cause else ''}{_line(fault)}{cause}"
        return
    causes = [fault for fault in faults if not fault.follows_from]
    for fault in causes[:SHOWN]:
        more = (
            f" (and {fault.followers} that follow{'s'[fault.followers > 1 :]} from it)"
            if fault.followers
            else ""
        )
        yield f"{_line(fault)}{more}"


def faults_text(causes: int, in_all: int) -> str:
    """`1 fault, and 22 that follow`."""
    following = in_all - causes
    more = f", and {following} that follow{'s'[following > 1 :]}" if following else ""
    return counted(causes, "fault") + more


def _line(fault: sessions_pb2.LogFault) -> str:
    history = f"history, seq {fault.seq} of {visible(fault.session)}: " if fault.history else ""
    place = _place(fault)
    return f"{place}{': ' if place else ''}{history}{visible(fault.message)}"


def _place(fault: sessions_pb2.LogFault) -> str:
    if fault.line:
        return f"line {fault.line}"
    return f"seq {fault.seq}" if fault.seq else ""
