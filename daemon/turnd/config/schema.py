"""The whole configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from immutables import Map

from turnd.config.extensions import HOOK, PROVIDER, Hook, Provider, check_providers
from turnd.config.kinds import Flag, Many, Named, Record, Text, key
from turnd.config.limits import Limits
from turnd.config.models import MODEL_SERVER, ModelName, ModelServer, Url, server_of
from turnd.config.policy import CommandOptions, PolicyEntry, RaisedTool
from turnd.config.prices import PRICING, Pricing
from turnd.config.problems import KeyPath, Problem, Refused, did_you_mean
from turnd.config.profile import SHIPPED_PROFILE, Profile
from turnd.config.source import Source
from turnd.rules.policy import PolicyRule

DEFAULT_PROFILE = "default"


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Traces and metrics over OTLP."""

    endpoint: str | None = key(Url(), "an OTLP receiver over gRPC; omitted: no telemetry", default=None)
    content: bool = key(Flag(), "put the content of messages into spans", default=False)


@dataclass(frozen=True, slots=True)
class Storage:
    """Where the log is kept."""

    accept_network_file_system: bool = key(
        Flag(),
        "keep the log on a network file system (NFS, 9p, virtiofs and so on), where SQLite's WAL can lose or corrupt "
        "it; false: turnd does not start there; needs a restart",
        default=False,
    )


@dataclass(frozen=True, slots=True)
class Document:
    """A configuration file as it is written."""

    default_profile: str = key(Text(), "profile of sessions that name none", default=DEFAULT_PROFILE)
    profiles: Mapping[str, Profile] = key(
        Named(Record(Profile)), "what sessions run under", default=Map[str, Profile]()
    )
    workspaces: tuple[str, ...] = key(
        Many(Text()),
        "directories that may be workspaces although they are or hold the home directory, absolute or from ~ on; never "
        "one that holds turnd's own files",
        default=(),
    )
    limits: Limits = key(Record(Limits), "limits of every session", default=Limits())
    policy: tuple[PolicyEntry, ...] = key(Many(Record(PolicyEntry)), "rules of the gate", default=())
    commands: Mapping[str, CommandOptions] = key(
        Named(Record(CommandOptions)),
        "programs that do more with some of their words than their name says; see policy.md",
        default=Map[str, CommandOptions](),
    )
    tools: Mapping[str, RaisedTool] = key(
        Named(Record(RaisedTool)),
        "tools by provider.tool, also as a glob, that are taken more seriously than their provider does",
        default=Map[str, RaisedTool](),
    )
    hooks: tuple[Hook, ...] = key(
        Many(HOOK), "subscribers, in the order in which they are called", default=()
    )
    providers: Mapping[str, Provider] = key(Named(PROVIDER), "tool providers", default=Map[str, Provider]())
    models: Mapping[str, ModelServer] = key(
        Named(MODEL_SERVER), "servers of models", default=Map[str, ModelServer]()
    )
    prices: Mapping[str, Pricing] = key(
        Named(PRICING),
        "what single models cost, by their whole names; before [models.NAME] pricing and the built-in table",
        default=Map[str, Pricing](),
    )
    telemetry: Telemetry = key(Record(Telemetry), "traces and metrics", default=Telemetry())
    storage: Storage = key(Record(Storage), "where the log is kept", default=Storage())

    @property
    def all_profiles(self) -> Mapping[str, Profile]:
        """Those of the file, and the shipped `default` where the file has none of that name."""
        return Map({DEFAULT_PROFILE: SHIPPED_PROFILE, **self.profiles})

    def dangling(self) -> list[Problem]:
        """Names that stand for nothing."""
        problems = check_providers(self.providers)
        problems += _unknown(("default_profile",), self.default_profile, self.all_profiles, "profile")
        for name, profile in self.profiles.items():
            path = ("profiles", name)
            for index, other in enumerate(profile.may_spawn):
                problems += _unknown((*path, "may_spawn", index), other, self.all_profiles, "profile")
            problems += self._unknown_server((*path, "model"), profile.model)
            for index, model in enumerate(profile.fallback):
                problems += self._unknown_server((*path, "fallback", index), model)
        for name in self.prices:
            problems += self._priced(name)
        problems += [
            Problem(("tools", name), f'expected provider.tool, also as a glob, found "{name}"')
            for name in self.tools
            if "." not in name
        ]
        problems += [
            Problem(("workspaces", index), f'expected an absolute path, or one from ~ on, found "{named}"')
            for index, named in enumerate(self.workspaces)
            if not named.startswith(("/", "~/")) and named != "~"
        ]
        for index, hook in enumerate(self.hooks):
            if hook.provider is not None:
                problems += _unknown(("hooks", index, "provider"), hook.provider, self.providers, "provider")
        return problems

    def _priced(self, name: str) -> list[Problem]:
        path = ("prices", name)
        if name.startswith("replay:"):
            return [Problem(path, "a transcript states its prices itself, in its first line")]
        try:
            ModelName().read(name, path)
        except Refused as refused:
            return list(refused.problems)
        return self._unknown_server(path, name)

    def _unknown_server(self, path: KeyPath, model: str | None) -> list[Problem]:
        server = server_of(model) if model is not None else None
        return [] if server is None else _unknown(path, server, self.models, "server in [models]")


@dataclass(frozen=True, slots=True)
class Config:
    """What the daemon runs with."""

    default_profile: str
    profiles: Mapping[str, Profile]
    workspaces: tuple[str, ...]
    limits: Limits
    policy: tuple[PolicyRule, ...]
    commands: Mapping[str, CommandOptions]
    tools: Mapping[str, RaisedTool]
    hooks: tuple[Hook, ...]
    providers: Mapping[str, Provider]
    models: Mapping[str, ModelServer]
    prices: Mapping[str, Pricing]
    telemetry: Telemetry
    storage: Storage
    source: Source = field(compare=False)
    """The file, for the places of what is wrong in it."""
    warnings: tuple[str, ...] = ()
    """Legal, and probably not what was meant; each with file, line and key."""


def _unknown(path: KeyPath, name: str, known: Mapping[str, object], what: str) -> list[Problem]:
    return (
        []
        if name in known
        else [Problem(path, f'there is no {what} named "{name}"; {did_you_mean(name, known)}')]
    )
