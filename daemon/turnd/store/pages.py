"""The rows of `events` read from the pages of a file without SQLite, which gives up at the first page that is damaged.

Rows are never changed, so that every copy of a row is as good as any other. A row counts where it is whole, fits its
checksum, its blob is an event, and the event has the row's seq; rows from before version 2 have no checksum. Pages that
do not say that they are leaves of a table are passed over: what a page of a large blob holds is somebody's text, which
must not be taken for rows. So are free pages, which may hold rows that were removed on purpose; and older versions of a
page, unless the newest one may be among the garbled frames of the WAL.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from turnd.store.checksum import is_whole
from turnd.store.schema import PAGE_BYTES
from turnd.store.walfile import read_wal, wal_of
from turnd.v1 import event_pb2

_LEAF_OF_TABLE: Final = 0x0D
_INTEGER_BYTES: Final = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8, 8: 0, 9: 0}
"""By serial type."""


@dataclass(frozen=True, slots=True)
class FoundRow:
    """One whole row. The session is the event's own word for it."""

    position: int
    session: str
    seq: int
    blob: bytes
    creates: bool
    """It is the session's own session/created; what may come before it is another log's."""


@dataclass(frozen=True, slots=True)
class GarbledRow:
    """A row of events that does not fit its checksum: none of what it says is known to be true."""

    position: int
    seq: int


class Unreadable(Exception):
    """A cell is no whole row of events."""


@dataclass(slots=True)
class Image:
    """A file and its WAL, page by page."""

    page_size: int
    usable: int
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
        """The pages that are in no use, as far as the list of them can be followed."""
        free: set[int] = set()
        with suppress(Unreadable):
            trunk = int.from_bytes(self.page(1)[32:36], "big")
            while trunk and trunk not in free:
                free.add(trunk)
                content = self.page(trunk)
                count = min(int.from_bytes(content[4:8], "big"), self.usable // 4 - 2)
                free.update(struct.unpack_from(f">{count}I", content, 8))
                trunk = int.from_bytes(content[:4], "big")
        return free


def event_rows(database: Path) -> Iterator[FoundRow | GarbledRow]:
    """The rows of events as of the last transaction that SQLite takes, in no order."""
    with ExitStack() as stack:
        image = _open(database, stack, behind=False)
        for page in image.pages():
            yield from _rows(image, page)


def rows_behind(database: Path) -> Iterator[FoundRow | GarbledRow]:
    """What a garbled WAL holds behind that place, and older versions of pages; in no order, some several times."""
    with ExitStack() as stack:
        if read_wal(wal_of(database), _page_size(database)).behind:
            image = _open(database, stack, behind=True)
            for page in image.all_versions():
                yield from _rows(image, page)


def _open(database: Path, stack: ExitStack, *, behind: bool) -> Image:
    file, wal = (_mapped(path, stack) for path in (database, wal_of(database)))
    page_size = _page_size(database)
    read = read_wal(wal_of(database), page_size)
    frames = [*read.frames, *read.behind] if behind else read.frames
    if read.page_size != page_size:
        frames = []
    return Image(
        page_size,
        page_size - (file[20] if len(file) > 20 else 0),
        file,
        wal,
        [frame.offset for frame in frames],
        {frame.page: frame.offset for frame in frames},
    )


def _page_size(database: Path) -> int:
    """As the header of the file says, or else that of its WAL."""
    with database.open("rb") as file:
        said = int.from_bytes(file.read(18)[16:], "big")
    if 512 <= said <= 32768 and said & (said - 1) == 0:
        return said
    return 65536 if said == 1 else read_wal(wal_of(database)).page_size or PAGE_BYTES


def _mapped(path: Path, stack: ExitStack) -> bytes | mmap.mmap:
    if not path.exists() or path.stat().st_size == 0:
        return b""
    file = stack.enter_context(path.open("rb"))
    return stack.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _rows(image: Image, page: bytes) -> Iterator[FoundRow | GarbledRow]:
    if page[0] != _LEAF_OF_TABLE:
        return
    cells = min(int.from_bytes(page[3:5], "big"), (len(page) - 8) // 2)
    for index in range(cells):
        pointer = int.from_bytes(page[8 + 2 * index : 10 + 2 * index], "big")
        try:
            yield _row(image, page, pointer)
        except (Unreadable, DecodeError, IndexError):
            continue


def _row(image: Image, page: bytes, at: int) -> FoundRow | GarbledRow:
    length, at = _varint(page, at)
    position, at = _varint(page, at)
    payload = _payload(image, page, at, length)
    header_length, cursor = _varint(payload, 0)
    types = []
    while cursor < header_length:
        serial, cursor = _varint(payload, cursor)
        types.append(serial)
    # The rowid stands in for `position`, then session (a number, a text in version 0), seq, blob, and in version 2 the
    # checksum.
    if len(types) not in (4, 5) or types[0] != 0 or types[3] < 12 or types[3] % 2:
        raise Unreadable("no row of events")
    ends = [cursor]
    for serial in types[1:]:
        ends.append(ends[-1] + _size(serial))
    if ends[-1] != len(payload):
        raise Unreadable("the row is not whole")
    seq = _integer(types[2], payload[ends[1] : ends[2]])
    blob = payload[ends[2] : ends[3]]
    if len(types) == 5:
        key, checksum = _integer(types[1], payload[cursor : ends[1]]), _integer(types[4], payload[ends[3] :])
        if not is_whole(position, key, seq, blob, checksum):
            return GarbledRow(position, seq)
    event = event_pb2.Event.FromString(blob)
    if event.seq != seq or not event.session or position < 1:
        raise Unreadable("the event is not that of the row")
    creates = event.HasField("session_created") and not event.HasField("imported")
    return FoundRow(position, event.session, seq, blob, creates)


def _integer(serial: int, content: bytes) -> int:
    if serial not in _INTEGER_BYTES:
        raise Unreadable("no row of events")
    return {8: 0, 9: 1}.get(serial, int.from_bytes(content, "big", signed=True))


def _payload(image: Image, page: bytes, at: int, length: int) -> bytes:
    """The content of a cell, with what is on overflow pages."""
    usable = image.usable
    if length <= usable - 35:
        return page[at : at + length]
    least = (usable - 12) * 32 // 255 - 23
    local = least + (length - least) % (usable - 4)
    if local > usable - 35:
        local = least
    if length > len(image.file) + len(image.wal):
        raise Unreadable("longer than the file")
    pieces, missing = [page[at : at + local]], length - local
    following = int.from_bytes(page[at + local : at + local + 4], "big")
    while missing > 0:
        overflow = image.page(following)
        pieces.append(overflow[4 : 4 + min(missing, usable - 4)])
        missing -= usable - 4
        following = int.from_bytes(overflow[:4], "big")
    return b"".join(pieces)


def _size(serial: int) -> int:
    if serial >= 12:
        return (serial - 12) // 2
    if serial not in _INTEGER_BYTES:
        raise Unreadable("no row of events")
    return _INTEGER_BYTES[serial]


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """A variable-length integer and where it ends. Raises IndexError at the end of the content."""
    value = 0
    for count in range(9):
        byte = content[at + count]
        if count == 8:
            value = value << 8 | byte
            break
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            break
    return (value - (1 << 64) if value >= 1 << 63 else value), at + count + 1
