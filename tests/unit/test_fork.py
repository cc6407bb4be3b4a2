"""A fork shares a log up to one event, and nothing that acts (LOG-22)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.going_on import Desk, as_in_their_file, desk, file_of, own
from tests.unit.session_log import SessionLog, check_vendor_accepts
from tests.unit.stored import payloads
from tests.unit.test_import import lived_in

from turnd.rules.event import Draft
from turnd.rules.lifecycle import is_ended
from turnd.sessions.refusal import Code, CommandRefused
from turnd.store.transfer import verify_lines
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

pytestmark = pytest.mark.req("LOG-22", "LOG-17")


async def stored(at: Desk, log: SessionLog, session: str = "01SOURCE", cwd: str = "") -> str:
    """The log of the tests, as one of the daemon's own."""
    for event in log.events:
        payload = getattr(event, event.WhichOneof("data") or "")
        if isinstance(payload, event_pb2.SessionCreated):
            payload.cwd = payload.workspace = cwd or str(at.cwd)
        await at.log.append(Draft(session, payload, synthetic=event.synthetic))
    return session


async def test_a_fork_works_as_the_session_did_and_starts_without_cost(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        source = await stored(at, lived_in())
        before = at.log.view(source)
        fork = await at.fork(source)
        view = at.log.view(fork.id)
        assert (view.cwd, view.title, view.environment) == (before.cwd, "Theirs", before.environment)
        assert (view.profile.model, view.bounds, view.plan_mode) == ("their/model", before.bounds, True)
        assert (view.grants, view.queue, len(view.open_requests)) == ((), (), 0)
        assert (view.cost_nano_usd, view.turns, view.steps, view.parent, view.depth) == (0, 0, 0, "", 0)
        assert fork.status == common.SESSION_STATUS_IDLE
        created = next(e for e in own(await at.events(fork.id)) if e.HasField("session_created"))
        assert created.session_created.forked_from == event_pb2.Origin(session=source, seq=before.last_seq)
        assert at.log.view(source) == before, "nothing of the source changes"
        assert at.log.state(source).requests, "and what it asks stays open"


async def test_a_fork_at_any_event_is_a_session_that_can_go_on(tmp_path: Path) -> None:
    log = lived_in()
    async with desk(tmp_path) as at:
        source = await stored(at, log)
        for seq in range(1, len(log.events) + 1):
            fork = await at.fork(source, seq)
            events = await at.events(fork.id)
            shared = as_in_their_file(events)
            assert shared == (await at.events(source))[:seq]
            state = at.log.state(fork.id)
            assert state.open_turn is None
            assert not is_ended(fork.status)
            check_vendor_accepts(await at.history(fork.id))
            assert verify_lines([await at.export(fork.id)]).lawful
            await at.log.append(Draft(fork.id, event_pb2.TurnStart(turn=state.next_turn)))


async def test_what_was_so_then_counts_not_what_is_so_now(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        source = await stored(at, SessionLog().turn().answer("a").end_turn())
        then = at.log.view(source).last_seq
        profile = common.ProfileSnapshot(name="other", model="m2")
        change = event_pb2.SessionChanged(profile=profile, title="new", plan_mode=True)
        await at.log.append(Draft(source, change))
        early, late = await at.fork(source, then), await at.fork(source)
        assert (early.profile, early.title, early.plan_mode) == ("", "", False)
        assert (late.profile, late.title, late.plan_mode) == ("other", "new", True)


async def test_a_sub_agent_and_an_ended_session_can_be_forked(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        child = SessionLog(event_pb2.SessionCreated(parent="p", depth=1)).turn().answer("a").end_turn()
        child.add(event_pb2.SessionEnded(status=common.SESSION_STATUS_COMPLETED))
        fork = await at.fork(await stored(at, child))
        assert (fork.parent, fork.depth, fork.status) == ("", 0, common.SESSION_STATUS_IDLE)
        assert not at.log.state(fork.id).ended


async def test_a_fork_of_an_imported_session_and_of_a_fork(tmp_path: Path) -> None:
    log = lived_in()
    async with desk(tmp_path) as at:
        imported = (await at.import_(file_of(log.events))).session.id
        within = await at.fork(imported, 3)
        assert at.log.view(within.id).cwd == str(at.cwd), (
            "what the importing client said holds for its history"
        )
        whole = await at.fork((await at.fork(imported)).id)
        events = await at.events(whole.id)
        assert [e.imported.session for e in events[: len(log.events)]] == [log.events[0].session] * len(
            log.events
        ), "an event keeps the mark of where it was made"
        assert payloads(own(events)) == ["session_created", "session_status"]
        check_vendor_accepts(await at.history(whole.id))


async def test_a_seq_past_the_end_and_a_directory_that_is_gone_are_refused(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        source = await stored(at, SessionLog())
        with pytest.raises(CommandRefused, match="from 1 to 1") as refused:
            await at.fork(source, 2)
        assert (refused.value.code, refused.value.field_name) == (Code.OUT_OF_RANGE, "seq")
        elsewhere = await stored(at, SessionLog(), session="01GONE", cwd="/nowhere/at/all")
        with pytest.raises(CommandRefused, match="not a directory"):
            await at.fork(elsewhere)
        assert await at.log.catalogue.count() == 2


def test_the_log_takes_no_history_after_the_session_was_created() -> None:
    log = SessionLog()
    late = log.event(event_pb2.Note(text="x"))
    late.imported.session = "other"
    assert log.refused(late) == "imported event after session/created"
