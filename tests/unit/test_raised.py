"""Tools that the configuration raises: the higher of each counts, and nothing is ever lowered."""

from __future__ import annotations

from itertools import product

import pytest
from tests.sim.world import spec

from turnd.rules.raised import Raise, raised
from turnd.v1 import common_pb2 as common

RISKS = [risk for risk in common.Risk.values() if risk != common.RISK_UNSPECIFIED]
KINDS = [kind for kind in common.ToolKind.values() if kind != common.TOOL_KIND_UNSPECIFIED]
READ_ONLY, MODERATE, CRITICAL = common.RISK_READ_ONLY, common.RISK_MODERATE, common.RISK_CRITICAL
RESOURCE, READS = common.TOOL_KIND_RESOURCE, common.TOOL_KIND_DATA_SOURCE


@pytest.mark.req("GATE-05")
@pytest.mark.parametrize(
    ("kind", "risk", "asked", "mutates"), [*product(KINDS, RISKS, common.Risk.values(), (True, False))]
)
def test_nothing_is_lowered(
    kind: common.ToolKind.ValueType, risk: common.Risk.ValueType, asked: common.Risk.ValueType, mutates: bool
) -> None:
    declared = spec("t", kind, risk)
    found = raised("p", declared, [Raise("p.t", mutates=mutates, risk=asked)])
    assert found.risk >= max(risk, asked)
    assert found.kind == (RESOURCE if mutates and kind == READS else kind)
    assert (declared.kind, declared.risk) == (kind, risk), "what the provider said stays as it was"


@pytest.mark.req("GATE-05")
def test_a_read_that_is_made_a_resource_has_the_risk_of_one() -> None:
    reads = spec("t", READS, READ_ONLY)
    assert raised("p", reads, [Raise("p.t", mutates=True)]).risk == MODERATE
    assert raised("p", reads, [Raise("p.t", mutates=True, risk=common.RISK_LOW)]).risk == common.RISK_LOW
    assert raised("p", reads, [Raise("p.t", mutates=True), Raise("p.*", risk=CRITICAL)]).risk == CRITICAL


@pytest.mark.req("GATE-05")
@pytest.mark.parametrize("glob", ["p.other", "q.t", "t", "p.T"])
def test_only_what_is_named_is_raised(glob: str) -> None:
    declared = spec("t", READS, READ_ONLY)
    assert raised("p", declared, [Raise(glob, mutates=True, risk=CRITICAL)]) is declared
