"""Rules that decisions for always stored, in the file until somebody removes them (GATE-09).

They stand beside the events: the event that stored one is history, and says nothing of whether it was removed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from typing import Any, Final

from turnd.ports import RememberedRule
from turnd.store.answers import write_request
from turnd.store.batch import Request
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

RULES: Final = """
    SELECT name, workspace, profile, cwd, rule, session, client, at_us FROM policy_rules ORDER BY at_us, name
"""


def remember(connection: sqlite3.Connection, event: event_pb2.Event) -> None:
    """Stores what an event remembers for always; most remember nothing. Raises sqlite3.IntegrityError for a name
    that is taken.
    """
    decided = event.approval_decided
    if event.HasField("imported") or not decided.HasField("stored"):
        return
    stored = decided.stored
    connection.execute(
        "INSERT INTO policy_rules VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            stored.name,
            stored.workspace,
            stored.profile,
            stored.cwd,
            decided.grant.SerializeToString(),
            event.session,
            decided.client,
            event.time.ToMicroseconds(),
        ),
    )


def removal(name: str, request: Request | None) -> Callable[[sqlite3.Connection], None]:
    """What removes a rule within a transaction, and stores the command that asks for it. Raises KeyError where there
    is none of this name.
    """

    def remove(connection: sqlite3.Connection) -> None:
        if not connection.execute("DELETE FROM policy_rules WHERE name = ?", (name,)).rowcount:
            raise KeyError(name)
        if request is not None:
            write_request(connection, request)

    return remove


def rules_of(rows: Iterable[sqlite3.Row | tuple[Any, ...]]) -> list[RememberedRule]:
    """The rows of `RULES`. Raises DecodeError for one that is not whole."""
    return [
        RememberedRule(
            name, workspace, profile, cwd, common.GrantRule.FromString(rule), session, client, at_us
        )
        for name, workspace, profile, cwd, rule, session, client, at_us in rows
    ]
