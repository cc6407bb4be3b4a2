"""The models of a simulated world, with every request that they are sent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

from tests.sim.world import Sim

from turnd.ports import Model, ModelRequest, Models, StreamEvent
from turnd.v1 import common_pb2 as common

Before = Callable[[ModelRequest], Awaitable[None]]


async def _nothing(request: ModelRequest) -> None:
    return None


@dataclass
class Recording:
    """Stands before the real models; `before` runs when a request arrives, before it is answered."""

    models: Models
    requests: list[ModelRequest] = field(default_factory=list)
    before: Before = _nothing

    def open(self, name: str) -> Model:
        return cast(Model, _Recorded(self, self.models.open(name)))

    def of(self, purpose: common.RequestPurpose.ValueType) -> list[ModelRequest]:
        return [request for request in self.requests if request.purpose == purpose]


class _Recorded:
    """The model, but for its stream."""

    def __init__(self, recording: Recording, model: Model) -> None:
        self.recording = recording
        self.model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamEvent]:
        self.recording.requests.append(request)
        await self.recording.before(request)
        async for event in self.model.stream(request):
            yield event


def recorded(sim: Sim) -> Recording:
    """Puts a recording before the models of the world."""
    recording = Recording(sim.world.models)
    sim.world = replace(sim.world, models=recording)
    sim.live = sim.make_live()
    return recording
