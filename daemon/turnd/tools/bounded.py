"""Output of any length in a fixed amount of memory: its head, its tail, and how much there was between
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from turnd.tools.harmless import harmless

HEAD_BYTES: Final = 16 * 1024
TAIL_BYTES: Final = 16 * 1024
_LONGEST_CHARACTER: Final = 4


@dataclass(frozen=True, slots=True)
class Excerpt:
    """What is shown of an output."""

    text: str
    omitted_bytes: int
    total_bytes: int


class HeadAndTail:
    """Keeps the first and the last bytes of what it is fed. The mutable state is the two buffers and the
    count.
    """

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    @property
    def overflowed(self) -> bool:
        """Whether bytes in the middle are gone."""
        return self.total > HEAD_BYTES + TAIL_BYTES

    def feed(self, data: bytes) -> None:
        """Takes one more piece."""
        self.total += len(data)
        room = HEAD_BYTES - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room < len(data) else b""
        if len(self._tail) > TAIL_BYTES:
            del self._tail[:-TAIL_BYTES]

    def kept(self) -> bytes:
        """All bytes, as long as nothing is gone."""
        assert not self.overflowed
        return bytes(self._head + self._tail)

    def excerpt(self) -> Excerpt:
        """The text to show, with a line that says how much was left out where bytes are gone."""
        if not self.overflowed:
            return Excerpt(harmless(self.kept()), 0, self.total)
        head, tail = _whole_end(bytes(self._head)), _whole_start(bytes(self._tail))
        omitted = self.total - len(head) - len(tail)
        note = f"\n[... {omitted} bytes left out ...]\n"
        return Excerpt(harmless(head) + note + harmless(tail), omitted, self.total)


def _whole_end(data: bytes) -> bytes:
    """Without the beginning of a character that was cut off."""
    for back in range(1, _LONGEST_CHARACTER):
        first = data[-back : len(data) - back + 1]
        if not first or first < b"\x80":
            return data
        if first >= b"\xc0":
            return data[:-back] if back < _length(first[0]) else data
    return data


def _whole_start(data: bytes) -> bytes:
    """Without the end of a character that was cut off."""
    skip = 0
    while skip < _LONGEST_CHARACTER - 1 and skip < len(data) and 0x80 <= data[skip] < 0xC0:
        skip += 1
    return data[skip:]


def _length(first: int) -> int:
    if first >= 0xF0:
        return 4
    return 3 if first >= 0xE0 else 2
