"""Tools that the user's configuration takes more seriously than their provider does; never less (gate.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from turnd.v1 import common_pb2 as common
from turnd.v1 import provider_pb2


@dataclass(frozen=True, slots=True)
class Raise:
    """What is raised of the tools that a glob over provider.tool names."""

    tools: str
    mutates: bool = False
    """What the provider declares to be a data_source is a resource: planned, previewed, asked about."""
    risk: common.Risk.ValueType = common.RISK_UNSPECIFIED
    """At least this; unspecified: as the provider declares it."""


def raised(provider: str, spec: provider_pb2.ToolSpec, raises: Sequence[Raise]) -> provider_pb2.ToolSpec:
    """The tool as the session has it: of its own declaration and all that names it, the highest of each.

    A resource is never of risk read_only: where nothing says more, it is moderate. An interactive tool stays one.
    """
    named = [each for each in raises if fnmatchcase(f"{provider}.{spec.name}", each.tools)]
    kind, risk = spec.kind, max((spec.risk, *(each.risk for each in named)))
    if kind == common.TOOL_KIND_DATA_SOURCE and any(each.mutates for each in named):
        kind = common.TOOL_KIND_RESOURCE
        risk = common.RISK_MODERATE if risk == common.RISK_READ_ONLY else risk
    if (kind, risk) == (spec.kind, spec.risk):
        return spec
    made = provider_pb2.ToolSpec()
    made.CopyFrom(spec)
    made.kind, made.risk = kind, risk
    return made
