"""What a workspace's own file adds to the user's configuration: rules of its layer, and less of a profile (OPS-04)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Final

from immutables import Map

from turnd.rules.policy import Policy
from turnd.rules.status_view import DEFAULT_DEPTH
from turnd.v1 import common_pb2 as common


@dataclass(frozen=True, slots=True)
class ProfileLayer:
    """What a workspace says of one profile of the user's; None: nothing."""

    tools: tuple[str, ...] | None = None
    """Globs over provider.tool."""
    may_spawn: tuple[str, ...] | None = None
    max_turns: int | None = None
    max_cost_nano_usd: int | None = None
    max_wall_clock_ms: int | None = None
    max_depth: int | None = None
    max_concurrent_subagents: int | None = None
    max_subagents_total: int | None = None

    def over(self, profile: common.ProfileSnapshot, *, trusted: bool) -> common.ProfileSnapshot:
        """The profile as it is in force there: what would widen it counts only where it is trusted."""
        made = common.ProfileSnapshot()
        made.CopyFrom(profile)
        for number in _NUMBERS:
            asked, has = getattr(self, number.name), number.of(profile)
            if asked is not None:
                number.put(made, asked if trusted or has is None else min(asked, has))
        if self.tools is not None:
            made.ClearField("tools")
            made.tools.extend(self.tools if trusted else within(self.tools, profile.tools))
        if self.may_spawn is not None:
            made.ClearField("may_spawn")
            made.may_spawn.extend(name for name in self.may_spawn if trusted or name in profile.may_spawn)
        return made

    def keys(self) -> set[str]:
        """The keys of the file that it says something of."""
        said = {number.key for number in _NUMBERS if getattr(self, number.name) is not None}
        return said | {name for name in ("tools", "may_spawn") if getattr(self, name) is not None}

    def widenings(self, profile: common.ProfileSnapshot) -> dict[str, str]:
        """What of it the profile does not have already: by key, in words."""
        found = {}
        for number in _NUMBERS:
            asked, has = getattr(self, number.name), number.of(profile)
            if asked is not None and has is not None and asked > has:
                found[number.key] = f"asks for {number.shown(asked)}, more than {number.shown(has)}"
        wider = [glob for glob in self.tools or () if not _covered(glob, profile.tools)]
        if wider:
            found["tools"] = f"asks for tools that the profile does not have: {', '.join(wider)}"
        wider = [name for name in self.may_spawn or () if name not in profile.may_spawn]
        if wider:
            found["may_spawn"] = f"asks for profiles that the profile may not spawn: {', '.join(wider)}"
        return found


@dataclass(frozen=True, slots=True)
class WorkspaceLayer:
    """The file of a workspace as it is in force."""

    file: str = ""
    """Its path; empty where there is none."""
    digest: str = ""
    """SHA-256 of its content, in hexadecimal."""
    trusted: bool = False
    """The user trusts this very content."""
    policy: Policy = field(default_factory=Policy)
    """The rules that count, all of them of the workspace's layer."""
    profiles: Mapping[str, ProfileLayer] = field(default_factory=Map)
    in_force: tuple[str, ...] = ()
    """What of the file counts: file, line, key, and what it says."""
    widens: tuple[str, ...] = ()
    """What of it counts only where it is trusted."""
    refused: tuple[str, ...] = ()
    """What no workspace's file can say."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the file asks for and does not get, with what to do."""
        ignored = () if self.trusted else self.widens
        return (
            *(f"{each}; ignored until you trust this file: `turn trust`" for each in ignored),
            *self.refused,
        )

    def over(self, profile: common.ProfileSnapshot) -> common.ProfileSnapshot:
        """A profile of the user's as sessions of the workspace have it."""
        layer = self.profiles.get(profile.name)
        return profile if layer is None else layer.over(profile, trusted=self.trusted)


@dataclass(frozen=True, slots=True)
class _Number:
    name: str
    """In ProfileLayer and in the snapshot."""
    key: str
    """In the file."""
    unit: int = 1
    bound: bool = False
    unset: int | None = None
    """What it is where the profile does not say; None: without bound."""

    def of(self, profile: common.ProfileSnapshot) -> int | None:
        where = profile.bounds if self.bound else profile
        if where.DESCRIPTOR.fields_by_name[self.name].has_presence and not where.HasField(self.name):  # type: ignore[arg-type]
            return self.unset
        value: int = getattr(where, self.name)
        return value

    def put(self, profile: common.ProfileSnapshot, value: int) -> None:
        setattr(profile.bounds if self.bound else profile, self.name, value)

    def shown(self, value: int) -> str:
        return f"{Decimal(value) / self.unit:f}"


_NUMBERS: Final = (
    _Number("max_turns", "max_turns", bound=True),
    _Number("max_cost_nano_usd", "max_cost_usd", unit=10**9, bound=True),
    _Number("max_wall_clock_ms", "max_wall_clock_s", unit=10**3, bound=True),
    _Number("max_depth", "max_depth", unset=DEFAULT_DEPTH),
    _Number("max_concurrent_subagents", "max_concurrent_subagents"),
    _Number("max_subagents_total", "max_subagents_total"),
)


def within(asked: Iterable[str], has: Iterable[str]) -> list[str]:
    """Globs for what both sets of globs surely have: never more than either."""
    asked, has = list(asked), list(has)
    narrow = [glob for glob in asked if _covered(glob, has)]
    return narrow + [glob for glob in has if glob not in narrow and _covered(glob, asked)]


def _covered(glob: str, others: Iterable[str]) -> bool:
    return any(_covers(other, glob) for other in others)


def _covers(wide: str, narrow: str) -> bool:
    """Whether all that one glob matches is surely matched by another."""
    if wide == narrow:
        return True
    if not any(character in narrow for character in "*?["):
        return fnmatchcase(narrow, wide)
    # A wildcard may only fall to a `*` of the other: it could stand for more than `?` or a set does.
    return not any(c in wide for c in "?[") and "[" not in narrow and fnmatchcase(narrow, wide)
