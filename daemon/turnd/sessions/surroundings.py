"""What new sessions are made under: profiles, the environment that is kept, the sandbox, forbidden directories."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from turnd.ports import Layers, LayerUnusable, Models, UnknownModel
from turnd.rules.layer import WorkspaceLayer
from turnd.rules.status import merged_bounds
from turnd.sessions import workspace
from turnd.sessions.refusal import invalid
from turnd.v1 import common_pb2 as common


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What new sessions are made under."""

    profiles: Callable[[], tuple[str, Mapping[str, common.ProfileSnapshot]]]
    """The default profile's name, and all profiles."""
    environment: Callable[[Mapping[str, str]], dict[str, str]]
    """Keeps of a client's environment what the allow-list names (TOOL-11)."""
    sandbox: Callable[[], tuple[str, Sequence[str]]]
    """The sandbox in force and what it does not enforce."""
    layers: Layers
    home: str
    own_directories: tuple[str, ...]
    workspaces: Callable[[], Sequence[str]] = tuple
    """What the configuration names as workspaces although it holds the home directory."""

    def directory(self, cwd: str) -> str:
        """The canonical directory. Raises CommandRefused for one that no session may have."""
        return workspace.checked(cwd, self.home, self.own_directories, self.workspaces())

    async def layer(self, directory: str) -> WorkspaceLayer:
        """What the directory's own file says (OPS-04). Raises CommandRefused where it cannot be used."""
        try:
            return await self.layers.of(workspace.canonical(directory))
        except LayerUnusable as unusable:
            raise invalid("cwd", str(unusable)) from None

    async def profile(
        self,
        models: Models,
        directory: str,
        name: str,
        model: str = "",
        bounds: common.Bounds | None = None,
        otherwise: str = "",
    ) -> common.ProfileSnapshot:
        """The profile of a name, or the default one, as the directory's own file narrows it; model and bounds where set
        replace its own.

        `otherwise` is the model of a profile that names none.

        Raises CommandRefused where there is no such profile, its model cannot be opened, or the directory's own file
        cannot be used.
        """
        layer = await self.layer(directory)
        default, profiles = self.profiles()
        name = name or default
        if name not in profiles:
            known = ", ".join(sorted(profiles))
            raise invalid("profile", f"there is no profile {name!r}; the configuration has: {known}")
        profile = common.ProfileSnapshot()
        profile.CopyFrom(layer.over(profiles[name]))
        profile.model = model or profile.model or otherwise
        if not profile.model:
            raise invalid(
                "model",
                f"profile {name!r} names no model: give --model, or set profiles.{name}.model in the configuration "
                "and tell the daemon with `turn reload`",
            )
        try:
            models.open(profile.model)
        except UnknownModel as unknown:
            raise invalid("model", str(unknown)) from None
        profile.bounds.CopyFrom(merged_bounds(profile.bounds, bounds or common.Bounds()))
        return profile
