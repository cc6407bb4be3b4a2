"""Request ids against the real daemon, which is killed as soon as it has answered."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing

import grpc
import pytest
from tests.harness import RunningDaemon, running_daemon
from tests.marks import NEEDS_CELLS

from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2, sessions_pb2
from turnd_client.errors import Refused

pytestmark = [pytest.mark.timeout(120), pytest.mark.req("RPC-04")]

DONE = {"stream": [{"text": "Done."}]}
SLOW = {"stream": [{"text": "x" * 40_000}], "chunk": 10, "delay_s": 0.05}
WRITE = {"stream": [{"tool": "write_file", "input": {"path": "a.txt", "content": "hello\n"}}]}


async def restart(daemon: RunningDaemon) -> None:
    """Nothing is flushed, closed or said: what is not in the file is gone."""
    await daemon.kill()
    await daemon.start()


async def log_of(daemon: RunningDaemon, session: str) -> list[event_pb2.Event]:
    seq = (await daemon.client.get_session(session)).as_of_seq
    return await daemon.events(session, lambda event: event.seq == seq)


def of_type(events: list[event_pb2.Event], field: str) -> list[event_pb2.Event]:
    return [event for event in events if event.HasField(field)]  # type: ignore[arg-type]


def stored(daemon: RunningDaemon) -> list[str]:
    with closing(sqlite3.connect(f"file:{daemon.database}?mode=ro", uri=True)) as connection:
        return [row[0] for row in connection.execute("SELECT request_id FROM requests ORDER BY at_us")]


async def running_session(daemon: RunningDaemon, *lines: dict[str, object]) -> str:
    """A session in the middle of its first Turn, and what its later Turns say."""
    model = daemon.replay(SLOW, *lines)
    session = (await daemon.client.create_session(str(daemon.workspace), model=model)).id
    await daemon.client.send_message(session, "go")
    await daemon.events(session, lambda event: event.HasField("assistant_chunk"))
    return session


async def test_create_and_send_are_done_once_though_the_daemon_was_killed_in_between() -> None:
    async with running_daemon() as daemon:
        model = daemon.replay(DONE)

        async def create() -> sessions_pb2.Session:
            return await daemon.client.create_session(
                str(daemon.workspace),
                model=model,
                environment={"LANG": "C", "TERM": "x"},
                request_id="create",
            )

        session = await create()
        await restart(daemon)
        assert await create() == session
        sent = await daemon.client.send_message(session.id, "hello", request_id="send")
        await restart(daemon)
        assert await daemon.client.send_message(session.id, "hello", request_id="send") == sent
        other = await daemon.connect("another name")
        async with other:
            assert await other.send_message(session.id, "hello", request_id="send") == sent

        events = await log_of(daemon, session.id)
        (queued,) = of_type(events, "inbox_queued")
        assert (queued.inbox_queued.message_id, queued.seq) == (sent.message_id, sent.seq)
        assert len([each async for each in daemon.client.list_sessions()]) == 1
        assert stored(daemon) == ["create", "send"]

        with pytest.raises(Refused, match="used before, for another SendMessage") as refused:
            await daemon.client.send_message(session.id, "something else", request_id="send")
        assert refused.value.code is grpc.StatusCode.INVALID_ARGUMENT
        assert refused.value.field == "request_id"
        with pytest.raises(Refused, match="used before, for a SendMessage"):
            await daemon.client.clear_queue(session.id, request_id="send")
        assert len(of_type(await log_of(daemon, session.id), "inbox_queued")) == 1


async def test_a_message_that_was_left_in_the_queue_runs_when_its_sender_asks_again() -> None:
    async with running_daemon() as daemon:
        session = await running_session(daemon, DONE)
        sent = await daemon.client.send_message(session, "and then", request_id="send")
        await restart(daemon)
        found = await daemon.client.get_session(session)
        assert [message.message_id for message in found.session.queued] == [sent.message_id]
        assert await daemon.client.send_message(session, "and then", request_id="send") == sent
        events = await daemon.events(session, lambda event: event.HasField("turn_end") and event.turn == 1)
        assert events[-1].turn_end.reason == common.TURN_END_REASON_COMPLETED
        assert len(of_type(events, "inbox_queued")) == 2
        # What was taken before the kill is not taken again.
        assert await daemon.client.send_message(session, "and then", request_id="send") == sent
        assert (await daemon.client.get_session(session)).session.turns == 2


async def test_a_cancel_that_comes_again_does_not_cancel_the_next_turn() -> None:
    async with running_daemon() as daemon:
        session = await running_session(daemon, SLOW)
        await daemon.client.send_message(session, "queued")
        assert await daemon.client.cancel(session, request_id="cancel") == 0
        await restart(daemon)
        assert await daemon.client.cancel(session, request_id="cancel") == 0
        with pytest.raises(Refused, match="a session must be running to have its turn cancelled"):
            await daemon.client.cancel(session)

        await daemon.client.send_message(session, "again")
        await daemon.events(session, lambda event: event.HasField("assistant_chunk") and event.turn == 1)
        assert await daemon.client.cancel(session, request_id="cancel") == 0
        found = await daemon.client.get_session(session)
        assert found.open_turn == 1
        events = await log_of(daemon, session)
        (stopping,) = of_type(events, "turn_stopping")
        (cleared,) = of_type(events, "inbox_cleared")
        assert cleared.seq == stopping.seq - 1, "what is cleared is in the transaction of turn/stopping"


async def test_cancels_at_the_same_time_have_one_effect_and_each_an_answer() -> None:
    async with running_daemon() as daemon:
        session = await running_session(daemon)
        same = [daemon.client.cancel(session, request_id="one") for _ in range(3)]
        turns = await asyncio.gather(*same, daemon.client.cancel(session, request_id="two"))
        assert turns == [0, 0, 0, 0]
        assert len(of_type(await log_of(daemon, session), "turn_stopping")) == 1
        await restart(daemon)
        for request_id in ("one", "two"):
            assert await daemon.client.cancel(session, request_id=request_id) == 0


async def test_a_client_that_is_killed_in_the_middle_gets_its_answer_later() -> None:
    async with running_daemon() as daemon:
        session = await running_session(daemon)
        leaving = await daemon.connect("leaving")
        waiting = asyncio.create_task(leaving.close_session(session, request_id="close"))
        await daemon.events(session, lambda event: event.HasField("turn_stopping"))
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await leaving.close()
        closed = await daemon.client.close_session(session, request_id="close")
        assert closed.status == common.SESSION_STATUS_CANCELLED
        await restart(daemon)
        assert await daemon.client.close_session(session, request_id="close") == closed
        assert len(of_type(await log_of(daemon, session), "session_ended")) == 1


async def test_a_close_of_a_session_that_was_reopened_since_does_not_close_it_again() -> None:
    async with running_daemon() as daemon:
        model = daemon.replay(DONE)
        session = (await daemon.client.create_session(str(daemon.workspace), model=model)).id
        closed = await daemon.client.close_session(session, request_id="close")
        await daemon.run(session, "reopen")
        assert await daemon.client.close_session(session, request_id="close") == closed
        assert (await daemon.client.get_session(session)).session.status == common.SESSION_STATUS_IDLE


async def test_an_empty_queue_that_was_cleared_is_not_cleared_later() -> None:
    async with running_daemon() as daemon:
        session = await running_session(daemon)
        assert await daemon.client.clear_queue(session, request_id="clear") == []
        sent = await daemon.client.send_message(session, "later")
        await restart(daemon)
        assert await daemon.client.clear_queue(session, request_id="clear") == []
        assert await daemon.client.clear_queue(session, request_id="clear it now") == [sent.message_id]
        assert await daemon.client.clear_queue(session, request_id="clear it now") == [sent.message_id]


@NEEDS_CELLS
async def test_a_decision_that_comes_again_is_no_late_one() -> None:
    async with running_daemon() as daemon:
        model = daemon.replay(WRITE, DONE)
        session = (await daemon.client.create_session(str(daemon.workspace), model=model)).id
        await daemon.client.send_message(session, "write")
        events = await daemon.events(session, lambda event: event.HasField("approval_request"))
        approval = events[-1].approval_request.request_id
        decided = await daemon.client.decide(session, approval, approve=True, request_id="decide")
        await restart(daemon)
        assert await daemon.client.decide(session, approval, approve=True, request_id="decide") == decided
        with pytest.raises(Refused, match="was settled before"):
            await daemon.client.decide(session, approval, approve=True)
        assert len(of_type(await log_of(daemon, session), "approval_decided")) == 1
