"""SQLite's write-ahead log read without SQLite, to find what a damaged one still holds (LOG-16).

SQLite takes the frames of a WAL up to the first that is not whole, and nothing behind it. The checksum of a frame
goes on from the one before it, so that a frame behind a garbled one can still be told to be whole: what was committed
there is not lost with its predecessor.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from turnd.store.schema import read_only_uri

HEADER_BYTES: Final = 32
FRAME_HEADER_BYTES: Final = 24
_MAGIC: Final = 0x377F0682
"""With the last bit set the checksums are over big-endian words."""
INDEX_FRAMES: Final = slice(16, 20)
"""Where the WAL's index says how many frames of it are taken, in the machine's own order of bytes."""
INDEX_MADE: Final = 12
"""Where it says that it was made."""
_MASK: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Frame:
    """One version of one page, as some committed transaction wrote it. `offset` is that of the page in the WAL."""

    page: int
    offset: int


@dataclass(frozen=True, slots=True)
class Wal:
    """What a WAL holds of committed transactions, oldest first."""

    page_size: int
    """0 where there is nothing in it."""
    frames: Sequence[Frame]
    """What SQLite takes."""
    behind: Sequence[Frame]
    """Whole frames behind one that is garbled, or that another transaction has overwritten since."""
    unknown: bool = False
    """Nothing says where its frames begin."""

    @property
    def lost(self) -> bool:
        """It may hold something that SQLite would not take, and would not miss."""
        return self.unknown or bool(self.behind)


def wal_of(database: Path) -> Path:
    """Where SQLite keeps the WAL of a file."""
    return database.with_name(f"{database.name}-wal")


def holds_more(database: Path) -> bool:
    """There may be more in the WAL than SQLite takes of it; `read_wal` says it for sure, and takes its time.

    What SQLite takes is in the index of the WAL, which it makes of a WAL that it finds. Raises sqlite3.Error.
    """
    path = wal_of(database)
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return False
    with file:
        header = file.read(HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            return False
        _, _, page_size = struct.unpack(">3I", header[:12])
        if not (_is_header(header) and is_page_size(page_size)):
            return file.read(1) != b""
        committed = number = 0
        while len(frame := file.read(FRAME_HEADER_BYTES)) == FRAME_HEADER_BYTES:
            number += 1
            if frame[8:16] == header[16:24] and frame[4:8] != b"\0\0\0\0":
                committed = number
            file.seek(page_size, os.SEEK_CUR)
    return committed > _taken(database)


def _taken(database: Path) -> int:
    """How many frames SQLite takes; 0 where it does not say."""
    with closing(sqlite3.connect(read_only_uri(database), uri=True)) as connection:
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        with suppress(FileNotFoundError), database.with_name(f"{database.name}-shm").open("rb") as index:
            start = index.read(INDEX_FRAMES.stop)
            return int.from_bytes(start[INDEX_FRAMES], sys.byteorder)
    return 0


def page_size_of(path: Path) -> int:
    """What the header of a WAL says, which has a checksum of its own; 0 where it is not whole, or there is none."""
    try:
        with path.open("rb") as file:
            header = file.read(HEADER_BYTES)
    except FileNotFoundError:
        return 0
    whole = len(header) == HEADER_BYTES and _is_header(header)
    return int.from_bytes(header[8:12], "big") if whole else 0


def read_wal(path: Path, page_size: int = 0) -> Wal:
    """The frames of a WAL. `page_size` is that of the file, for one whose own header is not whole any more."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return Wal(0, (), ())
    with file:
        header = file.read(HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            return Wal(0, (), ())
        magic, _, said = struct.unpack(">3I", header[:12])
        sums = struct.unpack(">2I", header[24:32])
        words = ">" if magic & 1 else "<"
        whole = _is_header(header)
        size = said if (whole or not page_size) and is_page_size(said) else page_size
        if not is_page_size(size):
            return Wal(0, (), (), unknown=path.stat().st_size > HEADER_BYTES)
        scan = _Scan(words, sums, header[16:24] if whole else b"", gap=not whole)
        offset = HEADER_BYTES
        while len(frame := file.read(FRAME_HEADER_BYTES + size)) == FRAME_HEADER_BYTES + size:
            offset += FRAME_HEADER_BYTES
            scan.take(frame, offset)
            offset += size
    return Wal(size, tuple(scan.taken), tuple(scan.behind))


@dataclass(slots=True)
class _Scan:
    """Goes from frame to frame. `gap`: SQLite would have stopped before."""

    words: str
    sums: tuple[int, ...]
    salts: bytes
    gap: bool
    taken: list[Frame] = field(default_factory=list)
    behind: list[Frame] = field(default_factory=list)
    uncommitted: list[Frame] = field(default_factory=list)

    def take(self, frame: bytes, offset: int) -> None:
        self.salts = self.salts or frame[8:16]
        before, self.sums = self.sums, struct.unpack(">2I", frame[16:24])
        # Other salts: left over from before the WAL was begun anew, or garbled; none of these salts follow then.
        if frame[8:16] != self.salts or self._sums_of(frame, before) != self.sums:
            self.gap = True
            return
        page, size_at_commit = struct.unpack(">2I", frame[:8])
        self.uncommitted.append(Frame(page, offset))
        if size_at_commit:
            if self.gap:
                self.behind += self.uncommitted
            else:
                self.taken += self.uncommitted
            self.uncommitted = []

    def _sums_of(self, frame: bytes, before: tuple[int, ...]) -> tuple[int, ...]:
        return _checksum(self.words, frame[:8] + frame[FRAME_HEADER_BYTES:], before)


def _is_header(header: bytes) -> bool:
    (magic,) = struct.unpack(">I", header[:4])
    sums = struct.unpack(">2I", header[24:32])
    return magic | 1 == _MAGIC | 1 and _checksum(">" if magic & 1 else "<", header[:24], (0, 0)) == sums


def is_page_size(size: int) -> bool:
    """SQLite makes files with pages of this size."""
    return 512 <= size <= 65536 and size & (size - 1) == 0


def _checksum(words: str, content: bytes, start: tuple[int, ...]) -> tuple[int, int]:
    one, two = start
    for first, second in struct.iter_unpack(f"{words}2I", content):
        one = (one + first + two) & _MASK
        two = (two + second + one) & _MASK
    return one, two
