"""Ids of sessions on the command line, with completion from the daemon that runs."""

from __future__ import annotations

import asyncio
import os

import click
from click.shell_completion import CompletionItem

from turnd_client.connect import connect
from turnd_client.errors import ClientError
from turnd_client.text import one_line

_TIMEOUT_S = 2.0
"""Whoever presses Tab does not wait longer."""
_MOST = 200
_TITLE_WIDTH = 60


class SessionId(click.ParamType[str]):
    """An id, or the beginning of one: the daemon says whether there is one."""

    name = "id"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The newest sessions whose ids begin so; none where no daemon runs: none is started for that."""
        try:
            return asyncio.run(_beginning_with(incomplete))
        except (ClientError, TimeoutError, OSError):
            return []


async def _beginning_with(incomplete: str) -> list[CompletionItem]:
    found: list[CompletionItem] = []
    async with asyncio.timeout(_TIMEOUT_S), await connect(dict(os.environ), "turn completion") as client:
        async for session in client.list_sessions(include_children=True):
            if session.id.startswith(incomplete.upper()):
                found.append(CompletionItem(session.id, help=one_line(session.title, _TITLE_WIDTH)))
            if len(found) == _MOST:
                break
    return found


SESSION = SessionId()
