"""Takes secrets out of what leaves the daemon as logs or telemetry (OBS-04).

Two nets: values that are known to be secrets, wherever they occur, and what looks like one by name or form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

REDACTED = "[redacted]"

SHORTEST_KNOWN_SECRET = 8
"""Shorter values occur in ordinary text by chance; replacing them would garble it."""

SECRET_NAME = re.compile(
    r"(?:^|[_.-])(?:token|secret|password|passwd|passphrase|authorization|cookie|credentials?|(?:api|private)[_-]?key)$",
    re.IGNORECASE,
)

SECRET_FORM = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)"
    r"|(?<=Bearer )[A-Za-z0-9._~+/=-]{8,}"
    r"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"
    r"|\bsk-[A-Za-z0-9_-]{16,}"
    r"|\bgh[pousr]_[A-Za-z0-9]{20,}"
    r"|\bgithub_pat_[A-Za-z0-9_]{20,}"
    r"|\bxox[abeoprs]-[A-Za-z0-9-]{10,}"
    r"|\bAKIA[0-9A-Z]{16}\b"
    r"|\bAIza[A-Za-z0-9_-]{35}"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}",
    re.DOTALL,
)


class Redactor:
    """Replaces secrets by a mark. The mutable state is the set of known secrets; `learn` alone changes it."""

    def __init__(self) -> None:
        self._known: frozenset[str] = frozenset()
        self._known_form: re.Pattern[str] | None = None

    def learn(self, secret: str) -> None:
        """From now on this value is replaced wherever it occurs; a short one is left to its form."""
        if len(secret) < SHORTEST_KNOWN_SECRET or secret in self._known:
            return
        self._known |= {secret}
        longest_first = sorted(self._known, key=len, reverse=True)
        self._known_form = re.compile("|".join(map(re.escape, longest_first)))

    def text(self, text: str) -> str:
        """The text without what is known to be, or looks like, a secret."""
        if self._known_form is not None:
            text = self._known_form.sub(REDACTED, text)
        return SECRET_FORM.sub(REDACTED, text)

    def named(self, name: str, value: Any) -> Any:
        """The value without secrets; all of it where its name says that it is one. Numbers are kept."""
        match value:
            case None | bool() | int() | float():
                return value
            case _ if SECRET_NAME.search(name):
                return REDACTED
            case str():
                return self.text(value)
            case bytes():
                return self.text(value.decode("utf-8", errors="replace"))
            case Mapping():
                return {key: self.named(str(key), item) for key, item in value.items()}
            case list() | tuple() | set() | frozenset():
                return [self.named("", item) for item in value]
            case _:
                return self.text(str(value))
