"""What is accepted can be sent again: sizes against the real daemon (RPC-01, RPC-05)."""

from __future__ import annotations

import asyncio
import json
import time

import grpc
import pytest
from tests.harness import RunningDaemon, running_daemon

from turnd.v1 import event_pb2
from turnd_client.errors import Refused

pytestmark = [pytest.mark.timeout(120), pytest.mark.req("RPC-01")]

MIB = 2**20
SLOW = {"stream": [{"text": "x" * 40_000}], "chunk": 10, "delay_s": 0.05}


async def session_at_work(daemon: RunningDaemon) -> str:
    session = (await daemon.client.create_session(str(daemon.workspace), model=daemon.replay(SLOW))).id
    await daemon.client.send_message(session, "go")
    await daemon.events(session, lambda event: event.HasField("assistant_chunk"))
    return session


async def test_a_message_that_could_not_be_sent_again_is_refused_and_the_session_is_whole() -> None:
    async with running_daemon() as daemon:
        session = await session_at_work(daemon)
        with pytest.raises(Refused, match=r"at most 4194304 bytes .*, got 16777") as refused:
            await daemon.client.send_message(session, "t" * (16 * MIB - 200))
        assert refused.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        largest = "t" * (4 * MIB - 100)
        for _ in range(5):
            await daemon.client.send_message(session, largest)
        shown = (await daemon.client.get_session(session)).session
        assert [message.cut for message in shown.queued] == [True] * 5
        assert shown.queued[0].blocks[0].text.text == "t" * 200
        (listed,) = [one async for one in daemon.client.list_sessions()]
        assert len(listed.queued) == 5
        assert listed.ByteSize() < 4000
        queued: list[event_pb2.InboxQueued] = []

        def fifth(event: event_pb2.Event) -> bool:
            if event.HasField("inbox_queued"):
                queued.append(event.inbox_queued)
            return len(queued) == 6

        await daemon.events(session, fifth)
        assert {message.blocks[0].text.text for message in queued[1:]} == {largest}


@pytest.mark.req("LOG-17")
async def test_a_text_of_control_characters_is_exported_and_checked() -> None:
    async with running_daemon() as daemon:
        session = await session_at_work(daemon)
        await daemon.client.send_message(session, "\x01" * (4 * MIB - 100))
        parts = [part async for part in daemon.client.export(session)]
        assert max(map(len, parts)) < MIB < sum(map(len, parts)) / 20
        lines = [json.loads(line) for line in b"".join(parts).splitlines()]
        texts = [
            line["data"]["blocks"][0]["text"]["text"] for line in lines if line["type"] == "inbox/queued"
        ]
        assert len(texts[-1]) == 4 * MIB - 100
        assert list((await daemon.client.verify_lines(parts)).faults) == []


@pytest.mark.req("RPC-05")
async def test_an_import_with_an_event_that_is_too_large_is_refused() -> None:
    async with running_daemon() as daemon:
        line = {
            "session": "S",
            "seq": 1,
            "type": "note",
            "data": {"text": "x" * (8 * MIB)},
            "time": "2026-01-01T00:00:00Z",
        }
        data = json.dumps(line).encode() + b"\n"
        with pytest.raises(Refused, match="are allowed; nothing was imported") as refused:
            await daemon.client.import_session(
                (data[at : at + MIB] for at in range(0, len(data), MIB)), str(daemon.workspace)
            )
        assert refused.value.field == "lines"


@pytest.mark.req("RPC-02")
@pytest.mark.parametrize(
    "parts",
    [[b"\n" * MIB] * 8, [b"\n"] * 20_000, [b"x\n" * (MIB // 2)] * 8, [b" \r\n"] * 5000],
    ids=["empty lines", "parts of a byte", "lines that are none", "blank lines"],
)
async def test_a_file_of_nothing_holds_up_nobody(parts: list[bytes]) -> None:
    async with running_daemon() as daemon:
        other = await daemon.connect("other")
        slowest = 0.0
        began = time.monotonic()
        checking = asyncio.ensure_future(daemon.client.verify_lines(parts))
        calls = 0
        while not checking.done():
            sent = time.monotonic()
            await other.status()
            calls += 1
            slowest = max(slowest, time.monotonic() - sent)
        verdict = await checking
        print(f"took {time.monotonic() - began:.2f} s, {calls} calls, slowest {slowest * 1000:.0f} ms")
        assert (verdict.events, len(verdict.faults)) == (0, 1000 if b"x" in parts[0] else 0)
        assert calls > 0
        await other.close()
