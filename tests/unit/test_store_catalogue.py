"""Lists, prefixes and the rows beside the events: from tables alone, written with their events."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.stored import call, created, draft, ended, note, opened, query, status, step, turn, usage

from turnd.ports import LogFailed, UnknownSession
from turnd.store.catalogue import AmbiguousSession, BadPageToken
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2


async def test_a_prefix_stands_for_the_one_session_that_has_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        for session in ("01AB", "01ABC", "01XY", "0Z%_"):
            await log.append(created(session))
        assert await log.resolve("01X") == "01XY"
        assert await log.resolve("01xy") == "01XY"
        assert await log.resolve("01AB") == "01AB", "the whole id of one that others continue"
        assert await log.resolve("0Z%") == "0Z%_"
        with pytest.raises(AmbiguousSession) as caught:
            await log.resolve("01a")
        assert caught.value.candidates == ("01AB", "01ABC")
        for nothing in ("", "2", "01ABCD", "%"):
            with pytest.raises(UnknownSession):
                await log.resolve(nothing)


async def test_candidates_are_bounded(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.append(*(created(f"S{n:02}") for n in range(30)))
        with pytest.raises(AmbiguousSession) as caught:
            await log.resolve("S")
        assert len(caught.value.candidates) == 10
        assert await log.catalogue.count() == 30


async def test_pages_go_from_the_newest_to_the_oldest(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        for number in range(7):
            await log.append(created(f"S{number}"))
        await log.append(note("S0"))
        seen: list[str] = []
        token, pages = "", 0
        while pages == 0 or token:
            page = await log.catalogue.sessions(page_size=3, page_token=token)
            seen += [session.id for session in page.sessions]
            token, pages = page.next_page_token, pages + 1
            await log.append(created(f"later{pages}"))
        assert seen == ["S6", "S5", "S4", "S3", "S2", "S1", "S0"]
        assert pages == 3
        for token in ("x", "-1", "1" * 30, "٣"):
            with pytest.raises(BadPageToken):
                await log.catalogue.sessions(page_token=token)


async def test_lists_filter_by_status_directory_and_parent(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("A"), created("B", cwd="/other"), created("C"))
        await log.append(created("A1", parent="A", depth=1), created("A2", parent="A", depth=1))
        done = common.SESSION_STATUS_COMPLETED
        await log.append(status("C", done), ended("C", done), status("A1", done), ended("A1", done))

        async def ids(**filters: object) -> list[str]:
            page = await log.catalogue.sessions(**filters)  # type: ignore[arg-type]
            return [session.id for session in page.sessions]

        assert await ids() == ["C", "B", "A"]
        assert await ids(include_children=True) == ["A2", "A1", "C", "B", "A"]
        assert await ids(parent="A") == ["A2", "A1"]
        assert await ids(parent="A", statuses=[done]) == ["A1"]
        assert await ids(statuses=[done]) == ["C"]
        assert await ids(statuses=[done, common.SESSION_STATUS_IDLE], cwd="/other") == ["B"]
        assert await ids(parent="B") == []


@pytest.mark.req("LOG-19", "BOUND-06")
async def test_the_cost_of_a_session_is_with_its_descendants(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("A"), created("B", parent="A", depth=1), created("C", parent="B", depth=2))
        for cost, session in ((1, "A"), (10, "B"), (100, "C"), (1000, "C")):
            if log.state(session).open_turn is None:
                await log.append(turn(session), step(session))
            await log.append(usage(session, cost, tokens=cost))
        page = await log.catalogue.sessions(include_children=True)
        assert {s.id: s.cost_nano_usd for s in page.sessions} == {"A": 1111, "B": 1110, "C": 1100}
        totals = await log.catalogue.totals(["B", "nobody"])
        assert [(name, t.cost_nano_usd, t.input_tokens, t.output_tokens) for name, t in totals.items()] == [
            ("B", 1110, 1110, 2220)
        ]


@pytest.mark.req("M05", "BOUND-14")
@pytest.mark.parametrize("mark", ["estimated", "unpriced"])
async def test_what_is_not_known_of_a_cost_is_told_of_every_session_above(tmp_path: Path, mark: str) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("A"), created("A1", parent="A", depth=1), created("B"))
        for session in ("A", "A1", "B"):
            await log.append(turn(session), step(session), usage(session, 5))
        assert not any(getattr(total, mark) for total in (await log.catalogue.totals(["A", "B"])).values())
        counted = event_pb2.Usage(purpose=common.REQUEST_PURPOSE_STEP, model="m", **{mark: True})
        await log.append(draft("A1", counted))
        totals = await log.catalogue.totals(["A", "A1", "B"])
        assert {name: getattr(total, mark) for name, total in totals.items()} == {
            "A": True,
            "A1": True,
            "B": False,
        }
        page = await log.catalogue.sessions(include_children=True)
        assert {one.id: getattr(one, mark) for one in page.sessions} == {"A": True, "A1": True, "B": False}
        other = {"estimated": "unpriced", "unpriced": "estimated"}[mark]
        assert not any(getattr(one, other) for one in page.sessions)


@pytest.mark.req("LOG-19")
async def test_usage_is_a_row_of_the_ledger(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("A"), turn("A"), step("A"))
        payload = event_pb2.Usage(
            purpose=common.REQUEST_PURPOSE_STEP, model="m", cost_nano_usd=2**64 - 1, estimated=True
        )
        (event,) = await log.append(draft("A", payload))
        columns = "position, session, turn, step, purpose, model, cost_nano_usd, estimated, unpriced, time_us"
        assert query(tmp_path, f"SELECT {columns} FROM usage_ledger") == [
            (4, 1, 0, 1, "step", "m", 2**63 - 1, 1, 0, event.time.ToMicroseconds())
        ]


@pytest.mark.req("LOG-19")
async def test_plan_items_are_rows_with_decision_and_outcome(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        resource = common.TOOL_KIND_RESOURCE
        await log.append(created("A"), turn("A"), step("A"), *(call("A", c, resource) for c in "xyz"))
        items = [
            common.PlanItem(
                call_id=name,
                provider="p",
                tool="t",
                kind=resource,
                risk=common.RISK_HIGH,
                decision=decision,
                decided_by=common.DecidedBy(kind=common.DECIDED_BY_KIND_RULE, name="r"),
            )
            for name, decision in zip("xyz", (2, 2, 3), strict=True)
        ]
        await log.append(draft("A", event_pb2.PlanReady(items=items)))
        rows = "SELECT call_id, place, kind, risk, decision, decided_by, decided_by_name, outcome FROM plan_items"
        assert query(tmp_path, rows) == [
            ("x", 0, "resource", "high", "ask", "rule", "r", ""),
            ("y", 1, "resource", "high", "ask", "rule", "r", ""),
            ("z", 2, "resource", "high", "deny", "rule", "r", ""),
        ]
        for request, name, outcome in (
            ("1", "x", common.APPROVAL_OUTCOME_APPROVED),
            ("2", "y", common.APPROVAL_OUTCOME_EXPIRED),
        ):
            ask = event_pb2.ApprovalRequest(request_id=request, item=common.PlanItem(call_id=name))
            decided = event_pb2.ApprovalDecided(
                request_id=request, call_id=name, outcome=outcome, client="me"
            )
            await log.append(draft("A", ask), draft("A", decided))
        results = [draft("A", event_pb2.ToolResult(call_id=name, content=b"1")) for name in "xyz"]
        applied = [
            common.AppliedItem(call_id="x", outcome=common.ITEM_OUTCOME_APPLIED),
            common.AppliedItem(call_id="y", outcome=common.ITEM_OUTCOME_NOT_STARTED),
        ]
        await log.append(*results, draft("A", event_pb2.PlanApplied(items=applied)))
        assert query(tmp_path, "SELECT call_id, decision, decided_by, outcome FROM plan_items") == [
            ("x", "allow", "client", "applied"),
            ("y", "ask", "rule", "not_started"),
            ("z", "deny", "rule", ""),
        ]


@pytest.mark.req("LOG-19")
async def test_producers_are_rows_and_go_with_their_event(tmp_path: Path) -> None:
    web = common.Producer(kind=common.PRODUCER_KIND_PROVIDER, name="web", version="2")
    async with opened(tmp_path) as log:
        await log.append(created("A", producer=web), created("TAKEN"))
        log.unload("TAKEN")
        with pytest.raises(LogFailed):
            await log.append(created("B", producer=web), created("TAKEN"))
        assert query(tmp_path, "SELECT session, kind, name, version, first_seq FROM producers") == [
            (1, "provider", "web", "2", 1)
        ]
