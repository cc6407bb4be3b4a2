"""gc: what of the daemon's files is not needed any more. Nothing is removed that was not shown before."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from turnd.v1 import daemon_pb2
from turnd.v1.jsonform import enum_text
from turnd_client.cli.app import Caller, Misused, command, json_option, print_json
from turnd_client.text import one_line, visible
from turnd_client.times import local_text, utc_text
from turnd_client.units import size_text

_DEFAULT_DAYS = 30
_NOBODY = "nothing was removed: this is no terminal to ask at, so give --yes or --dry-run"


@click.command()
@click.option(
    "--older-than",
    type=click.IntRange(min=0, max=36500),
    default=_DEFAULT_DAYS,
    show_default=True,
    metavar="DAYS",
    help="Sessions whose last event is older; 0: all that have ended but the one with the newest event.",
)
@click.option("--yes", is_flag=True, help="Remove without asking; needed where this is no terminal.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@json_option
@command
async def gc(caller: Caller, older_than: int, yes: bool, dry_run: bool, as_json: bool) -> int:
    """Say what is not needed any more, ask, and remove it: ended sessions, output of sessions that are gone.

    Copies of the log, from before an upgrade or damaged, are only listed. Sessions that could go on are kept, and
    so is the one that has the newest event of the whole log, until another session has a newer one.
    """
    if yes and dry_run:
        raise Misused("--yes removes and --dry-run does not: give one of them")
    async with caller.client() as client:
        found = await client.gc(older_than)
        names = [item.name for item in found.items if item.removable]
        asked = bool(names) and not (dry_run or yes)
        if asked and as_json and not sys.stdin.isatty():
            raise Misused(_NOBODY)
        if not as_json or (asked and sys.stdin.isatty()):
            _show(found, to_stderr=as_json)
        go_on = yes or (asked and sys.stdin.isatty() and _confirmed(found, len(names)))
        done = await client.gc(older_than, remove=names) if names and go_on else found
    if as_json:
        print_json(_gc_json(done))
    elif done.removed:
        click.echo(f"removed {size_text(done.bytes)}; what was in the log is room for new events in its file")
    if asked and not go_on and not sys.stdin.isatty():
        raise Misused(_NOBODY)
    return _failures(done.items)


def _confirmed(found: daemon_pb2.GcResponse, count: int) -> bool:
    things = "1 thing" if count == 1 else f"{count} things"
    return click.confirm(f"remove {things}, {size_text(found.bytes)}? This cannot be undone", err=True)


def _show(found: daemon_pb2.GcResponse, *, to_stderr: bool) -> None:
    if not found.items:
        click.echo("nothing to remove", err=to_stderr)
    for item in found.items:
        click.echo(_row(item), err=to_stderr)
    if found.kept:
        text = (
            f"{found.kept} stays: it has the newest event of the log, until another session has a newer one"
        )
        click.echo(text, err=True)
    kept = [item for item in found.items if not item.removable]
    if kept:
        click.echo(
            "files marked with * are only listed: remove them by hand when you need them no more", err=True
        )


def _row(item: daemon_pb2.GcItem) -> str:
    mark = " " if item.removable else "*"
    below = f"  with {item.sessions - 1} sub-agents" if item.sessions > 1 else ""
    title = f"  {one_line(item.title, 60)}" if item.title else ""
    used = local_text(item.last_used, "minutes")
    where = visible(item.path or item.name)
    return f"{mark} {_kind(item):<8} {used} {size_text(item.bytes):>10}  {where}{below}{title}"


def _failures(items: Sequence[daemon_pb2.GcItem]) -> int:
    failed = [item for item in items if item.problem]
    for item in failed:
        click.echo(f"error: {visible(item.name)}: {visible(item.problem)}", err=True)
    return 1 if failed else 0


def _gc_json(found: daemon_pb2.GcResponse) -> dict[str, object]:
    return {
        "removed": found.removed,
        "bytes": found.bytes,
        "kept": found.kept or None,
        "items": [
            {
                "kind": _kind(item),
                "name": item.name,
                "path": item.path or None,
                "bytes": item.bytes,
                "sessions": item.sessions,
                "title": item.title,
                "last_used": utc_text(item.last_used),
                "removable": item.removable,
                "removed": item.removed,
                "problem": item.problem or None,
            }
            for item in found.items
        ],
    }


def _kind(item: daemon_pb2.GcItem) -> str:
    return enum_text(daemon_pb2.GcKind, item.kind)
