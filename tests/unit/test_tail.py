"""Following the log: from any cursor, without gap and duplicate, from disk and from memory (RPC-01)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from tests.unit.stored import created, note, opened, stored_events

from turnd.ports import UnknownSession
from turnd.sessions import tail as tail_module
from turnd.sessions.tail import Batch, CursorOutOfRange, Tail
from turnd.store.log import EventLog
from turnd.store.reader import Row
from turnd.v1 import event_pb2

pytestmark = pytest.mark.req("RPC-01")


class CountedReads:
    """The log, with a count of what is read from disk."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.reads = 0
        self.subscribe = log.subscribe
        self.head = log.head

    @property
    def position(self) -> int:
        return self.log.position

    async def blobs(self, session: str, after_seq: int, through_seq: int) -> Sequence[Row]:
        self.reads += 1
        return await self.log.blobs(session, after_seq, through_seq)

    async def blobs_of_all(self, after_position: int, through_position: int) -> Sequence[Row]:
        self.reads += 1
        return await self.log.blobs_of_all(after_position, through_position)


@asynccontextmanager
async def logged(
    directory: Path, max_bytes: int = 2**20
) -> AsyncIterator[tuple[EventLog, Tail, CountedReads]]:
    async with opened(directory) as log:
        source = CountedReads(log)
        yield log, Tail(source, max_bytes), source


async def batches(tail: Tail, session: str | None, after: int, until: int) -> list[Batch]:
    """What a follower gets until it has the event at this cursor and is caught up."""
    got: list[Batch] = []
    async with aclosing(tail.follow(session, after)) as following:
        async for batch in following:
            got.append(batch)
            cursor = batch.last_position if session is None else batch.last_seq
            if cursor >= until and any(one.caught_up for one in got):
                return got
    raise AssertionError("following never ends by itself")


def events(got: Sequence[Batch]) -> list[event_pb2.Event]:
    return [event_pb2.Event.FromString(blob) for batch in got for blob in batch.blobs]


@pytest.mark.parametrize("max_bytes", [0, 3000, 2**20])
async def test_every_cursor_gives_exactly_the_rest(tmp_path: Path, max_bytes: int) -> None:
    """From disk alone, from both, and from memory alone."""
    async with logged(tmp_path, max_bytes) as (log, tail, source):
        await log.append(created("A"), created("B"))
        for number in range(20):
            await log.append(note("A", f"a{number}"), note("B", f"b{number}"))
        everything = {name: await stored_events(log, name) for name in "AB"}
        for cursor in range(22):
            got = await batches(tail, "A", cursor, 21)
            assert events(got) == everything["A"][cursor:]
            assert [batch.caught_up for batch in got] == [False] * (len(got) - 1) + [True]
            assert got[-1].last_seq == 21
        for cursor in range(43):
            got = await batches(tail, None, cursor, 42)
            assert len(events(got)) == 42 - cursor
            assert (got[-1].last_position, got[-1].last_seq) == (42, 0)
        whole = events(await batches(tail, None, 0, 42))
        for name in "AB":
            assert [event for event in whole if event.session == name] == everything[name]
        assert (source.reads == 0) == (max_bytes == 2**20)


@pytest.mark.parametrize("max_bytes", [0, 2000, 2**20])
async def test_what_is_committed_while_following_comes_once_and_in_order(
    tmp_path: Path, max_bytes: int
) -> None:
    chance = random.Random(7)
    async with logged(tmp_path, max_bytes) as (log, tail, _):
        await log.append(created("A"), created("B"), *(note("A", str(n)) for n in range(30)))

        async def write(session: str) -> None:
            for number in range(60):
                await log.append(*(note(session, str(number)) for _ in range(chance.randint(1, 4))))
                if chance.random() < 0.3:
                    await asyncio.sleep(0)
            await log.append(note(session, "last"))

        async def follow(session: str | None, after: int) -> list[Batch]:
            got: list[Batch] = []
            lasts = 0
            async with aclosing(tail.follow(session, after)) as following:
                async for batch in following:
                    got.append(batch)
                    lasts += sum(event.note.text == "last" for event in events([batch]))
                    if chance.random() < 0.5:
                        await asyncio.sleep(0.001 * chance.random())
                    if lasts == (2 if session is None else 1):
                        return got
            raise AssertionError

        cursors = [0, 1, 17, 31]
        followers = [asyncio.ensure_future(follow("A", cursor)) for cursor in cursors]
        of_all = [asyncio.ensure_future(follow(None, cursor)) for cursor in (0, 5, 32)]
        await asyncio.gather(write("A"), write("B"))
        stored = await stored_events(log, "A")
        for cursor, follower in zip(cursors, followers, strict=True):
            got = await follower
            assert events(got) == stored[cursor:]
            assert [batch.caught_up for batch in got].count(True) == 1
        seen = [events(await follower) for follower in of_all]
        assert seen[0][5:] == seen[1]
        assert seen[0][32:] == seen[2]
        assert [event for event in seen[0] if event.session == "A"] == stored


async def test_caught_up_comes_after_what_was_there_and_before_what_is_new(tmp_path: Path) -> None:
    async with logged(tmp_path) as (log, tail, _):
        await log.append(created("A"), note("A"), note("A"))
        async with aclosing(tail.follow("A", 0)) as following:
            first = await anext(following)
            assert (len(first.blobs), first.caught_up, first.last_seq) == (3, True, 3)
            await log.append(note("A"))
            second = await anext(following)
            assert (len(second.blobs), second.caught_up, second.last_seq) == (1, False, 4)
        async with aclosing(tail.follow("A", 4)) as following:
            assert await anext(following) == Batch((), 4, 0, caught_up=True)
        async with aclosing(tail.follow(None, 4)) as following:
            assert await anext(following) == Batch((), 0, 4, caught_up=True)


@pytest.mark.parametrize("max_bytes", [0, 2**24])
async def test_what_comes_before_a_slow_follower_is_caught_up_waits_for_that(
    tmp_path: Path, max_bytes: int
) -> None:
    async with logged(tmp_path, max_bytes) as (log, tail, _):
        await log.append(created("A"), *(note("A") for _ in range(2199)))
        async with aclosing(tail.follow("A", 0)) as following:
            got = [await anext(following)]
            await log.append(note("A", "new"))
            while not got[-1].caught_up:
                got.append(await anext(following))
            assert [len(batch.blobs) for batch in got] == [1000, 1000, 200]
            assert got[-1].last_seq == 2200
            assert [event.note.text for event in events([await anext(following)])] == ["new"]


async def test_a_batch_fits_in_a_message_of_the_transport(tmp_path: Path) -> None:
    async with logged(tmp_path, 2**24) as (log, tail, _):
        await log.append(created("A"))
        await log.append(*(note("A", "x" * 300_000) for _ in range(20)))
        await log.append(note("A", "y" * 3_000_000), *(note("A") for _ in range(2500)))
        for session in ("A", None):
            got = await batches(tail, session, 0, 2522)
            assert len(events(got)) == 2522
            large = [batch for batch in got if sum(map(len, batch.blobs)) > tail_module.BATCH_BYTES]
            assert [len(batch.blobs) for batch in large] == [1]
            assert max(len(batch.blobs) for batch in got) <= tail_module.BATCH_EVENTS


async def test_a_follower_is_woken_by_its_own_session_only(tmp_path: Path) -> None:
    async with logged(tmp_path) as (log, tail, source):
        await log.append(created("A"), created("B"))
        async with aclosing(tail.follow("A", 1)) as following:
            assert (await anext(following)).caught_up
            waiting = asyncio.ensure_future(anext(following))
            for _ in range(5):
                await log.append(note("B"))
                await asyncio.sleep(0)
            assert not waiting.done()
            await log.append(note("A", "mine"), note("B"))
            assert [event.note.text for event in events([await waiting])] == ["mine"]
        assert source.reads == 0


@pytest.mark.parametrize("cursor", [-1, 3, 10**12])
async def test_a_cursor_that_no_event_gave_is_refused(tmp_path: Path, cursor: int) -> None:
    async with logged(tmp_path) as (log, tail, _):
        await log.append(created("A"), note("A"))
        for session in ("A", None):
            with pytest.raises(CursorOutOfRange) as caught:
                await anext(tail.follow(session, cursor))
            assert (caught.value.after, caught.value.head) == (cursor, 2)
        with pytest.raises(UnknownSession):
            await anext(tail.follow("B", 0))


async def test_a_session_from_before_the_start_is_followed_from_disk_into_memory(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("A"), note("A", "old"))
    async with logged(tmp_path) as (log, tail, source):
        async with aclosing(tail.follow("A", 0)) as following:
            old = await anext(following)
            assert (len(old.blobs), old.caught_up) == (2, True)
            await log.load("A")
            await log.append(note("A", "new"))
            new = await anext(following)
            assert [event.note.text for event in events([new])] == ["new"]
        assert source.reads == 1
        assert [event.seq for event in events(await batches(tail, "A", 1, 3))] == [2, 3]


async def test_followers_that_leave_leave_nothing_behind(tmp_path: Path) -> None:
    async with logged(tmp_path, 0) as (log, tail, _):
        await log.append(created("A"))
        async with aclosing(tail.follow("A", 0)) as following:
            await anext(following)
            waiting = asyncio.ensure_future(anext(following))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        with pytest.raises(UnknownSession):
            await anext(tail.follow("B", 0))
        assert tail.remembered == (0, 0)
        await log.append(note("A"))
        assert tail.remembered == (0, 0)


async def test_memory_is_bounded_in_bytes(tmp_path: Path) -> None:
    async with logged(tmp_path, 20_000) as (log, tail, _):
        await log.append(*(created(f"S{n}") for n in range(50)))
        for number in range(200):
            await log.append(note(f"S{number % 50}", "x" * 1000))
            sessions, size = tail.remembered
            assert 0 < size <= 20_000
            assert sessions <= 50
        assert len(events(await batches(tail, None, 0, 250))) == 250
