"""Commands with a request id, over a real log: carried out once, answered as often as they are sent."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.unit.stored import TickingClock, created, database, note, opened, query

from turnd.ports import AnsweredRequest, LogFailed
from turnd.rules.state import Violation
from turnd.sessions.refusal import Code, CommandRefused, not_now
from turnd.sessions.requests import MAX_REQUEST_ID, Answering, Requests, digest_of
from turnd.store import answers as answers_module
from turnd.store import writer as writer_module
from turnd.store.log import EventLog
from turnd.v1 import common_pb2 as common
from turnd.v1 import sessions_pb2

pytestmark = pytest.mark.req("RPC-04")

ROWS = "SELECT request_id, method FROM requests ORDER BY request_id"
DAY_US = 86400 * 1_000_000


def send(
    text: str = "hello", *, request_id: str = "r1", client: str = "a"
) -> sessions_pb2.SendMessageRequest:
    block = common.ContentBlock(text=common.TextBlock(text=text))
    return sessions_pb2.SendMessageRequest(request_id=request_id, client=client, session="A", blocks=[block])


class Notes:
    """A command that writes one event, and says its seq; it can be held up before it writes."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.requests = Requests(log)
        self.runs = 0
        self.entered = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self.refuses = False

    async def _run(
        self, answering: Answering[sessions_pb2.SendMessageResponse]
    ) -> sessions_pb2.SendMessageResponse:
        self.runs += 1
        self.entered.set()
        await self.gate.wait()
        if self.refuses:
            raise not_now("not now")

        def answer(events: object) -> sessions_pb2.SendMessageResponse:
            assert isinstance(events, list)
            return sessions_pb2.SendMessageResponse(message_id="m", seq=events[-1].seq)

        return answer(await self.log.append(note("A"), answered=answering.by(answer)))

    async def once(self, request: sessions_pb2.SendMessageRequest) -> sessions_pb2.SendMessageResponse:
        return await self.requests.once(request, sessions_pb2.SendMessageResponse, self._run)


async def test_the_answer_is_stored_with_the_event_and_given_again_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("A"))
        notes = Notes(log)
        first = await notes.once(send())
        assert first.seq == 2
        assert await notes.once(send(client="another name")) == first
        assert notes.runs == 1
    async with opened(tmp_path) as log:
        notes = Notes(log)
        assert await notes.once(send()) == first
        assert notes.runs == 0
        await log.load("A")
        assert log.state("A").seq == 2
    assert query(tmp_path, ROWS) == [("r1", "SendMessage")]


async def test_a_duplicate_waits_for_the_first(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("A"))
        notes = Notes(log)
        notes.gate.clear()
        tasks = [asyncio.create_task(notes.once(send())) for _ in range(5)]
        await notes.entered.wait()
        assert not any(task.done() for task in tasks)
        notes.gate.set()
        assert [answer.seq for answer in await asyncio.gather(*tasks)] == [2] * 5
        assert notes.runs == 1


async def test_an_id_with_another_content_is_refused_while_the_first_runs_and_afterwards(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("A"))
        notes = Notes(log)
        notes.gate.clear()
        first = asyncio.create_task(notes.once(send()))
        await notes.entered.wait()
        for _ in range(2):
            with pytest.raises(CommandRefused, match="used before, for another SendMessage") as refused:
                await notes.once(send("bye"))
            assert (refused.value.code, refused.value.field_name) == (Code.INVALID_ARGUMENT, "request_id")
            notes.gate.set()
            await first
        cancel = sessions_pb2.CancelRequest(request_id="r1", session="A")
        with pytest.raises(CommandRefused, match="used before, for a SendMessage"):
            await notes.requests.once(cancel, sessions_pb2.SendMessageResponse, notes._run)
        assert notes.runs == 1


async def test_a_refused_command_is_not_stored(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("A"))
        notes = Notes(log)
        notes.refuses = True
        with pytest.raises(CommandRefused):
            await notes.once(send())
        assert query(tmp_path, ROWS) == []
        notes.refuses = False
        assert (await notes.once(send())).seq == 2


async def test_without_an_id_each_one_is_carried_out(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("A"))
        notes = Notes(log)
        answers = [await notes.once(send(request_id="")) for _ in range(2)]
        assert [answer.seq for answer in answers] == [2, 3]
        assert query(tmp_path, ROWS) == []


async def test_an_id_has_a_bound(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        with pytest.raises(CommandRefused, match=f"at most {MAX_REQUEST_ID} characters"):
            await Notes(log).once(send(request_id="x" * (MAX_REQUEST_ID + 1)))


async def test_a_client_that_leaves_does_not_stop_its_command(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("A"))
        notes = Notes(log)
        notes.gate.clear()
        leaving = asyncio.create_task(notes.once(send()))
        await notes.entered.wait()
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        again = asyncio.create_task(notes.once(send()))
        notes.gate.set()
        assert (await again).seq == 2
        assert notes.runs == 1


async def test_a_stop_waits_for_commands_that_nobody_waits_for(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("A"))
        notes = Notes(log)
        notes.gate.clear()
        leaving = asyncio.create_task(notes.once(send()))
        await notes.entered.wait()
        leaving.cancel()
        closing_down = asyncio.create_task(notes.requests.close())
        notes.gate.set()
        await closing_down
        assert log.state("A").seq == 2
        assert query(tmp_path, ROWS) == [("r1", "SendMessage")]


async def test_a_command_without_an_event_is_stored_by_itself(tmp_path: Path) -> None:
    async def nothing(
        answering: Answering[sessions_pb2.ClearQueueResponse],
    ) -> sessions_pb2.ClearQueueResponse:
        runs.append(answering)
        return sessions_pb2.ClearQueueResponse(message_ids=[str(len(runs))])

    runs: list[object] = []
    request = sessions_pb2.ClearQueueRequest(request_id="r1", session="A")
    for _ in range(2):
        async with opened(tmp_path) as log:
            answer = await Requests(log).once(request, sessions_pb2.ClearQueueResponse, nothing)
            assert answer.message_ids == ["1"]
    assert len(runs) == 1


def answered(request_id: str, events: list[object] | None = None) -> AnsweredRequest:
    def answer(numbered: object) -> bytes:
        if events is not None:
            events.append(numbered)
        return b"answer"

    return AnsweredRequest(request_id, "SendMessage", b"digest", answer)


async def test_nothing_of_a_command_is_stored_where_its_event_is_not(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("A"))
        asked: list[object] = []
        with pytest.raises(Violation):
            await log.append(created("A"), answered=answered("r1", asked))
        assert asked == [], "the answer is made of what was checked"
        log.unload("A")
        with pytest.raises(LogFailed):
            # In memory nobody knows the session any more, so that only the file refuses it.
            await log.append(created("A"), answered=answered("r2", asked))
        assert len(asked) == 1
        assert query(tmp_path, ROWS) == []
        await log.append(created("B"), answered=answered("r3"))
        with pytest.raises(LogFailed):
            await log.append(created("C"), answered=answered("r3"))
        assert query(tmp_path, "SELECT id FROM sessions ORDER BY key") == [("A",), ("B",)]
        assert await log.answer_to("r2") is None
        assert await log.answer_to("r3") is not None


async def test_answers_are_kept_for_seven_days_and_then_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "IDLE_S", 0.01)
    monkeypatch.setattr(answers_module, "MAX_FORGOTTEN", 2)
    clock = TickingClock()

    async def left(ids: list[str]) -> None:
        async with asyncio.timeout(30):
            while [row[0] for row in query(tmp_path, ROWS)] != ids:
                await asyncio.sleep(0.01)

    async with opened(tmp_path, clock) as log:
        await log.append(created("A"))
        for number in range(3):
            await log.append(note("A"), answered=answered(f"old{number}"))
        clock.us += 6 * DAY_US
        await log.append(note("A"), answered=answered("recent"))
        clock.us += DAY_US
        await log.append(note("A"), answered=answered("new"))
        await left(["new", "old2", "recent"])
        await log.append(note("A"))
        await left(["new", "recent"])
        # A clock that was set back makes nothing older.
        clock.us -= 30 * DAY_US
        await log.append(note("A"), answered=answered("back"))
        await log.append(note("A"))
    with closing(sqlite3.connect(database(tmp_path))) as connection:
        assert connection.execute("SELECT count(*) FROM requests").fetchone() == (3,)


def test_the_digest_is_of_the_content_alone() -> None:
    request = sessions_pb2.CreateSessionRequest(request_id="1", client="a", cwd="/w")
    for name in "abcdefgh":
        request.environment[name] = name
    other = sessions_pb2.CreateSessionRequest(request_id="2", client="b", cwd="/w")
    for name in "hgfedcba":
        other.environment[name] = name
    assert digest_of(request) == digest_of(other)
    other.environment["a"] = "b"
    assert digest_of(request) != digest_of(other)
    assert request.request_id == "1"
