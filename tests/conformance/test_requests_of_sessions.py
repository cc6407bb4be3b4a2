"""Requests that wait for people, where such systems have lost or mistaken them (A01 to A07, P01)."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.harness import RunningDaemon, running_daemon
from tests.marks import NEEDS_CELLS

from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2
from turnd_client.errors import Refused

pytestmark = [NEEDS_CELLS, pytest.mark.timeout(120)]

DONE = {"stream": [{"text": "done"}]}
DECIDED = ("approved", "denied", "cancelled", "expired")
FIVE = [f"{name}.txt" for name in "abcde"]


def writes(*paths: str) -> dict[str, object]:
    inputs = [{"path": path, "content": f"{path}\n"} for path in paths]
    return {"stream": [{"tool": "write_file", "input": data} for data in inputs]}


def edits(*changes: tuple[str, str, str]) -> dict[str, object]:
    inputs = [{"path": path, "old_text": old, "new_text": new} for path, old, new in changes]
    return {"stream": [{"tool": "edit_file", "input": data} for data in inputs]}


async def asked(
    daemon: RunningDaemon, *lines: dict[str, object], count: int = 1
) -> tuple[str, list[event_pb2.ApprovalRequest]]:
    """A session that waits for so many decisions, and what it asks."""
    made = await daemon.client.create_session(str(daemon.workspace), model=daemon.replay(*lines))
    await daemon.client.send_message(made.id, "go")
    requests: list[event_pb2.ApprovalRequest] = []

    def all_there(event: event_pb2.Event) -> bool:
        if event.HasField("approval_request"):
            requests.append(event.approval_request)
        return len(requests) == count

    await daemon.events(made.id, all_there)
    return made.id, requests


async def ended(daemon: RunningDaemon, session: str) -> list[event_pb2.Event]:
    return await daemon.events(session, lambda event: event.HasField("turn_end"))


def settlements(events: list[event_pb2.Event]) -> list[event_pb2.ApprovalDecided]:
    return [event.approval_decided for event in events if event.HasField("approval_decided")]


@pytest.mark.req("A01", "GATE-17", "GATE-07")
async def test_a_cancel_settles_the_request_for_everybody_and_a_late_answer_is_refused() -> None:
    async with running_daemon() as daemon:
        session, (request,) = await asked(daemon, writes("a.txt"), DONE)
        others = [await daemon.connect(name) for name in ("one", "two")]
        seen: list[asyncio.Task[event_pb2.ApprovalDecided]] = []
        for other in others:

            async def settled(client: object = other) -> event_pb2.ApprovalDecided:
                async for batch in client.attach(session, 0):  # type: ignore[attr-defined]
                    for event in batch.events:
                        if event.HasField("approval_decided"):
                            return event.approval_decided
                raise AssertionError("the stream ended")

            seen.append(asyncio.create_task(settled()))
        await daemon.client.cancel(session)
        for told in await asyncio.wait_for(asyncio.gather(*seen), 30):
            assert told.outcome == common.APPROVAL_OUTCOME_CANCELLED
            assert told.request_id == request.request_id
        with pytest.raises(Refused, match="settled before: cancelled") as refused:
            await others[0].decide(session, request.request_id, approve=True)
        assert refused.value.code.name == "FAILED_PRECONDITION"
        assert not (daemon.workspace / "a.txt").exists()
        for other in others:
            await other.close()


@pytest.mark.req("A02", "GATE-17")
async def test_who_comes_later_sees_the_same_request_with_its_diff() -> None:
    async with running_daemon() as daemon:
        (daemon.workspace / "a.txt").write_text("before\n")
        first = await daemon.connect("first")
        made = await first.create_session(str(daemon.workspace), model=daemon.replay(writes("a.txt"), DONE))
        await first.send_message(made.id, "go")
        async for batch in first.attach(made.id, 0):
            if any(event.HasField("approval_request") for event in batch.events):
                break
        await first.close()
        later = await daemon.connect("later")
        (open_request,) = (await later.get_session(made.id)).session.open_requests
        events = await daemon.events(made.id, lambda event: event.HasField("approval_request"))
        request = events[-1].approval_request
        assert open_request.approval == request
        assert "-before\n+a.txt\n" in request.item.preview
        await later.decide(made.id, request.request_id, approve=True)
        (decided,) = settlements(await ended(daemon, made.id))
        assert (decided.outcome, decided.client) == (common.APPROVAL_OUTCOME_APPROVED, "later")
        assert (daemon.workspace / "a.txt").read_text() == "a.txt\n"
        await later.close()


@pytest.mark.req("A03", "GATE-16", "GATE-07")
async def test_an_item_is_never_applied_twice_however_often_it_is_approved() -> None:
    async with running_daemon() as daemon:
        session, (request,) = await asked(daemon, writes("a.txt"), DONE)
        await daemon.client.decide(session, request.request_id, approve=True)
        await ended(daemon, session)
        (daemon.workspace / "a.txt").unlink()
        for _ in range(2):
            with pytest.raises(Refused, match="settled before: approved by test"):
                await daemon.client.decide(session, request.request_id, approve=True)
        await daemon.stop()
        await daemon.start()
        with pytest.raises(Refused, match="settled before: approved by test"):
            await daemon.client.decide(session, request.request_id, approve=True)
        assert not (daemon.workspace / "a.txt").exists()

        session, (request,) = await asked(daemon, writes("b.txt"), DONE)
        await daemon.kill()
        await daemon.start()
        with pytest.raises(Refused, match="settled before: expired"):
            await daemon.client.decide(session, request.request_id, approve=True)
        assert not (daemon.workspace / "b.txt").exists()


@pytest.mark.req("A04", "GATE-01", "GATE-03")
async def test_five_requests_of_one_message_are_answered_in_any_order() -> None:
    async with running_daemon() as daemon:
        session, requests = await asked(daemon, writes(*FIVE), DONE, count=5)
        for index in (3, 0, 4, 2, 1):
            await daemon.client.decide(session, requests[index].request_id, approve=index != 2)
        events = await ended(daemon, session)
        results = {
            event.tool_result.call_id: event.tool_result for event in events if event.HasField("tool_result")
        }
        denied = [request.item.call_id for request in requests][2]
        assert {call for call, result in results.items() if result.category} == {denied}
        assert sorted(path.name for path in daemon.workspace.iterdir()) == [
            "a.txt",
            "b.txt",
            "d.txt",
            "e.txt",
        ]


@pytest.mark.req("A05", "GATE-17")
async def test_a_request_that_nobody_sees_expires_and_is_nobodys_denial() -> None:
    async with running_daemon("[limits]\napproval_timeout_s = 1.0\n") as daemon:
        made = await daemon.client.create_session(
            str(daemon.workspace),
            model=daemon.replay(
                writes("a.txt"),
                DONE | {"expect": {"last_contains": "nobody decided in time, so it did not run"}},
            ),
        )
        await daemon.client.send_message(made.id, "go")
        async with asyncio.timeout(30):
            # Not by attaching: then there would be somebody.
            while (await daemon.client.get_session(made.id)).session.status != common.SESSION_STATUS_IDLE:
                await asyncio.sleep(0.05)
        events = await ended(daemon, made.id)
        assert any(event.HasField("approval_request") for event in events)
        assert not any(event.HasField("approval_delivered") for event in events)
        (settled,) = settlements(events)
        assert (settled.outcome, settled.client) == (common.APPROVAL_OUTCOME_EXPIRED, "")
        assert events[-1].turn_end.reason == common.TURN_END_REASON_COMPLETED
        assert not (daemon.workspace / "a.txt").exists()


@pytest.mark.req("A06", "GATE-17")
async def test_an_open_request_outlasts_every_idle_limit() -> None:
    """A provider without calls is stopped at once here; the request is there for whoever comes."""
    async with running_daemon("[limits]\nprovider_idle_s = 0\n") as daemon:
        session, (request,) = await asked(daemon, writes("a.txt"), DONE)
        for _ in range(3):
            other, (theirs,) = await asked(daemon, writes("b.txt"), DONE)
            await daemon.client.decide(other, theirs.request_id, approve=True)
            await ended(daemon, other)
        (open_request,) = (await daemon.client.get_session(session)).session.open_requests
        assert open_request.approval.request_id == request.request_id
        await daemon.client.decide(session, request.request_id, approve=True)
        await ended(daemon, session)
        assert (daemon.workspace / "a.txt").read_text() == "a.txt\n"


@pytest.mark.req("A07", "GATE-15")
async def test_an_unattended_run_denies_at_once_says_so_and_goes_on() -> None:
    async with running_daemon() as daemon:
        model = daemon.replay(writes("a.txt"), DONE | {"expect": {"last_contains": "nobody"}})
        done = await daemon.turn("run", "go", "--unattended", "--model", model, "--json")
        assert done.code == 3, done.stderr
        result = done.json_lines[-1]
        assert result["type"] == "result"
        (denial,) = result["denied"]
        assert denial["tool"] == "write_file"
        assert not (daemon.workspace / "a.txt").exists()


@pytest.mark.req("P01", "GATE-16", "SCHED-07")
async def test_six_edits_of_one_file_by_four_names_all_land() -> None:
    async with running_daemon() as daemon:
        file = daemon.workspace / "f"
        file.write_text("".join(f"{number}\n" for number in range(1, 101)))
        file.chmod(0o640)
        (daemon.workspace / "sub").mkdir()
        (daemon.workspace / "link").symlink_to("f")
        names = ("f", "./f", "sub/../f", "link", str(file), "f")
        changes = [(name, f"\n{10 * n}\n", f"\n{10 * n} {name}\n") for n, name in enumerate(names, 1)]
        session, requests = await asked(daemon, edits(*changes), DONE, count=6)
        for request in reversed(requests):
            await daemon.client.decide(session, request.request_id, approve=True)
        events = await ended(daemon, session)
        results = [event.tool_result for event in events if event.HasField("tool_result")]
        assert [result.category for result in results] == [0] * 6, results
        expected = [str(number) for number in range(1, 101)]
        for n, name in enumerate(names, 1):
            expected[10 * n - 1] = f"{10 * n} {name}"
        assert file.read_text().splitlines() == expected
        assert (daemon.workspace / "link").is_symlink()
        assert file.stat().st_mode & 0o777 == 0o640
        assert sorted(json.dumps(path.name) for path in daemon.workspace.iterdir()) == [
            '"f"',
            '"link"',
            '"sub"',
        ]
