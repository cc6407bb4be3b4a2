"""read_file and list_dir."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Final, Literal

from turnd_provider.context import BlockingContext
from turnd_provider.errors import ToolError
from turnd_provider.schema import Limits
from turnd_provider.workspace.places import hold, locate, open_file, readable
from turnd_provider.workspace.provider import provider

MAX_FILE_BYTES: Final = 64 * 1024 * 1024
MAX_LINES: Final = 2000
MAX_TEXT_BYTES: Final = 64 * 1024
MAX_ENTRIES: Final = 1000
_BINARY_SAMPLE: Final = 8192


@dataclass(frozen=True, slots=True)
class FileText:
    """Lines of a text file."""

    path: Annotated[str, "Relative to the workspace."]
    text: Annotated[str, "The lines as they are in the file, without line numbers."]
    first_line: Annotated[int, "Number of the first line in text, from 1."]
    lines: Annotated[int, "How many lines are in text."]
    total_lines: Annotated[int, "How many lines the file has."]
    truncated: Annotated[bool, "Lines after these were left out; read on with a higher offset."]
    lossy: Annotated[bool, "Bytes that are not UTF-8 are shown as replacement characters."]


@provider.tool(kind="data_source", risk="read_only", path_field="path")
def read_file(
    ctx: BlockingContext,
    path: Annotated[str, "The file, relative to the working directory or absolute."],
    offset: Annotated[
        int, "Number of the first line wanted, from 1.", Limits(minimum=1, maximum=MAX_FILE_BYTES)
    ] = 1,
    limit: Annotated[int, "How many lines at most.", Limits(minimum=1, maximum=MAX_LINES)] = MAX_LINES,
) -> FileText:
    """Reads a text file, or a range of its lines. Long files come in parts: see truncated."""
    place = locate(ctx, path)
    with hold(place) as held, open_file(held) as descriptor:
        size = os.fstat(descriptor).st_size
        if size > MAX_FILE_BYTES:
            raise ToolError.failed(
                f"{place.shown} has {size} bytes, more than {MAX_FILE_BYTES}; look at a part of it with "
                "inspect_command (head, tail, sed -n)"
            )
        with os.fdopen(os.dup(descriptor), "rb") as file:
            data = file.read(MAX_FILE_BYTES)
    if b"\0" in data[:_BINARY_SAMPLE]:
        raise ToolError.failed(
            f"{place.shown} is a binary file of {size} bytes; "
            "inspect_command can look at it (file, xxd, strings)"
        )
    lines = _lines(data)
    if offset > max(1, len(lines)):
        raise ToolError.invalid_arguments(
            f"{place.shown} has {len(lines)} lines; offset {offset} is behind them"
        )
    chosen = _within_bytes(lines[offset - 1 : offset - 1 + limit])
    raw = b"".join(chosen)
    text = raw.decode("utf-8", "replace")
    return FileText(
        path=place.shown,
        text=text,
        first_line=offset,
        lines=len(chosen),
        total_lines=len(lines),
        truncated=offset - 1 + len(chosen) < len(lines)
        or len(raw) < sum(map(len, lines[offset - 1 : offset])),
        lossy=text.encode() != raw,
    )


def _lines(data: bytes) -> list[bytes]:
    # A lone carriage return does not end a line here: every editor and grep counts newlines.
    parts = data.split(b"\n")
    lines = [part + b"\n" for part in parts[:-1]]
    return [*lines, parts[-1]] if parts[-1] else lines


def _within_bytes(lines: list[bytes]) -> list[bytes]:
    chosen: list[bytes] = []
    room = MAX_TEXT_BYTES
    for line in lines:
        if len(line) > room:
            return chosen or [line[:room]]
        chosen.append(line)
        room -= len(line)
    return chosen


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a directory."""

    name: str
    type: Literal["file", "directory", "symlink", "other"]
    size: Annotated[int, "Bytes, of a file."]


@dataclass(frozen=True, slots=True)
class Listing:
    """A directory's entries, by name."""

    path: Annotated[str, "Relative to the workspace."]
    entries: list[Entry]
    truncated: Annotated[bool, "There are more entries than are shown."]


@provider.tool(kind="data_source", risk="read_only", path_field="path")
def list_dir(
    ctx: BlockingContext,
    path: Annotated[str, "The directory, relative to the working directory or absolute."] = ".",
) -> Listing:
    """Lists what is in a directory, hidden files too; not what is below its subdirectories."""
    place = locate(ctx, path)
    try:
        with os.scandir(place.path) as entries:
            found = list(islice(entries, MAX_ENTRIES + 1))
    except FileNotFoundError as error:
        raise ToolError.not_found(f"{place.shown} does not exist") from error
    except NotADirectoryError as error:
        raise ToolError.invalid_arguments(f"{place.shown} is not a directory; read_file reads it") from error
    except PermissionError as error:
        raise ToolError.permission_denied(f"{place.shown}: {error.strerror}") from error
    found.sort(key=lambda entry: entry.name)
    shown = [_entry(entry) for entry in found[:MAX_ENTRIES]]
    return Listing(place.shown, shown, truncated=len(found) > MAX_ENTRIES)


def _entry(entry: os.DirEntry[str]) -> Entry:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        # It went away between the listing and the look at it, or cannot be looked at.
        return Entry(readable(entry.name), "other", 0)
    if stat.S_ISLNK(status.st_mode):
        return Entry(readable(entry.name), "symlink", 0)
    if stat.S_ISDIR(status.st_mode):
        return Entry(readable(entry.name), "directory", 0)
    if stat.S_ISREG(status.st_mode):
        return Entry(readable(entry.name), "file", status.st_size)
    return Entry(readable(entry.name), "other", 0)
