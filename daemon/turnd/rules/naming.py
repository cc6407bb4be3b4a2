"""Names that vendors accept for tools: letters, digits, `_` and `-`, at most 64, one for each tool.

They depend on the set of tools alone, never on its order, so that a request reads the same from Step to Step.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from itertools import count
from typing import Final

MAX_LENGTH: Final = 64

_LEGAL: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_LENGTH}}}")
_ILLEGAL: Final = re.compile(r"[^A-Za-z0-9_-]")
_HASH_LENGTH: Final = 10


class WireNames:
    """The names of a set of tools, given as pairs of provider and tool.

    A tool is called by its plain name where no other has it; else `provider__tool`; where that is taken, too
    long or not legal, by what is legal of it with a hash behind.
    """

    def __init__(self, tools: Iterable[tuple[str, str]]) -> None:
        wanted = sorted(set(tools))
        self._name_of: dict[tuple[str, str], str] = {}
        for spell in (_plain, _qualified):
            self._give({tool: spell(tool) for tool in wanted if tool not in self._name_of})
        for tool in wanted:
            if tool not in self._name_of:
                self._name_of[tool] = self._hashed(tool)
        self._tool_of = {name: tool for tool, name in self._name_of.items()}

    def name(self, provider: str, tool: str) -> str:
        """What the vendor is told. KeyError for a tool that is not of the set."""
        return self._name_of[provider, tool]

    def resolve(self, wire_name: str) -> tuple[str, str] | None:
        """Provider and tool of a name that a model used; None where no tool has it."""
        return self._tool_of.get(wire_name)

    def _give(self, spelt: dict[tuple[str, str], str]) -> None:
        used = Counter([*spelt.values(), *self._name_of.values()])
        self._name_of |= {
            tool: name for tool, name in spelt.items() if used[name] == 1 and _LEGAL.fullmatch(name)
        }

    def _hashed(self, tool: tuple[str, str]) -> str:
        stem = _ILLEGAL.sub("_", _qualified(tool))[: MAX_LENGTH - 1 - _HASH_LENGTH]
        taken = set(self._name_of.values())
        # A tool of another provider may bear this very name, on purpose too: then the next hash is taken.
        names = (f"{stem}_{_hash(tool, attempt)}" for attempt in count())
        return next(name for name in names if name not in taken)


def _plain(tool: tuple[str, str]) -> str:
    return tool[1]


def _qualified(tool: tuple[str, str]) -> str:
    return f"{tool[0]}__{tool[1]}"


def _hash(tool: tuple[str, str], attempt: int) -> str:
    spelt = "\0".join((*tool, str(attempt)))
    return hashlib.sha256(spelt.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_LENGTH]
