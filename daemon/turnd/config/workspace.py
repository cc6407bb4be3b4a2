"""The configuration file that a workspace has itself, `.turnd/config.toml`, and what may stand in it (OPS-04)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from immutables import Map

from turnd.config.kinds import Many, Named, Number, Record, Scaled, Text, Whole, key, keys_of
from turnd.config.policy import PolicyEntry
from turnd.config.problems import ConfigError, KeyPath, Problem, Refused, dotted
from turnd.config.profile import MILLISECONDS, NANO_USD, Profile
from turnd.config.schema import Document
from turnd.config.source import Source, parsed
from turnd.rules.layer import ProfileLayer
from turnd.rules.policy import Layer, Policy, PolicyError, PolicyRule

NAME: Final = ".turnd/config.toml"
"""Below the workspace."""
MAX_BYTES: Final = 64 * 1024
_MOST: Final = 2**31
_NAME_CHARACTERS: Final = 100
_LINE_CHARACTERS: Final = 500
_LINES: Final = 50


@dataclass(frozen=True, slots=True)
class WorkspaceProfile:
    """Less of a profile of the user's; more of it only once the file is trusted."""

    tools: tuple[str, ...] | None = key(
        Many(Text()), "globs over provider.tool, of those that the profile has", default=None
    )
    max_turns: int | None = key(Whole(0), "a lower bound; trusted: any", default=None)
    max_cost_nano_usd: int | None = key(
        Scaled(Number(unit="USD"), NANO_USD), "the same", default=None, name="max_cost_usd"
    )
    max_wall_clock_ms: int | None = key(
        Scaled(Number(unit="seconds"), MILLISECONDS), "the same", default=None, name="max_wall_clock_s"
    )
    max_depth: int | None = key(Whole(0), "the same", default=None)
    max_concurrent_subagents: int | None = key(Whole(1), "the same", default=None)
    max_subagents_total: int | None = key(Whole(0), "the same", default=None)
    may_spawn: tuple[str, ...] | None = key(
        Many(Text()), "of the profiles that sub-agents may run under", default=None
    )

    def layer(self) -> ProfileLayer:
        """What the rules understand."""
        return ProfileLayer(
            tools=self.tools,
            may_spawn=self.may_spawn,
            max_turns=self.max_turns,
            max_cost_nano_usd=self.max_cost_nano_usd,
            max_wall_clock_ms=self.max_wall_clock_ms,
            max_depth=_fitting(self.max_depth),
            max_concurrent_subagents=_fitting(self.max_concurrent_subagents),
            max_subagents_total=_fitting(self.max_subagents_total),
        )


@dataclass(frozen=True, slots=True)
class WorkspaceDocument:
    """A workspace's file as it is written."""

    policy: tuple[PolicyEntry, ...] = key(
        Many(Record(PolicyEntry)),
        "rules of the workspace's layer: deny and ask; allow once it is trusted",
        default=(),
    )
    profiles: Mapping[str, WorkspaceProfile] = key(
        Named(Record(WorkspaceProfile)),
        "less of the user's profiles, by their names",
        default=Map[str, WorkspaceProfile](),
    )


@dataclass(frozen=True, slots=True)
class WorkspaceFile:
    """A workspace's file, checked."""

    source: Source
    rules: tuple[PolicyRule, ...]
    """In the order of the file, all of the workspace's layer."""
    profiles: Mapping[str, ProfileLayer]
    refused: tuple[str, ...]
    """Keys that no workspace's file can have: each with file and line, and what to do."""

    def told(self, path: KeyPath, text: str) -> str:
        """A line about a key of the file: with its place, of a size that can be shown."""
        return _told(self.source, path, text)


def read_workspace(file: Path, data: bytes) -> WorkspaceFile:
    """The content of a workspace's file. Raises ConfigError, by file, line and key (OPS-03)."""
    try:
        source = parsed(file, data)
    except ConfigError as wrong:
        raise ConfigError(line[:_LINE_CHARACTERS] for line in wrong.lines[:_LINES]) from None
    try:
        taken, refused = _taken(source.values)
        document = Record(WorkspaceDocument).read(taken, ())
    except Refused as wrong:
        raise ConfigError(_lines(source, wrong.problems)) from None
    rules = tuple(_rule(entry, source, index) for index, entry in enumerate(document.policy))
    try:
        Policy(rules)
    except PolicyError as wrong:
        raise ConfigError([str(wrong)[: 2 * _LINE_CHARACTERS]]) from None
    layers = Map({name: profile.layer() for name, profile in document.profiles.items()})
    return WorkspaceFile(source, rules, layers, tuple(_lines(source, refused)))


def _rule(entry: PolicyEntry, source: Source, index: int) -> PolicyRule:
    origin = source.origin(("policy", index))
    rule = entry.rule(origin)
    name = entry.name[:_NAME_CHARACTERS] if entry.name else f"{NAME}:{origin.line}"
    return replace(rule, name=name, layer=Layer.WORKSPACE)


def _taken(values: dict[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """What is read of the file, and what the user's configuration alone may say; unknown keys stay, and are errors."""
    problems = []
    ours, own = keys_of(WorkspaceDocument), keys_of(Document)
    for name in values:
        if name in own and name not in ours:
            problems.append(Problem((name,), _ELSEWHERE))
    taken = {name: value for name, value in values.items() if name in ours or name not in own}
    profiles = taken.get("profiles")
    if isinstance(profiles, dict):
        ours, own = keys_of(WorkspaceProfile), keys_of(Profile)
        made = {}
        for name, profile in profiles.items():
            if not isinstance(profile, dict):
                made[name] = profile
                continue
            problems += [
                Problem(("profiles", name, each), _ELSEWHERE)
                for each in profile
                if each in own and each not in ours
            ]
            made[name] = {each: value for each, value in profile.items() if each in ours or each not in own}
        taken["profiles"] = made
    return taken, problems


_ELSEWHERE: Final = "no workspace's file can say this, trusted or not: put it into your own configuration"


def _lines(source: Source, problems: Sequence[Problem]) -> list[str]:
    placed = sorted(problems, key=lambda problem: source.origin(problem.path).line)
    lines = [_told(source, problem.path, problem.text) for problem in placed[:_LINES]]
    more = len(placed) - len(lines)
    return [*lines, f"{source.file}: and {more} more"] if more else lines


def _told(source: Source, path: KeyPath, text: str) -> str:
    line = f"{source.origin(path)}: {dotted(path)}: {text}"
    return line if len(line) <= _LINE_CHARACTERS else f"{line[:_LINE_CHARACTERS]}..."


def _fitting(number: int | None) -> int | None:
    # What is more than any tree can have is as good as the most that the log can hold.
    return None if number is None else min(number, _MOST)
