"""Clients that attach and never read: what each costs is its transport's window, and nobody else waits (G06, C04)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.harness import running_daemon

STALLED = 5
WINDOW = 16 * 2**20
"""More than twice what a stalled reader was seen to hold in flow control; without a bound it holds all there is."""
TEXT = "x" * 2000
TURNS = 60


def _resident(pid: int) -> int:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * 4096


@pytest.mark.timeout(150)
@pytest.mark.req("G06", "RPC-02")
async def test_clients_that_never_read_cost_their_window_and_delay_nobody() -> None:
    line = {"stream": [{"text": TEXT * 500}], "chunk": 2000, "repeat": True}
    async with running_daemon("[profiles.default]\ntools = []\n") as daemon:
        window = {"model": {"context_window": 10**9, "max_output_tokens": 10**6}}
        session = await daemon.client.create_session(str(daemon.workspace), model=daemon.replay(window, line))
        await daemon.run(session.id, "warm up")
        others = [await daemon.connect(f"stalled-{index}") for index in range(STALLED)]
        streams = [other.attach(session.id) for other in others]
        for stream in streams:
            await anext(stream)
        before = _resident(daemon.pid)
        for _ in range(TURNS):
            events = await daemon.run(session.id, "more")
            assert sum(e.HasField("assistant_message") for e in events) == 1
        grown = _resident(daemon.pid) - before
        written = (await daemon.client.get_session(session.id)).as_of_seq
        # The daemon keeps the history of the session itself, and a tail of 32 MiB for everybody.
        own = 32 * 2**20 + 3 * TURNS * len(TEXT) * 500
        assert grown < own + STALLED * WINDOW, f"{grown / 2**20:.0f} MiB for {written} events"
        for stream in streams:
            await stream.aclose()
        for other in others:
            await other.close()
        await asyncio.sleep(0)
        assert (await daemon.client.status()).pid == daemon.pid
