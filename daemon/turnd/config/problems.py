"""What is wrong with a configuration, where, and what was expected (OPS-03)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

KeyPath = tuple[str | int, ...]
"""Where a value is: names of keys, and indices (from 0) within arrays."""

MOST_NAMES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Origin:
    """A place in a file; `line` counts from 1."""

    file: Path
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, by the path of its key."""

    path: KeyPath
    text: str


class Refused(Exception):
    """A value, or something in it, is not what it must be; the loader makes it a ConfigError."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(f"{dotted(problem.path)}: {problem.text}" for problem in self.problems))


class ConfigError(Exception):
    """A configuration file cannot be used. One line for each problem: file, line, key, what to do."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = tuple(lines)
        super().__init__("\n".join(self.lines))


def dotted(path: KeyPath) -> str:
    """`profiles.default.max_turns`, `policy[0].match`: a path as it is written in messages."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def expected(wanted: str, value: object) -> str:
    """The usual text for a value that does not fit."""
    return f"expected {wanted}, found {shown(value)}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The known name that is nearest to a wrong one, or all of them where none is near."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return f"did you mean {near[0]}?"
    if not names:
        return "there are none"
    rest = "" if len(names) <= MOST_NAMES_SHOWN else ", ..."
    return f"known: {', '.join(names[:MOST_NAMES_SHOWN])}{rest}"


def shown(value: object) -> str:
    """A value as it is written in messages: what it is, and its type where that could be mistaken."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return f'the text "{value}"'
        case dict():
            return "a table"
        case list():
            return "an array"
        case _:
            return str(value)
