"""What a subscriber is, and what it may answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from turnd.ports import At
from turnd.v1 import common_pb2 as common


@dataclass(frozen=True, slots=True)
class Observed:
    """The subscriber looked."""


@dataclass(frozen=True, slots=True)
class Transformed:
    """The payload with its changeable fields changed."""

    payload: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A veto's answer; without call ids a denial is of everything that the point is about."""

    allow: bool
    reason: str = ""
    denied_call_ids: tuple[str, ...] = ()


Answer = Observed | Transformed | Verdict


class SubscriberFailed(Exception):
    """The subscriber could not answer. `failure` is error, crash, timeout, nonsense or missing."""

    def __init__(self, failure: str, message: str) -> None:
        super().__init__(message)
        self.failure = failure


class Subscriber(Protocol):
    """One subscription to one point."""

    @property
    def name(self) -> str:
        """As it is declared; shown wherever it decides something."""

    @property
    def point(self) -> common.HookPoint.ValueType:
        """Where it is called."""

    @property
    def mode(self) -> common.HookMode.ValueType:
        """What it may do there."""

    @property
    def timeout_s(self) -> float:
        """Seconds it may take (HOOK-06)."""

    async def answer(self, at: At, payload: Mapping[str, object]) -> Answer:
        """Looks at the payload, as those before it left it. Raises SubscriberFailed."""
