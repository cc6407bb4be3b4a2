"""glob and grep, by ripgrep."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from turnd_provider.context import Context
from turnd_provider.errors import ToolError
from turnd_provider.schema import Limits
from turnd_provider.workspace.places import Place, locate, readable
from turnd_provider.workspace.provider import provider

MAX_PATHS: Final = 1000
MAX_MATCHES: Final = 1000
MAX_LINE_CHARACTERS: Final = 500
MAX_TEXT_CHARACTERS: Final = 64 * 1024
_MAX_RECORD_BYTES: Final = 4 * 1024 * 1024
_MAX_ERROR_BYTES: Final = 4096
# Hidden files are part of a project, git's own are not; no configuration of anybody's is read.
_ALWAYS: Final = ("--no-config", "--hidden", "--glob=!.git", "--sort=path")


@dataclass(frozen=True, slots=True)
class Paths:
    """Files that match."""

    paths: Annotated[list[str], "By name, relative to the workspace."]
    truncated: Annotated[bool, "There are more than are shown."]


@provider.tool(kind="data_source", risk="read_only", path_field="path")
async def glob(
    ctx: Context,
    pattern: Annotated[str, "Such as *.py (at any depth), src/**/*.ts.", Limits(min_length=1)],
    path: Annotated[str, "The directory to look in."] = ".",
) -> Paths:
    """Finds files by a pattern over their paths. What .gitignore excludes is left out."""
    place = locate(ctx, path)
    if not place.path.is_dir():
        raise ToolError.not_found(f"{place.shown} is not a directory")
    found: list[str] = []
    arguments = (*_ALWAYS, "--files", "--null", f"--glob={pattern}")
    async with _ripgrep(arguments, place.path) as rg:
        while record := await rg.record(b"\0"):
            if len(found) == MAX_PATHS:
                return Paths(found, truncated=True)
            found.append(_relative(place, os.fsdecode(record)))
        await rg.check()
    return Paths(found, truncated=False)


@dataclass(frozen=True, slots=True)
class Line:
    """A line that matches, or one beside it."""

    path: Annotated[str, "Relative to the workspace."]
    line: Annotated[int, "From 1."]
    text: str
    kind: Literal["match", "context"]


@dataclass(frozen=True, slots=True)
class Matches:
    """Lines found, by path and number."""

    lines: list[Line]
    truncated: Annotated[bool, "There are more than are shown; narrow the search."]


@provider.tool(kind="data_source", risk="read_only", path_field="path")
async def grep(
    ctx: Context,
    pattern: Annotated[str, "A regular expression (Rust syntax).", Limits(min_length=1)],
    path: Annotated[str, "The file or directory to search."] = ".",
    glob: Annotated[str, "Only files whose path matches this pattern, such as *.py."] = "",
    literal: Annotated[bool, "Search for the text itself, not for a regular expression."] = False,
    ignore_case: Annotated[bool, "Upper and lower case are the same."] = False,
    context: Annotated[int, "Lines shown before and after.", Limits(minimum=0, maximum=20)] = 0,
    limit: Annotated[int, "Lines at most.", Limits(minimum=1, maximum=MAX_MATCHES)] = 200,
) -> Matches:
    """Searches the text of files. What .gitignore excludes, and binary files, are left out."""
    place = locate(ctx, path)
    if not place.path.exists():
        raise ToolError.not_found(f"{place.shown} does not exist")
    directory, target = (place.path, ".") if place.path.is_dir() else (place.path.parent, place.path.name)
    arguments = [*_ALWAYS, "--json", f"--context={context}", f"--regexp={pattern}"]
    if literal:
        arguments.append("--fixed-strings")
    if ignore_case:
        arguments.append("--ignore-case")
    if glob:
        arguments.append(f"--glob={glob}")
    base = Place(directory, place.root, place.shown)
    found: list[Line] = []
    room = MAX_TEXT_CHARACTERS
    async with _ripgrep([*arguments, "--", target], directory) as rg:
        while record := await rg.record(b"\n"):
            line = _line(base, json.loads(record))
            if line is None:
                continue
            room -= len(line.text)
            if len(found) == limit or room < 0:
                return Matches(found, truncated=True)
            found.append(line)
        await rg.check()
    return Matches(found, truncated=False)


def _line(base: Place, record: dict[str, Any]) -> Line | None:
    if record["type"] not in ("match", "context"):
        return None
    data = record["data"]
    text = _text(data["lines"]).rstrip("\r\n")
    if len(text) > MAX_LINE_CHARACTERS:
        text = text[:MAX_LINE_CHARACTERS] + " ..."
    return Line(_relative(base, _text(data["path"])), data["line_number"], text, record["type"])


def _text(value: dict[str, str]) -> str:
    if "text" in value:
        return value["text"]
    return base64.b64decode(value["bytes"]).decode("utf-8", "replace")


def _relative(base: Place, found: str) -> str:
    path = Path(os.path.normpath(base.path / found))
    return readable(str(path.relative_to(base.root)))


class _Search:
    """A running ripgrep."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._stdout = process.stdout
        self._stderr = asyncio.create_task(_beginning(process.stderr))

    async def record(self, separator: bytes) -> bytes:
        """The next record without its separator; empty at the end. Waits until the call's own deadline."""
        try:
            return (await self._stdout.readuntil(separator)).removesuffix(separator)
        except asyncio.IncompleteReadError as end:
            return end.partial
        except asyncio.LimitOverrunError as error:
            raise ToolError.failed(
                f"a matching line is longer than {_MAX_RECORD_BYTES} bytes; leave its file out with glob"
            ) from error

    async def check(self) -> None:
        """Raises ToolError where the search failed: a pattern that is none."""
        code = await self._process.wait()
        said = (await self._stderr).decode("utf-8", "replace").strip()
        # 1: nothing found. With 2 there may be results beside a file that could not be read.
        if code == 2 and ("regex" in said or "glob" in said):
            raise ToolError.invalid_arguments(said)
        if code not in (0, 1, 2):
            raise ToolError.failed(f"the search ended with status {code}: {said}")

    async def close(self) -> None:
        """Ends the search, whatever it was doing."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._stderr.cancel()
        await asyncio.gather(self._stderr, return_exceptions=True)
        await self._process.wait()


@contextlib.asynccontextmanager
async def _ripgrep(arguments: tuple[str, ...] | list[str], directory: Path) -> AsyncIterator[_Search]:
    process = await asyncio.create_subprocess_exec(
        _program(),
        *arguments,
        cwd=directory,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=_MAX_RECORD_BYTES,
    )
    search = _Search(process)
    try:
        yield search
    finally:
        await search.close()


async def _beginning(stream: asyncio.StreamReader) -> bytes:
    """What a stream begins with; it is read to its end, so that its writer never waits."""
    kept = b""
    while data := await stream.read(_MAX_ERROR_BYTES):
        kept += data[: _MAX_ERROR_BYTES - len(kept)]
    return kept


def _program() -> str:
    # The wheel puts it beside the interpreter, which need not be on PATH.
    beside = str(Path(sys.executable).parent)
    found = shutil.which("rg", path=os.pathsep.join([beside, os.environ.get("PATH", os.defpath)]))
    if found is None:
        raise ToolError.failed(
            "ripgrep (rg) is not installed beside turnd; install turnd's dependencies again"
        )
    return found
