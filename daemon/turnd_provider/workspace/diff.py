"""Unified diffs for previews, of bounded size and in bounded time."""

from __future__ import annotations

import difflib
from typing import Final

MAX_DIFF_LINES: Final = 20_000
"""Files with more lines together are summed up instead: comparing takes time by the square."""
MAX_SHOWN_CHARACTERS: Final = 64 * 1024
_NO_NEWLINE: Final = "\\ No newline at end of file\n"


def unified(shown: str, old: bytes | None, new: bytes) -> str:
    """What changes in a file, as a unified diff; `old` None: the file is new."""
    if old is not None and old == new:
        return f"{shown}: no change\n"
    if b"\0" in (old or b"") or b"\0" in new:
        before = "absent" if old is None else f"{len(old)} bytes"
        return f"{shown}: binary content ({before} -> {len(new)} bytes)\n"
    before_lines = _lines(old or b"")
    after_lines = _lines(new)
    if len(before_lines) + len(after_lines) > MAX_DIFF_LINES:
        return f"{shown}: {len(before_lines)} lines -> {len(after_lines)} lines, too many to compare\n"
    source = "/dev/null" if old is None else f"a/{shown}"
    text: list[str] = []
    room = MAX_SHOWN_CHARACTERS
    for line in difflib.unified_diff(before_lines, after_lines, source, f"b/{shown}"):
        whole = line if line.endswith("\n") else f"{line}\n{_NO_NEWLINE}"
        room -= len(whole)
        if room < 0:
            return "".join(text) + "... the rest of the diff is left out\n"
        text.append(whole)
    return "".join(text) or f"{shown}: new empty file\n"


def _lines(data: bytes) -> list[str]:
    lines = data.decode("utf-8", "replace").split("\n")
    ended = [f"{line}\n" for line in lines[:-1]]
    return [*ended, lines[-1]] if lines[-1] else ended
