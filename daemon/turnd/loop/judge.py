"""One call before policy: what the disk says of it is looked up, then the rules and decisions speak (GATE-01)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from immutables import Map

from turnd.ports import Disk, Facts, Where, World
from turnd.rules.grants import Place, lifted
from turnd.rules.policy import Policy, PolicyCall, Verdict, failed
from turnd.rules.shell import understood
from turnd.v1 import common_pb2 as common

_NOTHING: Final = Facts(Map(), "")
"""Of a call that names neither programs nor a path."""


async def judge(
    policy: Policy,
    world: World,
    call: PolicyCall,
    where: Where,
    place: Place,
    grants: Iterable[common.GrantRule],
) -> Verdict:
    """The verdict on a call where it would run: by the user's policy with the workspace's layer beside it (GATE-05),
    then by what decisions remember, for these sessions and for always, which lift an `ask` and nothing else (GATE-09).

    Where it cannot be found out, that is a deny (GATE-13).
    """
    try:
        layer = await world.layers.of(where.workspace)
        known = await looked_up(world.disk, call, where)
        verdict = policy.joined(layer.policy).evaluate(known, grants)
        if verdict.action != common.POLICY_ACTION_ASK:
            return verdict
        rules = await world.log.remembered_rules()
    except Exception as error:  # noqa: BLE001 - whatever is wrong, the call must not run on account of it
        return failed(call, error)
    here = (rule for rule in rules if Place(rule.workspace, rule.profile, rule.cwd) == place)
    answers = (lifted(verdict, rule.name, rule.rule, known) for rule in here)
    return next((answer for answer in answers if answer is not None), verdict)


async def looked_up(disk: Disk, call: PolicyCall, where: Where) -> PolicyCall:
    """The call with what the disk says of it. Raises OSError, TimeoutError."""
    names = understood(call.command).names if call.command else frozenset[str]()
    path = None if call.path is None else call.path or "."
    facts = await disk.facts(where, names, path) if names or path is not None else _NOTHING
    return replace(call, workspace=where.workspace, programs=facts.programs, canonical=facts.canonical)
