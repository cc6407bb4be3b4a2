"""An OTLP receiver that listens on loopback and keeps what it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SentSpan

TIMEOUT_S = 20.0


class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.requests: SimpleQueue[trace_service_pb2.ExportTraceServiceRequest] = SimpleQueue()
        self.answers = Event()
        self.answers.set()

    def Export(
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        self.answers.wait(TIMEOUT_S)
        self.requests.put(request)
        return trace_service_pb2.ExportTraceServiceResponse()

    def spans(self) -> list[SentSpan]:
        """What has come."""
        found: list[SentSpan] = []
        while not self.requests.empty():
            for resource in self.requests.get().resource_spans:
                for scope in resource.scope_spans:
                    found += scope.spans
        return found


@dataclass(frozen=True, slots=True)
class Collector:
    """A receiver that listens."""

    receiver: Receiver
    endpoint: str


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    """A receiver for as long as it is inside."""
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    receiver = Receiver()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(receiver, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield Collector(receiver, f"http://127.0.0.1:{port}")
    stopped = server.stop(grace=None)
    await asyncio.to_thread(stopped.wait, TIMEOUT_S)


def values(attributes: list[KeyValue]) -> dict[str, object]:
    def plain(value: AnyValue) -> object:
        kind = value.WhichOneof("value")
        return None if kind is None else getattr(value, kind)

    return {attribute.key: plain(attribute.value) for attribute in attributes}
