"""From a file to a Config."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from turnd.config.kinds import Record
from turnd.config.problems import ConfigError, Problem, Refused, dotted
from turnd.config.schema import Config, Document
from turnd.config.source import Source, read_source


def load(file: Path) -> Config:
    """The configuration of a file; the defaults where it does not exist.

    Raises ConfigError, which names file, line and key of everything that is wrong (OPS-03), and OSError where
    the file is there and cannot be read.
    """
    try:
        source = read_source(file)
    except FileNotFoundError:
        source = Source(file, {}, {})
    try:
        document = Record(Document).read(source.values, ())
    except Refused as refused:
        raise config_error(source, refused.problems) from None
    dangling = document.dangling()
    if dangling:
        raise config_error(source, dangling)
    rules = tuple(entry.rule(source.origin(("policy", index))) for index, entry in enumerate(document.policy))
    return Config(
        default_profile=document.default_profile,
        profiles=document.all_profiles,
        workspaces=document.workspaces,
        limits=document.limits,
        policy=rules,
        commands=document.commands,
        tools=document.tools,
        hooks=document.hooks,
        providers=document.providers,
        models=document.models,
        prices=document.prices,
        telemetry=document.telemetry,
        storage=document.storage,
        source=source,
        warnings=tuple(
            f'{rule.source}: policy: the rule "{rule.name}" has an empty match: it matches every call'
            for rule in rules
            if rule.match.empty
        ),
    )


def config_error(source: Source, problems: Sequence[Problem]) -> ConfigError:
    """The problems with their places in the file."""
    placed = sorted(
        (source.origin(problem.path).line, dotted(problem.path), problem.text) for problem in problems
    )
    return ConfigError(f"{source.file}:{line}: {key}: {text}" for line, key, text in placed)
