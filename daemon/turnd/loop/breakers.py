"""The denial and crash breakers: what keeps failing in the same way is not tried for ever (GATE-12)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2


@dataclass(frozen=True, slots=True)
class Tripped:
    """A breaker tripped: what keeps failing is not tried again."""

    source: str
    """denials or crashes"""
    why: str


@dataclass(slots=True)
class Breakers:
    """Counts, over the Steps of a session, what happened in a row.

    What was counted is not stored by itself: a session that is loaded again counts it out of its log.
    """

    limit: int
    denied_steps: int = 0
    crashes: dict[str, int] = field(default_factory=dict)
    _providers: dict[str, str] = field(default_factory=dict)
    _results: dict[str, event_pb2.ToolResult] = field(default_factory=dict)
    """Of the open Step that is counted out of the log, by call, in declaration order."""

    def recount(self, event: event_pb2.Event) -> None:
        """Takes the next event of the session's own log, from its first on."""
        if event.HasField("imported"):
            return
        match event.WhichOneof("data"):
            case "step_start":
                self._providers, self._results = {}, {}
            case "tool_call":
                self._providers[event.tool_call.call_id] = event.tool_call.provider
            case "tool_result":
                self._results[event.tool_result.call_id] = event.tool_result
            case "step_end":
                called = self._providers.items()
                self.observe([(name, self._results[call]) for call, name in called if call in self._results])
            case _:
                pass

    def observe(self, results: Sequence[tuple[str, event_pb2.ToolResult]]) -> Tripped | None:
        """Takes the results of one Step with their providers, in declaration order. One that tripped starts anew."""
        tripped = self._denials(results) or self._crashes(results)
        if tripped is not None:
            self.denied_steps = 0
            self.crashes.clear()
        return tripped

    def _denials(self, results: Sequence[tuple[str, event_pb2.ToolResult]]) -> Tripped | None:
        denied = bool(results) and all(r.category == common.TOOL_ERROR_CATEGORY_DENIED for _, r in results)
        self.denied_steps = self.denied_steps + 1 if denied else 0
        if self.denied_steps < self.limit:
            return None
        return Tripped("denials", f"every tool call of the last {self.denied_steps} steps was denied")

    def _crashes(self, results: Sequence[tuple[str, event_pb2.ToolResult]]) -> Tripped | None:
        tripped = None
        for provider, result in results:
            if result.category == common.TOOL_ERROR_CATEGORY_PROCESS_CRASHED:
                self.crashes[provider] = self.crashes.get(provider, 0) + 1
                if self.crashes[provider] >= self.limit:
                    why = f"the provider {provider} crashed {self.crashes[provider]} times in a row"
                    tripped = tripped or Tripped("crashes", why)
            elif result.category != common.TOOL_ERROR_CATEGORY_DENIED:
                self.crashes[provider] = 0
        return tripped
