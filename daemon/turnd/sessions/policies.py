"""What clients ask of policy: which rules there are, and what they would say of one call."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Protocol

from google.protobuf.message import Message as Payload
from google.protobuf.timestamp_pb2 import Timestamp

from turnd.loop.judge import judge
from turnd.ports import (
    AnsweredRequest,
    ChildRefused,
    ChildRequest,
    ChildResult,
    RememberedRule,
    SandboxUnavailable,
    Tool,
    ToolSession,
    ToolSet,
    Where,
    World,
)
from turnd.rules.grants import Place
from turnd.rules.layer import WorkspaceLayer
from turnd.rules.policy import Match, Policy, PolicyCall
from turnd.sessions.refusal import CommandRefused, invalid, not_found, not_now
from turnd.sessions.requests import Answering, Requests, once
from turnd.sessions.surroundings import Surroundings
from turnd.v1 import common_pb2 as common
from turnd.v1 import daemon_pb2
from turnd.v1.jsonform import enum_text

_EVERY_TOOL = ("*",)


class RuleLog(Protocol):
    """Where decisions for always are stored."""

    async def remembered_rules(self) -> Sequence[RememberedRule]:
        """All of them, oldest first."""

    async def forget_rule(self, name: str, answered: AnsweredRequest | None = None) -> None:
        """Removes one. Raises KeyError where there is none of this name, and LogFailed."""


class Policies:
    """The rules in force. `policy` gives those of this moment: a reload replaces them."""

    def __init__(
        self,
        world: World,
        log: RuleLog,
        policy: Callable[[], Policy],
        surroundings: Surroundings,
        requests: Requests,
    ) -> None:
        self._world = world
        self._log = log
        self._policy = policy
        self._surroundings = surroundings
        self._requests = requests

    async def list(self, request: daemon_pb2.ListPolicyRequest) -> daemon_pb2.ListPolicyResponse:
        """The rules as they were loaded, in the order of the configuration; then those of a directory's own file, then
        those that decisions stored, of one workspace where it is named. Raises CommandRefused.
        """
        layer, unusable = await self._layer(request.directory)
        rules = [
            daemon_pb2.PolicyRule(
                name=rule.name,
                source=rule.source,
                action=rule.action,
                match=match_json(rule.match),
                layer=rule.layer.value,
            )
            for rule in (*self._policy().rules, *layer.policy.rules)
        ]
        workspace = self._surroundings.directory(request.workspace) if request.workspace else ""
        stored = await self._log.remembered_rules()
        rules += [_stored(rule) for rule in stored if workspace in ("", rule.workspace)]
        return daemon_pb2.ListPolicyResponse(rules=rules, warnings=[*unusable, *layer.warnings])

    async def _layer(self, directory: str) -> tuple[WorkspaceLayer, Sequence[str]]:
        """What a directory's own file says, or why it cannot be used: then every call there is denied."""
        if not directory:
            return WorkspaceLayer(), ()
        try:
            return await self._surroundings.layer(directory), ()
        except CommandRefused as unusable:
            return WorkspaceLayer(), (f"{unusable}\nuntil then, policy denies every call there",)

    @once(daemon_pb2.RemovePolicyResponse)
    async def remove(
        self,
        request: daemon_pb2.RemovePolicyRequest,
        answering: Answering[daemon_pb2.RemovePolicyResponse],
    ) -> daemon_pb2.RemovePolicyResponse:
        """Removes a rule that a decision stored; the next plan asks again (GATE-09). Raises CommandRefused."""
        stored = {rule.name for rule in await self._log.remembered_rules()}
        if request.name not in stored:
            raise self._no_such_rule(request.name)
        answer = daemon_pb2.RemovePolicyResponse()
        try:
            await self._log.forget_rule(request.name, answering.by(lambda _: answer))
        except KeyError:
            raise self._no_such_rule(request.name) from None
        return answer

    def _no_such_rule(self, name: str) -> CommandRefused:
        configured = next((rule for rule in self._policy().rules if rule.name == name), None)
        where = "`turn policy` lists those that there are"
        if configured is not None:
            where = f"policy rule {name!r} stands in {configured.source}: take it out there, and reload"
        return not_found("policy rule", name, f"no decision has stored a rule {name!r}; {where}")

    async def explain(self, request: daemon_pb2.ExplainPolicyRequest) -> daemon_pb2.ExplainPolicyResponse:
        """What policy says of a call in a new session there, asking nobody and running nothing of the call.

        The providers are started for it, since they say what their tools are. Raises CommandRefused.
        """
        directory = self._surroundings.directory(request.workspace)
        where = Where(directory, directory, self._surroundings.environment(request.environment))
        session = self._world.ids.session()
        asked = ToolSession(
            session=session,
            root=session,
            cwd=directory,
            workspace=directory,
            environment=where.environment,
            tools=self._tools_of(request.profile),
            unattended=True,
        )
        try:
            tools = await self._world.tools.open(asked, _unheard, _no_child)
        except SandboxUnavailable as missing:
            raise not_now(f"the tools cannot be started to ask them what they are: {missing}") from None
        try:
            tool = _named(tools, request.tool)
            data = request.input or b"{}"
            if (wrong := tools.check_input(tool.provider, tool.spec.name, data)) is not None:
                raise invalid("input", f"{tool.full_name} would not take this: {wrong.message}")
            call = PolicyCall.of(tool.provider, tool.spec, data)
            place = Place(directory, request.profile or self._surroundings.profiles()[0], directory)
            verdict = await judge(self._policy(), self._world, call, where, place, ())
        finally:
            await tools.close()
        return daemon_pb2.ExplainPolicyResponse(
            decision=verdict.action,
            rule=verdict.decided_by.name,
            downgraded=verdict.downgraded,
            reason=verdict.reason,
        )

    def _tools_of(self, profile: str) -> tuple[str, ...]:
        if not profile:
            return _EVERY_TOOL
        _, profiles = self._surroundings.profiles()
        if profile not in profiles:
            known = ", ".join(sorted(profiles))
            raise invalid("profile", f"there is no profile {profile!r}; the configuration has: {known}")
        return tuple(profiles[profile].tools)


def _named(tools: ToolSet, name: str) -> Tool:
    offered = tools.offered()
    found = [tool for tool in offered if name in (tool.full_name, tool.spec.name)]
    if len(found) == 1:
        return found[0]
    known = ", ".join(sorted(tool.full_name for tool in found or offered)) or "none"
    what = "several tools are" if found else "no tool is"
    raise invalid("tool", f"{what} called {name!r}: name one of {known}")


def _stored(rule: RememberedRule) -> daemon_pb2.PolicyRule:
    at = Timestamp()
    at.FromMicroseconds(rule.at_us)
    grant = rule.rule
    said = {
        "tool": [f"{grant.provider}.{grant.tool}"],
        "command": list(grant.command),
        "path": list(grant.path),
        "profile": [rule.profile],
        "workspace": [rule.workspace],
        "cwd": [rule.cwd],
    }
    said = {name: values for name, values in said.items() if values}
    return daemon_pb2.PolicyRule(
        name=rule.name,
        source=f"always, said {rule.client} on {at.ToJsonString()} in session {rule.session}",
        action=common.POLICY_ACTION_ALLOW,
        match=json.dumps(said, ensure_ascii=False).encode(),
        layer="stored",
    )


def match_json(match: Match) -> bytes:
    """What a rule matches, as a JSON object of the fields that it has."""
    said: dict[str, list[str]] = {
        "tool": sorted(match.tool),
        "provider": sorted(match.provider),
        "risk": sorted(enum_text(common.Risk, value) for value in match.risk),
        "kind": sorted(enum_text(common.ToolKind, value) for value in match.kind),
        "command": sorted(match.command),
        "path": sorted(match.path),
        "host": sorted(match.host),
    }
    return json.dumps({name: values for name, values in said.items() if values}, ensure_ascii=False).encode()


async def _unheard(_: Payload) -> None:
    """There is no session whose log it could go into; a provider that does not come is missed by its tool."""


async def _no_child(_: ChildRequest) -> ChildResult:
    raise ChildRefused("nothing is run where policy is only explained")
