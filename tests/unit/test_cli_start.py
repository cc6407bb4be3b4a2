"""Finding and starting a daemon, and following one that goes away."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.unit.rpc_fakes import SESSION, note, served

from turnd_client.errors import Refused, StartFailed, StayedAway
from turnd_client.follow import follow
from turnd_client.start import start_service

SYSTEMCTL = """#!/bin/sh
echo "$*" >> "{log}"
case "$2" in {cases} esac
"""


def with_systemctl(directory: Path, cases: str) -> dict[str, str]:
    program = directory / "systemctl"
    program.write_text(SYSTEMCTL.format(log=directory / "asked", cases=cases))
    program.chmod(0o755)
    return {"PATH": f"{directory}:/usr/bin:/bin"}


async def test_the_service_is_started_where_it_is_installed(tmp_path: Path) -> None:
    assert await start_service(with_systemctl(tmp_path, "*) exit 0;;"))
    assert (tmp_path / "asked").read_text() == "--user cat turnd.service\n--user start turnd.service\n"


async def test_where_it_is_not_installed_it_is_not_started(tmp_path: Path) -> None:
    assert not await start_service(with_systemctl(tmp_path, "cat) exit 1;;"))
    assert (tmp_path / "asked").read_text() == "--user cat turnd.service\n"
    (tmp_path / "empty").mkdir()
    assert not await start_service({"PATH": str(tmp_path / "empty")})


async def test_a_home_of_its_own_is_no_business_of_the_service(tmp_path: Path) -> None:
    environment = with_systemctl(tmp_path, "*) exit 0;;")
    assert not await start_service({**environment, "TURND_HOME": str(tmp_path)})
    assert not (tmp_path / "asked").exists()


async def test_a_service_that_fails_is_said_where_to_look(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="journalctl --user -u turnd"):
        await start_service(with_systemctl(tmp_path, "start) exit 1;;"))


@pytest.mark.req("RPC-01", "OPS-05")
async def test_following_goes_on_from_its_cursor_when_the_daemon_is_back(short_path: Path) -> None:
    lost: list[str] = []
    async with served(short_path) as first:
        first.tail.commit(note(1), note(2))
        client = first.client()
        updates = follow(client, SESSION, lost=lambda error: lost.append(str(error)))
        before = await anext(updates)
        assert ([event.seq for event in before.events], before.caught_up) == ([1, 2], True)
        waiting = asyncio.ensure_future(anext(updates))
    async with served(short_path) as second:
        second.tail.commit(note(1), note(2), note(3))
        after = await waiting
        assert [event.seq for event in after.events] == [3]
        await updates.aclose()
        await client.close()
    assert len(lost) == 1


async def test_a_daemon_that_stays_away_ends_the_following(short_path: Path) -> None:
    async with served(short_path) as it:
        client = it.client()
        updates = follow(client, SESSION, patience_s=0.2)
        await anext(updates)
    with pytest.raises(
        StayedAway, match="did not come back within 0 s; any turn command starts it again, then: turn attach"
    ):
        await anext(updates)
    await client.close()


@pytest.mark.req("C07")
async def test_silence_without_heartbeats_is_a_dead_daemon_and_with_them_a_quiet_one(
    short_path: Path,
) -> None:
    lost: list[str] = []
    async with served(short_path, heartbeat_s=0.02) as it, it.client() as client:
        updates = follow(client, SESSION, lost=lambda error: lost.append(str(error)), silence_s=0.3)
        await anext(updates)
        waiting = asyncio.ensure_future(anext(updates))
        heard = 0
        async for response in client.attach(SESSION):
            heard += response.heartbeat
            if heard == 40:
                break
        it.tail.commit(note(1))
        assert [event.seq for event in (await waiting).events] == [1]
        await updates.aclose()
    assert lost == []
    async with served(short_path, heartbeat_s=60) as it, it.client() as client:
        told = asyncio.Event()
        updates = follow(client, SESSION, lost=lambda _: told.set(), silence_s=0.05)
        await anext(updates)
        waiting = asyncio.ensure_future(anext(updates))
        await told.wait()
        it.tail.commit(note(1))
        assert [event.seq for event in (await waiting).events] == [1]
        await updates.aclose()


async def test_a_refusal_is_not_tried_again(short_path: Path) -> None:
    async with served(short_path) as it, it.client() as client:
        with pytest.raises(Refused):
            await anext(follow(client, "01BX5ZZKBKACTAV9WEVGEMMVRZ"))
