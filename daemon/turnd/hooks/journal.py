"""The built-in subscribers: they write the life of sessions into the daemon's own log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from turnd.hooks.subscriber import Answer, Observed, Subscriber
from turnd.ports import At
from turnd.v1 import common_pb2 as common

log = structlog.get_logger(__name__)

TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Journal:
    """Observes one point and writes a line about it, without any content."""

    point: common.HookPoint.ValueType
    message: str
    fields: tuple[str, ...]
    name: str = "journal"
    mode: common.HookMode.ValueType = common.HOOK_MODE_OBSERVE
    timeout_s: float = TIMEOUT_S

    async def answer(self, at: At, payload: Mapping[str, object]) -> Answer:
        """Writes the line."""
        told = {name: payload.get(name) for name in self.fields}
        log.info(self.message, **{"session": at.session, "turn": at.turn, "step": at.step} | told)
        return Observed()


def subscribers() -> list[Subscriber]:
    """The built-in subscribers, which come before any other."""
    return [
        Journal(common.HOOK_POINT_SESSION_START, "session starts", ("profile", "directory")),
        Journal(common.HOOK_POINT_SESSION_END, "session ends", ("status",)),
    ]
