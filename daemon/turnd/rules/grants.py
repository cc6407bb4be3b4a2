"""Decisions that are remembered for always: where they hold, and what they say (GATE-09)."""

from __future__ import annotations

from dataclasses import dataclass

from turnd.rules.policy import PolicyCall, Verdict, granted
from turnd.rules.status_view import SessionView
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2


@dataclass(frozen=True, slots=True)
class Place:
    """Where a stored rule holds. The directory is part of it: in another one, a relative path is another file."""

    workspace: str
    profile: str
    cwd: str

    @classmethod
    def of(cls, view: SessionView) -> Place:
        """The place of a session's calls."""
        return cls(view.workspace or view.cwd, view.profile.name, view.cwd)


def stored_rule(place: Place, request_id: str) -> event_pb2.StoredRule:
    """What a decision on this request stores; its name is the request's, which nothing else has."""
    name = f"always-{request_id.removeprefix('r_')}"
    return event_pb2.StoredRule(name=name, workspace=place.workspace, profile=place.profile, cwd=place.cwd)


def is_certain(grant: common.GrantRule) -> bool:
    """Whether the rule can ever answer a call: one whose command or path was not certain cannot."""
    return all(grant.command) and all(grant.path)


def grant_text(grant: common.GrantRule) -> str:
    """A remembered rule in words for people."""
    narrowed = ", ".join([*grant.command, *grant.path])
    return f"{grant.provider}.{grant.tool}" + (f" with {narrowed}" if narrowed else ", any input")


def lifted(verdict: Verdict, name: str, grant: common.GrantRule, call: PolicyCall) -> Verdict | None:
    """The verdict by a stored rule where policy asks, for it never lifts a deny; None where the rule is not for the
    call.
    """
    if verdict.action != common.POLICY_ACTION_ASK or not granted(grant, call):
        return None
    return Verdict(
        common.POLICY_ACTION_ALLOW,
        common.DecidedBy(kind=common.DECIDED_BY_KIND_GRANT, name=name),
        f"A decision for always allows it; `turn policy remove {name}` ends that.",
    )
