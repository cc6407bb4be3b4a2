"""What stands beside the events, derived anew: it equals what the live log wrote (LOG-13, LOG-19)."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.store_samples import fill, tables
from tests.unit.stored import created, database, note, opened, turn, usage

from turnd.rules.event import Draft
from turnd.rules.state import Violation
from turnd.store.hold import Hold
from turnd.store.opening import rebuild_file
from turnd.store.rebuild import Rebuilt, rebuild
from turnd.store.schema import open_for_writing
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2


def rebuilt(directory: Path) -> Rebuilt:
    with closing(open_for_writing(database(directory))) as connection:
        return rebuild(connection, lambda done, total: None)


@pytest.mark.req("LOG-13", "LOG-19")
async def test_a_rebuilt_database_equals_the_live_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await fill(log, "A", turns=3)
        await log.append(created("C", parent="A", depth=1), turn("C"))
        await fill(log, "B")
    live = tables(database(tmp_path))
    assert all(live.values()), "the sample fills every table"
    found = rebuilt(tmp_path)
    assert (found.differences, found.broken) == ([], [])
    assert (found.sessions, found.events) == (3, len(live["events"]))
    assert tables(database(tmp_path)) == live


@pytest.mark.req("LOG-19")
async def test_whatever_was_done_to_the_tables_is_said_and_undone(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await fill(log, "A")
        await fill(log, "B")
    live = tables(database(tmp_path))
    with closing(sqlite3.connect(database(tmp_path), isolation_level=None)) as other:
        other.execute("UPDATE sessions SET cost_nano_usd = 0 WHERE id = 'A'")
        other.execute("DELETE FROM usage_ledger WHERE session = 2")
        other.execute("INSERT INTO producers VALUES (1, 'hook', 'forged', '', 1)")
        other.execute("DROP TABLE plan_items")
    found = rebuilt(tmp_path)
    assert [str(difference) for difference in found.differences] == [
        "sessions: 1 rows were missing or different, 1 were too many or different",
        "usage_ledger: 2 rows were missing or different, 0 were too many or different",
        "plan_items was missing, or not as this version has it",
        "producers: 0 rows were missing or different, 1 were too many or different",
    ]
    assert tables(database(tmp_path)) == live
    assert rebuilt(tmp_path).differences == []


@pytest.mark.req("LOG-19")
async def test_a_session_that_cannot_go_on_is_named_and_the_others_are_derived(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("A"), note("A"), note("A"), created("B"), turn("B"))
    with closing(sqlite3.connect(database(tmp_path), isolation_level=None)) as other:
        other.execute("UPDATE events SET event = X'FF' WHERE session = 1 AND seq = 2")
        other.execute("DELETE FROM sessions")
    found = rebuilt(tmp_path)
    assert len(found.broken) == 1
    assert found.broken[0].startswith("A from event 2 on: ")
    with closing(sqlite3.connect(database(tmp_path))) as other:
        rows = other.execute("SELECT id, unsettled FROM sessions ORDER BY key").fetchall()
    assert rows == [("A", 0), ("B", 1)]


SESSIONS = st.sampled_from(["A", "B"])


def _drafts(session: str) -> st.SearchStrategy[Draft]:
    """Events of one session; most of them break a rule where they come."""
    payloads = st.one_of(
        st.builds(event_pb2.TurnStart, turn=st.integers(0, 2)),
        st.builds(event_pb2.StepStart, turn=st.integers(0, 2), step=st.integers(1, 2)),
        st.builds(event_pb2.StepEnd, turn=st.integers(0, 2), step=st.integers(1, 2)),
        st.builds(event_pb2.TurnStopping, reason=st.just(common.TURN_END_REASON_COMPLETED)),
        st.builds(event_pb2.TurnEnd, turn=st.integers(0, 2)),
        st.builds(event_pb2.InboxQueued, message_id=st.sampled_from(["m", "n"])),
        st.builds(event_pb2.InboxCleared, message_ids=st.just(["m"])),
        st.builds(event_pb2.SessionChanged, title=st.text(max_size=4)),
        st.builds(event_pb2.SessionEnded, status=st.just(common.SESSION_STATUS_COMPLETED)),
        st.builds(event_pb2.SessionReopened),
        st.builds(event_pb2.Note, text=st.text(max_size=4)),
    )
    producers = st.sampled_from([None, common.Producer(kind=common.PRODUCER_KIND_HOOK, name="h")])
    return st.builds(
        lambda payload, producer: Draft(session, payload, producer=producer), payloads, producers
    )


@pytest.mark.req("LOG-13", "LOG-19")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drafts=st.lists(SESSIONS.flatmap(_drafts), max_size=40), spend=st.integers(0, 2**63 - 1))
async def test_whatever_the_rules_accept_is_derived_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, drafts: list[Draft], spend: int
) -> None:
    directory = tmp_path_factory.mktemp("log")
    async with opened(directory) as log:
        await log.append(created("A"), created("B", parent="A", depth=1))
        for draft in drafts:
            try:
                await log.append(draft)
            except Violation:
                continue
            if log.state(draft.session).open_step is not None:
                await log.append(usage(draft.session, spend, tokens=spend))
    live = tables(database(directory))
    assert rebuilt(directory).differences == []
    assert tables(database(directory)) == live


# --- the command --------------------------------------------------------------------------------------------


def run_rebuild(home: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TURND_HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-m", "turnd.main", "rebuild"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.req("LOG-19")
async def test_the_command_says_what_differed_and_refuses_beside_a_daemon(tmp_path: Path) -> None:
    state = tmp_path / "state"
    for directory in (tmp_path, state):
        directory.mkdir(mode=0o700, exist_ok=True)
    missing = run_rebuild(tmp_path)
    assert missing.returncode == 1
    assert "there is no log" in missing.stderr
    async with opened(state) as log:
        await fill(log, "A")
        held = run_rebuild(tmp_path)
    assert held.returncode == 3
    assert "is running" in held.stderr
    with closing(sqlite3.connect(database(state), isolation_level=None)) as other:
        other.execute("DELETE FROM usage_ledger")
    changed = run_rebuild(tmp_path)
    assert changed.returncode == 0, changed.stderr
    assert "usage_ledger: 2 rows were missing or different" in changed.stdout
    again = run_rebuild(tmp_path)
    assert again.stdout.endswith("nothing differed\n")
    Hold.take(database(state), version="0", socket="").release()


@pytest.mark.req("LOG-16", "LOG-19")
async def test_what_a_start_would_have_found_first_is_said_too(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await fill(log, "A")
    with closing(sqlite3.connect(database(tmp_path), isolation_level=None)) as other:
        other.execute("DROP TABLE sessions")
    notes, found = rebuild_file(database(tmp_path), lambda: 0, lambda done, total: None)
    assert len(notes) == 1
    assert "sessions was missing" in notes[0]
    assert found.differences == []
