"""A Step put together again from its trace alone, as an OTLP receiver got it from a real daemon (OBS-01, OBS-02)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from tests.collector import Receiver, collecting, values
from tests.harness import running_daemon
from tests.marks import NEEDS_CELLS

from turnd.v1 import event_pb2

pytestmark = [NEEDS_CELLS, pytest.mark.timeout(120)]

POLICY = """
[telemetry]
endpoint = "{endpoint}"

[[policy]]
name = "writes"
match = {{ tool = "write_file" }}
action = "allow"

[[policy]]
name = "no commands"
match = {{ tool = "run_command" }}
action = "deny"
"""

HOOKS_OF_A_STEP = [
    "context-assemble",
    "pre-model-call",
    "post-model-response",
    "pre-tool-call",
    "pre-tool-call",
    "pre-tool-call",
    "pre-tool-call",
    "plan-ready",
    "post-tool-call",
    "post-tool-call",
    "post-tool-call",
    "post-tool-call",
    "post-apply",
]


@dataclass
class Rebuilt:
    """What a trace says of one Step."""

    turn: int
    step: int
    order: list[str] = field(default_factory=list)
    """Spans and span events in the order of time."""
    hooks: list[str] = field(default_factory=list)
    attempts: list[tuple[int, str]] = field(default_factory=list)
    tokens: int = 0
    tools: list[tuple[str, str, int, bool]] = field(default_factory=list)
    counts: dict[str, Any] = field(default_factory=dict)
    outcome: str = ""
    seconds: float = 0.0


def rebuilt(spans: Sequence[Span]) -> dict[tuple[int, int], Rebuilt]:
    """Every Step of the traces, from nothing but the spans."""
    traces: dict[bytes, list[Span]] = {}
    for span in spans:
        traces.setdefault(span.trace_id, []).append(span)
    steps = [_step(trace) for trace in traces.values() if any(kind(s) == "turnd.step" for s in trace)]
    return {(step.turn, step.step): step for step in steps}


def kind(span: Span) -> str:
    return str(values(list(span.attributes)).get("turnd.span", span.name))


def _step(trace: Iterable[Span]) -> Rebuilt:
    spans = sorted(trace, key=lambda span: span.start_time_unix_nano)
    (root,) = [span for span in spans if kind(span) == "turnd.step"]
    told = values(list(root.attributes))
    step = Rebuilt(turn=int(str(told["turnd.turn"])), step=int(str(told["turnd.step"])))
    step.seconds = (root.end_time_unix_nano - root.start_time_unix_nano) / 1e9
    timed: list[tuple[int, str]] = []
    for span in spans:
        said = values(list(span.attributes))
        assert span is root or span.parent_span_id in {other.span_id for other in spans}
        assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        match kind(span):
            case "turnd.hook":
                step.hooks.append(str(said["turnd.point"]))
                timed.append((span.start_time_unix_nano, str(said["turnd.point"])))
            case "turnd.model":
                reasons = str(said.get("gen_ai.response.finish_reasons", said.get("error.type", "")))
                step.attempts.append((int(str(said["turnd.attempt"])), reasons))
                step.tokens += int(str(said.get("gen_ai.usage.output_tokens", 0)))
                timed.append((span.start_time_unix_nano, "model"))
            case "turnd.tool":
                name, call = str(said["gen_ai.tool.name"]), str(said["gen_ai.tool.call.id"])
                step.tools.append((call, name, int(str(said["turnd.attempt"])), bool(said["turnd.is_error"])))
                timed.append((span.start_time_unix_nano, "tool"))
            case "turnd.veto_chain":
                step.counts["veto_chain"] = said["turnd.items"]
    for event in root.events:
        said = values(list(event.attributes))
        name = event.name.removeprefix("turnd.")
        timed.append((event.time_unix_nano, name))
        if name == "precheck":
            step.counts[f"allowed {said['kind']}"] = said["allowed"]
        elif name == "next":
            step.outcome = str(said["outcome"])
        else:
            step.counts |= {f"{name} {key}": value for key, value in said.items()}
    step.order = [name for _, name in sorted(timed, key=lambda entry: entry[0])]
    return step


async def spans_of(receiver: Receiver, steps: int) -> list[Span]:
    """What came, once all Steps are there."""
    found: list[Span] = []
    async with asyncio.timeout(30):
        while sum(kind(span) == "turnd.step" for span in found) < steps:
            found += receiver.spans()
            await asyncio.sleep(0.05)
    return found


@pytest.mark.req("OBS-01", "OBS-02", "LOOP-01")
async def test_a_step_is_put_together_again_from_its_trace() -> None:
    async with (
        collecting() as collector,
        running_daemon(POLICY.format(endpoint=collector.endpoint)) as daemon,
    ):
        (daemon.workspace / "a.txt").write_text("hello\n")
        calls = [
            {"tool": "read_file", "input": {"path": "a.txt"}},
            {"tool": "write_file", "input": {"path": "b.txt", "content": "x\n"}},
            {"tool": "run_command", "input": {"command": "true"}},
            {"tool": "read_file", "input": {"path": "missing.txt"}},
        ]
        model = daemon.replay(
            {"stream": [], "error": {"category": "overloaded", "message": "busy"}},
            {"stream": calls, "usage": {"input_tokens": 10, "output_tokens": 7}},
            {"stream": [{"text": "done"}], "usage": {"input_tokens": 10, "output_tokens": 3}},
        )
        made = await daemon.client.create_session(str(daemon.workspace), model=model)
        events = await daemon.run(made.id, "go")
        steps = rebuilt(await spans_of(collector.receiver, 2))
    assert sorted(steps) == [(0, 1), (0, 2)]
    first, second = steps[0, 1], steps[0, 2]

    logged = [e for e in events if e.HasField("step") and e.step == 1]
    results = {e.tool_result.call_id: e.tool_result for e in logged if e.HasField("tool_result")}
    started = [e.tool_started for e in logged if e.HasField("tool_started")]
    names = {e.tool_call.call_id: e.tool_call.tool for e in logged if e.HasField("tool_call")}
    assert sorted(first.tools) == sorted(
        (s.call_id, names[s.call_id], s.attempt, results[s.call_id].is_error) for s in started
    )
    assert first.hooks == HOOKS_OF_A_STEP
    assert first.attempts == [(1, "ModelFailure"), (2, "tool_use")]
    assert first.tokens == _ended(logged).tokens.output_tokens == 7
    assert first.seconds * 1000 >= _ended(logged).active_ms - 1
    assert first.counts == {
        "done_check calls": 4,
        "done_check done": False,
        "split data_source": 2,
        "split interactive": 0,
        "split resource": 2,
        "allowed data_source": 2,
        "allowed interactive": 0,
        "plan items": 2,
        "veto_chain": 2,
        "history seq": first.counts["history seq"],
        "doom_loop fired": False,
        "doom_loop suspicion": "",
        "bounds reached": 0,
        "bounds breaker": "",
    }
    ready = next(e.plan_ready for e in logged if e.HasField("plan_ready"))
    assert len(ready.items) == first.counts["veto_chain"]
    assert (first.outcome, second.outcome) == ("NextStep", "Ending")
    lines = [name for name in first.order if name in _LINES]
    assert lines == sorted(lines, key=_LINES.index)
    assert second.hooks == ["context-assemble", "pre-model-call", "post-model-response"]
    assert second.counts["done_check done"] is True
    assert second.tools == []


_LINES = [
    "context-assemble",
    "pre-model-call",
    "model",
    "post-model-response",
    "done_check",
    "pre-tool-call",
    "split",
    "plan",
    "plan-ready",
    "post-tool-call",
    "post-apply",
    "history",
    "doom_loop",
    "bounds",
    "next",
]


def _ended(events: Iterable[event_pb2.Event]) -> event_pb2.StepEnd:
    return next(e.step_end for e in events if e.HasField("step_end"))
