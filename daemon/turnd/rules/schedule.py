"""Which calls may overlap, by what their tools declare; kind has no say in it (SCHED-01 to SCHED-06).

A call's claim says what it needs for itself. Calls whose claims conflict run one after another in declaration
order; all others may overlap, up to a ceiling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from turnd.rules import canon
from turnd.v1 import common_pb2 as common
from turnd.v1 import provider_pb2


@dataclass(frozen=True, slots=True)
class Exclusive:
    """Alone among the calls of its provider instance: `safe: false`, or nothing declared."""

    instance: str


@dataclass(frozen=True, slots=True)
class Unique:
    """Beside anything but an exclusive call of its instance: `safe: true` without key fields."""

    instance: str


@dataclass(frozen=True, slots=True)
class Keyed:
    """One after another with the same key, and never beside an exclusive call of its instance.

    The key does not hold the instance: it is the same for all sessions of the daemon.
    """

    instance: str
    provider: str
    group: str
    values: tuple[str, ...]

    @property
    def key(self) -> tuple[str, str, tuple[str, ...]]:
        """What two calls must not have in common to overlap."""
        return (self.provider, self.group, self.values)


@dataclass(frozen=True, slots=True)
class Interactive:
    """One after another with every other question, whatever is declared (SCHED-05)."""


Claim = Exclusive | Unique | Keyed | Interactive


def claim(
    spec: provider_pb2.ToolSpec,
    *,
    provider: str,
    instance: str,
    data: bytes,
    canonical_path: Callable[[str], str],
) -> Claim:
    """The claim of a call with this input, at this instance of its provider.

    `canonical_path` makes one absolute path of every spelling of a file's, and may raise OSError or
    ValueError. Where a key cannot be told for certain (not an object, a repeated key, such a path) the call
    is exclusive.
    """
    if spec.kind == common.TOOL_KIND_INTERACTIVE:
        return Interactive()
    if not spec.HasField("concurrency") or not spec.concurrency.safe:
        return Exclusive(instance)
    if not spec.concurrency.key_fields:
        return Unique(instance)
    given = canon.members(data)
    if given is None:
        return Exclusive(instance)
    try:
        values = tuple(
            _value(given.get(each.name), each.type, canonical_path) for each in spec.concurrency.key_fields
        )
    except (OSError, ValueError):
        return Exclusive(instance)
    return Keyed(instance, provider, spec.concurrency.group or spec.name, values)


def conflicts(one: Claim, other: Claim) -> bool:
    """Whether two calls must not overlap. It does not matter which is which."""
    if isinstance(one, Interactive) or isinstance(other, Interactive):
        return one == other
    if isinstance(one, Exclusive) or isinstance(other, Exclusive):
        return one.instance == other.instance
    return isinstance(one, Keyed) and isinstance(other, Keyed) and one.key == other.key


def blockers(claims: Sequence[Claim]) -> tuple[frozenset[int], ...]:
    """For each call, in declaration order, the earlier calls that must have ended before it starts (SCHED-02)."""
    return tuple(
        frozenset(earlier for earlier in range(index) if conflicts(claims[earlier], claims[index]))
        for index in range(len(claims))
    )


def _value(
    value: bytes | None, kind: common.KeyFieldType.ValueType, canonical_path: Callable[[str], str]
) -> str:
    if value is None:
        return "missing"
    if kind == common.KEY_FIELD_TYPE_PATH and value.startswith(b'"'):
        return f"path {canonical_path(canon.text_of(value))}"
    return f"value {value.decode()}"
