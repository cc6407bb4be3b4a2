"""What new sessions are made under: profiles, the environment that is kept, the sandbox, forbidden directories."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from turnd.ports import Models, UnknownModel
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
    home: str
    own_directories: tuple[str, ...]

    def directory(self, cwd: str) -> str:
        """The canonical directory. Raises CommandRefused for one that no session may have."""
        return workspace.checked(cwd, self.home, self.own_directories)

    def profile(
        self,
        models: Models,
        name: str,
        model: str = "",
        bounds: common.Bounds | None = None,
        otherwise: str = "",
    ) -> common.ProfileSnapshot:
        """The profile of a name, or the default one; model and bounds where set replace its own.

        `otherwise` is the model of a profile that names none.

        Raises CommandRefused where there is no such profile, or its model cannot be opened.
        """
        default, profiles = self.profiles()
        name = name or default
        if name not in profiles:
            known = ", ".join(sorted(profiles))
            raise invalid("profile", f"there is no profile {name!r}; the configuration has: {known}")
        profile = common.ProfileSnapshot()
        profile.CopyFrom(profiles[name])
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
