"""ls, show, send, cancel, close: sessions as a whole."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from turnd.v1 import common_pb2, sessions_pb2
from turnd_client.cli.app import Caller, Misused, command, json_option, print_json
from turnd_client.cli.session_id import SESSION
from turnd_client.cli.table import print_table
from turnd_client.screen import Screen
from turnd_client.shapes import (
    is_imported,
    reason_text,
    session_cost,
    session_json,
    shown_json,
    status_text,
)
from turnd_client.text import one_line, visible
from turnd_client.times import local_text
from turnd_client.units import counted, duration_text, usd_text

_TITLE_WIDTH = 60
_STATUSES = [
    status_text(value)
    for value in common_pb2.SessionStatus.values()
    if value != common_pb2.SESSION_STATUS_UNSPECIFIED
]


@click.command()
@click.option("--here", is_flag=True, help="Only sessions of this directory.")
@click.option("--children", is_flag=True, help="Sub-agents' sessions too, each below its parent.")
@click.option(
    "--status", "statuses", type=click.Choice(_STATUSES), multiple=True, help="Only these; repeatable."
)
@json_option
@command
async def ls(caller: Caller, here: bool, children: bool, statuses: tuple[str, ...], as_json: bool) -> int:
    """List sessions, newest first; of those that were forked or imported it says so behind the title."""
    wanted = [common_pb2.SessionStatus.Value(f"SESSION_STATUS_{status.upper()}") for status in statuses]
    cwd = str(Path.cwd()) if here else ""
    found: list[sessions_pb2.Session] = []
    async with caller.client() as client:
        async for session in client.list_sessions(statuses=wanted, cwd=cwd, include_children=children):
            if as_json:
                print_json(session_json(session))
            else:
                found.append(session)
    if found:
        print_table((_COLUMNS, *map(_row, _as_trees(found))))
    elif not as_json:
        click.echo("no sessions")
    return 0


_COLUMNS = ("ID", "CREATED", "STATUS", "COST", "WAITING", "DIRECTORY", "TITLE")


def _as_trees(sessions: Sequence[sessions_pb2.Session]) -> list[sessions_pb2.Session]:
    """Newest first, but each sub-agent below its parent, where that is listed, in the order of their starts."""
    listed = {session.id for session in sessions}
    below: dict[str, list[sessions_pb2.Session]] = {}
    for session in reversed(sessions):
        below.setdefault(session.parent, []).append(session)
    ordered: list[sessions_pb2.Session] = []
    left = [session for session in reversed(sessions) if session.parent not in listed]
    while left:
        session = left.pop()
        ordered.append(session)
        left += reversed(below.get(session.id, []))
    return ordered


def _row(session: sessions_pb2.Session) -> tuple[str, ...]:
    return (
        session.id,
        local_text(session.created, "minutes"),
        status_text(session.status),
        session_cost(session),
        counted(len(session.open_requests), "request") if session.open_requests else "-",
        visible(session.cwd),
        "  " * session.depth + _named(session),
    )


def _named(session: sessions_pb2.Session) -> str:
    """The title; of sessions that began as others did, where that was."""
    title = one_line(session.title, _TITLE_WIDTH)
    if session.HasField("forked_from"):
        origin = session.forked_from
        return f"{title} (fork of {visible(origin.session)} at {origin.seq})".lstrip()
    return f"{title} (imported)".lstrip() if is_imported(session) else title


@click.command()
@click.argument("session", metavar="ID", type=SESSION)
@json_option
@command
async def show(caller: Caller, session: str, as_json: bool) -> int:
    """Show one session: status, origin, cost, bounds and what is left of them, open requests, queue."""
    async with caller.client() as client:
        shown = await client.get_session(session)
        children = [child async for child in client.list_sessions(parent=shown.session.id)]
    children.reverse()
    if as_json:
        print_json(shown_json(shown) | {"children": [session_json(child) for child in children]})
        return 0
    screen = Screen(sys.stdout)
    for name, value in _rows(shown):
        screen.row(name, value)
    for child in children:
        what = f"{status_text(child.status)}, {session_cost(child)}, {one_line(child.title, 80)}"
        screen.row("sub-agent", f"{child.id} {what}")
    for message in shown.session.queued:
        text = " ".join(block.text.text for block in message.blocks)
        screen.row("queued", f"{message.message_id} {one_line(text, 80)}")
    for request in shown.session.open_requests:
        screen.open_request(request)
        if request.HasField("approval"):
            screen.grant(request.approval.grant, "--scope session or always would remember")
    return 0


def _rows(shown: sessions_pb2.GetSessionResponse) -> list[tuple[str, str]]:
    session, gaps = shown.session, len(shown.unenforced)
    status = status_text(session.status)
    if shown.HasField("open_turn"):
        status += f", in turn {shown.open_turn}"
        status += f", step {shown.open_step}" if shown.HasField("open_step") else ""
    elif session.last_reason:
        status += f", last turn {reason_text(session.last_reason)}"
    rows = [
        ("id", session.id),
        ("status", status),
        ("title", visible(session.title)),
        ("directory", visible(session.cwd)),
        ("model", f"{visible(session.model)} (profile {visible(session.profile)})"),
        ("plan mode", "tools that change something are not offered" if session.plan_mode else ""),
        ("unattended", "what would ask is denied" if session.unattended else ""),
        ("created", local_text(session.created)),
        ("origin", _origin(session)),
        ("parent", session.parent),
        ("turns", f"{session.turns}, {counted(session.steps, 'step')}, {counted(session.last_seq, 'event')}"),
        ("cost", _cost(session)),
        ("bounds", _bounds(shown)),
        ("sandbox", visible(shown.sandbox)),
        ("not enforced", f"{counted(gaps, 'thing')}, see turn status" if gaps else ""),
        *(("problem", visible(problem)) for problem in shown.problems),
        *(("warning", visible(warning)) for warning in shown.warnings),
    ]
    return [(name, value) for name, value in rows if value]


def _origin(session: sessions_pb2.Session) -> str:
    history = f"its first {counted(session.history, 'event')} are history, and act on nothing"
    if session.HasField("forked_from"):
        origin = session.forked_from
        return f"forked from {visible(origin.session)} at event {origin.seq}; {history}"
    return f"imported from a file; {history}" if is_imported(session) else ""


def _cost(session: sessions_pb2.Session) -> str:
    notes = ["some of it is estimated"] if session.estimated else []
    notes += ["for some of it no price is known"] if session.unpriced else []
    return ", ".join((session_cost(session), f"{session.weighted_tokens} weighted tokens", *notes))


def _bounds(shown: sessions_pb2.GetSessionResponse) -> str:
    bounds, left = shown.bounds, shown.left
    parts: list[str] = []
    if bounds.HasField("max_turns"):
        parts.append(f"{counted(bounds.max_turns, 'step')} ({left.turns} left)")
    if bounds.HasField("max_cost_nano_usd"):
        parts.append(f"{usd_text(bounds.max_cost_nano_usd)} ({usd_text(left.cost_nano_usd)} left)")
    if bounds.HasField("max_wall_clock_ms"):
        rest = duration_text(left.wall_clock_ms)
        parts.append(f"{duration_text(bounds.max_wall_clock_ms)} of work ({rest} left)")
    return ", ".join(parts) or "none"


@click.command()
@click.argument("session", metavar="ID", type=SESSION)
@click.argument("text")
@click.option(
    "--now", is_flag=True, help="For the next step of the turn that runs, not for a turn of its own."
)
@json_option
@command
async def send(caller: Caller, session: str, text: str, now: bool, as_json: bool) -> int:
    """Queue a message for the session (`-` reads it from stdin)."""
    text = read_text(text)
    async with caller.client() as client:
        sent = await client.send_message(session, text, now=now)
    if as_json:
        print_json({"message_id": sent.message_id, "seq": sent.seq})
    else:
        click.echo(f"queued as {sent.message_id}")
    return 0


@click.command()
@click.argument("session", metavar="ID", type=SESSION)
@click.option("--keep-queue", is_flag=True, help="Leave messages in the queue for the next turn.")
@json_option
@command
async def cancel(caller: Caller, session: str, keep_queue: bool, as_json: bool) -> int:
    """Cancel the turn that runs, and wait until everything it started has ended."""
    async with caller.client() as client:
        number = await client.cancel(session, keep_queue=keep_queue)
    if as_json:
        print_json({"turn": number})
    else:
        click.echo(f"turn {number} cancelled")
    return 0


@click.command()
@click.argument("session", metavar="ID", type=SESSION)
@json_option
@command
async def close(caller: Caller, session: str, as_json: bool) -> int:
    """End a session; a turn that runs is cancelled first. A later message (`turn send`) opens it again."""
    async with caller.client() as client:
        closed = await client.close_session(session)
    if as_json:
        print_json(session_json(closed))
    else:
        click.echo(f"{closed.id} {status_text(closed.status)}")
    return 0


def read_text(text: str) -> str:
    """The text of an argument, or stdin where it is `-`. Raises Misused where there is none."""
    data = sys.stdin.buffer.read() if text == "-" else os.fsencode(text)
    text = data.decode("utf-8", "replace")
    if not text.strip():
        raise Misused("the text is empty: give it as an argument, or on stdin with `-`")
    return text
