"""The pages of a file and of its WAL, read without SQLite, which gives up at the first one that is damaged.

What the header says is believed only where something else agrees: it is as likely to be damaged as the rest.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from turnd.store.schema import PAGE_BYTES
from turnd.store.walfile import is_page_size, page_size_of, read_wal, wal_of


class Unreadable(Exception):
    """What stands there is not what is looked for, or not whole."""


@dataclass(slots=True)
class Image:
    """A file and its WAL, page by page."""

    page_size: int
    usable: Sequence[int]
    """How many bytes of a page SQLite may use: all of them in turnd's files, and what the header says."""
    file: bytes | mmap.mmap
    wal: bytes | mmap.mmap
    versions: Sequence[int]
    """Where in the WAL each version of a page begins, oldest first."""
    newest: Mapping[int, int]
    """For each page where its last version in the WAL begins."""

    def page(self, number: int) -> bytes:
        """The last version of a page. Raises Unreadable."""
        start = self.newest.get(number)
        where, start = (self.file, (number - 1) * self.page_size) if start is None else (self.wal, start)
        content = bytes(where[start : start + self.page_size]) if start >= 0 else b""
        if len(content) != self.page_size:
            raise Unreadable(f"there is no page {number}")
        return content

    def pages(self) -> Iterator[bytes]:
        """Every page that is in use, but the first, which holds no rows of events."""
        free = self._free()
        last = max(len(self.file) // self.page_size, max(self.newest, default=0))
        for number in range(2, last + 1):
            if number not in free:
                with suppress(Unreadable):
                    yield self.page(number)

    def all_versions(self) -> Iterator[bytes]:
        """Every version of every page but the first, the newest ones first."""
        for start in reversed(self.versions):
            yield bytes(self.wal[start : start + self.page_size])
        for start in range(self.page_size, len(self.file) - self.page_size + 1, self.page_size):
            yield bytes(self.file[start : start + self.page_size])

    def _free(self) -> set[int]:
        """The pages that are in no use; none where their list is not whole: what was removed is overwritten besides."""
        try:
            header = self.page(1)
            trunk, count = struct.unpack_from(">2I", header, 32)
            free: set[int] = set()
            while trunk:
                content = self.page(trunk)
                following, leaves = struct.unpack_from(">2I", content)
                if leaves > self.page_size // 4 - 2:
                    return set()
                listed = [trunk, *struct.unpack_from(f">{leaves}I", content, 8)]
                if not free.isdisjoint(listed) or len(set(listed)) < len(listed):
                    return set()
                free.update(listed)
                trunk = following
        except Unreadable:
            return set()
        return free if len(free) == count else set()


def open_image(database: Path, stack: ExitStack, *, behind: bool = False) -> Image:
    """A file and its WAL, mapped until the stack is left; `behind`: also what is behind a garbled place of the WAL."""
    file, wal = (_mapped(path, stack) for path in (database, wal_of(database)))
    page_size = page_size_of_file(database)
    read = read_wal(wal_of(database), page_size)
    frames = [*read.frames, *read.behind] if behind else read.frames
    if read.page_size != page_size:
        frames = []
    return Image(
        page_size,
        tuple(dict.fromkeys((page_size, page_size - (file[20] if len(file) > 20 else 0)))),
        file,
        wal,
        [frame.offset for frame in frames],
        {frame.page: frame.offset for frame in frames},
    )


def page_size_of_file(database: Path) -> int:
    """What its WAL says; what its own header says, if the length that it says as well is right; that of all logs."""
    if size := page_size_of(wal_of(database)):
        return size
    with database.open("rb") as file:
        header = file.read(32)
        length = os.fstat(file.fileno()).st_size
    said = int.from_bytes(header[16:18], "big")
    said = 65536 if said == 1 else said
    pages = int.from_bytes(header[28:32], "big")
    return said if is_page_size(said) and pages and said * pages == length else PAGE_BYTES


def _mapped(path: Path, stack: ExitStack) -> bytes | mmap.mmap:
    if not path.exists() or path.stat().st_size == 0:
        return b""
    file = stack.enter_context(path.open("rb"))
    return stack.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
