"""The rows of `events`, and of `sessions`, read from the pages of a file without SQLite.

Rows are never changed, so that every copy of a row is as good as any other. A row counts where it is whole, fits its
checksum, its blob is an event, and the event has the row's seq; rows from before version 2 have no checksum. Pages that
do not say that they are leaves of a table are passed over: what a page of a large blob holds is somebody's text, which
must not be taken for rows. So are free pages, which may hold rows that were removed on purpose; and older versions of a
page, unless the newest one may be among the garbled frames of the WAL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from turnd.store.checksum import is_whole
from turnd.store.image import Image, Unreadable, open_image, page_size_of_file
from turnd.store.walfile import read_wal, wal_of
from turnd.v1 import event_pb2, sessions_pb2

_LEAF_OF_TABLE: Final = 0x0D
_NULL: Final = 0
_INTEGER_BYTES: Final = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8, 8: 0, 9: 0}
"""By serial type."""
_SESSIONS_COLUMNS: Final = 15
_SESSIONS_ID: Final = 1
_SESSIONS_LAST_SEQ: Final = 8
"""Of the table `sessions`: how many columns it has, and the places of two of them."""


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


def event_rows(database: Path) -> Iterator[FoundRow | GarbledRow]:
    """The rows of events as of the last transaction that SQLite takes, in no order."""
    with ExitStack() as stack:
        image = open_image(database, stack)
        for page in image.pages():
            yield from _rows(image, page)


def last_seqs(database: Path) -> Iterator[tuple[str, int]]:
    """Sessions and their last seqs, as the rows of `sessions` say that are whole; only good for an account of loss."""
    with ExitStack() as stack:
        image = open_image(database, stack)
        for page in image.pages():
            for pointer in _cells(page):
                for usable in image.usable:
                    with suppress(Unreadable, DecodeError, IndexError):
                        yield _last_seq(image, page, pointer, usable)


def rows_behind(database: Path) -> Iterator[FoundRow | GarbledRow]:
    """What a garbled WAL holds behind that place, and older versions of pages; in no order, some several times."""
    with ExitStack() as stack:
        if read_wal(wal_of(database), page_size_of_file(database)).behind:
            image = open_image(database, stack, behind=True)
            for page in image.all_versions():
                yield from _rows(image, page)


def _cells(page: bytes) -> Iterator[int]:
    """Where the cells of a leaf of a table begin."""
    if page[0] != _LEAF_OF_TABLE:
        return
    cells = min(int.from_bytes(page[3:5], "big"), (len(page) - 8) // 2)
    for index in range(cells):
        yield int.from_bytes(page[8 + 2 * index : 10 + 2 * index], "big")


def _rows(image: Image, page: bytes) -> Iterator[FoundRow | GarbledRow]:
    for pointer in _cells(page):
        garbled = None
        for usable in image.usable:
            try:
                found = _row(image, page, pointer, usable)
            except (Unreadable, DecodeError, IndexError):
                continue
            if isinstance(found, FoundRow):
                yield found
                break
            garbled = found
        else:
            if garbled is not None:
                yield garbled


def _row(image: Image, page: bytes, at: int, usable: int) -> FoundRow | GarbledRow:
    position, types, values = _record(image, page, at, usable)
    # The rowid stands in for `position`, then session (a number, a text in version 0), seq, blob, and in version 2 the
    # checksum.
    if len(types) not in (4, 5) or types[0] != _NULL or not _is_blob(types[3]):
        raise Unreadable("no row of events")
    seq, blob = _integer(types[2], values[2]), values[3]
    if len(types) == 5:
        key, checksum = _integer(types[1], values[1]), _integer(types[4], values[4])
        if not is_whole(position, key, seq, blob, checksum):
            return GarbledRow(position, seq)
    event = event_pb2.Event.FromString(blob)
    if event.seq != seq or not event.session or position < 1:
        raise Unreadable("the event is not that of the row")
    creates = event.HasField("session_created") and not event.HasField("imported")
    return FoundRow(position, event.session, seq, blob, creates)


def _last_seq(image: Image, page: bytes, at: int, usable: int) -> tuple[str, int]:
    _, types, values = _record(image, page, at, usable)
    if len(types) != _SESSIONS_COLUMNS or not _is_blob(types[-1]):
        raise Unreadable("no row of sessions")
    session = sessions_pb2.Session.FromString(values[-1])
    if not session.id or session.id.encode() != values[_SESSIONS_ID]:
        raise Unreadable("the session is not that of the row")
    return session.id, _integer(types[_SESSIONS_LAST_SEQ], values[_SESSIONS_LAST_SEQ])


def _record(image: Image, page: bytes, at: int, usable: int) -> tuple[int, Sequence[int], Sequence[bytes]]:
    """A row's rowid, the serial types of its columns, and their contents."""
    length, at = _varint(page, at)
    rowid, at = _varint(page, at)
    payload = _payload(image, page, at, length, usable)
    header_length, cursor = _varint(payload, 0)
    types = []
    while cursor < header_length:
        serial, cursor = _varint(payload, cursor)
        types.append(serial)
    values = []
    for serial in types:
        values.append(payload[cursor : cursor + _size(serial)])
        cursor += _size(serial)
    if cursor != len(payload):
        raise Unreadable("the row is not whole")
    return rowid, types, values


def _is_blob(serial: int) -> bool:
    return serial >= 12 and serial % 2 == 0


def _integer(serial: int, content: bytes) -> int:
    if serial not in _INTEGER_BYTES:
        raise Unreadable("no number")
    return {8: 0, 9: 1}.get(serial, int.from_bytes(content, "big", signed=True))


def _payload(image: Image, page: bytes, at: int, length: int, usable: int) -> bytes:
    """The content of a cell, with what is on overflow pages."""
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
    if serial == _NULL:
        return 0
    if serial not in _INTEGER_BYTES:
        raise Unreadable("a type that no column has")
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
