"""write_file and edit_file: each shows its diff first, and changes only the state that it was shown for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final

from turnd_provider.context import BlockingContext, Context
from turnd_provider.errors import ToolError
from turnd_provider.provider import Outcome, PreviewText, path_key
from turnd_provider.schema import Limits
from turnd_provider.workspace.diff import unified
from turnd_provider.workspace.files import FileLocks, check, peek, read, replace, state_of
from turnd_provider.workspace.places import Place, hold, locate
from turnd_provider.workspace.provider import provider
from turnd_provider.workspace.replacement import replaced

GROUP: Final = "file"
_LOCKS: Final = FileLocks()

_Path = Annotated[str, "The file, relative to the working directory or absolute."]
_Content = Annotated[str, "The whole new content."]
_OldText = Annotated[
    str,
    "The text to replace, exactly as it is in the file, with enough around it to be unique.",
    Limits(min_length=1),
]
_NewText = Annotated[str, "What to put in its place."]
_ReplaceAll = Annotated[bool, "Replace every place where the text is, not one."]

Change = Callable[[Place, bytes | None], bytes]


@dataclass(frozen=True, slots=True)
class FileChange:
    """What was done to a file."""

    path: Annotated[str, "Relative to the workspace."]
    created: bool
    changed: Annotated[bool, "False: the file had this content already."]
    bytes: Annotated[int, "Size of the file now."]


@provider.tool(
    kind="resource", risk="moderate", safe=True, key_fields=[path_key("path")], group=GROUP, path_field="path"
)
def write_file(ctx: BlockingContext, path: _Path, content: _Content) -> Outcome[FileChange]:
    """Writes a whole file, new or in the place of an old one; directories that are missing are made."""
    return _apply(ctx, path, _whole(content))


@write_file.preview
async def preview_write(ctx: Context, path: _Path, content: _Content) -> PreviewText:
    """The diff from the file as it is."""
    return await asyncio.to_thread(_show, ctx, path, _whole(content))


@provider.tool(
    kind="resource", risk="moderate", safe=True, key_fields=[path_key("path")], group=GROUP, path_field="path"
)
def edit_file(
    ctx: BlockingContext,
    path: _Path,
    old_text: _OldText,
    new_text: _NewText,
    replace_all: _ReplaceAll = False,
) -> Outcome[FileChange]:
    """Replaces a piece of text in a file. The text must be in the file once, unless replace_all is set."""
    return _apply(ctx, path, _edit(old_text, new_text, replace_all))


@edit_file.preview
async def preview_edit(
    ctx: Context, path: _Path, old_text: _OldText, new_text: _NewText, replace_all: _ReplaceAll = False
) -> PreviewText:
    """The diff from the file as it is."""
    return await asyncio.to_thread(_show, ctx, path, _edit(old_text, new_text, replace_all))


def _whole(content: str) -> Change:
    data = content.encode("utf-8", "replace")
    return lambda _place, _old: data


def _edit(old_text: str, new_text: str, everywhere: bool) -> Change:
    def change(place: Place, data: bytes | None) -> bytes:
        if data is None:
            raise ToolError.not_found(f"{place.shown} does not exist; write_file makes a new file")
        return replaced(place.shown, data, old_text, new_text, everywhere=everywhere)

    return change


def _apply(ctx: BlockingContext, path: str, change: Change) -> Outcome[FileChange]:
    place = locate(ctx, path)
    with _LOCKS.held(place.path):
        # Nothing is made, not even a directory, before what was shown is known to hold.
        found = peek(place)
        check(place, found, ctx.call.preconditions)
        new = change(place, found.data)
        if new != found.data:
            with hold(place, make_parents=True) as held:
                check(place, read(held), {str(place.path): found.state})
                replace(held, found, new)
    done = FileChange(path=place.shown, created=found.data is None, changed=new != found.data, bytes=len(new))
    return Outcome(done, left_state={str(place.path): state_of(new)})


def _show(ctx: Context, path: str, change: Change) -> PreviewText:
    place = locate(ctx, path)
    found = peek(place)
    new = change(place, found.data)
    return PreviewText(unified(place.shown, found.data, new), {str(place.path): found.state})
