"""How long a Step was active and how long it waited for a person."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from turnd.ports import Clock


class Meter:
    """Adds up the time in which anything was active, and the time in which only people were waited for.

    Sections may overlap: two calls of a second side by side are one active second. Suspend is not counted,
    because the clock does not count it. What a sub-agent does is activity of the Step above it too, whose meter is
    `above`; what it waits for is not.
    """

    def __init__(self, clock: Clock, above: Meter | None = None) -> None:
        self._clock = clock
        self._above = above
        # The mutable state: sections open now, totals up to `_since`.
        self._active_sections = 0
        self._waiting_sections = 0
        self._active_s = 0.0
        self._waited_s = 0.0
        self._since = clock.monotonic()

    @property
    def active_ms(self) -> int:
        """Milliseconds in which a model call, a hook or a tool was active."""
        self._settle()
        return round(self._active_s * 1000)

    @property
    def waited_ms(self) -> int:
        """Milliseconds in which nothing was active and a person was waited for."""
        self._settle()
        return round(self._waited_s * 1000)

    @contextmanager
    def active(self) -> Iterator[None]:
        """A model call, hook or tool is running inside."""
        self._settle()
        self._active_sections += 1
        try:
            with nullcontext() if self._above is None else self._above.active():
                yield
        finally:
            self._settle()
            self._active_sections -= 1

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A person is waited for inside."""
        self._settle()
        self._waiting_sections += 1
        try:
            yield
        finally:
            self._settle()
            self._waiting_sections -= 1

    def _settle(self) -> None:
        now = self._clock.monotonic()
        if self._active_sections:
            self._active_s += now - self._since
        elif self._waiting_sections:
            self._waited_s += now - self._since
        self._since = now
