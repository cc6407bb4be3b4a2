"""A long import or fork is made ready beside the loop, published in slices, and bounded in memory (LOG-17)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from tests.unit.going_on import desk, file_of
from tests.unit.session_log import SessionLog, says, text
from tests.unit.stored import TickingClock, created, note, query, turn

from turnd.rules import state as rules
from turnd.rules.event import Draft
from turnd.rules.status import SessionView, advance
from turnd.sessions import fork as fork_module
from turnd.sessions.importing import parts_of
from turnd.sessions.places import Places
from turnd.sessions.refusal import Code, CommandRefused
from turnd.store import intake, live
from turnd.store.intake import PUBLISHED_AT_ONCE, Committed
from turnd.store.pace import EVENTS, Pace, Stopped
from turnd.v1 import event_pb2, sessions_pb2

pytestmark = [pytest.mark.req("LOG-17"), pytest.mark.timeout(60)]


def long_log(events: int = 3 * PUBLISHED_AT_ONCE) -> SessionLog:
    log = SessionLog().turn()
    while len(log.events) < events:
        log.step().add(says(text("a"))).end_step()
    return log.end_turn()


class HeldClock(TickingClock):
    """Whoever asks for the time in another thread than the loop's waits until a test lets it go on."""

    def __init__(self) -> None:
        super().__init__()
        self._loop_thread = threading.get_ident()
        self.entered = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.go_on = threading.Event()

    def now_us(self) -> int:
        if threading.get_ident() != self._loop_thread:
            self._loop.call_soon_threadsafe(self.entered.set)
            assert self.go_on.wait(30)
        return super().now_us()


@pytest.mark.parametrize("kind", ["import", "fork"])
async def test_no_event_of_the_history_is_folded_in_the_thread_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    log = long_log(400)
    async with desk(tmp_path) as at:
        source = (await at.import_(file_of(log.events))).session.id
        folded: Counter[int] = Counter()

        def counted(state: rules.SessionState, event: event_pb2.Event) -> rules.SessionState:
            folded[threading.get_ident()] += 1
            return rules.apply(state, event)

        def advanced(view: SessionView, event: event_pb2.Event) -> SessionView:
            folded[threading.get_ident()] += 1
            return advance(view, event)

        monkeypatch.setattr(live, "apply", counted)
        monkeypatch.setattr(fork_module, "advance", advanced)
        if kind == "import":
            await at.import_(file_of(log.events))
        else:
            await at.fork(source)
        assert folded.total() >= len(log.events)
        assert folded[threading.get_ident()] == 0


async def test_other_sessions_go_on_while_one_is_imported_and_nobody_sees_it_before_it_is_whole(
    tmp_path: Path,
) -> None:
    clock = HeldClock()
    async with desk(tmp_path, clock) as at:
        await at.log.append(*_begun("01OTHER"))
        importing = asyncio.create_task(at.import_(file_of(long_log().events)))
        await clock.entered.wait()
        for number in range(20):
            await at.log.append(note("01OTHER", str(number)))
        assert not importing.done()
        assert await at.log.catalogue.count() == 1
        clock.go_on.set()
        imported = await importing
        assert await at.log.catalogue.count() == 2
        assert len(await at.events(imported.session.id)) == imported.session.last_seq


async def test_the_loop_turns_while_a_session_is_imported(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        turns = 0

        async def tick() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        ticking = asyncio.create_task(tick())
        published: list[tuple[int, int]] = []
        at.log.subscribe(lambda committed: published.append((turns, len(committed))))
        await at.import_(file_of(long_log().events))
        ticking.cancel()
        assert len(published) > 2
        assert all(size <= PUBLISHED_AT_ONCE for _, size in published)
        assert len({turn for turn, _ in published}) == len(published), (
            "others had a turn between any two slices"
        )
        assert turns > 50


async def test_slices_are_published_in_order_and_before_what_was_committed_after_them(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        await at.log.append(*_begun("01OTHER"))
        seen: list[Committed] = []
        told: list[int] = []
        later: list[asyncio.Task[list[event_pb2.Event]]] = []

        def published(committed: Sequence[Committed]) -> None:
            if not seen:
                later.append(asyncio.create_task(at.log.append(note("01OTHER"))))
                later[0].add_done_callback(lambda _: told.append(len(seen)))
            seen.extend(committed)

        at.log.subscribe(published)
        imported = await at.import_(file_of(long_log().events))
        of_import = imported.session.last_seq
        assert [one.event.seq for one in seen[:of_import]] == list(range(1, of_import + 1))
        await later[0]
        assert [one.position for one in seen] == list(
            range(seen[0].position, seen[0].position + of_import + 1)
        )
        assert seen[-1].event.session == "01OTHER"
        await asyncio.sleep(0)
        assert told == [of_import + 1]
        assert at.log.position == seen[-1].position


async def test_a_log_that_is_closed_between_two_slices_has_published_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "PUBLISHED_AT_ONCE", 1)
    first = asyncio.Event()
    seen: list[Committed] = []

    def published(committed: Sequence[Committed]) -> None:
        seen.extend(committed)
        first.set()
        # A loop that is busy, so that the slices take longer than everything else that a close waits for.
        time.sleep(0.002)

    async with desk(tmp_path) as at:
        at.log.subscribe(published)
        importing = asyncio.create_task(at.import_(file_of(long_log(600).events)))
        await first.wait()
        assert not importing.done()
    assert len(seen) == (await importing).session.last_seq


async def test_an_import_that_is_cancelled_while_it_is_made_ready_is_not_there(tmp_path: Path) -> None:
    clock = HeldClock()
    async with desk(tmp_path, clock) as at:
        importing = asyncio.create_task(at.import_(file_of(long_log(100).events)))
        await clock.entered.wait()
        importing.cancel()
        clock.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await importing
        await at.log.append(*_begun("01OTHER"))
    assert query(tmp_path, "SELECT id FROM sessions") == [("01OTHER",)]


def test_work_that_is_stopped_ends_within_a_few_events() -> None:
    pace = Pace()

    def work(events: int) -> None:
        for _ in range(events):
            pace.passed(1)

    work(2 * EVENTS)
    pace.stop()
    with pytest.raises(Stopped):
        work(EVENTS)


async def test_no_more_histories_are_in_memory_than_there_are_places() -> None:
    places = Places(2)
    inside, waiting = asyncio.Event(), asyncio.Event()

    async def use(leave: asyncio.Event) -> None:
        async with places.one():
            inside.set()
            await leave.wait()

    first, second = asyncio.Event(), asyncio.Event()
    users = [asyncio.create_task(use(leave)) for leave in (first, second)]
    await inside.wait()
    inside.clear()
    third = asyncio.create_task(use(waiting))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not inside.is_set()
    second.set()
    await inside.wait()
    for leave in (first, waiting):
        leave.set()
    await asyncio.gather(*users, third)


async def test_a_place_is_taken_until_its_command_has_ended_though_its_client_left() -> None:
    places = Places(1)
    async with places.one() as place:
        command = place.held()
        command.__enter__()
    other = asyncio.create_task(places.one().__aenter__())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not other.done()
    command.__exit__(None, None, None)
    await other


async def test_a_client_that_stalls_in_the_middle_of_its_file_does_not_keep_its_place() -> None:
    async def requests() -> AsyncIterator[sessions_pb2.ImportRequest]:
        yield sessions_pb2.ImportRequest(start=sessions_pb2.ImportStart())
        yield sessions_pb2.ImportRequest(lines=b"x")
        await asyncio.Event().wait()

    _, lines = await parts_of(requests(), stalled_s=0.01)
    with pytest.raises(CommandRefused, match="nothing was imported") as refused:
        _ = [part async for part in lines]
    assert refused.value.code is Code.UNAVAILABLE


@pytest.mark.req("LOG-22")
async def test_a_fork_has_the_bound_of_an_import_and_says_where_it_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path) as at:
        source = (await at.import_(file_of(long_log(30).events))).session.id
        monkeypatch.setattr(fork_module, "MAX_HISTORY_EVENTS", 12)
        with pytest.raises(CommandRefused, match="the last event that can be forked at is 12") as refused:
            await at.fork(source)
        assert refused.value.code is Code.RESOURCE_EXHAUSTED
        assert (await at.fork(source, 12)).last_seq > 12
        monkeypatch.setattr(fork_module, "MAX_HISTORY_BYTES", 100)
        with pytest.raises(CommandRefused, match="100 bytes"):
            await at.fork(source, 12)


def _begun(session: str) -> tuple[Draft, Draft]:
    return created(session), turn(session)
