"""Spans as an OTLP receiver gets them over gRPC."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import socket
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
import structlog
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SentSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from tests.collector import TIMEOUT_S, Collector, collecting, values

from turnd.telemetry import ClosableTrace, NoTrace, Redactor, configure_logs, open_trace
from turnd.telemetry.otlp import QUEUED_SPANS, SPANS_IN_A_BATCH

SAMPLED = 1


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    async with collecting() as made:
        yield made


async def a_step(trace: ClosableTrace) -> str:
    """A Step as the loop traces it; gives the traceparent of its tool call."""
    with trace.span("turnd.step", {"turnd.session": "01J", "turnd.turn": 0, "turnd.step": 1}) as step:
        with trace.span("turnd.model", {"gen_ai.request.model": "m1", "turnd.attempt": 1}) as model:
            model.set({"gen_ai.usage.output_tokens": 20})
        step.event("turnd.split", {"resource": 1})

        async def call() -> str:
            with trace.span("turnd.tool", {"gen_ai.tool.name": "run_command"}) as tool:
                return tool.traceparent

        async with asyncio.TaskGroup() as group:
            task = group.create_task(call())
        step.event("turnd.next", {"outcome": "next"})
        return task.result()


@pytest.mark.req("OBS-02")
async def test_the_tree_of_a_step_arrives(collector: Collector) -> None:
    trace = open_trace(collector.endpoint, "1.2.3", Redactor())
    traceparent = await a_step(trace)
    await trace.close(TIMEOUT_S)
    spans = {span.name: span for span in collector.receiver.spans()}
    assert set(spans) == {"turnd.step", "chat m1", "execute_tool run_command"}
    step, model, tool = spans["turnd.step"], spans["chat m1"], spans["execute_tool run_command"]
    assert step.parent_span_id == b""
    assert model.parent_span_id == tool.parent_span_id == step.span_id
    assert {model.trace_id, tool.trace_id} == {step.trace_id}
    version, trace_id, span_id, flags = traceparent.split("-")
    assert (version, trace_id, span_id) == ("00", tool.trace_id.hex(), tool.span_id.hex())
    assert int(flags, 16) & SAMPLED
    assert [(event.name, values(list(event.attributes))) for event in step.events] == [
        ("turnd.split", {"resource": 1}),
        ("turnd.next", {"outcome": "next"}),
    ]
    assert model.kind == SentSpan.SPAN_KIND_CLIENT
    assert values(list(model.attributes)) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m1",
        "gen_ai.usage.output_tokens": 20,
        "turnd.attempt": 1,
        "turnd.span": "turnd.model",
    }
    assert step.start_time_unix_nano <= tool.start_time_unix_nano <= step.end_time_unix_nano


async def test_each_step_is_a_trace_of_its_own(collector: Collector) -> None:
    trace = open_trace(collector.endpoint, "1.2.3", Redactor())
    first = await a_step(trace)
    second = await a_step(trace)
    await trace.close(TIMEOUT_S)
    assert first.split("-")[1] != second.split("-")[1]


@pytest.mark.req("OBS-04")
async def test_secrets_stay_behind(collector: Collector) -> None:
    redactor = Redactor()
    redactor.learn("correct horse battery")
    trace = open_trace(collector.endpoint, "1.2.3", redactor)

    def fail() -> None:
        with trace.span("turnd.tool", {"text": "it is correct horse battery"}) as span:
            span.event("seen", {"header": "Bearer abcdefgh12345678"})
            span.set({"api_key": "x", "output_tokens": 7})
            raise ValueError("correct horse battery")

    with pytest.raises(ValueError, match="horse"):
        fail()
    await trace.close(TIMEOUT_S)
    (span,) = collector.receiver.spans()
    assert b"horse" not in span.SerializeToString()
    assert values(list(span.attributes)) == {
        "gen_ai.operation.name": "execute_tool",
        "turnd.span": "turnd.tool",
        "text": "it is [redacted]",
        "api_key": "[redacted]",
        "output_tokens": 7,
        "error.type": "ValueError",
    }
    assert values(list(span.events[0].attributes)) == {"header": "Bearer [redacted]"}
    assert span.status.code == Status.STATUS_CODE_ERROR


async def test_a_cancelled_span_says_so_and_is_no_error(collector: Collector) -> None:
    trace = open_trace(collector.endpoint, "1.2.3", Redactor())

    def cancel() -> None:
        with trace.span("turnd.tool"):
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        cancel()
    await trace.close(TIMEOUT_S)
    (span,) = collector.receiver.spans()
    assert values(list(span.attributes))["error.type"] == "CancelledError"
    assert span.status.code == Status.STATUS_CODE_UNSET


@pytest.mark.req("OBS-02")
async def test_a_dead_receiver_costs_spans_and_nothing_else() -> None:
    # Held without listening, so that nobody else can listen there meanwhile.
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        trace = open_trace(f"http://127.0.0.1:{held.getsockname()[1]}", "1.2.3", Redactor())
        for number in range(QUEUED_SPANS * 2):
            with trace.span("turnd.step", {"turnd.step": number}):
                pass
        await trace.close(0.1)


@pytest.mark.req("OBS-02")
async def test_a_receiver_that_does_not_answer_makes_nobody_wait_and_no_queue_grow(
    collector: Collector,
) -> None:
    collector.receiver.answers.clear()
    trace = open_trace(collector.endpoint, "1.2.3", Redactor())
    made = QUEUED_SPANS * 3
    for number in range(made):
        with trace.span("turnd.step", {"turnd.step": number}):
            pass
    collector.receiver.answers.set()
    await trace.close(TIMEOUT_S)
    steps = [values(list(span.attributes))["turnd.step"] for span in collector.receiver.spans()]
    assert made - 1 in steps
    assert len(steps) <= QUEUED_SPANS + SPANS_IN_A_BATCH


def test_without_an_endpoint_nothing_is_imported() -> None:
    code = (
        "import sys; from turnd.telemetry import Redactor, open_trace\n"
        "trace = open_trace(None, '1', Redactor())\n"
        "with trace.span('turnd.step', {'a': 1}) as span:\n"
        "    span.event('e'); span.set({'b': 2}); assert span.traceparent == ''\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


async def test_no_trace_closes_at_once() -> None:
    await NoTrace().close(0)


@pytest.mark.req("OBS-04")
def test_log_lines_are_json_with_ids_and_without_secrets() -> None:
    stream = io.StringIO()
    redactor = Redactor()
    redactor.learn("correct horse battery")
    root = logging.getLogger()
    before = root.handlers[:], root.level
    try:
        configure_logs(stream, logging.INFO, redactor)
        with structlog.contextvars.bound_contextvars(session="01J", turn=0, step=1):
            structlog.get_logger("turnd.test").info("started %s", "it", token="abc", input_tokens=5)
            structlog.get_logger("turnd.test").debug("unseen")
            try:
                raise RuntimeError("correct horse battery")
            except RuntimeError:
                logging.getLogger("other").exception("failed with sk-abcdefghijklmnopqrst")
    finally:
        root.handlers[:], root.level = before
        structlog.reset_defaults()
    started, failed = (json.loads(line) for line in stream.getvalue().splitlines())
    assert started.pop("timestamp").endswith("Z")
    assert started == {
        "event": "started it",
        "level": "info",
        "logger": "turnd.test",
        "session": "01J",
        "turn": 0,
        "step": 1,
        "token": "[redacted]",
        "input_tokens": 5,
    }
    assert failed["event"] == "failed with [redacted]"
    assert failed["session"] == "01J"
    assert "RuntimeError: [redacted]" in failed["exception"]
