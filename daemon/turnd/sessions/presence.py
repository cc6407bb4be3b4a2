"""Which clients are attached to which session, by what they say of themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ALL = ""
"""The key of clients that are attached to every session."""


class Presence:
    """The mutable state is the count of attachments by session and client."""

    def __init__(self) -> None:
        self._attached: dict[str, Counter[str]] = {}
        self._arrived: list[Callable[[str, str], None]] = []

    def on_arrival(self, callback: Callable[[str, str], None]) -> None:
        """Calls back with session (empty: all) and client whenever one attaches."""
        self._arrived.append(callback)

    @contextmanager
    def attached(self, session: str | None, client: str) -> Iterator[None]:
        """The client sees the session's events inside; None: those of all sessions."""
        key = ALL if session is None else session
        clients = self._attached.setdefault(key, Counter())
        clients[client] += 1
        for callback in self._arrived:
            callback(key, client)
        try:
            yield
        finally:
            clients[client] -= 1
            if not clients[client]:
                del clients[client]
            if not clients and self._attached.get(key) is clients:
                del self._attached[key]

    def clients(self, session: str) -> list[str]:
        """Who sees the session now, in a stable order."""
        here = self._attached.get(session, Counter()) + self._attached.get(ALL, Counter())
        return sorted(here)
