"""What commands were answered, kept in the file for a stated time (RPC-04)."""

from __future__ import annotations

import sqlite3
from typing import Final

from turnd.store.batch import Request

ANSWERS_KEPT_US: Final = 7 * 86400 * 1_000_000
"""How long a request id that was answered is known, counted back from the newest request."""
MAX_FORGOTTEN: Final = 1000
"""Requests that are forgotten at one time."""


_INSERT: Final = "INSERT INTO requests VALUES (?, ?, ?, ?, ?)"


def write_request(connection: sqlite3.Connection, request: Request) -> None:
    """Writes a command's answer. Raises sqlite3.IntegrityError where the id is known already."""
    connection.execute(_INSERT, _row(request))


def amend_request(connection: sqlite3.Connection, request: Request) -> None:
    """Writes what a command has answered so far, in the place of what it had answered before.

    Raises sqlite3.IntegrityError where the id is another command's.
    """
    written = connection.execute(
        f"{_INSERT} ON CONFLICT (request_id) DO UPDATE SET answer = excluded.answer, at_us = excluded.at_us "
        "WHERE method = excluded.method AND digest = excluded.digest",
        _row(request),
    ).rowcount
    if not written:
        raise sqlite3.IntegrityError(f"the request id {request.request_id!r} is another command's")


def forget_requests(connection: sqlite3.Connection, newest_us: int) -> None:
    """Some of the answers that are older than they are kept; the others when there is nothing to do again."""
    connection.execute(
        "DELETE FROM requests WHERE request_id IN "
        "(SELECT request_id FROM requests WHERE at_us < ? ORDER BY at_us LIMIT ?)",
        (newest_us - ANSWERS_KEPT_US, MAX_FORGOTTEN),
    )


def _row(request: Request) -> tuple[str, str, bytes, bytes, int]:
    return (request.request_id, request.method, request.digest, request.answer, request.at_us)
