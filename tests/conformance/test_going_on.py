"""Continue, Resume and UpdateSession through the daemon, as people use them (LOOP-11, LOOP-14, BOUND-04)."""

from __future__ import annotations

import asyncio

import pytest
from tests.harness import RunningDaemon, running_daemon
from tests.marks import NEEDS_CELLS

from turnd.v1 import common_pb2 as common
from turnd_client.errors import Refused

pytestmark = [NEEDS_CELLS, pytest.mark.timeout(120)]

SOFT = """
default_profile = "soft"

[profiles.soft]
tools = ["workspace.*", "core.*"]
max_turns = 1
limit_mode = "soft"
"""
READ = {"stream": [{"tool": "list_dir", "input": {"path": "."}}]}
STATUSES = common.SessionStatus


async def quiet(daemon: RunningDaemon, session: str) -> common.SessionStatus.ValueType:
    """The status of the session once no Turn is open."""
    events = [event async for event in _until_idle(daemon, session)]
    assert events
    return (await daemon.client.get_session(session)).session.status


async def _until_idle(daemon: RunningDaemon, session: str):  # type: ignore[no-untyped-def]
    async for answer in daemon.client.attach(session):
        for event in answer.events:
            yield event
        if answer.caught_up or answer.events:
            now = await daemon.client.get_session(session)
            if not now.HasField("open_turn"):
                return


@pytest.mark.req("BOUND-04", "LOOP-14")
async def test_a_paused_session_takes_nothing_but_continue_and_then_goes_on() -> None:
    async with running_daemon(SOFT) as daemon:
        model = daemon.replay(READ, {"stream": [{"text": "finished"}], "expect": {"tools": True}})
        made = await daemon.client.create_session(str(daemon.workspace), model=model)
        await daemon.run(made.id, "go")
        assert await quiet(daemon, made.id) == common.SESSION_STATUS_PAUSED
        with pytest.raises(Refused, match="continue it with a new allowance"):
            await daemon.client.send_message(made.id, "more")
        short = await daemon.turn("continue", made.id, "--max-turns", "1")
        assert short.code == 1
        assert "max_turns (limit 1 steps, used 1)" in short.stderr
        done = await daemon.turn("continue", made.id, "--max-turns", "9")
        assert done.code == 0, done.stderr
        assert await quiet(daemon, made.id) == common.SESSION_STATUS_IDLE
        shown = await daemon.client.get_session(made.id)
        assert shown.session.steps == 2
        assert shown.session.last_reason == common.TURN_END_REASON_COMPLETED


@pytest.mark.req("BOUND-04", "BOUND-09", "LOOP-06", "L06")
async def test_a_session_that_a_doom_loop_ended_goes_on_with_a_new_row() -> None:
    async with running_daemon() as daemon:
        last = {"stream": [{"text": "stopped"}], "expect": {"tools": False}}
        again = {"stream": [{"text": "better"}], "expect": {"tools": True}}
        model = daemon.replay(READ, READ, READ, last, READ, again)
        made = await daemon.client.create_session(str(daemon.workspace), model=model)
        await daemon.run(made.id, "go")
        assert await quiet(daemon, made.id) == common.SESSION_STATUS_ERROR_DOOM_LOOP
        done = await daemon.turn("continue", made.id)
        assert done.code == 0, done.stderr
        assert await quiet(daemon, made.id) == common.SESSION_STATUS_IDLE


@pytest.mark.req("LOOP-11", "RPC-04")
async def test_a_cancelled_turn_is_resumed_once_however_often_it_is_asked() -> None:
    async with running_daemon() as daemon:
        model = daemon.replay({"stream": [{"text": "slow"}], "hang_s": 60}, {"stream": [{"text": "done"}]})
        made = await daemon.client.create_session(str(daemon.workspace), model=model)
        await daemon.client.send_message(made.id, "go")
        await daemon.events(made.id, lambda e: e.WhichOneof("data") == "assistant_chunk")
        await daemon.client.cancel(made.id)
        answers = await asyncio.gather(
            *(daemon.client.resume(made.id) for _ in range(20)), return_exceptions=True
        )
        resumed = [a for a in answers if not isinstance(a, BaseException)]
        assert len(resumed) == 1
        assert all(isinstance(a, Refused) for a in answers if isinstance(a, BaseException))
        assert await quiet(daemon, made.id) == common.SESSION_STATUS_IDLE
        shown = await daemon.client.get_session(made.id)
        assert (shown.session.turns, shown.session.last_reason) == (2, common.TURN_END_REASON_COMPLETED)
        with pytest.raises(Refused, match="nothing to resume"):
            await daemon.client.resume(made.id)


@pytest.mark.req("LOOP-14")
async def test_what_a_session_runs_under_is_changed_and_holds_from_the_next_turn() -> None:
    config = "[profiles.bare]\ntools = []\nmax_turns = 7\n"
    async with running_daemon(config) as daemon:
        model = daemon.replay(
            {"stream": [{"text": "a"}], "expect": {"tools": True}},
            {"stream": [{"text": "b"}], "expect": {"tools": False}},
        )
        made = await daemon.client.create_session(str(daemon.workspace), model=model)
        await daemon.run(made.id, "go")
        refused = await daemon.turn("set", made.id, "--profile", "nobody")
        assert refused.code != 0
        assert "bare" in refused.stderr
        done = await daemon.turn("set", made.id, "--title", "renamed", "--profile", "bare", "--plan")
        assert done.code == 0, done.stderr
        shown = await daemon.client.get_session(made.id)
        assert (shown.session.title, shown.session.profile, shown.session.plan_mode) == (
            "renamed",
            "bare",
            True,
        )
        assert shown.bounds.max_turns == 7
        events = await daemon.run(made.id, "again")
        assert events[-1].turn_end.reason == common.TURN_END_REASON_COMPLETED
