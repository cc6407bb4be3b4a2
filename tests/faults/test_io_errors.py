"""Faults at every write: what failed is nowhere, what is published or run is on disk, and work goes on (LOG-14)."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import grpc
import pytest
from tests.faults.append_series import TRIES
from tests.faults.forge import Forge
from tests.faults.preload import EVERY, NEEDS_SHIM, Action, Kind
from tests.faults.soak import in_soak
from tests.faults.stored_sim import started
from tests.faults.survivors import check_survived
from tests.harness import RunningDaemon, prepared_daemon
from tests.marks import NEEDS_CELLS
from tests.unit.stored import query, stored_events

from turnd.store.transfer import verify_stored
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2
from turnd_client.errors import Refused

pytestmark = pytest.mark.timeout(in_soak(1800, 240))

MAKING = 31
"""The calls before this one make the file."""
EVERYTHING = Kind.WRITE | Kind.SYNC | Kind.TRUNCATE
FAULTS = [
    pytest.param(Kind.WRITE, errno.ENOSPC, 1, id="no space"),
    pytest.param(Kind.WRITE, Action.SHORT, 1, id="short write"),
    pytest.param(EVERYTHING, errno.EIO, 1, id="I/O error"),
    pytest.param(EVERYTHING, errno.EIO, 9, id="I/O errors for a while"),
]


def tries_said(directory: Path) -> dict[str, set[str]]:
    """The names of the tries, by what became of them."""
    said: dict[str, set[str]] = {"stored": set(), "failed": set(), "published": set()}
    for line in (directory / TRIES).read_text().splitlines():
        what, name = line.split()
        said[what].add(name)
    return said


async def on_disk(directory: Path) -> set[str]:
    """The names of the tries that the file has after a start; every log in it is lawful."""
    names: set[str] = set()
    async with started(directory) as (log, _):
        for (session,) in query(directory, "SELECT id FROM sessions"):
            names |= {event.producer.name for event in await stored_events(log, str(session))}
            assert not (await verify_stored(log, str(session))).faults
    return names - {""}


def places(stride: int) -> Iterator[int]:
    """Which call gets the fault: the first ones, which make the file, and then every so many."""
    yield from range(1, MAKING, in_soak(1, 5))
    yield from itertools.count(MAKING, stride)


@NEEDS_SHIM
@pytest.mark.req("LOG-14", "LOG-11")
@pytest.mark.parametrize(("kinds", "action", "count"), FAULTS)
async def test_a_fault_at_each_call_of_a_series_of_appends(
    memory_path: Path, shim: Path, kinds: Kind, action: int, count: int
) -> None:
    """What raised LogFailed was neither published nor stored; the same append is stored when it is tried again."""
    failures = 0
    with Forge("tests.faults.append_series", shim) as forge:
        for first in places(in_soak(1, 17)):
            here = memory_path / str(first)
            forge.run("each_fault", here, kinds=kinds, first=first, action=action, count=count)
            said = tries_said(here)
            assert said["published"] == said["stored"]
            assert await on_disk(here) == said["stored"]
            failures += len(said["failed"])
            calls = int((here / "calls").read_text())
            shutil.rmtree(here)
            if calls < first:
                break
    if action == Action.SHORT:
        assert not failures, "what was written in part is written on"
    else:
        assert failures > 3, "faults were met"


@NEEDS_SHIM
@pytest.mark.req("LOG-14", "LOG-12")
@pytest.mark.parametrize("kinds", [Kind.SYNC, EVERYTHING], ids=["sync", "everything"])
async def test_what_failed_does_not_come_back_when_the_daemon_is_killed_right_then(
    memory_path: Path, shim: Path, kinds: Kind
) -> None:
    """The frames of a commit whose sync failed are whole in the WAL, where a start would find them."""
    kills = 0
    with Forge("tests.faults.append_series", shim) as forge:
        for first in itertools.count(1) if kinds == Kind.SYNC else places(in_soak(1, 17)):
            here = memory_path / str(first)
            end = forge.run("end_at_fault", here, kinds=kinds, first=first, action=errno.EIO)
            said = tries_said(here)
            assert said["published"] == said["stored"]
            assert await on_disk(here) == said["stored"]
            kills += end.killed
            met = end.killed or int((here / "calls").read_text()) >= first
            shutil.rmtree(here)
            if not met:
                break
    assert kills > 1, "faults were met"


@NEEDS_SHIM
@pytest.mark.req("LOG-14", "LOG-12")
@pytest.mark.parametrize("count", [1, EVERY], ids=["one fault", "for ever"])
async def test_a_reader_does_not_bring_back_what_failed_when_the_daemon_is_killed_right_then(
    memory_path: Path, shim: Path, count: int
) -> None:
    """Who reads in a transaction that stays open keeps the WAL from being emptied, and a sick disk does as well."""
    kills = 0
    with Forge("tests.faults.append_series", shim) as forge:
        for first in itertools.count(1):
            here = memory_path / str(first)
            end = forge.run(
                "end_at_fault_beside_a_reader",
                here,
                kinds=Kind.SYNC,
                first=first,
                action=errno.EIO,
                count=count,
            )
            said = tries_said(here)
            assert said["published"] == said["stored"]
            assert await on_disk(here) == said["stored"]
            assert not [path for path in here.iterdir() if ".damaged-" in path.name]
            kills += end.killed
            met = end.killed or int((here / "calls").read_text()) >= first
            shutil.rmtree(here)
            if not met:
                break
    assert kills > 1, "faults were met"


@NEEDS_SHIM
@pytest.mark.req("LOG-14", "LOG-12")
@pytest.mark.parametrize("count", [1, EVERY], ids=["one fault", "for ever"])
async def test_nor_does_other_work_of_the_writer_come_back(memory_path: Path, shim: Path, count: int) -> None:
    """Removals and answers of commands are written in transactions of their own."""
    arguments = {"kinds": Kind.SYNC, "first": 1, "action": errno.EIO, "count": count}
    with Forge("tests.faults.append_series", shim) as forge:
        assert forge.run("end_at_failed_errand", memory_path, **arguments).killed
    async with started(memory_path) as (log, _):
        assert await log.answer_to("r") is None


@NEEDS_SHIM
@pytest.mark.req("LOG-14", "LOG-11", "LOG-21")
@pytest.mark.parametrize(("kinds", "action", "count"), FAULTS)
async def test_a_fault_at_each_call_of_a_rich_session(
    memory_path: Path, shim: Path, kinds: Kind, action: int, count: int
) -> None:
    """Nothing is dispatched that is not on disk, and the session works on in the same process."""
    stride = in_soak(3, 499)
    with Forge("tests.faults.rich_session", shim) as forge:
        for first in itertools.count(40, stride):
            here = memory_path / str(first)
            forge.run("through_faults", here, kinds=kinds, first=first, action=action, count=count)
            calls = int((here / "calls").read_text())
            await check_survived(here)
            shutil.rmtree(here)
            if calls < first:
                break


# --- a full disk under the real daemon ----------------------------------------------------------------------


STATE_BYTES = 8 * 2**20


@contextmanager
def small_disk(directory: Path) -> Iterator[None]:
    """A file system of 8 MB at this directory, for as long as the block lasts."""
    directory.mkdir(mode=0o700)
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    options = f"size={STATE_BYTES},mode=700"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)]
    done = subprocess.run(mount, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(directory)], timeout=30, check=True)


def append_for_ever(file: Path, block: bytes) -> None:
    with file.open("ab", buffering=0) as opened:
        while True:
            opened.write(block)


@contextmanager
def full(directory: Path) -> Iterator[None]:
    """Not a byte of room."""
    ballast = directory / "ballast"
    for size in (2**20, 4096, 1):
        with pytest.raises(OSError, match="No space left on device"):
            append_for_ever(ballast, b"x" * size)
    try:
        yield
    finally:
        ballast.unlink()


@asynccontextmanager
async def daemon_on_a_small_disk(config: str = "") -> AsyncIterator[RunningDaemon]:
    """Its state is on 8 MB."""
    async with prepared_daemon(config) as daemon:
        with small_disk(daemon.home / "state"):
            try:
                await daemon.start()
                yield daemon
            finally:
                if daemon.process is not None:
                    await daemon.stop()


def names(events: Sequence[event_pb2.Event]) -> list[str | None]:
    return [event.WhichOneof("data") for event in events]


async def refused_for_want_of_room(daemon: RunningDaemon, session: str) -> None:
    with pytest.raises(Refused) as refused:
        await daemon.client.send_message(session, "while there is no room")
    assert refused.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED


DONE = {"stream": [{"text": "Done."}]}
ALLOW_ALL = """
[[policy]]
name = "everything may run"
match = { provider = "workspace" }
action = "allow"
"""


@NEEDS_CELLS
@pytest.mark.req("LOG-14", "LOG-11", "V05")
async def test_a_disk_that_is_full_in_a_turn() -> None:
    """The result of a call that ends then is not stored: the Turn ends `error` once there is room, and work goes on."""
    async with daemon_on_a_small_disk(ALLOW_ALL) as daemon:
        command = "echo begun > mark; cat gate; echo second > again"
        lines = (
            {"stream": [{"tool": "run_command", "input": {"command": command}}]},
            {"stream": [{"tool": "run_command", "input": {"command": "echo never > never"}}]},
            DONE,
        )
        pid = daemon.pid
        gate = daemon.workspace / "gate"
        os.mkfifo(gate)
        session = await daemon.client.create_session(str(daemon.workspace), model=daemon.replay(*lines))
        await daemon.client.send_message(session.id, "go")
        before = await daemon.events(session.id, lambda event: event.HasField("tool_started"))
        async with asyncio.timeout(30):
            while not (daemon.workspace / "mark").exists():
                await asyncio.sleep(0.02)
        with full(daemon.home / "state"):
            await asyncio.to_thread(gate.write_text, "go\n")
            async with asyncio.timeout(30):
                while not (daemon.workspace / "again").exists():
                    await asyncio.sleep(0.02)
                while "the log takes no events" not in daemon.log_text():
                    await asyncio.sleep(0.02)
            await refused_for_want_of_room(daemon, session.id)
            published = (await daemon.client.get_session(session.id)).as_of_seq
            assert published == before[-1].seq, "nothing was published that could not be stored"
            assert not (daemon.workspace / "never").exists()
        events = await daemon.events(session.id, lambda event: event.HasField("turn_end"))
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        end = events[-1].turn_end
        assert end.reason == common.TURN_END_REASON_ERROR
        (stopping,) = [event.turn_stopping for event in events if event.HasField("turn_stopping")]
        assert (stopping.error.source, stopping.error.category) == ("log", "commit_failed")
        assert not any(event.synthetic for event in events), "no repair, and no start, was needed"
        again = await daemon.run(session.id, "go on")
        assert again[-1].turn_end.reason == common.TURN_END_REASON_COMPLETED
        assert daemon.pid == pid
        assert (await daemon.client.status()).pid == pid
        assert not (await daemon.client.verify_session(session.id)).faults


@NEEDS_CELLS
@pytest.mark.req("LOG-14", "LOG-12", "V05")
async def test_a_disk_that_is_full_in_an_approval() -> None:
    """A decision that cannot be stored is refused, the request stays open, and nothing runs; later it can be made."""
    async with daemon_on_a_small_disk() as daemon:
        lines = (
            {"stream": [{"tool": "write_file", "input": {"path": "a.txt", "content": "hello"}}]},
            DONE,
        )
        session = await daemon.client.create_session(str(daemon.workspace), model=daemon.replay(*lines))
        await daemon.client.send_message(session.id, "go")
        before = await daemon.events(session.id, lambda event: event.HasField("approval_delivered"))
        (asked,) = [event.approval_request for event in before if event.HasField("approval_request")]
        with full(daemon.home / "state"):
            for _ in range(2):
                with pytest.raises(Refused) as refused:
                    await daemon.client.decide(session.id, asked.request_id, approve=True)
                assert refused.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
            await refused_for_want_of_room(daemon, session.id)
            found = await daemon.client.get_session(session.id)
            assert found.as_of_seq == before[-1].seq
            assert [one.approval.request_id for one in found.session.open_requests] == [asked.request_id]
            assert not (daemon.workspace / "a.txt").exists()
        decided = await daemon.client.decide(session.id, asked.request_id, approve=True)
        assert decided.outcome == common.APPROVAL_OUTCOME_APPROVED
        events = await daemon.events(session.id, lambda event: event.HasField("turn_end"))
        assert names(events).count("approval_decided") == 1
        assert events[-1].turn_end.reason == common.TURN_END_REASON_COMPLETED
        assert (daemon.workspace / "a.txt").read_text() == "hello"
        assert not (await daemon.client.verify_session(session.id)).faults


@NEEDS_CELLS
@pytest.mark.req("LOG-14", "V05", "MODEL-08")
async def test_a_disk_that_is_full_in_a_compaction() -> None:
    """A summary that cannot be stored replaces nothing: the Turn ends `error` once there is room, and work goes on."""
    async with daemon_on_a_small_disk() as daemon:
        said = {"stream": [{"text": "w" * 2000}], "usage": {"input_tokens": 10, "output_tokens": 2}}
        summary = {"purpose": "compaction", "stream": [{"text": "in short " * 20}], "repeat": True}
        model = daemon.replay(
            {"model": {"context_window": 4000, "max_output_tokens": 1000}},
            *[said] * 5,
            summary | {"chunk": 6, "delay_s": 0.1},
            DONE | {"repeat": True},
        )
        pid = daemon.pid
        session = (await daemon.client.create_session(str(daemon.workspace), model=model)).id
        for number in range(5):
            await daemon.run(session, f"wish {number}")
        before = (await daemon.client.get_session(session)).as_of_seq
        await daemon.client.send_message(session, "the last wish")
        compaction = common.REQUEST_PURPOSE_COMPACTION
        asked = await daemon.events(
            session, lambda event: event.agent_request.purpose == compaction, after_seq=before
        )
        with full(daemon.home / "state"):
            async with asyncio.timeout(30):
                while "the log takes no events" not in daemon.log_text():
                    await asyncio.sleep(0.02)
            await refused_for_want_of_room(daemon, session)
            found = await daemon.client.get_session(session)
            assert found.as_of_seq == asked[-1].seq, "nothing was published that could not be stored"
            (problem,) = found.problems
            assert "takes nothing" in problem
        events = await daemon.events(session, lambda event: event.HasField("turn_end"), after_seq=before)
        assert events[-1].turn_end.reason == common.TURN_END_REASON_ERROR
        assert "context_compacted" not in names(events)
        again = await daemon.run(session, "go on")
        assert "context_compacted" in names(again)
        assert again[-1].turn_end.reason == common.TURN_END_REASON_COMPLETED
        assert daemon.pid == pid
        assert not (await daemon.client.verify_session(session)).faults
