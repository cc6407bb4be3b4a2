"""What the rules say of one call: allow, ask or deny (GATE-04, GATE-05, GATE-06).

The most specific rule of a layer speaks for it, the strictest layer stands, and where no layer has a rule
that matches, the default of the tool's kind does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from typing import Final

from immutables import Map

from turnd.rules import canon, places
from turnd.rules.commands import Found, Ground, allows, concerns, mentions, pattern_problem, trusted
from turnd.rules.risky_options import RiskyTable
from turnd.rules.shell import Program, understood
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
    """Patterns over the words of a program (see `commands`)."""
    path: frozenset[str] = frozenset()
    """Globs over canonical paths; relative ones begin at the workspace."""
    host: frozenset[str] = frozenset()
    """Names of hosts, or `*.` and a domain."""

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
        """Whether the call is one of those, as far as provider, tool, risk and kind say."""
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

    def speaks(self, call: PolicyCall, program: Program | None, risky: RiskyTable) -> bool:
        """Whether the rule is for a call, and for this program of its command line.

        None: the call has no command line, or one that is not understood. An allow matches only what is certain, an
        ask or a deny also what may be.
        """
        match = self.match
        return (
            match.matches(call)
            and (not match.command or self._of_command(call, program, risky))
            and (not match.path or self._of_path(call))
            and (not match.host or self._of_host(call))
        )

    def _of_command(self, call: PolicyCall, program: Program | None, risky: RiskyTable) -> bool:
        if call.command is None:
            return False
        allowing = self.action == common.POLICY_ACTION_ALLOW
        if program is None:
            return not allowing and any(mentions(pattern, call.command) for pattern in self.match.command)
        ground = Ground(call.workspace, call.programs, risky)
        test = allows if allowing else concerns
        return any(test(pattern, program, ground) for pattern in self.match.command)

    def _of_path(self, call: PolicyCall) -> bool:
        if call.path is None:
            return False
        if not call.canonical or (not call.path and self.action == common.POLICY_ACTION_ALLOW):
            return self.action != common.POLICY_ACTION_ALLOW
        return any(places.path_matches(each, call.canonical, call.workspace) for each in self.match.path)

    def _of_host(self, call: PolicyCall) -> bool:
        if call.host is None:
            return False
        if not places.host_of(call.host):
            return self.action != common.POLICY_ACTION_ALLOW
        return any(places.host_matches(each, call.host) for each in self.match.host)


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
    host: str | None = None
    """The same for a host, or for the address of something on it."""
    workspace: str = ""
    """Canonical; empty where it is not known."""
    canonical: str = ""
    """Where the path leads; empty where it is not known."""
    programs: Mapping[str, Found] = field(default_factory=Map)
    """Where PATH finds the programs of the command line; what is missing was not found with certainty."""

    @classmethod
    def of(cls, provider: str, spec: provider_pb2.ToolSpec, data: bytes) -> PolicyCall:
        """The call of a tool with this input, without what only the disk knows."""
        return cls(
            provider=provider,
            tool=spec.name,
            kind=spec.kind,
            risk=spec.risk,
            input=data,
            command=_held(data, spec.command_field),
            path=_held(data, spec.path_field),
            host=_held(data, spec.host_field),
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
    """The rules in force, and the table of what makes harmless programs run something.

    Raises PolicyConflict where two of one layer contradict each other, and PolicyError for a rule with a
    pattern that cannot be meant.
    """

    def __init__(self, rules: Iterable[PolicyRule] = (), risky: RiskyTable | None = None) -> None:
        self.rules = tuple(rules)
        self._risky = risky or RiskyTable()
        for rule in self.rules:
            _check_rule(rule)
        self._refuse_conflicts()

    def joined(self, layer: Policy) -> Policy:
        """These rules with those of another layer, each checked already; the table is that of these."""
        if not layer.rules:
            return self
        both = Policy((), self._risky)
        both.rules = (*self.rules, *layer.rules)
        return both

    def evaluate(self, call: PolicyCall, grants: Iterable[common.GrantRule] = ()) -> Verdict:
        """The verdict on one call by itself (GATE-01). Never raises: policy that fails denies (GATE-13)."""
        try:
            return self._evaluate(call, grants)
        except Exception as error:  # noqa: BLE001 - whatever is wrong, the call must not run on account of it
            return failed(call, error)

    def _evaluate(self, call: PolicyCall, grants: Iterable[common.GrantRule]) -> Verdict:
        _check_call(call)
        parts, hint = _parts(call)
        spoken = [rule for layer in Layer if (rule := self._of_layer(layer, call, parts)) is not None]
        strictest = max(spoken, key=lambda rule: rule.action, default=None)
        verdict = _default(call, hint) if strictest is None else _by_rule(strictest, call)
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

    def _of_layer(self, layer: Layer, call: PolicyCall, parts: Sequence[Program | None]) -> PolicyRule | None:
        """The strictest rule for a part of the call; one that allows only where every part is allowed."""
        rules = [rule for rule in self.rules if rule.layer is layer and rule.match.matches(call)]
        if not rules:
            return None
        answers = [answer for part in parts for answer in self._answers(rules, call, part)]
        strictest = max((rule for rule in answers if rule), key=lambda rule: rule.action, default=None)
        if strictest is not None and strictest.action == common.POLICY_ACTION_ALLOW and None in answers:
            return None
        return strictest

    def _answers(
        self, rules: Sequence[PolicyRule], call: PolicyCall, part: Program | None
    ) -> list[PolicyRule | None]:
        """The rule for a part, and those for what it would run where that was looked into."""
        looked_into = part is not None and part.inner is not None
        # Rules for any command speak for what is within, not for the shell around it as well.
        speaking = (
            rule
            for rule in rules
            if (rule.match.command or not looked_into) and rule.speaks(call, part, self._risky)
        )
        own = max(speaking, key=lambda rule: (rule.match.specificity, rule.action), default=None)
        if part is None or part.inner is None:
            return [own]
        within = [answer for each in part.inner for answer in self._answers(rules, call, each)]
        if own is not None:
            # A rule for the whole speaks for what is in it too, but no rule for that is lifted by it.
            return [own, *(answer for answer in within if answer)]
        return within if trusted(part, call.programs) else [None, *within]

    def _refuse_conflicts(self) -> None:
        first: dict[tuple[Layer, Match], PolicyRule] = {}
        for rule in self.rules:
            other = first.setdefault((rule.layer, rule.match), rule)
            if other.action != rule.action:
                raise PolicyConflict(
                    f"policy rules {other.name!r} ({other.source}) and {rule.name!r} ({rule.source}) "
                    f"match the same calls, and say {_SAID[other.action]} and {_SAID[rule.action]}: "
                    "remove one of them"
                )


def failed(call: PolicyCall, error: Exception) -> Verdict:
    """The verdict where policy could not be evaluated (GATE-13)."""
    return Verdict(
        common.POLICY_ACTION_DENY,
        common.DecidedBy(kind=common.DECIDED_BY_KIND_FAILURE, name="policy"),
        f"Policy could not be evaluated for {call.full_name}, which denies it: {str(error) or type(error).__name__}",
    )


def grant_for(call: PolicyCall) -> common.GrantRule:
    """What a decision with a wider scope than once would remember: this command, with these programs, or this
    path, never the whole tool where it has one (GATE-09). Where the programs lie must have been looked up.
    """
    found = {name: at.path for name, at in call.programs.items()}
    return common.GrantRule(
        provider=call.provider,
        tool=call.tool,
        command=[] if call.command is None else [call.command],
        path=[] if call.path is None else [call.path],
        programs=common.FoundPrograms(path_of=found) if found else None,
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
        and all(grant.programs.path_of.get(name) == at for name, at in other.programs.path_of.items())
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
    checks = (
        ("command", match.command, pattern_problem),
        ("path", match.path, places.path_problem),
        ("host", match.host, places.host_problem),
    )
    for name, patterns, problem_of in checks:
        for pattern in sorted(patterns):
            if (problem := problem_of(pattern)) is not None:
                raise PolicyError(f"{where}: match.{name}: the pattern {pattern!r} {problem}")
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


def _parts(call: PolicyCall) -> tuple[Sequence[Program | None], str]:
    """What is evaluated by itself, and why no rule that allows commands may have matched the line, in a sentence."""
    if call.command is None:
        return (None,), ""
    line = understood(call.command)
    if not line.programs:
        return (
            None,
        ), f" No rule that allows commands matches a line that is not understood: {line.problem}."
    return line.programs, "".join(dict.fromkeys(_placed(program, call) for program in line.programs))


def _placed(program: Program, call: PolicyCall) -> str:
    """What keeps a pattern with a bare name from covering a program, where that is its place."""
    found = None if program.builtin else call.programs.get(program.name)
    if found is None or not found.writable:
        return ""
    where = found.path or "a relative entry"
    return (
        f" PATH looks for {program.name} at {where}, where tools of a session can put a program of their own: only a "
        "pattern with that path allows it."
    )


def _default(call: PolicyCall, hint: str) -> Verdict:
    low_risk_of_core = call.provider == CORE and call.risk == common.RISK_LOW
    asks = call.kind == common.TOOL_KIND_RESOURCE and not low_risk_of_core
    return Verdict(
        common.POLICY_ACTION_ASK if asks else common.POLICY_ACTION_ALLOW,
        common.DecidedBy(kind=common.DECIDED_BY_KIND_DEFAULT),
        f"No policy rule matches {call.full_name}; the default is {'ask' if asks else 'allow'}.{hint}",
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
