"""An imported session: a history that is kept without loss and acts on nothing (LOG-17, LOG-22)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.going_on import Desk, as_in_their_file, desk, events_of, file_of, own, raw
from tests.unit.session_log import (
    SessionLog,
    asks,
    call,
    check_vendor_accepts,
    decided,
    planned,
    questions,
    result,
    says,
    started,
    text,
    user,
    uses,
)
from tests.unit.stored import payloads, query

from turnd.ports import LogFailed
from turnd.rules.event import Draft
from turnd.rules.state import Violation
from turnd.sessions.refusal import Code, CommandRefused
from turnd.store import arrival
from turnd.store.transfer import verify_lines
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2, sessions_pb2

GOLDEN = (Path(__file__).parent.parent / "golden" / "events.jsonl").read_bytes()
RESOURCE = common.TOOL_KIND_RESOURCE

pytestmark = pytest.mark.req("LOG-17")


def lived_in() -> SessionLog:
    """A session with something of everything that acts: cost, a grant, a bound, a queue, open requests, plan mode."""
    bounds = common.Bounds(max_turns=1, max_cost_nano_usd=5)
    profile = common.ProfileSnapshot(name="theirs", model="their/model", bounds=bounds)
    log = SessionLog(
        event_pb2.SessionCreated(
            cwd="/theirs", profile=profile, environment={"PATH": "/evil"}, plan_mode=True, title="Theirs"
        )
    )
    log.turn("first").step()
    log.add(event_pb2.Usage(model="m", tokens=common.TokenCounts(input_tokens=3), cost_nano_usd=9))
    log.calls("c1", kind=RESOURCE).add(event_pb2.PlanReady(items=[planned("c1", common.POLICY_ACTION_ASK)]))
    log.add(asks("r1", "c1"))
    granted = decided("r1", scope=common.APPROVAL_SCOPE_SESSION)
    granted.grant.provider = "workspace"
    log.add(granted, started("c1"), result("c1"), event_pb2.PlanApplied()).end_step()
    hit = common.LimitHit(dimension=common.LIMIT_DIMENSION_MAX_TURNS, limit=1, value=1)
    log.end_turn().add(event_pb2.InboxQueued(message_id="m9", blocks=[text("later")]))
    log.turn("second").add(event_pb2.LimitReached(hits=[hit])).step()
    log.calls("c2", "c3", kind=RESOURCE)
    log.add(call("c4", kind=common.TOOL_KIND_INTERACTIVE, index=2))
    items = [planned("c2"), planned("c3", common.POLICY_ACTION_ASK)]
    return log.add(event_pb2.PlanReady(items=items), started("c2"), asks("r2", "c3"), questions("q1", "c4"))


@pytest.mark.req("LOG-22")
async def test_an_imported_session_goes_on_under_what_the_client_says(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        imported = await at.import_(file_of(lived_in().events))
        session = imported.session
        assert (session.cwd, session.profile, session.title) == (str(at.cwd), "default", "Theirs")
        assert (session.turns, session.steps, session.cost_nano_usd) == (0, 0, 0)
        assert session.tokens == common.TokenCounts()
        assert (list(session.queued), list(session.open_requests)) == ([], [])
        assert (session.plan_mode, session.status) == (False, common.SESSION_STATUS_IDLE)
        assert session.last_reason == common.TURN_END_REASON_INTERRUPTED
        view = at.log.view(session.id)
        assert dict(view.environment) == {"LANG": "C"}
        assert view.sandbox == "bubblewrap"
        assert (view.grants, view.bounds, len(view.requests_made)) == ((), common.Bounds(), 0)
        created = next(e for e in own(await at.events(session.id)) if e.HasField("session_created"))
        assert created.session_created.client == "cli"
        for table in ("usage_ledger", "plan_items", "producers"):
            assert query(tmp_path, f"SELECT count(*) FROM {table}") == [(0,)], table


@pytest.mark.req("LOG-22", "LOG-08")
async def test_what_was_open_is_closed_by_the_routine_of_crash_repair(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        session = (await at.import_(file_of(lived_in().events))).session.id
        events = await at.events(session)
        added = own(events)
        assert payloads(added) == [
            "session_created",
            "interactive_answered",
            "approval_decided",
            "tool_result",
            "tool_result",
            "tool_result",
            "plan_applied",
            "step_end",
            "turn_end",
            "session_status",
        ]
        assert all(event.synthetic for event in added[1:])
        results = [e.tool_result for e in added if e.HasField("tool_result")]
        assert [(r.call_id, r.category) for r in results] == [
            ("c2", common.TOOL_ERROR_CATEGORY_INTERRUPTED),
            ("c3", common.TOOL_ERROR_CATEGORY_NOT_STARTED),
            ("c4", common.TOOL_ERROR_CATEGORY_NOT_STARTED),
        ]
        assert added[2].approval_decided.outcome == common.APPROVAL_OUTCOME_EXPIRED
        assert added[-2].turn_end.reason == common.TURN_END_REASON_INTERRUPTED
        assert (await at.log.catalogue.unsettled()) == []
        check_vendor_accepts(await at.history(session))


@pytest.mark.req("LOG-22", "LOG-01")
async def test_the_session_goes_on_from_the_highest_numbers(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        session = (await at.import_(file_of(lived_in().events))).session.id
        state = at.log.state(session)
        assert (state.next_turn, state.open_turn, state.limit) == (2, None, None)
        assert set(state.used_call_ids) == {"c1", "c2", "c3", "c4"}
        await at.log.append(
            Draft(session, event_pb2.TurnStart(turn=2)),
            Draft(session, user("go on")),
            Draft(session, event_pb2.StepStart(turn=2, step=1)),
        )
        report = verify_lines([await at.export(session)])
        assert report.lawful
        assert report.open


async def test_the_events_of_the_file_come_out_as_they_went_in(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        for file in (GOLDEN, file_of(lived_in().events)):
            imported = await at.import_(file[:7], file[7:1000], file[1000:])
            exported = events_of(await at.export(imported.session.id))
            assert as_in_their_file(exported) == events_of(file)
            assert imported.events == len(events_of(file))
            assert [e.seq for e in exported] == list(range(1, len(exported) + 1))
            assert {e.session for e in exported} == {imported.session.id}
            assert exported[: imported.events] == [e for e in exported if e.HasField("imported")]


@pytest.mark.req("LOG-18")
async def test_what_a_newer_version_wrote_is_history_too(tmp_path: Path) -> None:
    lines = GOLDEN.splitlines(keepends=True)
    newer = json.loads(lines[1]) | {"type": "moon/phase", "data": {"light": 1.1}, "tide": 9007199254740993}
    file = lines[0] + json.dumps(newer).encode() + b"\n"
    async with desk(tmp_path) as at:
        session = (await at.import_(file)).session.id
        line = json.loads((await at.export(session)).splitlines()[1])
        assert (line["type"], line["data"], line["tide"]) == ("moon/phase", {"light": 1.1}, 9007199254740993)
        assert line["imported"] == {"session": newer["session"], "seq": 2}


async def test_an_export_of_an_imported_session_is_imported_again(tmp_path: Path) -> None:
    """What was history stays marked as it was; numbers stay; the second session's own part becomes history."""
    async with desk(tmp_path) as at:
        first = (await at.import_(file_of(lived_in().events))).session.id
        once = await at.export(first)
        again = await at.import_(once)
        assert again.faults_in_all == 0
        exported = events_of(await at.export(again.session.id))
        copied = exported[: again.events]
        for copy, original in zip(copied, events_of(once), strict=True):
            assert copy.seq == original.seq
            had = original.HasField("imported")
            mark = original.imported if had else event_pb2.Origin(session=first, seq=original.seq)
            assert copy.imported == mark
        added = exported[again.events :]
        assert payloads(added) == ["session_created", "session_status"]
        assert await at.history(again.session.id) == await at.history(first)


def replay_of(at: Desk, session: str) -> tuple[object, object]:
    return at.log.state(session), at.log.view(session)


@pytest.mark.req("LOG-13")
async def test_a_restart_gives_the_same_session(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        session = (await at.import_(file_of(lived_in().events))).session.id
        before = replay_of(at, session)
        history = await at.history(session)
    async with desk(tmp_path) as at:
        await at.log.load(session)
        assert replay_of(at, session) == before
        assert await at.history(session) == history


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        (b"", "no events"),
        (b"\n \n", "no events"),
        (GOLDEN + b"nonsense\n", f"line {len(GOLDEN.splitlines()) + 1} is no event"),
        (b"\xff\xfe\n", "line 1 is no event of a log: not UTF-8"),
        (b"PK\x03\x04 not a log", "line 1 is no event"),
        (b'{"session": "s", "seq": "one", "type": "note", "data": {}}\n', "line 1 is no event of a log: seq"),
        (GOLDEN[:-20], "the file ends in the middle of this line"),
    ],
)
async def test_what_is_no_log_is_refused_with_its_line(tmp_path: Path, file: bytes, problem: str) -> None:
    async with desk(tmp_path) as at:
        with pytest.raises(CommandRefused) as refused:
            await at.import_(file)
        assert refused.value.code is Code.INVALID_ARGUMENT
        assert problem in refused.value.text
        assert "nothing was imported" in refused.value.text
        assert await at.log.catalogue.count() == 0
        assert at.log.position == 0


async def test_a_file_of_several_sessions_is_refused_with_what_to_do(tmp_path: Path) -> None:
    other = GOLDEN.replace(b"01JZY3K5V7Q8W9E0R1T2Y3U4I5", b"OTHER")
    async with desk(tmp_path) as at:
        with pytest.raises(CommandRefused, match=r"of another session, 'OTHER'.*a file of its own"):
            await at.import_(GOLDEN + other)
        assert await at.log.catalogue.count() == 0


async def test_an_import_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrival, "MAX_HISTORY_EVENTS", 5)
    async with desk(tmp_path) as at:
        with pytest.raises(CommandRefused, match="line 6 is beyond what one import takes: 5 events"):
            await at.import_(GOLDEN)
    monkeypatch.setattr(arrival, "MAX_HISTORY_EVENTS", 10**6)
    monkeypatch.setattr(arrival, "MAX_HISTORY_BYTES", 3000)
    async with desk(tmp_path) as at:
        with pytest.raises(CommandRefused, match=r"beyond what one import takes: .* 3000 bytes"):
            await at.import_(GOLDEN)
        assert await at.log.catalogue.count() == 0


@pytest.mark.req("LOG-14")
async def test_an_import_that_cannot_be_stored_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path) as at:
        with monkeypatch.context() as patch:

            def full(*_: object) -> None:
                raise OSError("no space left on device")

            patch.setattr("turnd.store.writer.write_session_row", full)
            with pytest.raises(LogFailed):
                await at.import_(GOLDEN)
        assert query(tmp_path, "SELECT count(*) FROM events") == [(0,)]
        imported = await at.import_(GOLDEN)
        assert await at.log.catalogue.count() == 1
        assert (await at.events(imported.session.id))[0].seq == 1


async def test_the_first_part_must_say_where_the_session_works(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        with pytest.raises(CommandRefused) as refused:
            await at.send(sessions_pb2.ImportRequest(lines=GOLDEN))
        assert refused.value.field_name == "start"
        with pytest.raises(CommandRefused) as refused:
            await at.import_(GOLDEN, profile="nobody's")
        assert refused.value.field_name == "profile"


@pytest.mark.parametrize(
    ("last", "problem"),
    [
        ([], "the stream ended before the file did"),
        ([sessions_pb2.ImportRequest(end=sessions_pb2.ImportEnd(bytes=7))], "expected 7 bytes"),
        ([sessions_pb2.ImportRequest()], "expected the next lines of the file"),
    ],
)
async def test_a_stream_that_was_cut_off_imports_nothing(
    tmp_path: Path, last: list[sessions_pb2.ImportRequest], problem: str
) -> None:
    """Also where it was cut between two lines, so that what had come was a log."""
    async with desk(tmp_path) as at:
        start = sessions_pb2.ImportRequest(start=sessions_pb2.ImportStart(cwd=str(at.cwd)))
        with pytest.raises(CommandRefused, match=problem):
            await at.send(start, sessions_pb2.ImportRequest(lines=GOLDEN), *last)
        assert await at.log.catalogue.count() == 0


# --- logs that break the rules --------------------------------------------------------------------------------


def broken_pairs() -> SessionLog:
    """A lone result, two results for one call, one call id in two Turns, and a call without any."""
    log = SessionLog().turn().step()
    raw(log, (event_pb2.Event(tool_result=result("lone")), 0, 1))
    log.calls("c1", "c2").add(result("c1", "first"))
    raw(log, (event_pb2.Event(tool_result=result("c1", "second")), 0, 1))
    log.add(result("c2")).end_step().end_turn()
    log.turn("again").step().add(says(uses("c1"), uses("c9")))
    raw(
        log,
        (event_pb2.Event(tool_call=call("c1")), 1, 1),
        (event_pb2.Event(tool_result=result("c1", "third")), 1, 1),
    )
    return log


@pytest.mark.req("S05", "MODEL-06", "LOG-22")
async def test_a_log_with_broken_pairs_is_kept_and_what_the_model_is_sent_is_valid(tmp_path: Path) -> None:
    log = broken_pairs()
    file = file_of(log.events)
    async with desk(tmp_path) as at:
        imported = await at.import_(file)
        lines = {fault.line: fault.message for fault in imported.faults}
        lone, second, again, third = (
            index
            for index, event in enumerate(log.events, 1)
            if event.tool_result.call_id == "lone"
            or event.tool_result.content in (b'"second"', b'"third"')
            or (event.HasField("tool_call") and event.turn == 1)
        )
        assert lines == {
            lone: "tool/result without open tool/call",
            second: "tool/result without open tool/call",
            again: "tool/call id already used",
            third: "tool/result without open tool/call",
        }
        assert imported.faults_in_all == 4
        session = imported.session.id
        assert as_in_their_file(await at.events(session)) == log.events
        messages = await at.history(session)
        check_vendor_accepts(messages)
        contents = [
            json.loads(block.tool_result.content)
            for message in messages
            for block in message.blocks
            if block.HasField("tool_result")
        ]
        assert contents == ["first", "done", "third", "no result: not started"]
        report = verify_lines([await at.export(session)])
        assert report.lawful, "what is history is exempt"


@pytest.mark.req("S02", "S03", "LOG-22")
@pytest.mark.parametrize("open_calls", [1, 2, 8])
@pytest.mark.parametrize("answered", ["none", "the second", "all"])
async def test_calls_without_results_get_them(tmp_path: Path, open_calls: int, answered: str) -> None:
    names = [f"c{number}" for number in range(open_calls)]
    log = SessionLog().turn().step().calls(*names)
    with_result = {"none": [], "the second": names[1:2], "all": names}[answered]
    log.add(*(result(name) for name in with_result))
    async with desk(tmp_path) as at:
        session = (await at.import_(file_of(log.events))).session.id
        messages = await at.history(session)
        check_vendor_accepts(messages)
        blocks = [block.tool_result for block in messages[2].blocks]
        assert [block.call_id for block in blocks] == names
        assert [block.call_id for block in blocks if not block.is_error] == with_result


def renumbered() -> bytes:
    """Turns, Steps and seqs with numbers that do not follow."""
    log = SessionLog().turn().step().add(says(text("a"))).end_step().end_turn().turn().step()
    file = file_of(log.events)
    return file.replace(b'"turn": 1', b'"turn": 41').replace(b'"seq": 5,', b'"seq": 50,')


@pytest.mark.req("LOG-22")
async def test_wrong_numbers_are_told_and_gone_on_from(tmp_path: Path) -> None:
    async with desk(tmp_path) as at:
        imported = await at.import_(renumbered())
        messages = [fault.message for fault in imported.faults]
        assert "seq gap" in messages
        assert "turn/start expected turn 1, got 41" in messages
        session = imported.session.id
        assert at.log.state(session).next_turn == 42
        marks = [e.imported.seq for e in await at.events(session) if e.HasField("imported")]
        assert marks[:6] == [1, 2, 3, 4, 50, 6]


LOST = (event_pb2.Event(user_message=user("lost")), 7, None)
"""A message of a Turn whose turn/start is not in the file."""


@pytest.mark.req("LOG-22", "LOG-01")
@pytest.mark.parametrize(
    ("more", "next_turn"),
    [
        ([LOST], 8),
        ([LOST, (event_pb2.Event(turn_start=event_pb2.TurnStart(turn=3)), 3, None)], 8),
        (
            [
                (event_pb2.Event(turn_start=event_pb2.TurnStart(turn=9)), None, None),
                (event_pb2.Event(turn_end=event_pb2.TurnEnd(turn=9)), None, None),
            ],
            10,
        ),
    ],
    ids=["no turn/start", "a lower one", "no place"],
)
async def test_numbers_that_only_a_broken_rule_has_used_are_used(
    tmp_path: Path, more: list[tuple[event_pb2.Event, int | None, int | None]], next_turn: int
) -> None:
    log = SessionLog().turn().end_turn()
    raw(log, *more, (event_pb2.Event(tool_call=call("c7")), None, None))
    async with desk(tmp_path) as at:
        session = (await at.import_(file_of(log.events))).session.id
        with pytest.raises(Violation, match=f"turn/start expected turn {next_turn}, got 1"):
            await at.log.append(Draft(session, event_pb2.TurnStart(turn=1)))
        await at.log.append(
            Draft(session, event_pb2.TurnStart(turn=next_turn)),
            Draft(session, user("go on")),
            Draft(session, event_pb2.StepStart(turn=next_turn, step=1)),
        )
        with pytest.raises(Violation, match="tool/call id already used"):
            await at.log.append(Draft(session, says(uses("c7"))), Draft(session, call("c7")))
        await at.log.append(Draft(session, says(uses("c8"))), Draft(session, call("c8")))


@pytest.mark.req("LOG-22")
async def test_numbers_that_no_log_can_have_come_to_are_not_gone_on_from(tmp_path: Path) -> None:
    huge = 2**64 - 1
    log = SessionLog().turn()
    most = common.TokenCounts(input_tokens=huge)
    raw(
        log,
        (event_pb2.Event(step_start=event_pb2.StepStart(turn=0, step=2)), 0, 2),
        (event_pb2.Event(usage=event_pb2.Usage(tokens=most, cost_nano_usd=huge)), 0, 2),
        (event_pb2.Event(usage=event_pb2.Usage(tokens=most, cost_nano_usd=huge)), 0, 2),
        (event_pb2.Event(step_start=event_pb2.StepStart(turn=huge, step=huge)), huge, huge),
        (event_pb2.Event(turn_start=event_pb2.TurnStart(turn=huge)), huge, None),
    )
    log.events[-1].time.seconds = 253_402_300_799
    async with desk(tmp_path) as at:
        imported = await at.import_(file_of(log.events))
        assert as_in_their_file(await at.events(imported.session.id)) == log.events
        assert at.log.state(imported.session.id).next_turn == 1


@pytest.mark.req("LOG-22", "LOG-13")
async def test_any_file_of_events_gives_a_session_that_can_go_on(tmp_path: Path) -> None:
    """Every third event of a lawful log left out, doubled, moved to the front, and the last one of its file."""
    lines = GOLDEN.splitlines(keepends=True)
    async with desk(tmp_path) as at:
        for index, line in list(enumerate(lines))[::3]:
            rest = lines[:index] + lines[index + 1 :]
            for file in (rest, [*lines[:index], line, *lines[index:]], [line, *rest], lines[: index + 1]):
                session = (await at.import_(b"".join(file))).session.id
                check_vendor_accepts(await at.history(session))
                state = at.log.state(session)
                assert state.open_turn is None
                assert not any((state.calls, state.requests, state.children, state.attentions))
                await at.log.append(
                    Draft(session, event_pb2.TurnStart(turn=state.next_turn)), Draft(session, user("on"))
                )
