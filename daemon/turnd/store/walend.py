"""Where the committed part of the WAL ends, and how what a failed commit left behind it is cut off (LOG-14).

A commit whose sync failed is whole in the WAL: this process does not count it, but a start after a kill would. A
checkpoint that empties the WAL waits for every reader, in other processes too, and needs a disk that can sync; cutting
the WAL behind the last committed frame needs neither, and is in nobody's way: no reader looks behind that frame.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import BinaryIO, Final

import structlog

from turnd.store.walfile import (
    FRAME_HEADER_BYTES,
    HEADER_BYTES,
    INDEX_FRAMES,
    INDEX_MADE,
    is_page_size,
    wal_of,
)

log = structlog.get_logger(__name__)

_PAGE_SIZE: Final = slice(8, 12)


class WalEnd:
    """Cuts the WAL of a file that a connection of this process has open for writing. For the writer's thread.

    The mutable state is the descriptor of the WAL's index. Closing one drops all locks that this process has on the
    index, SQLite's among them: it stays open until this process has no connection to the file any more, and is made
    anew only where SQLite has made the index anew, since nobody has a lock on the one before then.
    """

    def __init__(self, database: Path) -> None:
        # SQLite puts its files beside what a link leads to.
        self._wal = wal_of(database.resolve())
        self._index_path = self._wal.with_name(f"{self._wal.name.removesuffix('-wal')}-shm")
        self._index = self._open()

    def follow(self) -> None:
        """After the file was opened again: its index may be another one. Raises OSError."""
        if not os.path.samestat(os.fstat(self._index), self._index_path.stat()):
            found = self._open()
            os.close(self._index)
            self._index = found

    def cut(self) -> None:
        """Whatever is behind the last committed frame is gone, for whoever opens the file after a kill.

        No transaction may be open. Raises OSError where it is still there.
        """
        with self._wal.open("r+b") as wal:
            frames = self._committed_frames()
            length = frames and HEADER_BYTES + frames * (FRAME_HEADER_BYTES + self._page_size(wal))
            if os.fstat(wal.fileno()).st_size > length:
                os.ftruncate(wal.fileno(), length)
                log.info("log_wal_cut", frames=frames)
            try:
                os.fsync(wal.fileno())
            except OSError as error:
                # A kill leaves what the kernel has. After a power cut on a disk that cannot sync nothing is certain.
                log.warning("log_wal_cut_not_synced", error=str(error))

    def close(self) -> None:
        """For when this process has no connection to the file any more."""
        os.close(self._index)

    def _open(self) -> int:
        return os.open(self._index_path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)

    def _committed_frames(self) -> int:
        start = os.pread(self._index, INDEX_FRAMES.stop, 0)
        if len(start) < INDEX_FRAMES.stop or not start[INDEX_MADE]:
            raise OSError(f"{self._index_path} does not say where the WAL ends")
        return int.from_bytes(start[INDEX_FRAMES], sys.byteorder)

    def _page_size(self, wal: BinaryIO) -> int:
        header = wal.read(HEADER_BYTES)
        size = int.from_bytes(header[_PAGE_SIZE], "big")
        if len(header) < HEADER_BYTES or not is_page_size(size):
            raise OSError(f"{self._wal} does not begin as a WAL with frames does")
        return size
