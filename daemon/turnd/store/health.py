"""What is wrong with the file and does not stop the daemon: found at the start, by a check, in use (LOG-16)."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import structlog

from turnd.ports import Clock
from turnd.store.batch import Failed, Outcome
from turnd.store.check import BackgroundCheck, CheckStopped
from turnd.store.damage import suspect
from turnd.store.opening import checked, open_file

LARGE_WAL_BYTES: Final = 64 * 2**20
"""A WAL of which so much is in use, where 4 MiB are usual, is kept from being emptied by a reader."""
MAX_PROBLEMS: Final = 100
"""Problems that are kept; there is no more to know from the others."""

_OF_THE_FILE: Final = (sqlite3.OperationalError, sqlite3.DatabaseError)
"""Other errors of SQLite are about a single statement."""

log = structlog.get_logger(__name__)


class WalWatch:
    """Says once that a reader keeps the WAL from being emptied, and once that it is over (LOG-10).

    The writer tells it in its thread; anybody may ask for the problem.
    """

    def __init__(self, large_bytes: int = LARGE_WAL_BYTES) -> None:
        self._large_bytes = large_bytes
        self._problem = ""

    @property
    def problem(self) -> str:
        """Empty where all is well."""
        return self._problem

    def checkpointed(self, in_use_bytes: int, *, whole: bool) -> None:
        """Takes how much of the WAL is in use after a checkpoint, and whether that moved all of it."""
        large = in_use_bytes > self._large_bytes and not whole
        if large and not self._problem:
            self._problem = (
                f"the log's WAL has grown to {in_use_bytes // 2**20} MiB: a process that reads turnd.db keeps a "
                "transaction open; end it, and the WAL is emptied"
            )
            log.warning("log_wal_large", bytes=in_use_bytes)
        elif whole and self._problem:
            self._problem = ""
            log.info("log_wal_emptied")


class TakingWatch:
    """Whether the log takes anything: what keeps it from that, from the first commit that fails to the next that
    does not (LOG-14).

    The writer tells it in its thread, before whoever asked for the commit hears of it; anybody may ask.
    """

    def __init__(self) -> None:
        self._problem = ""

    @property
    def problem(self) -> str:
        """Empty where all is well."""
        return self._problem

    def refused(self, error: Exception) -> None:
        """Takes why a commit failed; where that is about what was to be written, others can be."""
        if isinstance(error, OSError) or type(error) in _OF_THE_FILE:
            self._problem = (
                f"the log takes nothing: {error}; make room, or see to the disk: then sessions go on"
            )

    def took(self) -> None:
        """Something was committed."""
        if self._problem:
            log.info("log_takes_events_again")
            self._problem = ""


class Health:
    """Opens the file, has it checked, and keeps what is wrong with it. For the thread of the loop.

    The mutable state is the list of problems, and the check that runs.
    """

    def __init__(self, path: Path, clock: Clock, large_wal_bytes: int = LARGE_WAL_BYTES) -> None:
        self._path = path
        self._clock = clock
        self._problems: list[str] = []
        self._unclean = False
        self._check: BackgroundCheck | None = None
        self._checked: asyncio.Task[None] | None = None
        self.wal = WalWatch(large_wal_bytes)
        self.taking = TakingWatch()

    async def open(self, *, used_before: bool) -> Mapping[str, str]:
        """See `opening.open_file`, whose errors it raises; by session, what it lost."""
        opened = await asyncio.to_thread(open_file, self._path, self._clock.now_us, used_before=used_before)
        self._unclean = opened.unclean
        self._problems += opened.notes
        return opened.losses

    def check_behind(self) -> None:
        """Begins the check that an unclean stop calls for; its outcome is in the log and in `problems`."""
        if self._unclean:
            self._check = BackgroundCheck(self._path)
            self._checked = asyncio.create_task(self._outcome(self._check))
            self._check.start()

    @property
    def problems(self) -> Sequence[str]:
        """What is known to be wrong, in words for people."""
        watched = (self.taking.problem, self.wal.problem)
        return [*self._problems, *(problem for problem in watched if problem)]

    def damaged(self, problem: str) -> None:
        """Something of the file cannot be read: said, and the next start recovers."""
        if problem not in self._problems and len(self._problems) < MAX_PROBLEMS:
            self._problems.append(problem)
            log.error("log_damaged", problem=problem)
            try:
                suspect(self._path, problem)
            except OSError as error:
                log.warning("log_not_marked_for_recovery", error=str(error))

    def committed(self, outcomes: Sequence[Outcome]) -> None:
        """Takes what became of appends: a damaged page can be in the way of all of them."""
        for outcome in outcomes:
            # Subclasses say what could not be done; the class itself, that the file is not as it should be.
            if isinstance(outcome, Failed) and type(outcome.error) is sqlite3.DatabaseError:
                self.damaged(
                    f"the log cannot be written: {outcome.error}; restart turnd: it keeps the damaged file and "
                    "recovers what can be read"
                )

    async def wait_checked(self) -> None:
        """Returns when the check behind is done, or where there is none. No time-out: it takes what it takes."""
        if self._checked is not None:
            await asyncio.shield(self._checked)

    async def close(self) -> None:
        """Ends the check."""
        if self._check is not None and self._checked is not None:
            self._check.stop()
            await self._checked
            self._check.join()

    async def _outcome(self, check: BackgroundCheck) -> None:
        try:
            faults = await asyncio.wrap_future(check.done)
        except CheckStopped:
            log.info("log_check_stopped")
        except Exception as error:
            log.exception("log_check_failed")
            self._problems.append(f"the log could not be checked after an unclean stop: {error}")
        else:
            checked(self._path)
            if faults:
                more = f"; and {len(faults) - 1} more" if len(faults) > 1 else ""
                self.damaged(
                    f"the check after an unclean stop found the log damaged: {faults[0]}{more}; restart turnd: "
                    "it keeps the damaged file and recovers what can be read"
                )
            else:
                log.info("log_check_passed")
