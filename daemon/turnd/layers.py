"""The layers of workspaces: their files as they are at this moment, against what the user configured and trusts."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from turnd.cells.workspace_file import UnreadableFile, read_workspace_file
from turnd.config import ConfigError
from turnd.config.trust import TrustFile, TrustFull
from turnd.config.workspace import MAX_BYTES, NAME, WorkspaceFile, read_workspace
from turnd.ports import Clock, LayerUnusable
from turnd.rules.layer import WorkspaceLayer
from turnd.rules.policy import Policy, PolicyRule
from turnd.sessions.policies import match_json
from turnd.sessions.trust import NotTrusted, TrustedWorkspace
from turnd.v1 import common_pb2 as common
from turnd.v1.jsonform import enum_text

log = structlog.get_logger(__name__)

_KEPT: Final = 256
_EMPTY: Final = WorkspaceLayer()

Profiles = Callable[[], Mapping[str, common.ProfileSnapshot]]
"""The user's profiles in force, by name."""


@dataclass(frozen=True, slots=True)
class _Made:
    """A layer, and what it was made of."""

    data: bytes
    profiles: Mapping[str, common.ProfileSnapshot]
    trusted: bool
    layer: WorkspaceLayer


class WorkspaceLayers:
    """Implements the ports `Layers` and `Trusting` on the machine's file system (OPS-04).

    The file is read each time, so that what counts is what it says now. The mutable state is what was made of the
    contents that were read last, and which of them were told to the log.
    """

    def __init__(self, profiles: Profiles, trust: TrustFile, clock: Clock) -> None:
        self._profiles = profiles
        self._trust = trust
        self._clock = clock
        self._made: OrderedDict[str, _Made] = OrderedDict()

    async def of(self, workspace: str) -> WorkspaceLayer:
        """See `ports.Layers.of`."""
        file = Path(workspace, NAME)
        try:
            data = await read_workspace_file(workspace, NAME, MAX_BYTES)
        except UnreadableFile as wrong:
            raise _unusable(f"{file}: {wrong}") from None
        if data is None:
            self._made.pop(workspace, None)
            return _EMPTY
        digest = hashlib.sha256(data).hexdigest()
        profiles, trusted = self._profiles(), self._trust.trusts(workspace, digest)
        made = self._made.get(workspace)
        if made is not None and (made.data, made.trusted) == (data, trusted) and made.profiles == profiles:
            self._made.move_to_end(workspace)
            return made.layer
        try:
            layer = _layer(read_workspace(file, data), digest, profiles, trusted=trusted)
        except ConfigError as wrong:
            raise _unusable(str(wrong)) from None
        for warning in layer.warnings:
            log.warning("a workspace's file asks for more than it gets", workspace=workspace, ignored=warning)
        self._made[workspace] = _Made(data, profiles, trusted, layer)
        if len(self._made) > _KEPT:
            self._made.popitem(last=False)
        return layer

    async def trust(self, workspace: str, digest: str) -> None:
        """See `Trusting.trust`."""
        try:
            await self._trust.add(workspace, digest, self._clock.now_us())
        except (OSError, TrustFull) as error:
            raise NotTrusted(f"it could not be stored, so nothing changed: {error}") from error
        log.info("a workspace's file is trusted", workspace=workspace, digest=digest)

    async def forget(self, workspace: str) -> bool:
        """See `Trusting.forget`."""
        try:
            forgotten = await self._trust.remove(workspace)
        except OSError as error:
            raise NotTrusted(f"it could not be stored, so nothing changed: {error}") from error
        if forgotten:
            log.info("a workspace's file is trusted no more", workspace=workspace)
        return forgotten

    def trusted(self) -> Sequence[TrustedWorkspace]:
        """See `Trusting.trusted`."""
        return [
            TrustedWorkspace(name, each.digest, each.at_us)
            for name, each in sorted(self._trust.all().items())
        ]

    def problems(self) -> Sequence[str]:
        """What is wrong with the list of trusted workspaces."""
        return [self._trust.problem] if self._trust.problem else []


def _unusable(why: str) -> LayerUnusable:
    return LayerUnusable(
        f"the workspace's own configuration cannot be used: mend it, or take it away:\n{why}"
    )


def _layer(
    found: WorkspaceFile, digest: str, profiles: Mapping[str, common.ProfileSnapshot], *, trusted: bool
) -> WorkspaceLayer:
    narrows: list[str] = []
    widens: list[str] = []
    refused = list(found.refused)
    counting: list[PolicyRule] = []
    for index, rule in enumerate(found.rules):
        said = found.told(("policy", index), f'"{rule.name}": {_said(rule)}')
        allows = rule.action == common.POLICY_ACTION_ALLOW
        (widens if allows else narrows).append(said)
        if trusted or not allows:
            counting.append(rule)
    for name, profile in found.profiles.items():
        path = ("profiles", name)
        if name not in profiles:
            refused.append(found.told(path, "your configuration has no profile of this name"))
            continue
        wider = profile.widenings(profiles[name])
        widens += [found.told((*path, key), text) for key, text in wider.items()]
        keys = profile.keys()
        narrows += [
            found.told((*path, key), f"{json.dumps(value, default=str, ensure_ascii=False)}")
            for key, value in found.source.values["profiles"][name].items()
            if key in keys and key not in wider
        ]
    return WorkspaceLayer(
        file=str(found.source.file),
        digest=digest,
        trusted=trusted,
        policy=Policy(counting),
        profiles=found.profiles,
        in_force=(*narrows, *(widens if trusted else ())),
        widens=tuple(widens),
        refused=tuple(refused),
    )


def _said(rule: PolicyRule) -> str:
    action = enum_text(common.PolicyAction, rule.action)
    match = match_json(rule.match).decode()
    return f"{action} {match}" if match != "{}" else f"{action} every call"
