"""Many clients do what they like with the same sessions, and the daemon is killed meanwhile (LOOP-07, LOG-08).

Whatever they do: the daemon reports no fault of its own, every log verifies, every Turn can be ended, and every session
goes on.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from tests.faults.soak import in_soak
from tests.harness import RunningDaemon, running_daemon
from tests.marks import NEEDS_CELLS

from turnd.v1 import common_pb2 as common
from turnd.v1 import sessions_pb2
from turnd_client.client import Client
from turnd_client.errors import ConnectionLost, Refused

pytestmark = [NEEDS_CELLS, pytest.mark.timeout(in_soak(1800, 240))]

CLIENTS = 5
ACTS = in_soak(400, 100)
"""Of each client."""
KILLS = in_soak(8, 2)
SESSIONS = 4

CONFIG = """
[profiles.default]
tools = ["workspace.*", "core.*"]
may_spawn = ["default"]
max_turns = 40
max_subagents_total = 6
limit_mode = "soft"

[limits]
max_consecutive_denials = 2
provider_idle_s = 1

[[policy]]
name = "agents and commands"
match = { tool = ["spawn_agent", "run_command"] }
action = "allow"
"""


def call(tool: str, **data: object) -> dict[str, object]:
    return {"tool": tool, "input": data}


def line(chance: random.Random) -> dict[str, object]:
    """Something that a model says."""
    streams: Mapping[str, list[dict[str, object]]] = {
        "text": [{"text": "hello"}],
        "reads": [call("read_file", path="a.txt"), call("list_dir", path=".")],
        "writes": [call("write_file", path=chance.choice("ab") + ".txt", content=str(chance.random()))],
        "command": [
            call("run_command", command=chance.choice(["sleep 0.1", "sleep 5 & true", "kill -9 $$"]))
        ],
        "agents": [call("spawn_agent", prompt=f"{name} {chance.random()}") for name in "pq"],
        "asks": [call("ask_user", question="which?")],
        "all": [
            call("read_file", path="a.txt"),
            call("write_file", path="c.txt", content="x"),
            call("spawn_agent", prompt="z"),
            call("run_command", command="true"),
        ],
        "circles": [call("read_file", path="a.txt")] * 3,
        "nonsense": [{"tool": "read_file", "arguments": '{"path": '}, {"tool": "nothing", "input": {}}],
        "fails": [{"text": "x"}],
        "slow": [{"text": "a"}, {"text": "b"}],
    }
    kind = chance.choice(list(streams))
    said: dict[str, object] = {
        "stream": streams[kind],
        "usage": {"input_tokens": 10, "output_tokens": 5},
    }
    if kind == "fails":
        category = chance.choice(["overloaded", "invalid_request", "stream_broken"])
        said["error"] = {"category": category, "message": "e", "after_deltas": 1}
    if kind == "slow":
        said["delay_s"] = 0.2
    return said


@dataclass
class Crowd:
    """The clients, and the sessions that they share."""

    chance: random.Random
    sessions: list[str]
    done: int = 0

    async def act(self, client: Client) -> None:
        """One thing that a client may do; most of the time it fits, and otherwise it is refused."""
        session = self.chance.choice(self.sessions)
        acts: list[Callable[[], Awaitable[Any]]] = [
            lambda: client.send_message(session, f"do {self.chance.random()}"),
            lambda: client.send_message(session, "steer", now=True),
            lambda: client.cancel(session, keep_queue=self.chance.random() < 0.5),
            lambda: client.clear_queue(session),
            lambda: client.continue_session(session, common.Bounds(max_turns=self.chance.randint(1, 300))),
            lambda: client.resume(session),
            lambda: self.answer(client, session),
            lambda: self.answer(client, session),
            lambda: client.update_session(session, plan_mode=self.chance.random() < 0.3),
            lambda: client.cost(session),
            lambda: self.fork(client, session),
            lambda: self.close(client, session),
        ]
        await self.chance.choice(acts)()

    async def answer(self, client: Client, session: str) -> None:
        for request in (await client.get_session(session)).session.open_requests:
            await self.settle(client, session, request)

    async def settle(self, client: Client, session: str, request: sessions_pb2.OpenRequest) -> None:
        if request.HasField("approval"):
            approve = self.chance.random() < 0.7
            await client.decide(session, request.approval.request_id, approve=approve)
        else:
            await client.answer(session, request.interactive.request_id, b'{"answer": "this"}')

    async def fork(self, client: Client, session: str) -> None:
        if self.chance.random() < 0.2:
            made = await client.fork(session)
            self.sessions[self.chance.randrange(SESSIONS)] = made.id

    async def close(self, client: Client, session: str) -> None:
        if self.chance.random() < 0.2:
            await client.close_session(session)

    async def keep_acting(self, client: Client) -> None:
        for _ in range(ACTS):
            try:
                await self.act(client)
            except (Refused, ConnectionLost):
                # It does not fit, or the daemon is gone: both are to be met with.
                await asyncio.sleep(0.01)
            self.done += 1


@pytest.mark.req("LOOP-07", "LOOP-10", "LOOP-11", "LOG-08")
@pytest.mark.parametrize("seed", range(in_soak(6, 1)))
async def test_whatever_clients_do_together_nothing_breaks(seed: int) -> None:
    chance = random.Random(seed)
    async with running_daemon(CONFIG) as daemon:
        (daemon.workspace / "a.txt").write_text("hello")
        end = {"stream": [{"text": "end"}], "repeat": True}
        child = {"profile": "default"}
        model = daemon.replay(
            *(line(chance) for _ in range(60)), *(line(chance) | child for _ in range(40)), end, end | child
        )
        made = [
            await daemon.client.create_session(str(daemon.workspace), model=model, unattended=number == 0)
            for number in range(SESSIONS)
        ]
        crowd = Crowd(chance, [session.id for session in made])
        clients = [await daemon.connect(f"client {number}") for number in range(CLIENTS)]
        try:
            acting = asyncio.gather(*(crowd.keep_acting(client) for client in clients))
            for number in range(1, KILLS + 1):
                while crowd.done < CLIENTS * ACTS * number / (KILLS + 1) and not acting.done():
                    await asyncio.sleep(0.05)
                await daemon.kill()
                await daemon.start()
            await acting
        finally:
            for client in clients:
                await client.close()
        await check_all(daemon)


async def check_all(daemon: RunningDaemon) -> None:
    """Every Turn can be ended, every log verifies, nothing is left open, and nothing was the daemon's fault."""
    everyone = [session.id async for session in daemon.client.list_sessions()]
    for session in everyone:
        found = await daemon.client.get_session(session)
        if found.HasField("open_turn") and not found.session.parent:
            # Refused where it has ended by itself meanwhile.
            with suppress(Refused):
                await daemon.client.cancel(session)
    for session in everyone:
        found = await daemon.client.get_session(session)
        assert not found.HasField("open_turn"), found
        assert not found.session.open_requests, found
        assert not (await daemon.client.verify_session(session)).faults
    entries = (json.loads(entry) for entry in daemon.log_text().splitlines() if entry.startswith("{"))
    assert not [entry for entry in entries if entry.get("level") in ("error", "critical")]
