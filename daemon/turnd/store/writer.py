"""The one writer: a thread that owns the connection and turns what is queued into transactions (LOG-04, LOG-10).

The mutable state is the connection, how much was written since the last checkpoint, and the time of the newest
request. All of it belongs to the thread.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import structlog

from turnd.store.answers import forget_requests, write_request
from turnd.store.batch import Batch, Change, Failed, Outcome, Stored
from turnd.store.checksum import row_checksum
from turnd.store.connection import Grade, WritingConnection
from turnd.store.health import TakingWatch, WalWatch
from turnd.store.projections import write_event_rows, write_session_row
from turnd.store.remembered import remember
from turnd.store.schema import VERSION

MAX_BATCHES_IN_TRANSACTION: Final = 1024
MAX_BYTES_IN_TRANSACTION: Final = 8 * 2**20
CHECKPOINT_BYTES: Final = 4 * 2**20
"""About how much is written into the WAL between two checkpoints."""
IDLE_S: Final = 1.0
"""Without work for so long, the WAL is emptied and old requests are forgotten; a log that took nothing is tried."""
_TRANSACTION_BYTES: Final = 32 * 2**10
"""What a transaction costs in the WAL beside its events: pages of tables and indexes."""

log = structlog.get_logger(__name__)

Report = Callable[[Sequence[Outcome]], None]
"""Takes the outcomes of batches, in the order in which they were submitted; called in the writer's thread."""


class Superseded(Exception):
    """An earlier append of the same session failed, so that this one would leave a gap."""


@dataclass(frozen=True, slots=True)
class Errand:
    """Something else than appending that is done in a transaction of its own, between those of the batches."""

    work: Callable[[sqlite3.Connection], None]
    done: Future[None]


@dataclass(frozen=True, slots=True)
class _Stop:
    """The last thing that is queued."""


class Writer:
    """Commits batches in the order in which they are submitted.

    The queue has no bound of its own: whoever submits admits no more than a stated number (see `EventLog`).
    """

    def __init__(self, path: Path, report: Report, wal: WalWatch, taking: TakingWatch) -> None:
        self._path = path
        self._report = report
        self._wal = wal
        self._taking = taking
        self._queue: queue.SimpleQueue[Batch | Errand | _Stop] = queue.SimpleQueue()
        self._opened: Future[int] = Future()
        self.ended: Future[None] = Future()
        """Done when the thread is; nothing that was submitted is left open by a thread that ends well."""
        self._thread = threading.Thread(target=self._run, name="turnd-log-writer", daemon=True)

    def start(self) -> Future[int]:
        """Opens the file; the future gives the last position in it, or why it cannot be used."""
        self._thread.start()
        return self._opened

    def submit(self, batch: Batch) -> None:
        """Queues a batch; its outcome is reported."""
        self._queue.put(batch)

    def run(self, work: Callable[[sqlite3.Connection], None]) -> Future[None]:
        """Queues work that changes rows, in one transaction behind what is queued; the future gives its exception.

        It must keep events contiguous for whoever is in memory, and leave the last position in the file. The future's
        exception is what `work` raised, or a sqlite3.Error or OSError.
        """
        errand = Errand(work, Future())
        self._queue.put(errand)
        return errand.done

    def stop(self) -> Future[None]:
        """Ends the thread after what is queued, the WAL emptied and the file closed."""
        self._queue.put(_Stop())
        return self.ended

    def join(self) -> None:
        """Waits for the thread, which has nothing left to do but end."""
        self._thread.join()

    def _run(self) -> None:
        try:
            self._connection = WritingConnection(self._path, self._wal)
        except Exception as error:  # noqa: BLE001 - it goes to whoever waits for the start
            self._opened.set_exception(error)
            self.ended.set_result(None)
            return
        self._since_checkpoint = 0
        self._newest_request_us = 0
        self._opened.set_result(self._connection.position)
        try:
            self._serve()
        finally:
            self._connection.close()
            self._refuse_errands()
            self.ended.set_result(None)

    def _serve(self) -> None:
        while True:
            try:
                due = self._since_checkpoint or self._wal.problem or self._taking.problem
                first = self._queue.get(timeout=IDLE_S if due else None)
            except queue.Empty:
                if self._taking.problem:
                    self._try()
                self._forget_requests()
                self._checkpoint("TRUNCATE")
                continue
            batches, then = self._drain(first)
            if batches:
                self._report(self._commit(batches))
            if isinstance(then, Errand):
                self._do(then)
            if self._since_checkpoint > CHECKPOINT_BYTES:
                self._checkpoint("PASSIVE")
            if isinstance(then, _Stop):
                self._checkpoint("TRUNCATE")
                return

    def _drain(self, first: Batch | Errand | _Stop) -> tuple[list[Batch], Errand | _Stop | None]:
        """What is queued now, up to the bounds of a transaction, and what has to be done behind it."""
        batches: list[Batch] = []
        size = 0
        item = first
        while isinstance(item, Batch):
            batches.append(item)
            size += item.size
            if len(batches) == MAX_BATCHES_IN_TRANSACTION or size > MAX_BYTES_IN_TRANSACTION:
                return batches, None
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return batches, None
        return batches, item

    def _commit(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Together if possible; else each alone, so that one bad batch does not fail the others (LOG-14).

        Where the file cannot be opened again all of them fail; it is tried anew for what is queued next.
        """
        try:
            return list(self._transaction(batches))
        except Exception as error:  # noqa: BLE001 - whatever it is, its caller hears of it and others go on
            failed = self._failed(error)
        if len(batches) == 1:
            return [failed]
        return [failed if self._connection.broken else self._alone(batch) for batch in batches]

    def _alone(self, batch: Batch) -> Outcome:
        try:
            return self._transaction([batch])[0]
        except Exception as error:  # noqa: BLE001 - as in _commit
            return self._failed(error)

    def _failed(self, error: Exception) -> Failed:
        log.error("log_commit_failed", error=str(error), kind=type(error).__name__)
        self._taking.refused(error)
        # On a full disk this can give room back.
        self._checkpoint("TRUNCATE")
        return Failed(error, gone=not self._connection.uncut)

    def _transaction(self, batches: Sequence[Batch]) -> Sequence[Stored]:
        self._since_checkpoint += _TRANSACTION_BYTES + sum(batch.size for batch in batches)
        position = self._connection.position
        latest: dict[int, Change] = {}
        stored = []
        grade: Grade = "FULL" if any(batch.commitment for batch in batches) else "NORMAL"
        with self._connection.transaction(grade) as connection:
            for batch in batches:
                for change in batch.changes:
                    _require_seq(connection, change, latest.get(change.key))
                    latest[change.key] = change
                stored.append(Stored(position + 1))
                position = _insert(connection, batch, position)
            for change in latest.values():
                write_session_row(connection, change)
        self._connection.advanced(position)
        self._taking.took()
        requests = [batch.request.at_us for batch in batches if batch.request is not None]
        self._newest_request_us = max(requests, default=self._newest_request_us)
        return stored

    def _do(self, errand: Errand) -> None:
        if not errand.done.set_running_or_notify_cancel():
            return
        self._since_checkpoint += _TRANSACTION_BYTES
        try:
            with self._connection.transaction("FULL") as connection:
                errand.work(connection)
        except Exception as error:  # noqa: BLE001 - it goes to whoever asked for the work
            self._taking.refused(error)
            errand.done.set_exception(error)
        else:
            self._taking.took()
            errand.done.set_result(None)

    def _refuse_errands(self) -> None:
        """Nobody does what is still queued, and whoever waits for it is told."""
        while not self._queue.empty():
            left = self._queue.get_nowait()
            if isinstance(left, Errand) and left.done.set_running_or_notify_cancel():
                left.done.set_exception(sqlite3.ProgrammingError("the log is closed"))

    def _try(self) -> None:
        """Writes a page as it is: nobody has to append something for the log to be known to be well again."""
        try:
            with self._connection.transaction("FULL") as connection:
                connection.execute(f"PRAGMA user_version = {VERSION}")
        except (sqlite3.Error, OSError) as error:
            self._taking.refused(error)
        else:
            self._taking.took()

    def _forget_requests(self) -> None:
        try:
            with self._connection.transaction("NORMAL") as connection:
                forget_requests(connection, self._newest_request_us)
        except (sqlite3.Error, OSError) as error:
            log.warning("log_requests_not_forgotten", error=str(error))

    def _checkpoint(self, mode: Literal["PASSIVE", "TRUNCATE"]) -> None:
        self._connection.checkpoint(mode)
        self._since_checkpoint = 0


def _insert(connection: sqlite3.Connection, batch: Batch, position: int) -> int:
    """Gives the position of the batch's last event."""
    rows = []
    for entry in batch.entries:
        position += 1
        row = (position, entry.key, entry.event.seq, entry.blob)
        rows.append((*row, row_checksum(*row)))
        write_event_rows(connection, position, entry.key, entry.event)
        remember(connection, entry.event)
    connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?)", rows)
    if batch.request is not None:
        write_request(connection, batch.request)
    return position


def _require_seq(connection: sqlite3.Connection, change: Change, earlier: Change | None) -> None:
    if earlier is not None:
        found = earlier.view.last_seq
    else:
        row = connection.execute("SELECT last_seq FROM sessions WHERE key = ?", (change.key,)).fetchone()
        found = 0 if row is None else row[0]
    if found != change.expected_seq:
        raise Superseded(f"the session's log ends at {found}, this append follows {change.expected_seq}")
