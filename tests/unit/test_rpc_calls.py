"""How calls end: with an answer or a status, whatever happens inside."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.unit.rpc_fakes import SESSION, note, served

from turnd.ports import LogFailed, UnknownSession
from turnd.rules.state import Violation
from turnd.sessions.refusal import Code, CommandRefused, invalid, not_found, not_now
from turnd.v1 import daemon_pb2, daemon_pb2_grpc, sessions_pb2, sessions_pb2_grpc
from turnd_client.errors import ConnectionLost, Refused


@pytest.mark.req("G01")
async def test_a_cancellation_inside_is_answered(short_path: Path) -> None:
    async with served(short_path) as it, it.client() as client:
        it.commands.raises = asyncio.CancelledError()
        with pytest.raises(Refused, match="cancelled inside the daemon") as refused:
            await client.get_session(SESSION)
        assert refused.value.code is grpc.StatusCode.ABORTED


@pytest.mark.req("G02", "G08")
async def test_a_client_that_gives_up_ends_its_handler_and_nothing_else(short_path: Path) -> None:
    async with served(short_path) as it, it.client() as client, it.client() as other:
        it.commands.block = asyncio.Event()
        waiting = asyncio.ensure_future(client.get_session(SESSION))
        await it.commands.started.wait()
        waiting.cancel()
        await asyncio.wait({waiting})
        assert (await other.status()).pid == 1
        it.commands.block.set()
        assert (await other.get_session(SESSION)).session.id == SESSION
        assert it.commands.cleaned == 2


@pytest.mark.req("G03")
async def test_a_stop_returns_after_the_handlers_have_cleaned_up(short_path: Path) -> None:
    async with served(short_path) as it, it.client() as client:
        it.commands.block = asyncio.Event()
        waiting = asyncio.ensure_future(client.get_session(SESSION))
        await it.commands.started.wait()
        await it.server.stop(0)
        assert it.commands.cleaned == 1
        with pytest.raises((ConnectionLost, Refused)):
            await waiting


@pytest.mark.req("G09")
async def test_the_collector_does_not_close_a_server_that_serves(short_path: Path) -> None:
    async with served(short_path) as it, it.client() as client:
        gc.collect()
        assert (await client.status()).pid == 1


@pytest.mark.req("RPC-05")
@pytest.mark.parametrize(
    ("raised", "code", "words"),
    [
        (invalid("cwd", "expected an absolute path"), grpc.StatusCode.INVALID_ARGUMENT, "absolute"),
        (not_found("approval", "a1", "no approval a1"), grpc.StatusCode.NOT_FOUND, "a1"),
        (not_now("decided by B at 12:00", client="B"), grpc.StatusCode.FAILED_PRECONDITION, "by B"),
        (
            CommandRefused(Code.RESOURCE_EXHAUSTED, "the queue is full"),
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "full",
        ),
        (CommandRefused(Code.UNAVAILABLE, "draining"), grpc.StatusCode.UNAVAILABLE, "draining"),
        (UnknownSession("no session 01X"), grpc.StatusCode.NOT_FOUND, "01X"),
        (LogFailed("database or disk is full"), grpc.StatusCode.RESOURCE_EXHAUSTED, "disk is full"),
        (Violation("turn/end without open turn/start"), grpc.StatusCode.FAILED_PRECONDITION, "turn/end"),
        (RuntimeError("secret"), grpc.StatusCode.INTERNAL, "RuntimeError"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
async def test_each_error_has_its_code_and_says_what(
    short_path: Path, raised: Exception, code: grpc.StatusCode, words: str
) -> None:
    async with served(short_path) as it, it.channel() as channel:
        it.commands.raises = raised
        sessions = sessions_pb2_grpc.SessionsStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await sessions.GetSession(
                sessions_pb2.GetSessionRequest(session=SESSION), metadata=it.metadata, timeout=10
            )
        assert refused.value.code() is code
        text = refused.value.details() or ""
        assert words in text
        assert "secret" not in text


@pytest.mark.req("RPC-05")
async def test_details_reach_the_client(short_path: Path) -> None:
    async with served(short_path) as it, it.client() as client:
        it.commands.raises = invalid("bounds.max_turns", "expected 0 or more")
        with pytest.raises(Refused) as refused:
            await client.get_session(SESSION)
        assert refused.value.field == "bounds.max_turns"
        it.commands.raises = not_found("question", "q7", "no question q7")
        with pytest.raises(Refused) as refused:
            await client.get_session(SESSION)
        (found,) = refused.value.details
        assert isinstance(found, error_details_pb2.ResourceInfo)
        assert (found.resource_type, found.resource_name) == ("question", "q7")
        it.commands.raises = not_now("too late", decided_by="B", decided_at="12:00")
        with pytest.raises(Refused) as refused:
            await client.get_session(SESSION)
        assert refused.value.facts == {"decided_by": "B", "decided_at": "12:00"}


@pytest.mark.req("G05")
async def test_long_errors_fit_and_large_messages_pass_up_to_the_stated_limit(short_path: Path) -> None:
    async with served(short_path) as it, it.client() as client:
        it.commands.raises = not_now("x" * 100_000, decided_by="y" * 100_000)
        with pytest.raises(Refused, match="xxx") as refused:
            await client.get_session(SESSION)
        assert len(str(refused.value)) < 5000
        sent = await client.send_message(SESSION, "t" * (15 * 1024 * 1024))
        assert int(sent.message_id) > 15 * 1024 * 1024
        with pytest.raises(Refused, match="at most 16 MiB go into one call") as refused:
            await client.send_message(SESSION, "t" * (17 * 1024 * 1024))
        assert refused.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await client.status()).pid == 1


@pytest.mark.req("RPC-05")
@pytest.mark.parametrize("data", [b"\x0a\x02\xff\xfe", b"\xff\xff\xff", b"\x0a\x7f"])
async def test_a_request_that_is_no_message_is_named(short_path: Path, data: bytes) -> None:
    async with served(short_path) as it, it.channel() as channel:
        call = channel.unary_unary("/turnd.v1.Sessions/GetSession")
        with pytest.raises(
            grpc.aio.AioRpcError, match=r"not a valid turnd\.v1\.GetSessionRequest"
        ) as refused:
            await call(data, metadata=it.metadata, timeout=10)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.req("RPC-05")
async def test_a_call_that_this_version_does_not_have_says_so(short_path: Path) -> None:
    async with served(short_path) as it, it.channel() as channel:
        daemon = daemon_pb2_grpc.DaemonStub(channel)
        with pytest.raises(
            grpc.aio.AioRpcError, match=r"version 0\.0\.1\) does not have ListModels"
        ) as refused:
            await daemon.ListModels(daemon_pb2.ListModelsRequest(), metadata=it.metadata, timeout=10)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_reflection_lists_the_services(short_path: Path) -> None:
    async with served(short_path) as it, it.channel() as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")]), metadata=it.metadata, timeout=10
        )
        (answer,) = [answer async for answer in call]
        names = {service.name for service in answer.list_services_response.service}
        assert {"turnd.v1.Sessions", "turnd.v1.Daemon", "grpc.health.v1.Health"} <= names


async def test_streams_of_bytes_and_uploads(short_path: Path) -> None:
    async with served(short_path) as it, it.client() as client:
        it.tail.commit(note(1, "one"), note(2, "two"))
        assert b"".join([part async for part in client.export(SESSION)]) == b"one\ntwo\n"
        assert (await client.verify_lines([b"a\nb", b"\n", b"c\n"])).events == 3


@pytest.mark.req("G04")
async def test_a_client_that_pings_an_idle_connection_is_not_sent_away(short_path: Path) -> None:
    options = (
        ("grpc.keepalive_time_ms", 100),
        ("grpc.keepalive_timeout_ms", 5000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_time_between_pings_ms", 100),
    )
    async with served(short_path, heartbeat_s=4.5) as it, it.channel(*options) as channel:
        sessions = sessions_pb2_grpc.SessionsStub(channel)
        cursor = sessions_pb2.SessionCursor(session=SESSION)
        call = sessions.Attach(sessions_pb2.AttachRequest(session=cursor), metadata=it.metadata)
        first = await call.read()
        assert isinstance(first, sessions_pb2.AttachResponse)
        assert first.caught_up
        # Four pings without data; the default sends a client away after the third.
        second = await call.read()
        assert isinstance(second, sessions_pb2.AttachResponse)
        assert second.heartbeat
        call.cancel()


@pytest.mark.req("RPC-05")
async def test_an_answer_that_no_message_can_carry_is_a_status(short_path: Path) -> None:
    async with served(short_path) as it, it.client() as client:
        it.tail.commit(note(1, "x" * (17 * 1024 * 1024)))
        with pytest.raises(Refused, match="one message takes 16777216") as refused:
            _ = [part async for part in client.export(SESSION)]
        assert refused.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
