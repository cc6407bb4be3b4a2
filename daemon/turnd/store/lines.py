"""A file of JSON Lines that comes in pieces, read line by line (LOG-17)."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from turnd.store.pace import Pace
from turnd.v1 import event_pb2
from turnd.v1.jsonform import JsonFormError, event_from_json

MAX_LINE_BYTES: Final = 64 * 2**20


@dataclass(frozen=True, slots=True)
class NotAnEvent:
    """What is wrong with a line that is not the JSON form of an event."""

    problem: str
    hopeless: bool = False
    """Of the whole file: no line of it can be read."""
    alone: bool = True
    """It takes the place of an event; False: the line's event comes as well."""


class Lines:
    """Cuts a file that comes in pieces into its lines, and reads each as an event.

    `take` gets each line's number, from 1, with its event or with why it is none, and says whether it wants more.
    Between the lines other threads get a turn.
    """

    def __init__(self, take: Callable[[int, event_pb2.Event | NotAnEvent], bool]) -> None:
        self._take = take
        self._wanted = True
        self._pace = Pace()
        self._number = 0
        self._rest: list[bytes] = []
        self._rest_bytes = 0

    def feed(self, chunk: bytes) -> None:
        """Takes the next bytes of the file."""
        at = 0
        while self._wanted:
            if not self._rest_bytes and (blank := _BLANK_LINES.match(chunk, at)):
                self._number += chunk.count(b"\n", at, blank.end())
                at = blank.end()
            end = chunk.find(b"\n", at)
            if end < 0:
                break
            self._add(chunk[at:end])
            if not self._too_long:
                self._line(b"".join(self._rest))
            self._rest, self._rest_bytes = [], 0
            at = end + 1
        if self._wanted:
            self._add(chunk[at:])

    def finish(self) -> None:
        """The file ends here."""
        if self._rest_bytes and self._wanted and not self._too_long:
            self._line(b"".join(self._rest), cut=True)

    @property
    def _too_long(self) -> bool:
        return self._rest_bytes > MAX_LINE_BYTES

    def _add(self, part: bytes) -> None:
        """A line that is too long is told at once, since it may have no end, and is passed over up to its end."""
        told = self._too_long
        self._rest_bytes += len(part)
        if not self._too_long:
            self._rest.append(part)
        elif not told:
            self._rest = []
            self._number += 1
            self._wanted = self._take(self._number, NotAnEvent(f"line of more than {MAX_LINE_BYTES} bytes"))

    def _line(self, line: bytes, *, cut: bool = False) -> None:
        self._number += 1
        if self._number == 1 and line.startswith(codecs.BOM_UTF8):
            line = line.removeprefix(codecs.BOM_UTF8)
            self._wanted = self._take(self._number, _MARKED)
        if line.strip() and self._wanted:
            self._wanted = self._take(self._number, _event_of(line, cut=cut))
            self._pace.passed(len(line))


_BLANK_LINES: Final = re.compile(rb"(?:[ \t\r\f\v]*+\n)++")
_MARKED: Final = NotAnEvent(
    "it begins with a byte order mark: save the file as UTF-8 without one", alone=False
)
_FOREIGN: Final = (
    (codecs.BOM_UTF16_LE, "not UTF-8: it begins as a file in UTF-16 does; save it as UTF-8"),
    (codecs.BOM_UTF16_BE, "not UTF-8: it begins as a file in UTF-16 does; save it as UTF-8"),
    (b"\x1f\x8b", "not UTF-8: it is compressed with gzip; unpack it first"),
)
"""How files begin that people take for JSON Lines."""


def _event_of(line: bytes, *, cut: bool) -> event_pb2.Event | NotAnEvent:
    for mark, problem in _FOREIGN:
        if line.startswith(mark):
            return NotAnEvent(problem, hopeless=True)
    try:
        return event_from_json(line.decode())
    except UnicodeDecodeError as error:
        return NotAnEvent(f"not UTF-8 at byte {error.start} of the line")
    except JsonFormError as error:
        where = "the file ends in the middle of this line: " if cut and not error.field else ""
        return NotAnEvent(f"{where}{error}")
