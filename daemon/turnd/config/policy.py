"""Policy rules as the user writes them."""

from __future__ import annotations

from dataclasses import dataclass

from turnd.config.kinds import Choice, Either, Flag, Many, OneOrMany, Record, Text, key
from turnd.config.problems import Origin
from turnd.rules.policy import Match, PolicyRule
from turnd.v1 import common_pb2 as common

ACTIONS = {
    "allow": common.POLICY_ACTION_ALLOW,
    "ask": common.POLICY_ACTION_ASK,
    "deny": common.POLICY_ACTION_DENY,
}
RISKS = {
    "read_only": common.RISK_READ_ONLY,
    "low": common.RISK_LOW,
    "moderate": common.RISK_MODERATE,
    "high": common.RISK_HIGH,
    "critical": common.RISK_CRITICAL,
}
KINDS = {
    "data_source": common.TOOL_KIND_DATA_SOURCE,
    "resource": common.TOOL_KIND_RESOURCE,
    "interactive": common.TOOL_KIND_INTERACTIVE,
}

_GLOBS = Either("*", (), OneOrMany(Text()))


@dataclass(frozen=True, slots=True)
class MatchTable:
    """The table `match` of a rule."""

    tool: tuple[str, ...] = key(_GLOBS, "names of tools", default=())
    provider: tuple[str, ...] = key(_GLOBS, "names of providers", default=())
    risk: tuple[common.Risk.ValueType, ...] = key(
        Either("*", (), OneOrMany(Choice(RISKS))), "how much a call can break", default=()
    )
    kind: tuple[common.ToolKind.ValueType, ...] = key(
        Either("*", (), OneOrMany(Choice(KINDS))), "what a tool does to the world", default=()
    )
    command: tuple[str, ...] = key(_GLOBS, "patterns over the words of commands", default=())
    path: tuple[str, ...] = key(_GLOBS, "paths", default=())
    host: tuple[str, ...] = key(_GLOBS, "names of hosts", default=())

    def match(self) -> Match:
        """What the rules understand."""
        return Match.of(
            tool=self.tool,
            provider=self.provider,
            risk=self.risk,
            kind=self.kind,
            command=self.command,
            path=self.path,
            host=self.host,
        )


@dataclass(frozen=True, slots=True)
class CommandOptions:
    """What a wildcard of an allowing command pattern never stands for, beside what turnd ships."""

    options: tuple[str, ...] = key(
        Many(Text()),
        "words that make it run or write something: -x, --long, or a glob over a word",
        default=(),
    )
    spelled_out: bool = key(
        Flag(), "it runs its arguments or takes code: patterns must spell out every word", default=False
    )


@dataclass(frozen=True, slots=True)
class RaisedTool:
    """Tools that are taken more seriously than their provider does: upwards only."""

    kind: common.ToolKind.ValueType | None = key(
        Choice({"resource": common.TOOL_KIND_RESOURCE}),
        "it changes something, though its provider says that it only reads: it is planned, and asked about",
        default=None,
    )
    risk: common.Risk.ValueType | None = key(
        Choice({name: risk for name, risk in RISKS.items() if risk > common.RISK_READ_ONLY}),
        "how much a call can break, where that is more than its provider says",
        default=None,
    )


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """One `[[policy]]` table."""

    action: common.PolicyAction.ValueType = key(Choice(ACTIONS), "what happens to a call that matches")
    match: MatchTable = key(Record(MatchTable), "which calls; an empty table: all", default=MatchTable())
    name: str | None = key(Text(), "shown where the rule decides; omitted: file and line", default=None)

    def rule(self, origin: Origin) -> PolicyRule:
        """The rule that stands at a place."""
        name = self.name or f"{origin.file.name}:{origin.line}"
        return PolicyRule(name=name, source=str(origin), match=self.match.match(), action=self.action)
