"""Appends of every kind, alone and several at once, each tried until it is stored; jobs of the forge.

Each try has a name of its own, which is the producer of its events: so it can be told which try is on the disk.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from tests.faults.preload import Kind, Shim
from tests.faults.stored_sim import started
from tests.unit.stored import (
    call,
    chunk,
    created,
    database,
    draft,
    note,
    result,
    step,
    turn,
    usage,
)
from tests.unit.stored import started as tool_started

from turnd.ports import AnsweredRequest, LogFailed
from turnd.rules.event import Draft
from turnd.store.intake import Committed
from turnd.store.log import EventLog
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

TRIES: Final = "tries"
"""What a job says: `stored`, `failed` or `published`, and the name of the try."""
RESOURCE: Final = common.TOOL_KIND_RESOURCE
MOST_TRIES: Final = 50

Append = tuple[Draft, ...]


def _series() -> Sequence[Sequence[Append]]:
    """Groups of appends; those of a group are begun together."""
    item = common.PlanItem(call_id="w", decision=common.POLICY_ACTION_ASK)
    approved = event_pb2.ApprovalDecided(
        request_id="r",
        call_id="w",
        outcome=common.APPROVAL_OUTCOME_APPROVED,
        scope=common.APPROVAL_SCOPE_ONCE,
    )
    long = "x" * 20_000
    return [
        [(created("A"),), (created("B"), note("B"))],
        [(turn("A"), step("A"))],
        [(chunk("A"),), (chunk("A"),), (note("B", long),)],
        [(usage("A", 5),)],
        [(call("A", "w", RESOURCE), call("A", "r"))],
        [(tool_started("A", "r"),)],
        [(draft("A", event_pb2.PlanReady(items=[item])),)],
        [(draft("A", event_pb2.ApprovalRequest(request_id="r", item=item)),)],
        [(draft("A", approved),), (note("B"), note("A"))],
        [(tool_started("A", "w"),)],
        [(result("A", "r"), result("A", "w"))],
        [(draft("A", event_pb2.StepEnd(turn=0, step=1)),)],
        [(draft("A", event_pb2.TurnStopping(reason=common.TURN_END_REASON_COMPLETED)),)],
        [(draft("A", event_pb2.TurnEnd(turn=0, reason=common.TURN_END_REASON_COMPLETED)),)],
        [(note("A"),), (note("B"),), (note("A"),)],
    ]


class Tries:
    """Says what became of each try, at once."""

    def __init__(self, directory: Path) -> None:
        self._file = os.open(directory / TRIES, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def say(self, what: str, name: str) -> None:
        """One line."""
        os.write(self._file, f"{what} {name}\n".encode())

    def published(self, committed: Sequence[Committed]) -> None:
        """A subscriber."""
        for one in committed:
            self.say("published", one.event.producer.name)


def each_fault(directory: Path, kinds: int, first: int, action: int, count: int = 1) -> None:
    """The whole series, in spite of what happens to calls into the kernel."""
    shim = Shim()
    shim.arm(Kind(kinds), first, action, count)
    asyncio.run(_through(directory, Tries(directory), lambda: None))
    (directory / "calls").write_text(str(shim.calls))


def end_at_fault(directory: Path, kinds: int, first: int, action: int) -> None:
    """The series up to the first append that fails: then the process is killed."""
    shim = Shim()
    shim.arm(Kind(kinds), first, action)
    asyncio.run(_through(directory, Tries(directory), lambda: os.kill(os.getpid(), signal.SIGKILL)))
    (directory / "calls").write_text(str(shim.calls))


def end_at_fault_beside_a_reader(directory: Path, kinds: int, first: int, action: int, count: int) -> None:
    """The same with calls counted from the first append on, while somebody reads in a transaction that stays open."""
    asyncio.run(_beside_a_reader(directory, Kind(kinds), first, action, count))


def end_at_failed_errand(directory: Path, kinds: int, first: int, action: int, count: int) -> None:
    """A command's answer is written by itself, beside a reader; at the failure the process is killed."""
    asyncio.run(_errand(directory, Kind(kinds), first, action, count))


async def _errand(directory: Path, kinds: Kind, first: int, action: int, count: int) -> None:
    shim = Shim()
    async with started(directory) as (log, _):
        await log.append(created("A"))
        with _reading(directory) as renew:
            renew()
            shim.arm(kinds, first, action, count)
            try:
                await log.amend(AnsweredRequest("r", "Gc", b"", lambda _: b"answer"))
            except LogFailed:
                os.kill(os.getpid(), signal.SIGKILL)
    (directory / "calls").write_text(str(shim.calls))


async def _beside_a_reader(directory: Path, kinds: Kind, first: int, action: int, count: int) -> None:
    shim, tries = Shim(), Tries(directory)
    async with started(directory) as (log, _):
        log.subscribe(tries.published)
        with _reading(directory) as renew:
            shim.arm(kinds, first, action, count)
            await _append_all(log, directory, tries, lambda: os.kill(os.getpid(), signal.SIGKILL), renew)
    (directory / "calls").write_text(str(shim.calls))


@contextmanager
def _reading(directory: Path) -> Iterator[Callable[[], None]]:
    """A reader in a transaction; what it gives lets that go, and begins another one."""
    with closing(
        sqlite3.connect(f"file:{database(directory)}?mode=ro", uri=True, isolation_level=None)
    ) as connection:

        def renew() -> None:
            if connection.in_transaction:
                connection.execute("COMMIT")
            connection.execute("BEGIN")
            connection.execute("SELECT count(*) FROM events").fetchone()

        yield renew


async def _through(directory: Path, tries: Tries, at_failure: Callable[[], None]) -> None:
    for _ in range(MOST_TRIES):
        begun = False
        try:
            async with started(directory) as (log, _):
                begun = True
                log.subscribe(tries.published)
                await _append_all(log, directory, tries, at_failure)
                return
        except (sqlite3.Error, OSError):
            # A start may fail, and says so; nothing else may.
            if begun:
                raise
    raise AssertionError(f"the log did not start in {MOST_TRIES} tries")


async def _append_all(
    log: EventLog,
    directory: Path,
    tries: Tries,
    at_failure: Callable[[], None],
    before_group: Callable[[], None] = lambda: None,
) -> None:
    for group_number, group in enumerate(_series()):
        before_group()
        left = dict(enumerate(group))
        for attempt in range(MOST_TRIES):
            names = {number: f"{group_number}.{number}.{attempt}" for number in left}
            appends: list[Awaitable[object]] = [
                log.append(*(_named(one, names[number]) for one in drafts)) for number, drafts in left.items()
            ]
            outcomes = await asyncio.gather(*appends, return_exceptions=True)
            failed = {}
            for (number, drafts), outcome in zip(left.items(), outcomes, strict=True):
                tries.say("failed" if isinstance(outcome, BaseException) else "stored", names[number])
                if isinstance(outcome, BaseException):
                    assert isinstance(outcome, LogFailed), repr(outcome)
                    assert "nothing of this append was stored" in str(outcome)
                    failed[number] = drafts
            _check_state(log, directory)
            if failed:
                at_failure()
            left = failed
            if not left:
                break
        assert not left, f"an append of group {group_number} was not stored in {MOST_TRIES} tries"


def _named(one: Draft, name: str) -> Draft:
    return Draft(one.session, one.payload, producer=common.Producer(name=name))


def _check_state(log: EventLog, directory: Path) -> None:
    """In memory is what is on disk (LOG-14)."""
    with closing(sqlite3.connect(f"file:{database(directory)}?mode=ro", uri=True)) as connection:
        on_disk = dict(
            connection.execute(
                "SELECT id, max(seq) FROM sessions JOIN events ON events.session = sessions.key GROUP BY id"
            ).fetchall()
        )
    for session in ("A", "B"):
        seq = on_disk.get(session)
        if seq is not None:
            assert (log.state(session).seq, log.view(session).last_seq) == (seq, seq)
