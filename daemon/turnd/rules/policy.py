"""What the rules say of one call: allow, ask or deny (GATE-04, GATE-05, GATE-06).

The most specific rule of a layer speaks for it, the strictest layer stands, and where no layer has a rule
that matches, the default of the tool's kind does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from typing import Final

from turnd.rules import canon
from turnd.v1 import common_pb2 as common
from turnd.v1 import provider_pb2

CORE: Final = "core"
"""The provider in the daemon, whose low-risk tools need nobody's leave."""

_SAID: Final = {
    common.POLICY_ACTION_ALLOW: "allow",
    common.POLICY_ACTION_ASK: "ask",
    common.POLICY_ACTION_DENY: "deny",
}
_KINDS: Final = frozenset(common.ToolKind.values()) - {common.TOOL_KIND_UNSPECIFIED}
_RISKS: Final = frozenset(common.Risk.values()) - {common.RISK_UNSPECIFIED}


class PolicyError(ValueError):
    """A rule cannot be meant as it is written; the text names the rule and where it stands."""


class PolicyConflict(PolicyError):
    """Two rules of one layer match the same calls and say different things; the text names both (GATE-05)."""


class Layer(Enum):
    """Whose rule it is; each layer is evaluated by itself."""

    USER = "user"
    WORKSPACE = "workspace"


@dataclass(frozen=True, slots=True)
class Match:
    """Which calls a rule is for: a field holds alternatives, an empty one matches anything, all must
    match.
    """

    tool: frozenset[str] = frozenset()
    """Globs over the tool's name, or over provider.tool where they have a dot."""
    provider: frozenset[str] = frozenset()
    """Globs."""
    risk: frozenset[common.Risk.ValueType] = frozenset()
    kind: frozenset[common.ToolKind.ValueType] = frozenset()
    command: frozenset[str] = frozenset()
    path: frozenset[str] = frozenset()
    host: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        *,
        tool: Iterable[str] = (),
        provider: Iterable[str] = (),
        risk: Iterable[common.Risk.ValueType] = (),
        kind: Iterable[common.ToolKind.ValueType] = (),
        command: Iterable[str] = (),
        path: Iterable[str] = (),
        host: Iterable[str] = (),
    ) -> Match:
        """The match of these alternatives; `*` among them says the same as leaving the field out."""
        return cls(
            tool=_globs(tool),
            provider=_globs(provider),
            risk=frozenset(risk),
            kind=frozenset(kind),
            command=_globs(command),
            path=_globs(path),
            host=_globs(host),
        )

    @property
    def specificity(self) -> tuple[bool, ...]:
        """Greater is more specific: decided by the first field, in this order, that only one of two has."""
        fields = (self.command, self.path, self.host, self.tool, self.provider, self.risk, self.kind)
        return tuple(bool(field) for field in fields)

    @property
    def empty(self) -> bool:
        """Whether it matches every call, which is legal and seldom meant: whoever loads the rule warns of
        it.
        """
        return not any(self.specificity)

    def matches(self, call: PolicyCall) -> bool:
        """Whether the call is one of those. Rules with a command, a path or a host are never asked."""
        return (
            (not self.tool or any(_names(pattern, call) for pattern in self.tool))
            and (not self.provider or any(fnmatchcase(call.provider, each) for each in self.provider))
            and (not self.risk or call.risk in self.risk)
            and (not self.kind or call.kind in self.kind)
        )


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """One rule of the configuration."""

    name: str
    source: str
    """File and line."""
    match: Match
    action: common.PolicyAction.ValueType
    layer: Layer = Layer.USER


@dataclass(frozen=True, slots=True)
class PolicyCall:
    """What policy sees of a call: kind and risk as they are in force, after any reclassification."""

    provider: str
    tool: str
    kind: common.ToolKind.ValueType
    risk: common.Risk.ValueType
    input: bytes = b"{}"
    command: str | None = None
    """The command line that the input holds; None where the tool has no field for one, empty where its
    field has none for certain.
    """
    path: str | None = None
    """The same for a path."""

    @classmethod
    def of(cls, provider: str, spec: provider_pb2.ToolSpec, data: bytes) -> PolicyCall:
        """The call of a tool with this input."""
        return cls(
            provider=provider,
            tool=spec.name,
            kind=spec.kind,
            risk=spec.risk,
            input=data,
            command=_held(data, spec.command_field),
            path=_held(data, spec.path_field),
        )

    @property
    def full_name(self) -> str:
        return f"{self.provider}.{self.tool}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What policy says of a call, and why."""

    action: common.PolicyAction.ValueType
    decided_by: common.DecidedBy
    reason: str
    downgraded: bool = False
    """It was `ask` on a call that has nothing to gate, and is a deny for that reason alone (GATE-04)."""


class Policy:
    """The rules in force.

    Raises PolicyConflict where two of one layer contradict each other, and PolicyError for a rule that
    cannot be evaluated: one that matches by command, path or host, or by an empty pattern.
    """

    def __init__(self, rules: Iterable[PolicyRule] = ()) -> None:
        self._rules = tuple(rules)
        for rule in self._rules:
            _check_rule(rule)
        self._refuse_conflicts()

    def evaluate(self, call: PolicyCall, grants: Iterable[common.GrantRule] = ()) -> Verdict:
        """The verdict on one call by itself (GATE-01). Never raises: policy that fails denies (GATE-13)."""
        try:
            return self._evaluate(call, grants)
        except Exception as error:  # noqa: BLE001 - whatever is wrong, the call must not run on account of it
            return Verdict(
                common.POLICY_ACTION_DENY,
                common.DecidedBy(kind=common.DECIDED_BY_KIND_FAILURE, name="policy"),
                f"Policy could not be evaluated for {call.full_name}, which denies it: {error}",
            )

    def _evaluate(self, call: PolicyCall, grants: Iterable[common.GrantRule]) -> Verdict:
        _check_call(call)
        spoken = [rule for layer in Layer if (rule := self._of_layer(layer, call)) is not None]
        verdict = _by_rule(max(spoken, key=lambda rule: rule.action), call) if spoken else _default(call)
        if verdict.action != common.POLICY_ACTION_ASK:
            return verdict
        if call.kind != common.TOOL_KIND_RESOURCE:
            return _downgraded(verdict, call)
        if any(granted(grant, call) for grant in grants):
            return Verdict(
                common.POLICY_ACTION_ALLOW,
                common.DecidedBy(kind=common.DECIDED_BY_KIND_GRANT, name=call.full_name),
                "A remembered decision allows it.",
            )
        return verdict

    def _of_layer(self, layer: Layer, call: PolicyCall) -> PolicyRule | None:
        matching = (rule for rule in self._rules if rule.layer is layer and rule.match.matches(call))
        return max(matching, key=lambda rule: (rule.match.specificity, rule.action), default=None)

    def _refuse_conflicts(self) -> None:
        first: dict[tuple[Layer, Match], PolicyRule] = {}
        for rule in self._rules:
            other = first.setdefault((rule.layer, rule.match), rule)
            if other.action != rule.action:
                raise PolicyConflict(
                    f"policy rules {other.name!r} ({other.source}) and {rule.name!r} ({rule.source}) "
                    f"match the same calls, and say {_SAID[other.action]} and {_SAID[rule.action]}: "
                    "remove one of them"
                )


def grant_for(call: PolicyCall) -> common.GrantRule:
    """What a decision with a wider scope than once would remember: this command or this path, never the whole
    tool where it has one (GATE-09).
    """
    return common.GrantRule(
        provider=call.provider,
        tool=call.tool,
        command=[] if call.command is None else [call.command],
        path=[] if call.path is None else [call.path],
    )


def granted(grant: common.GrantRule, call: PolicyCall) -> bool:
    """Whether a remembered decision is for this call: the very command and path that were shown."""
    return covers(grant, grant_for(call))


def covers(grant: common.GrantRule, other: common.GrantRule) -> bool:
    """Whether everything that the other would remember is remembered by this one: so a decision for a
    request with `other` follows from it.
    """
    return (
        (grant.provider, grant.tool) == (other.provider, other.tool)
        and _within(other.command, grant.command)
        and _within(other.path, grant.path)
    )


def allowing_rule(provider: str, tool: str, decided_by: common.DecidedBy) -> str:
    """Which rule would allow a call that this asked for (GATE-15)."""
    if decided_by.kind == common.DECIDED_BY_KIND_RULE:
        return f'policy rule {decided_by.name!r} asks; with action = "allow" it would be allowed'
    return f'a policy rule with match = {{ tool = "{provider}.{tool}" }} and action = "allow" would allow it'


def _names(pattern: str, call: PolicyCall) -> bool:
    # A tool's name that itself has a dot cannot pass for another provider's tool.
    return fnmatchcase(call.full_name if "." in pattern else call.tool, pattern)


def _held(data: bytes, field: str) -> str | None:
    return (canon.text_member(data, field) or "") if field else None


def _within(narrow: Sequence[str], wide: Sequence[str]) -> bool:
    # What is not certain, and therefore empty, is never remembered nor answered from memory.
    return not wide or (bool(narrow) and all(narrow) and set(narrow) <= set(wide))


def _check_rule(rule: PolicyRule) -> None:
    where = f"policy rule {rule.name!r} ({rule.source})"
    match = rule.match
    later = {"command": match.command, "path": match.path, "host": match.host}
    for name, patterns in later.items():
        if patterns:
            raise PolicyError(
                f"{where}: match.{name} is not supported; match by tool, provider, risk or kind instead"
            )
    for name, patterns in {"tool": match.tool, "provider": match.provider}.items():
        if "" in patterns:
            raise PolicyError(
                f"{where}: match.{name} has an empty pattern, which matches nothing; leave it out"
            )
    if rule.action not in _SAID:
        raise PolicyError(f"{where}: expected action allow, ask or deny, found {rule.action}")


def _check_call(call: PolicyCall) -> None:
    if call.kind not in _KINDS or call.risk not in _RISKS:
        raise PolicyError(f"expected a kind and a risk, found {call.kind} and {call.risk}")


def _by_rule(rule: PolicyRule, call: PolicyCall) -> Verdict:
    return Verdict(
        rule.action,
        common.DecidedBy(kind=common.DECIDED_BY_KIND_RULE, name=rule.name),
        f"Policy rule {rule.name!r} says {_SAID[rule.action]} for {call.full_name}.",
    )


def _default(call: PolicyCall) -> Verdict:
    low_risk_of_core = call.provider == CORE and call.risk == common.RISK_LOW
    asks = call.kind == common.TOOL_KIND_RESOURCE and not low_risk_of_core
    return Verdict(
        common.POLICY_ACTION_ASK if asks else common.POLICY_ACTION_ALLOW,
        common.DecidedBy(kind=common.DECIDED_BY_KIND_DEFAULT),
        f"No policy rule matches {call.full_name}; the default is {'ask' if asks else 'allow'}.",
    )


def _downgraded(verdict: Verdict, call: PolicyCall) -> Verdict:
    kind = "reads" if call.kind == common.TOOL_KIND_DATA_SOURCE else "asks a person itself"
    return Verdict(
        common.POLICY_ACTION_DENY,
        verdict.decided_by,
        f"{verdict.reason} {call.full_name} {kind}, so there is nothing to approve, and ask counts as deny.",
        downgraded=True,
    )


def _globs(patterns: Iterable[str]) -> frozenset[str]:
    found = frozenset(patterns)
    return frozenset() if "*" in found else found
