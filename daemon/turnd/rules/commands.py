"""Patterns over commands: which programs of a line an allowing rule covers, and which a denying rule concerns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from immutables import Map

from turnd.rules.risky_options import NOTHING, Risky, RiskyTable
from turnd.rules.shell import Program, Word

_NOT_IN_PATTERNS: Final = re.compile(r"['\"\\$`;|&<>(){}\n]")
_BREAKS: Final = re.compile(r"[\s;|&<>(){}$`=,!#:]+")
_QUOTES: Final = re.compile(r"['\"\\]")
_GLOB: Final = re.compile(r"\*|\?|\[[^\]]*\]?")


@dataclass(frozen=True, slots=True)
class Found:
    """Where the session's PATH finds a program."""

    path: str
    writable: bool
    """The session's tools could have put it there."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What commands are judged on, beside their words."""

    workspace: str = ""
    programs: Mapping[str, Found] = field(default_factory=Map)
    """By name; one that is missing was not found with certainty."""
    risky: RiskyTable = field(default_factory=RiskyTable)


def pattern_problem(pattern: str) -> str | None:
    """Why a text is no pattern; None where it is one."""
    if not pattern.split():
        return "is empty, and matches nothing; leave it out"
    if (shell := _NOT_IN_PATTERNS.search(pattern)) is not None:
        return f"has a {shell[0]!r}: a pattern is a list of plain words, each of which may have a * in it"
    return None


def trusted(program: Program, programs: Mapping[str, Found]) -> bool:
    """Whether a shell or wrapper that is looked into is the system's, and none that tools could have made."""
    found = programs.get(program.name)
    return program.name.startswith("/") or (found is not None and not found.writable)


def allows(pattern: str, program: Program, ground: Ground) -> bool:
    """Whether an allowing pattern covers a program of a line that was understood.

    A word that could make it run or write something else is covered only where the pattern spells it out.
    """
    wanted = tuple(pattern.split())
    return _names(wanted[0], program, ground) and _covers(wanted, program, ground)


def concerns(pattern: str, program: Program, ground: Ground) -> bool:
    """Whether a denying or asking pattern is about a program: in doubt it is.

    Options may stand between its words, a wildcard of the line is whatever it could become, and a program that
    runs its arguments is also whatever is named in them.
    """
    wanted = tuple(pattern.split())
    if _is_called(wanted[0], program, ground) and _may_follow(wanted[1:], program.words[1:]):
        return True
    if program.inner is not None or not _risky_words(program, ground):
        return False
    return mentions(pattern, " ".join(word.text for word in program.words[1:]))


def mentions(pattern: str, line: str) -> bool:
    """Whether the first word of a pattern occurs as a word in a line, after quotes and backslashes are taken
    off.
    """
    first = pattern.split()[0]
    names = {first, _base(first)}
    return any(
        _overlap(name, part)
        for name in names
        for word in _BREAKS.split(_QUOTES.sub("", line))
        if word
        for part in (word, _base(word))
        if part
    )


def _names(wanted: str, program: Program, ground: Ground) -> bool:
    """Whether the first word of an allowing pattern is for this program, where it lies."""
    name = program.name
    if "/" in name:
        return wanted == name
    if program.builtin:
        return _fits(wanted, name)
    found = ground.programs.get(name)
    if found is None:
        return False
    if "/" in wanted:
        return found.path == (wanted if wanted.startswith("/") else _joined(ground.workspace, wanted))
    return not found.writable and _fits(wanted, name)


def _joined(directory: str, relative: str) -> str:
    return f"{directory}/{relative.removeprefix('./')}"


def _covers(wanted: Sequence[str], program: Program, ground: Ground) -> bool:
    words = program.words
    rest = len(wanted) > 1 and wanted[-1] == "*"
    fixed = wanted[:-1] if rest else wanted
    if len(words) < len(fixed) or (len(words) > len(fixed) and not rest):
        return False
    spelled = {0} if not rest and "*" not in "".join(fixed) else set()
    for index, (pattern, word) in enumerate(zip(fixed[1:], words[1:], strict=False), 1):
        if word.glob or not _fits(pattern, word.text):
            return False
        if "*" not in pattern:
            spelled.add(index)
    if _gives_script(fixed, ground.risky.of(program.name)):
        return True
    return _risky_words(program, ground) <= spelled


def _gives_script(fixed: Sequence[str], risky: Risky) -> bool:
    """Whether a pattern spells out what an interpreter runs, so that all that follows are arguments of that."""
    match fixed:
        case [_, "-m", module, *_] if risky.module:
            return "*" not in module and module[:1] != "-"
        case [_, script, *_] if risky.script:
            return "*" not in script and script[:1] != "-"
        case _:
            return False


def _risky_words(program: Program, ground: Ground) -> frozenset[int]:
    """The places of the words that no wildcard stands for; 0: no pattern with a wildcard at all."""
    if program.builtin and program.name == "cd":
        return _leading_out(program.words, ground.workspace)
    risky = ground.risky.of(program.name)
    count = len(program.words)
    if risky.everything:
        return frozenset(range(count))
    if risky is NOTHING:
        return frozenset()
    found: set[int] = set()
    subcommands = risky.subcommands
    early, own = risky.early, NOTHING
    operands = 0
    for index, word in enumerate(program.words[1:], 1):
        text = word.text
        if text in risky.runs or (word.glob and any(_overlap(one, text) for one in risky.runs)):
            return frozenset({*found, *range(index, count)})
        bundle = text[1:] if text[:1] == "-" and text[:2] != "--" else ""
        if risky.bundled and index == 1 and text[:1] != "-":
            bundle = text
        operand = text[:1] != "-" or text == "-"
        if operand and subcommands is not None:
            if text not in subcommands or word.glob:
                return frozenset({*found, *range(index, count)})
            early, own, subcommands = "", subcommands[text], None
            continue
        operands += 0 if not operand else 2 if word.glob else 1
        if (
            any(
                long.startswith(text.partition("=")[0]) for long in (*risky.long, *own.long) if _is_long(text)
            )
            or _has_letter(
                bundle, risky.short + own.short + early, own.valued if own is not NOTHING else risky.valued
            )
            or any(
                _fits(one, part)
                for one in (*risky.words, *own.words)
                for part in (text, text.partition("=")[0])
            )
            or (operand and risky.operands is not None and operands > risky.operands)
        ):
            found.add(index)
    return frozenset(found)


def _is_long(text: str) -> bool:
    return text.startswith("--") and len(text) > 2


def _has_letter(bundle: str, letters: str, valued: str) -> bool:
    for letter in bundle:
        if letter in letters:
            return True
        if letter in valued:
            return False
    return False


def _leading_out(words: Sequence[Word], workspace: str) -> frozenset[int]:
    """Of `cd`: what could lead out of the workspace, where tools may have put what other programs obey."""
    inside = len(words) == 2 and not words[1].glob and _within(words[1].text, workspace)
    return frozenset() if inside else frozenset(range(len(words)))


def _within(path: str, workspace: str) -> bool:
    if not path or path[0] == "-" or ".." in path.split("/"):
        return False
    return path[0] != "/" or (bool(workspace) and f"{path}/".startswith(f"{workspace}/"))


def _is_called(wanted: str, program: Program, ground: Ground) -> bool:
    """Whether a denying pattern's first word may be this program, by any name of it."""
    found = ground.programs.get(program.name)
    names = {program.name, _base(program.name), *([found.path, _base(found.path)] if found else [])}
    return any(_fits(wanted, name) for name in names) or (
        "/" in wanted and _fits(_base(wanted), program.name)
    )


def _may_follow(wanted: Sequence[str], words: Sequence[Word]) -> bool:
    """Whether the words of a program may be those of a denying pattern, with options between them."""
    rest = bool(wanted) and wanted[-1] == "*"
    fixed = wanted[:-1] if rest else wanted
    # After each word of the program: how many words of the pattern may have been seen.
    seen: list[set[int]] = [set() for _ in range(len(words) + 2)]
    seen[0].add(0)
    for place, word in enumerate(words):
        option = word.text[:1] == "-"
        for count in seen[place]:
            if count < len(fixed) and (_overlap if word.glob else _fits)(fixed[count], word.text):
                seen[place + 1].add(count + 1)
            if option:
                # The option alone, or with a value of its own.
                seen[place + 1].add(count)
                seen[place + 2].add(count)
        if word.glob:
            seen[place + 1] |= _several(fixed, word.text, seen[place])
    return any(len(fixed) in counts for counts in seen) if rest else len(fixed) in seen[len(words)]


def _several(fixed: Sequence[str], glob: str, begun: set[int]) -> set[int]:
    """How many words of the pattern may have been seen after one wildcard that becomes several words."""
    reached = set()
    for count in begun:
        while count < len(fixed) and _overlap(fixed[count], glob):
            count += 1
            reached.add(count)
    return reached


def _fits(pattern: str, text: str) -> bool:
    """Whether a text is the pattern with something for each `*`."""
    first, *others = pattern.split("*")
    if not others:
        return text == pattern
    last = others.pop()
    if len(text) < len(first) + len(last) or not (text.startswith(first) and text.endswith(last)):
        return False
    place, end = len(first), len(text) - len(last)
    for part in others:
        place = text.find(part, place, end)
        if place < 0:
            return False
        place += len(part)
    return True


def _overlap(pattern: str, glob: str) -> bool:
    """Whether some text fits both a pattern and a wildcard of the shell; of a bracket anything is expected."""
    other = _GLOB.sub("*", glob)
    if "*" not in other:
        return _fits(pattern, other)
    if "*" not in pattern:
        return _fits(other, pattern)
    first, last = pattern.partition("*")[0], pattern.rpartition("*")[2]
    begin, end = other.partition("*")[0], other.rpartition("*")[2]
    return (first.startswith(begin) or begin.startswith(first)) and (last.endswith(end) or end.endswith(last))


def _base(path: str) -> str:
    return path.rpartition("/")[2]
