"""Whether a row of `events` is as it was stored: SQLite's pages carry no checksum of their own (LOG-16).

Each row has a CRC-32 over its position, its session's key, its seq and its blob. It finds every single flipped bit
and every run of up to 32, and a row that has come to another place; it is no protection from somebody who writes into
the file on purpose. What reads rows takes them from the table by `columns`, not from the index, which has copies of
its own of key and seq.
"""

from __future__ import annotations

import sqlite3
import struct
from typing import Any, Final
from zlib import crc32

WHOLE: Final = "whole"
"""The name in SQL of `is_whole`, after `define`."""
CHECKSUM: Final = "row_checksum"
"""The name in SQL of `row_checksum`, after `define`."""
NONE: Final = -1
"""Stands for the checksum of what cannot have one; no row with it is whole."""
MISFIT: Final = "does not fit its checksum"
"""What is said of a row that is not whole: it ..."""
_PLACE: Final = struct.Struct("<qqq")


def row_checksum(position: int, session: int, seq: int, blob: bytes) -> int:
    """Of one row; `session` is the key."""
    return crc32(blob, crc32(_PLACE.pack(position, session, seq)))


def is_whole(position: Any, session: Any, seq: Any, blob: Any, stored: Any) -> bool:
    """The row is as it was stored; False for whatever is not even of the right type."""
    try:
        found: bool = crc32(blob, crc32(_PLACE.pack(position, session, seq))) == stored
    except (struct.error, TypeError):
        return False
    return found


def blob(table: str) -> str:
    """The event as a column of a SELECT from the table of that name or alias; NULL where it is no blob.

    A damaged row can have a value of any type, and a text that is no UTF-8 would fail the whole statement.
    """
    return f"CASE typeof({table}.event) WHEN 'blob' THEN {table}.event END"


def columns(table: str) -> str:
    """What `is_whole` takes, likewise."""
    return (
        f"{table}.position, CAST({table}.session AS INTEGER), CAST({table}.seq AS INTEGER), {blob(table)}, "
        f"CAST({table}.checksum AS INTEGER)"
    )


def of_session(key: str = "?") -> str:
    """The statement that reads a session's rows, whole or not, in the order of the seq that the index has for them.

    Each comes behind that seq: a row that was garbled may say anything.
    """
    return (
        f"SELECT found.seq, {columns('stored')} FROM events AS found "  # noqa: S608 - our own names
        f"CROSS JOIN events AS stored ON stored.position = found.position WHERE found.session = {key} "
        "ORDER BY found.seq"
    )


def define(connection: sqlite3.Connection) -> None:
    """Makes both functions known to statements of this connection."""
    connection.create_function(CHECKSUM, 4, row_checksum, deterministic=True)
    connection.create_function(WHOLE, 5, is_whole, deterministic=True)
