"""The event stream: cursors, order, heartbeats, slow clients, the end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from tests.unit.rpc_fakes import SESSION, note, served

from turnd.rpc.attach import encode
from turnd.sessions.tail import Batch
from turnd.v1 import sessions_pb2, sessions_pb2_grpc
from turnd_client.errors import ConnectionLost, Refused


def test_a_batch_is_the_message_that_it_says_it_is() -> None:
    events = [note(1, "a" * 200), note(2, "b" * 20_000), note(3)]
    batch = Batch(tuple(event.SerializeToString() for event in events), 3, 300, caught_up=True)
    assert sessions_pb2.AttachResponse.FromString(encode(batch)) == sessions_pb2.AttachResponse(
        events=events, seq=3, position=300, caught_up=True
    )


@pytest.mark.req("RPC-01")
async def test_history_then_live_without_gap_or_duplicate(short_path: Path) -> None:
    async with served(short_path) as it, it.client() as client:
        it.tail.commit(*(note(seq) for seq in range(1, 251)))
        seen: list[int] = []
        caught_up_at = 0
        async for response in client.attach(SESSION, 100):
            seen += [event.seq for event in response.events]
            assert response.seq == seen[-1]
            if response.caught_up and not caught_up_at:
                caught_up_at = response.seq
                it.tail.commit(*(note(seq) for seq in range(251, 401)))
            if seen[-1] == 400:
                break
        assert seen == list(range(101, 401))
        assert caught_up_at == 250


@pytest.mark.req("C02")
@pytest.mark.parametrize(
    ("after", "code"),
    [
        (-1, grpc.StatusCode.INVALID_ARGUMENT),
        (-(2**63), grpc.StatusCode.INVALID_ARGUMENT),
        (6, grpc.StatusCode.OUT_OF_RANGE),
        (1005, grpc.StatusCode.OUT_OF_RANGE),
        (2**63 - 1, grpc.StatusCode.OUT_OF_RANGE),
    ],
)
async def test_a_cursor_that_cannot_be_is_refused(
    short_path: Path, after: int, code: grpc.StatusCode
) -> None:
    async with served(short_path) as it, it.client() as client:
        it.tail.commit(*(note(seq) for seq in range(1, 6)))
        for stream, field in (
            (client.attach(SESSION, after), "session.after_seq"),
            (client.attach_all(after), "all.after_position"),
        ):
            with pytest.raises(Refused) as refused:
                await anext(aiter(stream))
            assert (refused.value.code, refused.value.field) == (code, field)


@pytest.mark.req("C02")
async def test_the_last_cursor_is_lawful_and_an_unknown_session_is_not(short_path: Path) -> None:
    async with served(short_path) as it, it.client() as client:
        it.tail.commit(note(1), note(2))
        first = await anext(aiter(client.attach(SESSION, 2)))
        assert first.caught_up
        assert not first.events
        with pytest.raises(Refused) as refused:
            await anext(aiter(client.attach("01BX5ZZKBKACTAV9WEVGEMMVRZ")))
        assert refused.value.code is grpc.StatusCode.NOT_FOUND
        async with it.channel() as channel:
            sessions = sessions_pb2_grpc.SessionsStub(channel)
            call = sessions.Attach(sessions_pb2.AttachRequest(), metadata=it.metadata, timeout=10)
            with pytest.raises(grpc.aio.AioRpcError) as neither:
                await call.read()
        assert neither.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_silence_is_filled_with_heartbeats(short_path: Path) -> None:
    async with served(short_path, heartbeat_s=0.01) as it, it.client() as client:
        kinds: list[bool] = []
        async for response in client.attach(SESSION):
            kinds.append(response.heartbeat)
            if len(kinds) == 4:
                it.tail.commit(note(1))
            if response.events:
                break
        assert kinds[:4] == [False, True, True, True]
        assert not kinds[-1]


@pytest.mark.req("G02")
async def test_presence_and_the_tail_are_left_when_the_client_leaves(short_path: Path) -> None:
    async with served(short_path) as it, it.client("A") as client, it.client("B") as other:
        stream = client.attach(SESSION)
        await anext(aiter(stream))
        everything = other.attach_all()
        await anext(aiter(everything))
        assert sorted(it.present.names, key=str) == [(SESSION, "A"), (None, "B")]
        await client.close()
        await it.present.one_left.wait()
        assert it.present.names == [(None, "B")]
        assert it.tail.closed == 1


@pytest.mark.req("G02", "RPC-02")
async def test_a_client_that_takes_nothing_is_disconnected_and_holds_up_nobody(short_path: Path) -> None:
    async with (
        served(short_path, stuck_client_s=0.3) as it,
        it.client("other") as other,
        it.channel(("grpc.http2.bdp_probe", 0)) as channel,
    ):
        sessions = sessions_pb2_grpc.SessionsStub(channel)
        cursor = sessions_pb2.SessionCursor(session=SESSION)
        request = sessions_pb2.AttachRequest(client="stuck", session=cursor)
        stuck = sessions.Attach(request, metadata=it.metadata)
        await stuck.read()
        it.tail.commit(*(note(seq, "x" * 100_000) for seq in range(1, 401)))
        seen = 0
        async for response in other.attach(SESSION):
            seen += len(response.events)
            if seen == 400:
                break
        while "stuck" in str(it.present.names):
            it.present.one_left.clear()
            await it.present.one_left.wait()
        # It loses nothing: its cursor is good for another stream.
        first = await anext(aiter(other.attach(SESSION, 10)))
        assert first.events[0].seq == 11


@pytest.mark.req("G03")
async def test_a_stop_gives_what_was_committed_and_then_says_that_it_stops(short_path: Path) -> None:
    async with served(short_path) as it, it.client() as client:
        seen: list[int] = []

        async def read_to_the_end() -> None:
            async for response in client.attach(SESSION):
                seen.extend(event.seq for event in response.events)
                attached.set()

        attached = asyncio.Event()
        reading = asyncio.ensure_future(read_to_the_end())
        await attached.wait()
        it.tail.commit(*(note(seq) for seq in range(1, 301)))
        await it.server.stop(5)
        with pytest.raises(ConnectionLost, match="stopping"):
            await reading
        assert seen == list(range(1, 301))
        assert it.present.names == []
        assert it.tail.closed == 1
