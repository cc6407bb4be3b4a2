"""The adapter `openai-compatible` against servers over HTTP: a third party's mock server, and recorded streams."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import traceback
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from tests.third_party import Llmock
from tests.unit.models_fakes import (
    VirtualClock,
    assembled,
    failure_of,
    received,
    request,
    text_block,
    tool_result,
    tool_use,
    user,
    wire_tool,
)

from turnd.models.catalogue import Catalogue
from turnd.models.endpoint import CompatibleEndpoint
from turnd.models.keys import EnvironmentKey, FileKey, Keys, KeySource
from turnd.models.openai_compatible import CompatibleModel
from turnd.models.pricing import FREE
from turnd.ports import Message, ModelFailure, ModelRequest, Stop, TextDelta, ToolCallStart, UsageReport
from turnd.rules.backoff import RetryPolicy
from turnd.v1 import common_pb2 as common

SECRET = "zq9-Xw1_4nothing.like.a.vendor"
START_TIMEOUT_S = 60.0
READ = wire_tool(
    "workspace.read_file",
    schema=b'{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}',
)


@asynccontextmanager
async def model_at(base_url: str, *, name: str = "m", **values: Any) -> AsyncIterator[CompatibleModel]:
    """A model of a server, with whatever its configuration says beside the address."""
    endpoint = CompatibleEndpoint(name="local", base_url=base_url, pricing=FREE, **values)
    catalogue = Catalogue(VirtualClock(), Keys({"MY_KEY": SECRET}), [endpoint])
    try:
        yield cast(CompatibleModel, catalogue.open(f"openai-compatible/local/{name}"))
    finally:
        await catalogue.close()


# --- a third party's mock server ----------------------------------------------------------------------------


async def test_text_with_usage(llmock_server: Llmock) -> None:
    llmock_server.scenario({"type": "reply", "text": "Hello over there."})
    async with model_at(llmock_server.base_url) as model:
        events, error = await received(model.stream(request(user("hi"), system="be brief")))
    assert error is None
    message = assembled(events)
    assert [block.text.text for block in message.blocks] == ["Hello over there."]
    assert sum(isinstance(event, TextDelta) for event in events) > 1, "it streams"
    (usage,) = [event.tokens for event in events if isinstance(event, UsageReport)]
    assert usage.input_tokens > 0
    assert usage.output_tokens > 0
    assert events[-1] == Stop(common.STOP_REASON_END_TURN, "stop")
    (asked,) = llmock_server.requests()
    assert asked["body"]["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
    ]
    assert asked["body"]["model"] == "m"


async def test_the_server_chooses_a_tool_from_its_schema_then_answers(llmock_server: Llmock) -> None:
    async with model_at(llmock_server.base_url) as model:
        first, error = await received(model.stream(request(user("read the file"), tools=[READ])))
        assert error is None
        message = assembled(first)
        (call,) = message.calls
        assert call.wire_name == "read_file"
        assert list(json.loads(call.input)) == ["path"]
        assert not call.truncated
        assert message.stop_reason == common.STOP_REASON_TOOL_USE
        history = (
            user("read the file"),
            Message("assistant", (tool_use("c1", call.wire_name, json.loads(call.input)),)),
            Message("user", (tool_result("c1", "the text of the file"),)),
        )
        second, error = await received(model.stream(request(*history, tools=[READ])))
    assert error is None
    assert assembled(second).stop_reason == common.STOP_REASON_END_TURN
    assert assembled(second).blocks[0].text.text


async def test_parallel_calls_after_text(llmock_server: Llmock) -> None:
    paths = ["a.txt", "b/ü.txt", "c" * 100]
    llmock_server.scenario(
        {
            "type": "reply",
            "text": "I read three.",
            "tool_calls": [{"name": "read_file", "arguments": {"path": path}} for path in paths],
        }
    )
    async with model_at(llmock_server.base_url) as model:
        events, error = await received(model.stream(request(user("go"), tools=[READ])))
    assert error is None
    message = assembled(events)
    assert message.blocks[0].text.text == "I read three."
    assert [json.loads(call.input) for call in message.calls] == [{"path": path} for path in paths]
    assert len({call.vendor_call_id for call in message.calls}) == 3


async def test_withheld_tools_are_not_called(llmock_server: Llmock) -> None:
    async with model_at(llmock_server.base_url) as model:
        asked = request(user("read the file"), tools=[READ], tools_withheld=True)
        events, error = await received(model.stream(asked))
    assert error is None
    assert not any(isinstance(event, ToolCallStart) for event in events)


async def test_a_tool_that_was_never_offered_and_arguments_that_are_no_json(llmock_server: Llmock) -> None:
    async with model_at(llmock_server.base_url) as model:
        llmock_server.scenario({"type": "tool_fault", "kind": "unknown_tool"})
        events, _ = await received(model.stream(request(user("read"), tools=[READ])))
        (unknown,) = assembled(events).calls
        assert unknown.wire_name != "read_file"
        llmock_server.scenario({"type": "tool_fault", "kind": "malformed_arguments"})
        events, _ = await received(model.stream(request(user("read"), tools=[READ])))
        (malformed,) = assembled(events).calls
        assert malformed.input == b""
        assert malformed.raw_arguments


@pytest.mark.req("MODEL-03", "MODEL-04")
@pytest.mark.parametrize(
    ("fault", "category", "retry_after_ms"),
    [
        ({"status": 429, "retry_after": 7}, common.MODEL_ERROR_CATEGORY_RATE_LIMITED, 7000),
        ({"status": 429, "retry_after": 0.25}, common.MODEL_ERROR_CATEGORY_RATE_LIMITED, 250),
        (
            {"status": 429, "code": "insufficient_quota", "retry_after": 1},
            common.MODEL_ERROR_CATEGORY_QUOTA_EXHAUSTED,
            1000,
        ),
        ({"status": 529}, common.MODEL_ERROR_CATEGORY_OVERLOADED, None),
        ({"status": 503, "retry_after": 2}, common.MODEL_ERROR_CATEGORY_OVERLOADED, 2000),
        ({"status": 500}, common.MODEL_ERROR_CATEGORY_OVERLOADED, None),
        ({"status": 401}, common.MODEL_ERROR_CATEGORY_AUTH_ERROR, None),
        ({"status": 403}, common.MODEL_ERROR_CATEGORY_AUTH_ERROR, None),
        ({"status": 404}, common.MODEL_ERROR_CATEGORY_INVALID_REQUEST, None),
        ({"status": 400}, common.MODEL_ERROR_CATEGORY_INVALID_REQUEST, None),
        (
            {"status": 400, "code": "context_length_exceeded"},
            common.MODEL_ERROR_CATEGORY_CONTEXT_LENGTH_EXCEEDED,
            None,
        ),
    ],
)
async def test_errors_have_their_category_and_are_not_retried_here(
    llmock_server: Llmock,
    fault: dict[str, object],
    category: common.ModelErrorCategory.ValueType,
    retry_after_ms: int | None,
) -> None:
    llmock_server.scenario({"type": "fail", "message": "scripted", **fault})
    async with model_at(llmock_server.base_url) as model:
        error = await failure_of(model.stream(request()))
    assert error.category == category
    assert "scripted" in error.message
    assert f"HTTP {fault['status']}" in error.vendor_code
    if retry_after_ms is not None:
        assert error.retry_after_ms == retry_after_ms
    assert len(llmock_server.requests()) == 1


@pytest.mark.req("MODEL-05")
@pytest.mark.parametrize("kind", ["disconnect", "truncate", "malformed", "stall"])
@pytest.mark.parametrize("after_chunks", [0, 1, 4])
async def test_a_broken_stream_costs_one_attempt(llmock_server: Llmock, kind: str, after_chunks: int) -> None:
    reply = {"type": "reply", "text": "One two three four five."}
    llmock_server.scenario(
        {"type": "stream_fault", "kind": kind, "after_chunks": after_chunks, "stall_seconds": 60},
        reply,
        reply,
    )
    async with model_at(llmock_server.base_url, idle_timeout_s=0.5) as model:
        events, error = await received(model.stream(request()))
        assert error is not None
        assert error.category == common.MODEL_ERROR_CATEGORY_STREAM_BROKEN
        assert not any(isinstance(event, Stop) for event in events)
        again, error = await received(model.stream(request()))
    assert error is None
    assert assembled(again).blocks[0].text.text == "One two three four five."


@pytest.mark.req("MODEL-05")
async def test_a_stream_that_breaks_inside_a_call(llmock_server: Llmock) -> None:
    llmock_server.scenario(
        {"type": "stream_fault", "kind": "disconnect", "after_chunks": 3},
        {"type": "reply", "tool_calls": [{"name": "read_file", "arguments": {"path": "a" * 50}}]},
    )
    async with model_at(llmock_server.base_url) as model:
        events, error = await received(model.stream(request(tools=[READ])))
    assert error is not None
    assert error.category == common.MODEL_ERROR_CATEGORY_STREAM_BROKEN
    assert any(isinstance(event, ToolCallStart) for event in events)


@pytest.mark.req("MODEL-03", "MODEL-04", "MODEL-05")
async def test_the_third_party_finds_no_fault_with_its_client(llmock_server: Llmock) -> None:
    """It grades whether a client believes cut streams, waits as long as it was told, and knows when to give up."""
    policy = RetryPolicy(base_delay_ms=50)
    faults: list[dict[str, object]] = [
        {"type": "stream_fault", "kind": "truncate", "after_chunks": 2},
        {"type": "stream_fault", "kind": "disconnect", "after_chunks": 2},
        {"type": "fail", "status": 429, "retry_after": 0.3},
        {"type": "fail", "status": 529, "retry_after": 0.1},
        {"type": "fail", "status": 401},
        {"type": "fail", "status": 400},
    ]
    attempts: list[int] = []
    async with model_at(llmock_server.base_url) as model:
        for number, fault in enumerate(faults):
            llmock_server.scenario(fault)
            attempt, delay_ms = 0, cast(int | None, 0)
            while delay_ms is not None:
                await asyncio.sleep(delay_ms / 1000)
                attempt += 1
                _, error = await received(model.stream(request(user(f"request {number}"))))
                delay_ms = None if error is None else policy.delay(attempt, error, random.random)
            attempts.append(attempt)
    assert attempts == [2, 2, 2, 2, 1, 1]
    assert llmock_server.verdict() == []


# --- recorded streams ---------------------------------------------------------------------------------------


@dataclass
class RawServer:
    """Answers every request with the bytes it was given, then does what its end says."""

    answer: Sequence[bytes]
    hold: bool = False
    """Keep the connection open after the answer, until the client closes it."""
    asked: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    client_closed: asyncio.Event = field(default_factory=asyncio.Event)
    base_url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:-2])
            }
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            self.asked.append((headers, body))
            for piece in self.answer:
                writer.write(piece)
                await writer.drain()
            if self.hold:
                await reader.read()
                self.client_closed.set()
        except ConnectionError:
            self.client_closed.set()
        finally:
            writer.close()


@asynccontextmanager
async def raw_server(*answer: bytes, hold: bool = False) -> AsyncIterator[RawServer]:
    raw = RawServer(answer, hold=hold)
    server = await asyncio.start_server(raw.serve, "127.0.0.1", 0)
    raw.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    async with server:
        yield raw


def head(status: str = "200 OK", content_type: str = "text/event-stream", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {content_type}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def sse(*chunks: object) -> bytes:
    return b"".join(
        f"data: {chunk if isinstance(chunk, str) else json.dumps(chunk)}\n\n".encode() for chunk in chunks
    )


def delta(finish: str | None = None, **values: object) -> dict[str, object]:
    return {"id": "x", "choices": [{"index": 0, "delta": values, "finish_reason": finish}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}}


async def answered(answer: bytes, asked: ModelRequest | None = None, **values: Any) -> Any:
    async with raw_server(answer) as raw, model_at(raw.base_url, **values) as model:
        return await received(model.stream(asked or request()))


@pytest.mark.req("MODEL-02")
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 100_000])
async def test_any_cut_of_the_bytes_makes_the_same_message(size: int) -> None:
    """As llama.cpp streams a call: many small deltas, finish, usage without choices, the end."""
    arguments = json.dumps({"path": "ü\U0001f600/" + "x" * 20}, ensure_ascii=False)
    function = {"name": "read_file", "arguments": ""}
    whole = head() + sse(
        delta(role="assistant", content=None),
        delta(content="H\u00e4 \U0001f600"),
        delta(tool_calls=[{"index": 0, "id": "c", "type": "function", "function": function}]),
        *(delta(tool_calls=[{"index": 0, "function": {"arguments": letter}}]) for letter in arguments),
        delta("tool_calls"),
        USAGE,
        "[DONE]",
    ).replace(b"\\u00e4", "ä".encode())
    pieces = [whole[start : start + size] for start in range(0, len(whole), size)]
    async with raw_server(*pieces) as raw, model_at(raw.base_url) as model:
        events, error = await received(model.stream(request(tools=[READ])))
    assert error is None
    message = assembled(events)
    assert message.blocks[0].text.text == "Hä \U0001f600"
    (call,) = message.calls
    assert call.input.decode() == arguments
    assert UsageReport(common.TokenCounts(input_tokens=9, output_tokens=3)) in events


@pytest.mark.parametrize(
    "tail",
    [
        pytest.param(sse(USAGE, "[DONE]"), id="usage, done"),
        pytest.param(sse(USAGE), id="usage, no done"),
        pytest.param(sse("[DONE]"), id="no usage"),
        pytest.param(b": keep-alive\n\n" + sse(USAGE, "[DONE]"), id="a comment"),
        pytest.param(b"event: message\nid: 3\nretry: 5\n" + sse(USAGE, "[DONE]"), id="other fields"),
        pytest.param(sse(USAGE, "[DONE]").replace(b"\n", b"\r\n"), id="CRLF"),
        pytest.param(b"", id="neither"),
    ],
)
async def test_how_servers_end_a_stream(tail: bytes) -> None:
    events, error = await answered(head() + sse(delta(content="all of it"), delta("stop")) + tail)
    assert error is None
    assert assembled(events).blocks[0].text.text == "all of it"
    assert any(isinstance(event, UsageReport) for event in events) == (b"usage" in tail)


async def test_a_server_that_forgets_to_end_holds_nobody() -> None:
    answer = head() + sse(delta(content="a"), delta("stop"), USAGE)
    async with raw_server(answer, hold=True) as raw, model_at(raw.base_url) as model:
        events, error = await received(model.stream(request()))
        assert error is None
        assert events[-1] == Stop(common.STOP_REASON_END_TURN, "stop")
        await asyncio.wait_for(raw.client_closed.wait(), 30)


@pytest.mark.req("MODEL-05")
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (head() + sse(delta(content="half")), "without a finish reason"),
        (head() + sse(delta(content="half"), "[DONE]"), "without a finish reason"),
        (head() + b"data: {broken\n\n", "not valid JSON"),
        (head() + b'data: {"choices": "\xff"}\n\n', "not valid JSON"),
        (head() + sse(17), "a chunk must be an object"),
        (head(content_type="application/json") + b'{"choices": []}', "without a finish reason"),
        (head(content_length="1000") + sse(delta(content="half")), "the connection broke"),
        (head(content_length="1000") + sse(delta(content="all"), delta("stop")), "the connection broke"),
        (b"", "the connection ended before an answer"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "the connection ended before an answer"),
    ],
)
async def test_what_is_no_whole_stream_is_a_broken_one(answer: bytes, says: str) -> None:
    _, error = await answered(answer)
    assert error is not None
    assert error.category == common.MODEL_ERROR_CATEGORY_STREAM_BROKEN
    assert says in error.message


@pytest.mark.req("MODEL-05")
@pytest.mark.parametrize("answer", [b"", head(), head() + sse(delta(content="a"))])
async def test_silence_is_given_up(answer: bytes) -> None:
    async with (
        raw_server(answer, hold=True) as raw,
        model_at(raw.base_url, idle_timeout_s=0.2) as model,
    ):
        error = await failure_of(model.stream(request()))
        assert error.category == common.MODEL_ERROR_CATEGORY_STREAM_BROKEN
        assert "nothing came for 0.2 s" in error.message
        await asyncio.wait_for(raw.client_closed.wait(), 30)


@pytest.mark.req("MODEL-03")
@pytest.mark.parametrize(
    ("error", "category"),
    [
        ({"message": "overloaded", "code": 503}, common.MODEL_ERROR_CATEGORY_OVERLOADED),
        ({"message": "slow down", "code": "rate_limit_exceeded"}, common.MODEL_ERROR_CATEGORY_RATE_LIMITED),
        (
            {"message": "no", "type": "exceed_context_size_error"},
            common.MODEL_ERROR_CATEGORY_CONTEXT_LENGTH_EXCEEDED,
        ),
        ({"message": "no"}, common.MODEL_ERROR_CATEGORY_UNKNOWN),
        ("just text", common.MODEL_ERROR_CATEGORY_UNKNOWN),
    ],
)
async def test_an_error_in_the_stream_has_its_category(
    error: object, category: common.ModelErrorCategory.ValueType
) -> None:
    events, failed = await answered(head() + sse(delta(content="so far"), {"error": error}))
    assert events == [TextDelta("so far")]
    assert failed is not None
    assert failed.category == category


@pytest.mark.req("MODEL-04")
@pytest.mark.parametrize(
    ("headers", "retry_after_ms"),
    [
        ({"retry_after": "3"}, 3000),
        ({"retry_after_ms": "40", "retry_after": "3"}, 40),
        ({"retry_after": "Tue, 14 Nov 2023 22:13:50 GMT"}, 30_000),  # the virtual clock stands at 22:13:20
        ({"retry_after": "Tue, 14 Nov 2023 22:00:00 GMT"}, 0),
        ({"retry_after": "86400"}, 86_400_000),
        ({}, None),
    ],
)
async def test_each_form_of_retry_after(headers: dict[str, str], retry_after_ms: int | None) -> None:
    body = b'{"error": {"message": "slow down"}}'
    _, error = await answered(head("429 Too Many", "application/json", **headers) + body)
    assert error is not None
    assert error.category == common.MODEL_ERROR_CATEGORY_RATE_LIMITED
    assert error.HasField("retry_after_ms") == (retry_after_ms is not None)
    assert error.retry_after_ms == (retry_after_ms or 0)


async def test_an_error_page_is_shortened() -> None:
    _, error = await answered(head("502 Bad Gateway", "text/html") + b"<html>" + b"x" * 100_000)
    assert error is not None
    assert error.category == common.MODEL_ERROR_CATEGORY_OVERLOADED
    assert len(error.message) < 1100


async def test_a_server_that_is_not_there_may_come_back() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        async with model_at(f"http://127.0.0.1:{bound.getsockname()[1]}/v1") as model:
            error = await failure_of(model.stream(request()))
    assert error.category == common.MODEL_ERROR_CATEGORY_OVERLOADED
    assert "cannot be reached" in error.message


async def test_closing_the_stream_closes_the_connection() -> None:
    async with (
        raw_server(head() + sse(delta(content="a")), hold=True) as raw,
        model_at(raw.base_url) as model,
    ):
        async with aclosing(model.stream(request())) as stream:
            assert await anext(stream) == TextDelta("a")
            assert not raw.client_closed.is_set()
        await asyncio.wait_for(raw.client_closed.wait(), 30)


@pytest.mark.parametrize("answer", [b"", head() + sse(delta(content="a"))])
async def test_cancelling_whoever_reads_closes_the_connection(answer: bytes) -> None:
    async with raw_server(answer, hold=True) as raw, model_at(raw.base_url) as model:
        reading = asyncio.create_task(received(model.stream(request())))
        while not raw.asked:
            await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await asyncio.wait_for(raw.client_closed.wait(), 30)


async def test_several_streams_of_one_server_at_once() -> None:
    answer = head() + sse(delta(content="a"), delta("stop"), USAGE, "[DONE]")
    async with raw_server(answer) as raw, model_at(raw.base_url) as model:
        done = await asyncio.gather(*(received(model.stream(request())) for _ in range(20)))
    assert all(error is None for _, error in done)
    assert len(raw.asked) == 20


# --- keys and headers ---------------------------------------------------------------------------------------


@pytest.mark.req("MODEL-10")
async def test_a_key_goes_to_its_server_and_nobodys_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-the-vendor")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-the-vendor")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "project-of-the-vendor")
    answer = head() + sse(delta(content="a"), delta("stop"), USAGE, "[DONE]")
    async with raw_server(answer) as raw:
        async with model_at(raw.base_url, api_key=EnvironmentKey("MY_KEY")) as model:
            await received(model.stream(request()))
        async with model_at(raw.base_url) as model:
            await received(model.stream(request()))
    (with_key, _), (without_key, _) = raw.asked
    assert with_key["authorization"] == f"Bearer {SECRET}"
    assert "authorization" not in without_key
    for headers in (with_key, without_key):
        assert "of-the-vendor" not in str(headers)
        assert headers["x-stainless-retry-count"] == "0"


@pytest.mark.req("MODEL-10")
@pytest.mark.parametrize(
    "answer",
    [
        head("401 Unauthorized", "application/json")
        + json.dumps({"error": {"message": f"no such key: {SECRET}", "code": SECRET}}).encode(),
        head("500 Oops", "text/plain") + f"Bearer {SECRET}".encode(),
        head("400 Bad", "text/plain") + ("x" * 990 + SECRET).encode(),
        head() + sse({"error": {"message": f"key {SECRET}", "code": SECRET}}),
    ],
)
async def test_a_key_is_in_no_error(answer: bytes) -> None:
    _, error = await answered(answer, api_key=EnvironmentKey("MY_KEY"))
    assert error is not None
    assert SECRET[:8] not in str(error)
    assert "[redacted]" in str(error) or len(error.message) > 900


@pytest.mark.req("MODEL-10")
async def test_an_error_has_no_cause_that_tells_the_key() -> None:
    answer = (
        head("401 Unauthorized", "application/json") + json.dumps({"error": {"message": SECRET}}).encode()
    )
    async with (
        raw_server(answer) as raw,
        model_at(raw.base_url, api_key=EnvironmentKey("MY_KEY")) as model,
    ):
        with pytest.raises(ModelFailure) as failed:
            await anext(model.stream(request()))
    assert SECRET not in "".join(traceback.format_exception(failed.value))
    assert "comes from the environment variable MY_KEY" in str(failed.value)


@pytest.mark.req("MODEL-03")
async def test_a_key_that_is_missing_is_an_auth_error_and_nothing_is_sent(tmp_path: Path) -> None:
    sources: list[KeySource] = [EnvironmentKey("NOT_SET"), FileKey(str(tmp_path / "none"))]
    async with raw_server(b"") as raw:
        for source in sources:
            async with model_at(raw.base_url, api_key=source) as model:
                error = await failure_of(model.stream(request()))
                assert error.category == common.MODEL_ERROR_CATEGORY_AUTH_ERROR
                assert "there is no key for models.local" in error.message
        assert raw.asked == []


async def test_a_wrong_path_and_no_key_say_so() -> None:
    _, error = await answered(head("401 Unauthorized", "application/json") + b"{}")
    assert error is not None
    assert "no key was sent: models.local has no api_key" in error.message


async def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    _, error = await answered(head() + sse(delta(content="a"), delta("stop"), USAGE, "[DONE]"))
    assert error is None


async def test_what_is_sent_is_one_body_of_json() -> None:
    answer = head() + sse(delta(content="a"), delta("stop"), USAGE, "[DONE]")
    history = (
        user("grüße"),
        Message("assistant", (text_block("ok"), tool_use("c1", "read_file", {"n": 9007199254740993}))),
        Message("user", (tool_result("c1", "\ud83d half"),)),
    )
    async with raw_server(answer) as raw, model_at(raw.base_url, name="org/model") as model:
        _, error = await received(model.stream(request(*history, tools=[READ])))
    assert error is None
    ((headers, sent),) = raw.asked
    assert headers["content-type"] == "application/json"
    body = json.loads(sent)
    assert body["model"] == "org/model"
    assert body["messages"][0] == {"role": "user", "content": "grüße"}
    assert body["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"n": 9007199254740993}'
    assert body["messages"][2] == {"role": "tool", "tool_call_id": "c1", "content": "\ufffd half"}
