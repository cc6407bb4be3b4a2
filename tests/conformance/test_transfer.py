"""Export, import, fork and verify, as a client sees them: lossless, and acting on nothing (LOG-17, LOG-22)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness import RunningDaemon, running_daemon
from tests.marks import NEEDS_CELLS
from tests.unit.going_on import file_of
from tests.unit.test_import import lived_in

from turnd.v1 import common_pb2, sessions_pb2
from turnd_client.errors import Refused

pytestmark = [NEEDS_CELLS, pytest.mark.req("LOG-17")]

PRICED = {"model": {"pricing": {"input_per_mtok": 3.0, "output_per_mtok": 15.0}}}
SAID = {"stream": [{"text": "done"}], "usage": {"input_tokens": 100, "output_tokens": 5}}


def write(path: str) -> dict[str, Any]:
    return {"stream": [{"tool": "write_file", "input": {"path": path, "content": "x"}}]}


async def worked(daemon: RunningDaemon) -> str:
    """A session that wrote a file with an approval for the session, at a price."""
    model = daemon.replay(PRICED, write("a.txt"), SAID)
    session = (await daemon.client.create_session(str(daemon.workspace), model=model, title="Work")).id
    await daemon.client.send_message(session, "write it")
    asked = await daemon.events(session, lambda event: event.HasField("approval_request"))
    request = asked[-1].approval_request
    await daemon.client.decide(
        session,
        request.request_id,
        approve=True,
        scope=common_pb2.APPROVAL_SCOPE_SESSION,
        grant=request.grant,
    )
    await daemon.events(session, lambda event: event.HasField("turn_end"))
    assert (daemon.workspace / "a.txt").read_text() == "x"
    return session


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def without_marks(line: dict[str, Any]) -> dict[str, Any]:
    mark = line.get("imported")
    rest = {name: value for name, value in line.items() if name != "imported"}
    return rest if mark is None else rest | mark


@pytest.mark.req("LOG-22")
async def test_an_export_is_imported_without_loss_and_nothing_of_it_acts(tmp_path: Path) -> None:
    async with running_daemon() as daemon:
        source = await worked(daemon)
        cost = (await daemon.client.get_session(source)).session.cost_nano_usd
        assert cost > 0
        file = tmp_path / "session.jsonl"
        assert (await daemon.turn("export", source, "-o", str(file))).code == 0
        again = daemon.replay(
            write("b.txt") | {"expect": {"tools": True}}, SAID | {"expect": {"last_contains": "denied"}}
        )
        elsewhere = daemon.base / "elsewhere"
        elsewhere.mkdir()
        done = await daemon.turn("import", str(file), "--model", again, "--json", cwd=elsewhere)
        assert done.code == 0, done.stderr
        (answer,) = done.json_lines
        session = answer["session"]
        assert answer["faults"] == []
        assert (session["cwd"], session["title"]) == (str(elsewhere), "Work")
        assert (session["cost_usd"], session["status"], session["turns"]) == (0, "idle", 0)
        exported = lines((await daemon.turn("export", session["id"])).stdout)
        original = lines(file.read_text())
        assert [without_marks(line) for line in exported[: len(original)]] == original
        assert [line["type"] for line in exported[len(original) :]] == ["session/created", "session/status"]
        file.write_text("".join(json.dumps(line) + "\n" for line in exported))
        assert (await daemon.turn("log", "verify", str(file))).code == 0

        # The grant of the file's session does not answer: somebody is asked, and the write goes to the new place.
        await daemon.client.send_message(session["id"], "once more")
        asked = await daemon.events(
            session["id"],
            lambda e: e.HasField("approval_request") and not e.HasField("imported"),
        )
        assert asked[-1].turn == 1
        request_id = asked[-1].approval_request.request_id
        await daemon.client.decide(session["id"], request_id, approve=False)
        ended = await daemon.events(
            session["id"], lambda e: e.HasField("turn_end") and not e.HasField("imported")
        )
        assert ended[-1].turn_end.turn == 1
        assert ended[-1].turn_end.reason == common_pb2.TURN_END_REASON_COMPLETED
        assert not (elsewhere / "b.txt").exists()
        assert (await daemon.client.verify_session(session["id"])).faults == []
        assert (await daemon.client.get_session(source)).session.cost_nano_usd == cost


async def test_a_file_that_is_no_log_is_refused_with_its_line(tmp_path: Path) -> None:
    async with running_daemon() as daemon:
        file = tmp_path / "notes.txt"
        file.write_text("dear diary\n")
        done = await daemon.turn("import", str(file), "--model", daemon.replay(SAID))
        assert done.code == 1
        assert "line 1 is no event of a log" in done.stderr
        assert "nothing was imported" in done.stderr
        assert (await daemon.turn("ls", "--json")).stdout == ""


@pytest.mark.req("LOG-22", "S05")
async def test_a_log_that_breaks_rules_is_imported_with_a_report_and_goes_on(tmp_path: Path) -> None:
    async with running_daemon() as daemon:
        source = await worked(daemon)
        log = (await daemon.turn("export", source)).stdout.splitlines()
        types = [json.loads(line)["type"] for line in log]
        result, end = types.index("tool/result"), types.index("step/end")
        broken = [*log[:result], *log[result + 1 : end]]
        file = tmp_path / "broken.jsonl"
        file.write_text("\n".join(broken) + "\n")
        model = daemon.replay(SAID)
        done = await daemon.turn("import", str(file), "--model", model)
        assert done.code == 0
        assert f"line {result + 1}: seq gap" in done.stderr
        assert "1 fault (" in done.stderr
        session = done.stdout.strip()
        events = await daemon.run(session, "go on")
        assert events[-1].turn_end.reason == common_pb2.TURN_END_REASON_COMPLETED
        assert (await daemon.client.verify_session(session)).faults == []


@pytest.mark.req("RPC-04")
async def test_an_import_and_a_fork_that_are_sent_again_do_nothing_twice() -> None:
    async with running_daemon() as daemon:
        source = await worked(daemon)
        parts = [part async for part in daemon.client.export(source)]
        model = daemon.replay(SAID)

        async def both() -> tuple[str, str]:
            imported = await daemon.client.import_session(
                parts, str(daemon.workspace), model=model, request_id="import-1"
            )
            forked = await daemon.client.fork(source, request_id="fork-1")
            return imported.session.id, forked.id

        first = await both()
        assert await both() == first
        await daemon.stop()
        await daemon.start()
        assert await both() == first
        listed = [session.id async for session in daemon.client.list_sessions()]
        assert sorted(listed) == sorted([source, *first])


async def test_an_import_whose_client_leaves_is_not_there() -> None:
    """The stream of a client that is gone looks as if it had ended; what had come was a whole log."""
    async with running_daemon() as daemon:
        source = await worked(daemon)
        parts = [part async for part in daemon.client.export(source)]
        model = daemon.replay(SAID)
        sent = asyncio.Event()
        loop = asyncio.get_running_loop()

        def never_ending() -> Iterator[bytes]:
            yield from parts
            loop.call_soon_threadsafe(sent.set)
            raise ConnectionAbortedError("the client is gone")

        client = await daemon.connect("leaves")
        with pytest.raises(BaseException):  # noqa: B017, PT011 - however gRPC tells of it
            async with asyncio.timeout(10):
                await client.import_session(never_ending(), str(daemon.workspace), model=model)
        assert sent.is_set()
        await client.close()
        assert [session.id async for session in daemon.client.list_sessions()] == [source]


@pytest.mark.req("LOG-22")
async def test_nobody_is_asked_what_an_imported_log_had_asked() -> None:
    """Not even a client that sees all sessions gets the request delivered; it is neither listed nor answered."""
    async with running_daemon() as daemon:
        model = daemon.replay(SAID)
        await daemon.client.create_session(str(daemon.workspace), model=model)
        everything = daemon.client.attach_all()
        await anext(everything)
        file = file_of(lived_in().events)
        imported = await daemon.client.import_session([file], str(daemon.workspace), model=model)
        session = imported.session.id
        assert list(imported.session.open_requests) == []
        assert list((await daemon.client.get_session(session)).session.open_requests) == []
        with pytest.raises(Refused, match="was settled before: expired"):
            await daemon.client.decide(session, "r2", approve=True)
        await daemon.client.update_session(session, title="Looked at")
        events = await daemon.events(session, lambda event: event.HasField("session_changed"))
        own = [event.WhichOneof("data") for event in events if not event.HasField("imported")]
        assert [kind for kind in own if kind and kind.startswith("approval")] == ["approval_decided"]
        await everything.aclose()


@pytest.mark.req("LOG-22")
async def test_a_fork_asks_anew_and_leaves_its_source_alone() -> None:
    async with running_daemon() as daemon:
        model = daemon.replay(write("a.txt"), SAID)
        source = (await daemon.client.create_session(str(daemon.workspace), model=model)).id
        await daemon.client.send_message(source, "write it")
        asked = await daemon.events(source, lambda event: event.HasField("approval_request"))
        request_id = asked[-1].approval_request.request_id
        done = await daemon.turn("fork", source)
        assert done.code == 0
        fork = done.stdout.strip()
        shown = await daemon.client.get_session(fork)
        assert list(shown.session.open_requests) == []
        with pytest.raises(Refused):
            await daemon.client.decide(fork, request_id, approve=True)
        # The source's request has the same id, and is open as before.
        await daemon.client.decide(source, request_id, approve=True)
        events = await daemon.events(source, lambda event: event.HasField("turn_end"))
        assert events[-1].turn_end.reason == common_pb2.TURN_END_REASON_COMPLETED
        assert (daemon.workspace / "a.txt").exists()
        early = await daemon.turn("fork", source, "--at", "2", "--json")
        assert early.json_lines[0]["status"] == "idle"
        past = await daemon.turn("fork", source, "--at", "9999")
        assert (past.code, "the last event, found 9999" in past.stderr) == (1, True)
        verdicts = [await daemon.client.verify_session(s) for s in (fork, source)]
        assert [list(verdict.faults) for verdict in verdicts] == [[], []]


async def test_a_follower_of_everything_sees_an_import_whole() -> None:
    async with running_daemon() as daemon:
        source = await worked(daemon)
        parts = [part async for part in daemon.client.export(source)]
        seen: list[tuple[str, int]] = []

        async def follow(until: str) -> None:
            async for batch in daemon.client.attach_all():
                seen.extend((event.session, event.seq) for event in batch.events)
                if any(e.session == until and e.HasField("session_status") for e in batch.events):
                    return

        imported = await daemon.client.import_session(parts, str(daemon.workspace), model=daemon.replay(SAID))
        session: sessions_pb2.Session = imported.session
        async with asyncio.timeout(30):
            await follow(session.id)
        assert [seq for s, seq in seen if s == session.id] == list(range(1, session.last_seq + 1))
