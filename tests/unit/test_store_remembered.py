"""Rules for always in the log's file: in the transaction of their event, or not at all (GATE-09)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.unit.stored import call, created, database, draft, opened, query, step, turn
from tests.unit.test_store_migrate import VERSION_1

from turnd.ports import AnsweredRequest, LogFailed, RememberedRule
from turnd.rules.event import Draft
from turnd.rules.state import Violation
from turnd.store.log import EventLog
from turnd.store.opening import rebuild_file
from turnd.store.remembered import remember
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

pytestmark = pytest.mark.req("GATE-09")

RULE = common.GrantRule(provider="p", tool="t", command=["make test"])


def decided(request_id: str = "r", name: str = "always-1") -> Draft:
    payload = event_pb2.ApprovalDecided(
        request_id=request_id,
        call_id="c",
        outcome=common.APPROVAL_OUTCOME_APPROVED,
        scope=common.APPROVAL_SCOPE_ALWAYS,
        client="me",
        grant=RULE,
        stored=event_pb2.StoredRule(name=name, workspace="/w", profile="default", cwd="/w/below"),
    )
    return draft("S", payload)


async def waiting(log: EventLog) -> None:
    """A session that asks two things."""
    item = common.PlanItem(call_id="c", decision=common.POLICY_ACTION_ASK)
    asks = [draft("S", event_pb2.ApprovalRequest(request_id=name, item=item)) for name in ("r", "r2")]
    resource = call("S", "c", common.TOOL_KIND_RESOURCE)
    for each in (created("S"), turn("S"), step("S"), resource, *asks):
        await log.append(each)


def stored(connection: sqlite3.Connection) -> list[tuple[object, ...]]:
    return connection.execute("SELECT name FROM policy_rules").fetchall()


@pytest.mark.req("A13")
async def test_a_rule_is_stored_with_its_decision_and_stays_until_it_is_removed(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await waiting(log)
        (event,) = await log.append(decided())
        rule = RememberedRule(
            "always-1", "/w", "default", "/w/below", RULE, "S", "me", event.time.ToMicroseconds()
        )
        assert await log.remembered_rules() == [rule]
    rebuild_file(database(tmp_path), lambda: 0, lambda done, total: None)
    async with opened(tmp_path) as log:
        assert await log.remembered_rules() == [rule]
        answered = AnsweredRequest("q", "RemovePolicy", b"d", lambda events: b"done")
        await log.forget_rule("always-1", answered)
        assert (await log.answer_to("q")) is not None
        assert await log.remembered_rules() == []
        with pytest.raises(KeyError):
            await log.forget_rule("always-1")
    rebuild_file(database(tmp_path), lambda: 0, lambda done, total: None)
    async with opened(tmp_path) as log:
        assert await log.remembered_rules() == [], "its event is history, and does not bring it back"


@pytest.mark.req("GATE-07")
async def test_a_losing_decision_stores_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await waiting(log)
        await log.append(decided())
        with pytest.raises(Violation):
            await log.append(decided(name="always-2"))
        assert [rule.name for rule in await log.remembered_rules()] == ["always-1"]


async def test_a_rule_that_cannot_be_stored_takes_its_decision_with_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await waiting(log)
        await log.append(decided())
        with pytest.raises(LogFailed):
            await log.append(decided("r2"))
        assert "r2" in log.view("S").open_requests
        await log.append(decided("r2", "always-2"))
        assert len(await log.remembered_rules()) == 2


async def test_history_of_another_log_remembers_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path):
        pass
    event = event_pb2.Event(session="S", approval_decided=decided().payload)
    with closing(sqlite3.connect(database(tmp_path), isolation_level=None)) as connection:
        event.imported.session = "other"
        remember(connection, event)
        assert stored(connection) == []
        event.ClearField("imported")
        remember(connection, event)
        assert stored(connection) == [("always-1",)]


@pytest.mark.req("LOG-15")
async def test_an_older_file_gets_the_table(tmp_path: Path) -> None:
    with closing(sqlite3.connect(database(tmp_path))) as connection:
        connection.executescript(VERSION_1.read_text(encoding="utf-8"))
    async with opened(tmp_path) as log:
        assert await log.remembered_rules() == []
        assert not any("policy_rules" in problem for problem in log.problems())


@pytest.mark.req("LOG-16")
async def test_a_table_that_is_missing_is_made_and_said(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await waiting(log)
        await log.append(decided())
    with closing(sqlite3.connect(database(tmp_path))) as connection:
        connection.execute("DROP TABLE policy_rules")
    async with opened(tmp_path) as log:
        (problem,) = log.problems()
        assert "table policy_rules was missing" in problem
        assert "asked about again" in problem
        assert query(tmp_path, "SELECT count(*) FROM policy_rules") == [(0,)]
