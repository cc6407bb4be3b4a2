"""Clients against the real daemon: streams, decisions, commands, exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from tests.harness import Finished, RunningDaemon, prepared_daemon, running_daemon

from turnd.v1 import common_pb2, event_pb2
from turnd.v1.jsonform import event_from_json, event_to_json
from turnd_client.client import Client
from turnd_client.errors import NoDaemon, Refused
from turnd_client.follow import follow

WRITE = {"stream": [{"tool": "write_file", "input": {"path": "a.txt", "content": "hello\n"}}]}
DONE = {"stream": [{"text": "Done."}], "usage": {"input_tokens": 10, "output_tokens": 2}}
SLOW = {"stream": [{"text": "x" * 4000}], "chunk": 10, "delay_s": 0.05}
PRICED = {"model": {"pricing": {"input_per_mtok": 3.0, "output_per_mtok": 15.0}}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon() -> AsyncIterator[RunningDaemon]:
    async with running_daemon() as it:
        yield it


@pytest.fixture(autouse=True)
def empty_workspace(daemon: RunningDaemon) -> None:
    for path in daemon.workspace.iterdir():
        path.unlink()


pytestmark = pytest.mark.asyncio(loop_scope="module")


def is_turn_end(event: event_pb2.Event) -> bool:
    return event.HasField("turn_end")


async def collected(client: Client, session: str, after: int = 0) -> list[str]:
    """The session's events as lines, up to the end of the session."""
    lines: list[str] = []
    async for update in follow(client, session, after):
        for event in update.events:
            lines.append(event_to_json(event))
            if event.HasField("session_ended"):
                return lines
    raise AssertionError("following ended")


async def asked(daemon: RunningDaemon, session: str) -> event_pb2.ApprovalRequest:
    """The first approval that the session asks for."""
    events = await daemon.events(session, lambda event: event.HasField("approval_request"))
    return events[-1].approval_request


# --- the stream ---------------------------------------------------------------------------------------------


@pytest.mark.req("RPC-01", "C05")
async def test_whoever_attaches_whenever_sees_the_same(daemon: RunningDaemon) -> None:
    model = daemon.replay(WRITE, {"stream": [{"text": "y" * 500}], "chunk": 5}, DONE)
    session = await daemon.client.create_session(str(daemon.workspace), model=model)
    before, during = await daemon.connect("before"), await daemon.connect("during")
    async with before, during:
        first = asyncio.ensure_future(collected(before, session.id))
        await daemon.client.send_message(session.id, "go")
        request = await asked(daemon, session.id)
        second = asyncio.ensure_future(collected(during, session.id))
        await daemon.client.decide(session.id, request.request_id, approve=True)
        await daemon.events(session.id, is_turn_end)
        await daemon.client.close_session(session.id)
        sequences = [await first, await second, await collected(daemon.client, session.id)]
    assert sequences[0] == sequences[1] == sequences[2]
    numbers = [json.loads(line)["seq"] for line in sequences[0]]
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.req("RPC-01", "C01")
async def test_from_each_cursor_exactly_what_follows(daemon: RunningDaemon) -> None:
    session = await daemon.client.create_session(str(daemon.workspace), model=daemon.replay(DONE))
    await daemon.run(session.id, "go")
    await daemon.client.close_session(session.id)
    whole = await collected(daemon.client, session.id)
    for after in range(len(whole)):
        assert await collected(daemon.client, session.id, after) == whole[after:]


@pytest.mark.req("C02")
async def test_cursors_that_cannot_be(daemon: RunningDaemon) -> None:
    session = await daemon.client.create_session(str(daemon.workspace), model=daemon.replay(DONE))
    for after, code in ((-1, grpc.StatusCode.INVALID_ARGUMENT), (1002, grpc.StatusCode.OUT_OF_RANGE)):
        with pytest.raises(Refused) as refused:
            await anext(daemon.client.attach(session.id, after))
        assert (refused.value.code, refused.value.field) == (code, "session.after_seq")
    with pytest.raises(Refused) as refused:
        await anext(daemon.client.attach_all(10**9))
    assert (refused.value.code, refused.value.field) == (
        grpc.StatusCode.OUT_OF_RANGE,
        "all.after_position",
    )
    with pytest.raises(Refused) as refused:
        await anext(daemon.client.attach("01BX5ZZKBKACTAV9WEVGEMMVRZ"))
    assert refused.value.code is grpc.StatusCode.NOT_FOUND


@pytest.mark.req("C10")
async def test_a_client_gets_its_sessions_events_only_and_all_of_all(daemon: RunningDaemon) -> None:
    sessions = [
        (await daemon.client.create_session(str(daemon.workspace), model=daemon.replay(DONE))).id
        for _ in range(5)
    ]
    async with await daemon.connect() as everything:
        positions: list[int] = []
        seen: dict[str, list[int]] = {}
        ended: set[str] = set()
        async with asyncio.timeout(60):
            stream = everything.attach_all(0)
            for session in sessions:
                await daemon.client.send_message(session, "go")
            async for batch in stream:
                positions.append(batch.position)
                for event in batch.events:
                    seen.setdefault(event.session, []).append(event.seq)
                    if is_turn_end(event):
                        ended.add(event.session)
                if ended >= set(sessions):
                    break
    assert positions == sorted(positions)
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in seen.values())
    for session in sessions:
        assert {event.session for event in await daemon.events(session, is_turn_end)} == {session}


@pytest.mark.req("RPC-01", "OPS-05")
async def test_following_goes_on_after_the_daemon_was_killed_and_started_again() -> None:
    async with running_daemon() as daemon:
        model = daemon.replay(SLOW, DONE)
        session = await daemon.client.create_session(str(daemon.workspace), model=model)
        client = await daemon.connect()
        lost: list[str] = []
        seen: list[event_pb2.Event] = []
        async with client, asyncio.timeout(60):
            following = follow(client, session.id, lost=lambda error: lost.append(str(error)), patience_s=50)
            await daemon.client.send_message(session.id, "go")
            restarted: asyncio.Future[None] | None = None
            async for update in following:
                seen.extend(update.events)
                if restarted is None and any(event.HasField("assistant_chunk") for event in seen):
                    await daemon.kill()
                    restarted = asyncio.ensure_future(daemon.start())
                if any(is_turn_end(event) for event in seen):
                    break
            assert restarted is not None
            await restarted
            await following.aclose()
        assert len(lost) == 1
        assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
        end = next(event for event in seen if is_turn_end(event))
        assert end.turn_end.reason == common_pb2.TURN_END_REASON_INTERRUPTED
        assert end.synthetic


# --- turn run -----------------------------------------------------------------------------------------------


def checked_run(done: Finished) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Events and result line of `turn run --json`."""
    *events, result = done.json_lines
    assert all(set(event) >= {"session", "seq", "time", "turn", "step", "type", "data"} for event in events)
    assert list(result) == [
        "type",
        "session",
        "status",
        "turn",
        "reason",
        "cause",
        "steps",
        "cost_usd",
        "estimated",
        "unpriced",
        "weighted_tokens",
        "denied",
        "text",
    ]
    return events, result


@pytest.mark.req("BOUND-12")
async def test_run_prints_events_and_a_result_and_closes_its_session(daemon: RunningDaemon) -> None:
    model = daemon.replay(
        PRICED,
        {
            "stream": [{"text": "I look."}, {"tool": "list_dir", "input": {"path": "."}}],
            "usage": {"input_tokens": 1000, "output_tokens": 100},
        },
        {"stream": [{"text": "It is done."}], "usage": {"input_tokens": 2000, "output_tokens": 10}},
    )
    done = await daemon.turn("run", "look", "--model", model, "--json")
    assert done.code == 0, done.stderr
    events, result = checked_run(done)
    assert result == {
        "type": "result",
        "session": events[0]["session"],
        "status": "completed",
        "turn": 0,
        "reason": "completed",
        "cause": None,
        "steps": 2,
        "cost_usd": 0.01065,
        "estimated": False,
        "unpriced": False,
        "weighted_tokens": 3550,
        "denied": [],
        "text": "It is done.",
    }
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert [events[0]["type"], events[-1]["type"]] == ["session/created", "session/ended"]
    call = next(event for event in events if event["type"] == "tool/call")
    assert (call["turn"], call["step"]) == (0, 1)
    data = call["data"]
    assert (data["kind"], data["input"]) == ("data_source", {"path": "."})


async def test_run_takes_the_prompt_from_stdin_and_a_relative_transcript(daemon: RunningDaemon) -> None:
    (daemon.workspace / "t.jsonl").write_text(
        '{"stream": [{"text": "ok"}], "expect": {"last_contains": "fröhlich"}}\n'
    )
    done = await daemon.turn("run", "-", "--model", "replay:t.jsonl", "--keep", stdin="sei fröhlich\n")
    assert done.code == 0, done.stderr
    assert "ok\n" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    (found,) = (await daemon.turn("ls", "--json", "--here")).json_lines[:1]
    assert (found["status"], found["last_reason"]) == ("idle", "completed")


@pytest.mark.req("GATE-15")
async def test_unattended_denies_and_exits_3(daemon: RunningDaemon) -> None:
    done = await daemon.turn("run", "go", "--model", daemon.replay(WRITE, DONE), "--json", "--unattended")
    assert done.code == 3, done.stderr
    _, result = checked_run(done)
    assert result["reason"] == "completed"
    (denied,) = result["denied"]
    assert (denied["provider"], denied["tool"]) == ("workspace", "write_file")
    assert denied["reason"]
    assert not (daemon.workspace / "a.txt").exists()


async def test_a_question_that_nobody_answers_is_among_what_was_denied(daemon: RunningDaemon) -> None:
    ask = {"stream": [{"tool": "core.ask_user", "input": {"question": "Which?"}}]}
    done = await daemon.turn("run", "go", "--model", daemon.replay(ask, DONE), "--json", "--unattended")
    assert done.code == 3, done.stderr
    assert [denied["tool"] for denied in checked_run(done)[1]["denied"]] == ["ask_user"]


@pytest.mark.parametrize(
    ("option", "cause_status"),
    [(("--max-turns", "1"), "error_max_turns"), (("--max-cost", "0"), "error_max_budget_usd")],
)
async def test_a_limit_exits_4(daemon: RunningDaemon, option: tuple[str, str], cause_status: str) -> None:
    look = {"stream": [{"tool": "list_dir", "input": {"path": "."}}]}
    lines = (look, DONE) if option[0] == "--max-turns" else (DONE,)
    done = await daemon.turn("run", "go", "--model", daemon.replay(*lines), "--json", *option)
    assert done.code == 4, done.stdout + done.stderr
    assert checked_run(done)[1]["status"] == cause_status


async def test_max_tokens_exits_4_and_an_error_1(daemon: RunningDaemon) -> None:
    cut = {"stream": [{"text": "and so"}], "stop": "max_tokens"}
    done = await daemon.turn("run", "go", "--model", daemon.replay(cut), "--json")
    assert (done.code, checked_run(done)[1]["reason"]) == (4, "max-tokens")
    failing = {"stream": [], "error": {"category": "auth_error", "message": "the key is wrong"}}
    done = await daemon.turn("run", "go", "--model", daemon.replay(failing), "--json")
    result = checked_run(done)[1]
    assert (done.code, result["reason"]) == (1, "error")
    assert "the key is wrong" in str(result["cause"])


@pytest.mark.req("BOUND-13")
@pytest.mark.parametrize(
    "arguments",
    [
        ("--max-cost", "-1"),
        ("--max-cost", "NaN"),
        ("--max-cost", "lots"),
        ("--max-turns", "-1"),
        ("--max-turns", "1.5"),
        ("--max-time", "-5"),
        ("--max-time", "soon"),
        ("--profile", "no-such-profile"),
        ("--model", "no-such-model"),
        ("--no-such-option",),
    ],
)
async def test_usage_errors_exit_2(daemon: RunningDaemon, arguments: tuple[str, ...]) -> None:
    done = await daemon.turn("run", "go", *arguments)
    assert done.code == 2
    assert arguments[-1] in done.stderr
    assert done.stdout == ""


@pytest.mark.req("LOOP-07")
async def test_the_first_interrupt_cancels_and_waits_the_second_leaves(daemon: RunningDaemon) -> None:
    sleep = {"stream": [{"tool": "inspect_command", "input": {"command": "sleep 60"}}]}
    process = await daemon.start_turn("run", "go", "--model", daemon.replay(sleep), "--json")
    assert process.stdout is not None
    lines: list[dict[str, Any]] = []
    while not lines or lines[-1]["type"] != "tool/started":
        lines.append(json.loads(await process.stdout.readline()))
    process.send_signal(signal.SIGINT)
    rest, stderr = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 130
    assert b"cancelling" in stderr
    lines += [json.loads(line) for line in rest.splitlines()]
    result = lines[-1]
    assert (result["reason"], result["cause"]) == ("aborted", "user")
    results = [line for line in lines if line["type"] == "tool/result"]
    assert len(results) == 1

    process = await daemon.start_turn("run", "go", "--model", daemon.replay(SLOW), "--json")
    assert process.stdout is not None
    session = json.loads(await process.stdout.readline())["session"]
    await daemon.events(str(session), lambda event: event.HasField("assistant_chunk"))
    os.kill(process.pid, signal.SIGSTOP)
    os.kill(process.pid, signal.SIGINT)
    os.kill(process.pid, signal.SIGCONT)
    assert process.stderr is not None
    assert b"cancelling" in await process.stderr.readline()
    os.kill(process.pid, signal.SIGINT)
    await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 130


# --- people -------------------------------------------------------------------------------------------------


@pytest.mark.req("RPC-03")
async def test_two_attached_clients_see_the_same_and_either_can_approve(daemon: RunningDaemon) -> None:
    running = await daemon.start_turn("run", "go", "--model", daemon.replay(WRITE, DONE), "--json")
    assert running.stdout is not None
    assert running.stderr is not None
    session = str(json.loads(await running.stdout.readline())["session"])
    said = (await running.stderr.readline()).decode()
    assert f"turn approve {session}" in said
    watching = [await daemon.start_turn("attach", session, "--json") for _ in range(2)]
    shown = (await daemon.turn("show", session, "--json")).json_lines[0]
    (waiting,) = shown["open_requests"]
    assert "+hello" in waiting["approval"]["item"]["preview"]
    decided = await daemon.turn("approve", session, "--json")
    assert decided.code == 0, decided.stderr
    assert decided.json_lines[0]["outcome"] == "approved"
    outputs = [(await asyncio.wait_for(each.communicate(), 60))[0] for each in watching]
    assert [each.returncode for each in watching] == [0, 0]
    assert outputs[0] == outputs[1]
    await running.communicate()
    assert running.returncode == 0
    lines = outputs[0].decode().splitlines()
    decisions = [event_from_json(line) for line in lines if '"approval/decided"' in line]
    assert [event.approval_decided.client[:12] for event in decisions] == ["turn approve"]
    assert (daemon.workspace / "a.txt").read_text() == "hello\n"
    late = await daemon.turn("deny", session, decisions[0].approval_decided.request_id)
    assert late.code == 1
    assert "turn approve" in late.stderr


async def test_without_an_item_exactly_one_request_must_be_open(daemon: RunningDaemon) -> None:
    two = {
        "stream": [
            {"tool": "write_file", "input": {"path": f"{name}.txt", "content": name}} for name in ("b", "c")
        ]
    }
    session = await daemon.client.create_session(str(daemon.workspace), model=daemon.replay(two, DONE))
    none = await daemon.turn("approve", session.id)
    assert (none.code, none.stdout) == (2, "")
    await daemon.client.send_message(session.id, "go")
    events = await daemon.events(
        session.id,
        lambda event: (
            event.HasField("approval_request") and event.approval_request.item.input.find(b"c.txt") > 0
        ),
    )
    requests = [event.approval_request for event in events if event.HasField("approval_request")]
    while len((await daemon.client.get_session(session.id)).session.open_requests) < 2:
        await asyncio.sleep(0.02)
    listed = await daemon.turn("approve", session.id)
    assert listed.code == 2
    names = [request.request_id for request in requests]
    assert all(name in listed.stderr for name in names)
    assert len((await daemon.client.get_session(session.id)).session.open_requests) == 2
    denied = await daemon.turn("deny", session.id[:20], names[0], "--reason", "not this one")
    assert denied.code == 0, denied.stderr
    approved = await daemon.turn("approve", session.id, "--reason", "fine")
    assert approved.code == 0, approved.stderr
    events = await daemon.events(session.id, is_turn_end)
    results = [event.tool_result for event in events if event.HasField("tool_result")]
    assert [result.is_error for result in results] == [True, False]
    assert b"not this one" in results[0].content
    assert [path.name for path in daemon.workspace.iterdir()] == ["c.txt"]


async def test_a_question_is_answered_in_words(daemon: RunningDaemon) -> None:
    ask = {"stream": [{"tool": "core.ask_user", "input": {"question": "Which colour?"}}]}
    blue = {"stream": [{"text": "Blue it is."}], "expect": {"last_contains": "blue"}}
    session = await daemon.client.create_session(str(daemon.workspace), model=daemon.replay(ask, blue))
    await daemon.client.send_message(session.id, "go")
    await daemon.events(session.id, lambda event: event.HasField("interactive_request"))
    answered = await daemon.turn("answer", session.id, "blue")
    assert answered.code == 0, answered.stderr
    events = await daemon.events(session.id, is_turn_end)
    assert events[-1].turn_end.reason == common_pb2.TURN_END_REASON_COMPLETED


async def test_on_a_terminal_it_asks_and_shows_what_would_be_remembered(daemon: RunningDaemon) -> None:
    more = {"stream": [{"tool": "write_file", "input": {"path": "d.txt", "content": "d\u202e\n"}}]}
    again = {"stream": [{"tool": "write_file", "input": {"path": "d.txt", "content": "e\n"}}]}
    terminal = daemon.start_terminal("run", "go", "--model", daemon.replay(WRITE, more, again, DONE))
    await terminal.shows("+hello")
    await terminal.shows("[y]es")
    terminal.type("what?\n")
    await terminal.shows("[y]es")
    terminal.type("n not yet\n")
    await terminal.shows("denied")
    await terminal.shows("+d<U+202E>")
    await terminal.shows("[y]es")
    terminal.type("s\n")
    await terminal.shows("workspace.write_file with d.txt")
    terminal.type("y\n")
    await terminal.shows("approved for the session")
    await terminal.shows("Done.")
    assert await terminal.end() == 0
    assert "[y]es" not in terminal.screen
    assert [path.name for path in daemon.workspace.iterdir()] == ["d.txt"]
    assert (daemon.workspace / "d.txt").read_text() == "e\n"


async def test_a_prompt_ends_when_somebody_else_answers(daemon: RunningDaemon) -> None:
    terminal = daemon.start_terminal("run", "go", "--model", daemon.replay(WRITE, DONE))
    await terminal.shows("[y]es")
    sessions = [session async for session in daemon.client.list_sessions()]
    (request,) = sessions[0].open_requests
    await daemon.client.decide(
        sessions[0].id, request.approval.request_id, approve=False, reason="by another"
    )
    await terminal.shows("[d]iff again: \x1b[0m\n\x1b[33m  r_")
    await terminal.shows("denied by test: by another\x1b[0m\n")
    assert await terminal.end() == 0


async def test_of_two_open_approvals_the_prompt_names_one(daemon: RunningDaemon) -> None:
    two = {
        "stream": [
            {"tool": "write_file", "input": {"path": f"{name}.txt", "content": name}} for name in ("b", "c")
        ]
    }
    terminal = daemon.start_terminal("run", "go", "--model", daemon.replay(two, DONE))
    await terminal.shows("(1 of 2 open) [y]es")
    sessions = [session async for session in daemon.client.list_sessions()]
    first, second = (request.approval.request_id for request in sessions[0].open_requests)
    await daemon.client.decide(sessions[0].id, first, approve=False)
    await terminal.shows(f"  {first} denied by test\x1b[0m\n")
    await terminal.shows(f"approval r_..{second[-4:]} [y]es")
    terminal.type("y\n")
    assert await terminal.end() == 0
    assert [path.name for path in daemon.workspace.iterdir()] == ["c.txt"]


# --- other commands -----------------------------------------------------------------------------------------


async def test_lists_and_states_have_their_fields(daemon: RunningDaemon) -> None:
    common = {
        "id", "status", "title", "cwd", "profile", "parent", "depth", "turns", "steps", "cost_usd", "created",
        "last_seq", "open_requests", "queued",
    }  # fmt: skip
    session = await daemon.client.create_session(
        str(daemon.workspace),
        model=daemon.replay(DONE),
        title="a title",
        bounds=common_pb2.Bounds(max_turns=7),
    )
    first = (await daemon.turn("ls", "--json")).json_lines[0]
    assert set(first) >= common
    assert (first["id"], first["status"], first["title"]) == (session.id, "idle", "a title")
    shown = (await daemon.turn("show", session.id[:-3], "--json")).json_lines[0]
    assert set(shown) >= common | {"bounds", "left"}
    assert (shown["bounds"]["max_turns"], shown["left"]["max_turns"]) == (7, 7)
    status = (await daemon.turn("status", "--json")).json_lines[0]
    assert (status["pid"], status["socket"]) == (daemon.pid, str(daemon.socket))
    assert set(status) >= {"version", "pid", "socket", "sessions"}
    for arguments in (("ls",), ("show", session.id), ("status",), ("log", session.id)):
        done = await daemon.turn(*arguments)
        assert done.code == 0, done.stderr
        assert done.stdout
    unknown = await daemon.turn("show", "zzz")
    assert (unknown.code, unknown.stdout) == (1, "")
    assert "zzz" in unknown.stderr


async def test_lists_say_what_is_in_them_for_people() -> None:
    async with running_daemon() as daemon:
        assert (await daemon.turn("ls")).stdout == "no sessions\n"
        prompt = "\n  Fix the \x1btest\u202e of\tthis\nand more"
        done = await daemon.turn("run", prompt, "--model", daemon.replay(DONE), "--plan", "--unattended")
        assert "completed: 1 step, " in done.stderr
        header, row = (await daemon.turn("ls")).lines
        assert header.split() == ["ID", "CREATED", "STATUS", "COST", "WAITING", "DIRECTORY", "TITLE"]
        assert row.endswith("  Fix the test of this")
        assert row.index(str(daemon.workspace)) == header.index("DIRECTORY")
        shown = (await daemon.turn("show", row.split()[0])).stdout
        for words in (
            "plan mode    tools",
            "unattended   what",
            "1, 1 step, ",
            "not enforced ",
            ", see turn status",
        ):
            assert words in shown, shown
        long = await daemon.turn("run", "x" * 100, "--model", daemon.replay(DONE), "--json")
        assert long.json_lines[0]["data"]["title"] == "x" * 57 + "..."


@pytest.mark.req("A09")
async def test_show_says_what_a_wider_scope_would_remember(daemon: RunningDaemon) -> None:
    session = await daemon.client.create_session(str(daemon.workspace), model=daemon.replay(WRITE, DONE))
    await daemon.client.send_message(session.id, "go")
    await asked(daemon, session.id)
    shown = await daemon.turn("show", session.id)
    assert "  --scope session or always would remember: workspace.write_file with a.txt\n" in shown.stdout
    await daemon.client.close_session(session.id)


async def test_files_that_cannot_be_used_are_told_in_one_line(daemon: RunningDaemon) -> None:
    session = await daemon.client.create_session(str(daemon.workspace), model=daemon.replay(DONE))
    missing = daemon.base / "missing" / "x"
    done = await daemon.turn("export", session.id, "-o", str(missing))
    assert done.code == 1
    assert done.stderr == (
        f"error: {missing}: No such file or directory; check the path: the directory of a file must be there\n"
    )
    kept = daemon.base / "kept"
    kept.write_text("as it was")
    assert (await daemon.turn("export", "nope", "-o", str(kept))).code == 1
    assert kept.read_text() == "as it was"
    unreadable = await daemon.turn("log", "verify", "/proc/self/mem")
    assert (unreadable.code, unreadable.stderr) == (1, "error: /proc/self/mem: Input/output error\n")


@pytest.mark.parametrize("given", ["", "\n", " \n\n"])
async def test_what_has_no_event_is_no_log(daemon: RunningDaemon, given: str) -> None:
    done = await daemon.turn("log", "verify", "-", stdin=given)
    assert (done.code, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    verdict = await daemon.turn("log", "verify", "-", "--json", stdin=given)
    assert (verdict.code, verdict.json_lines[0]["ok"]) == (1, False)


async def test_a_changed_configuration_is_read_when_it_is_asked_for() -> None:
    async with running_daemon() as daemon:
        pid = daemon.pid
        assert (await daemon.turn("reload")).stdout == "nothing changed\n"
        daemon.configure("[profiles.careful]\nmax_turns = 7\n")
        reloaded = (await daemon.turn("reload", "--json")).json_lines[0]
        assert reloaded["reloaded"] is True
        assert reloaded["changed"]
        session = await daemon.client.create_session(
            str(daemon.workspace), profile="careful", model=daemon.replay(DONE)
        )
        assert (await daemon.client.get_session(session.id)).bounds.max_turns == 7
        daemon.configure("[profiles.careful\n")
        wrong = await daemon.turn("reload")
        assert (wrong.code, wrong.stdout) == (1, "")
        assert "config.toml" in wrong.stderr
        assert (await daemon.client.status()).pid == pid
        await daemon.stop()
        absent = await daemon.turn("reload", "--json")
        assert (absent.code, absent.json_lines) == (0, [{"reloaded": False, "changed": []}])


@pytest.mark.req("OPS-05")
async def test_a_daemon_that_goes_away_is_told_on_a_line_of_its_own() -> None:
    async with running_daemon() as daemon:
        session = await daemon.client.create_session(str(daemon.workspace), model=daemon.replay(SLOW))
        terminal = daemon.start_terminal("attach", session.id)
        await daemon.client.send_message(session.id, "go")
        await terminal.shows("xxxx")
        await daemon.kill()
        await terminal.shows("x\nturn: the daemon went away; waiting for it\n")
        await daemon.start()
        await terminal.shows("= turn 0 interrupted")
        await daemon.client.close_session(session.id)
        assert await terminal.end() == 0


async def test_a_cursor_is_called_as_on_the_command_line(daemon: RunningDaemon) -> None:
    session = await daemon.client.create_session(str(daemon.workspace), model=daemon.replay(DONE))
    done = await daemon.turn("attach", session.id, "--after", "9999")
    assert done.code == 1
    assert done.stderr.startswith("error: --after: ")
    assert "after_seq" not in done.stderr


async def test_send_log_follow_cancel_close(daemon: RunningDaemon) -> None:
    model = daemon.replay(SLOW, DONE)
    session = (await daemon.client.create_session(str(daemon.workspace), model=model)).id
    following = await daemon.start_turn("log", session, "-f", "--json")
    assert following.stdout is not None
    sent = await daemon.turn("send", session, "go")
    assert sent.code == 0, sent.stderr
    types: list[str] = []
    while "assistant/chunk" not in types:
        types.append(json.loads(await following.stdout.readline())["type"])
    steering = await daemon.turn("send", session, "faster", "--now", "--json")
    assert steering.code == 0, steering.stderr
    cancelled = await daemon.turn("cancel", session, "--json")
    assert cancelled.json_lines == [{"turn": 0}]
    again = await daemon.turn("cancel", session)
    assert again.code == 1
    assert again.stderr.startswith("error: ")
    closed = await daemon.turn("close", session, "--json")
    assert closed.json_lines[0]["status"] == "completed"
    while "session/ended" not in types:
        types.append(json.loads(await following.stdout.readline())["type"])
    following.send_signal(signal.SIGINT)
    await asyncio.wait_for(following.communicate(), 60)
    assert following.returncode == 0
    whole = await daemon.turn("log", session, "--json")
    assert [line["type"] for line in whole.json_lines] == types
    part = await daemon.turn("log", session, "--json", "--after", str(len(types) - 2))
    assert [line["type"] for line in part.json_lines] == types[-2:]


async def test_what_waits_in_the_queue_can_be_taken_out(daemon: RunningDaemon) -> None:
    session = (await daemon.client.create_session(str(daemon.workspace), model=daemon.replay(SLOW, DONE))).id
    await daemon.client.send_message(session, "go")
    await daemon.events(session, lambda event: event.HasField("assistant_chunk"))
    first, second = [await daemon.client.send_message(session, text) for text in ("first", "second")]
    queued = (await daemon.turn("show", session, "--json")).json_lines[0]["queued"]
    assert [message["message_id"] for message in queued] == [first.message_id, second.message_id]
    assert await daemon.client.clear_queue(session, [first.message_id]) == [first.message_id]
    assert await daemon.client.clear_queue(session) == [second.message_id]
    await daemon.client.close_session(session)
    cleared = [
        list(event.inbox_cleared.message_ids)
        for event in await daemon.events(session, lambda event: event.HasField("session_ended"))
        if event.HasField("inbox_cleared")
    ]
    assert cleared == [[first.message_id], [second.message_id]]


async def test_an_export_is_verified_and_refused_with_any_line_missing(daemon: RunningDaemon) -> None:
    model = daemon.replay({"stream": [{"tool": "list_dir", "input": {"path": "."}}]}, DONE)
    await daemon.turn("run", "go", "--model", model)
    newest = (await daemon.turn("ls", "--json")).json_lines[0]
    exported = await daemon.turn("export", str(newest["id"]))
    log = await daemon.turn("log", str(newest["id"]), "--json")
    assert exported.stdout == log.stdout
    assert (await daemon.turn("log", "verify", "-", stdin=exported.stdout)).code == 0
    lines = exported.stdout.splitlines(keepends=True)
    for missing in range(len(lines) - 1):
        left = "".join(lines[:missing] + lines[missing + 1 :])
        verdict = await daemon.client.verify_lines([left.encode()])
        assert verdict.faults, f"line {missing + 1} is missing and it was not noticed"
    broken = await daemon.turn("log", "verify", "-", "--json", stdin="".join(lines[:3] + lines[4:]))
    assert broken.code == 1
    assert broken.json_lines[0]["ok"] is False
    without_its_end = await daemon.turn("log", "verify", "-", "--json", stdin="".join(lines[:-1]))
    assert without_its_end.code == 0


def lives(pid: int) -> bool:
    """A zombie does not: whether it is reaped is its new parent's affair."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# --- starting and stopping ----------------------------------------------------------------------------------


@pytest.mark.req("V02", "OPS-02")
async def test_five_clients_at_a_stale_socket_start_one_daemon() -> None:
    async with prepared_daemon() as daemon:
        daemon.socket.parent.mkdir(mode=0o700)
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(daemon.socket))
        daemon.socket.chmod(0o600)
        try:
            done = await asyncio.gather(*(daemon.turn("ls") for _ in range(5)))
            assert [each.code for each in done] == [0] * 5, [each.stderr for each in done]
            statuses = await asyncio.gather(*(daemon.turn("status", "--json") for _ in range(2)))
            assert len({each.json_lines[0]["pid"] for each in statuses}) == 1
            assert any("started one" in each.stderr for each in done)
        finally:
            stopped = await daemon.turn("stop", "--json")
        assert stopped.json_lines[0]["stopped"] is True
        assert not lives(stopped.json_lines[0]["pid"])
        assert not daemon.socket.exists()
        again = await daemon.turn("stop", "--json")
        assert again.json_lines == [{"stopped": False, "pid": None}]


@pytest.mark.req("V03", "OPS-02")
async def test_a_second_daemon_says_who_is_running_and_touches_nothing(daemon: RunningDaemon) -> None:
    before = (daemon.token.read_bytes(), daemon.socket.stat().st_ino)
    second = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "turnd.main", "serve"],
        env=daemon.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert second.returncode != 0
    assert "already running" in second.stderr
    assert str(daemon.pid) in second.stderr
    assert (daemon.token.read_bytes(), daemon.socket.stat().st_ino) == before
    async with await daemon.connect() as client:
        assert (await client.status()).pid == daemon.pid


async def test_a_daemon_that_cannot_start_is_explained() -> None:
    async with prepared_daemon("[profiles.default\n") as daemon:
        done = await daemon.turn("ls")
        assert done.code == 1
        assert "did not start" in done.stderr
        assert "config.toml" in done.stderr


@pytest.mark.req("RPC-06", "V11")
async def test_a_runtime_directory_that_is_open_to_others_is_not_used(daemon: RunningDaemon) -> None:
    daemon.socket.parent.chmod(0o755)
    try:
        done = await daemon.turn("ls")
    finally:
        daemon.socket.parent.chmod(0o700)
    assert done.code == 1
    assert "chmod 700" in done.stderr


async def test_a_client_without_a_daemon_says_so() -> None:
    async with prepared_daemon() as daemon:
        with pytest.raises(NoDaemon, match="no daemon listens"):
            await daemon.connect()


async def test_the_demo_does_what_it_shows() -> None:
    async with prepared_daemon() as daemon:
        done = await daemon.turn("demo", "--remove")
        assert done.code == 0, done.stdout + done.stderr
        for shown in (
            "sandbox in force",
            "a second client of the demo's own approves",
            "+    return (sum(prices) * (100 - discount_percent) + 50) // 100",
            "approved by turn demo",
            "Ran 3 tests",
            "every rule holds",
            "answer: All three tests pass.",
            "cost:   $0.0350",
        ):
            assert shown in done.stdout, done.stdout
        assert not list(daemon.workspace.iterdir())
        assert not list(daemon.home.iterdir())


async def test_the_demo_asks_where_somebody_sits_and_fails_when_denied() -> None:
    async with prepared_daemon() as daemon:
        terminal = daemon.start_terminal("demo", "--remove")
        await terminal.shows("[y]es")
        terminal.type("y\n")
        await terminal.shows("approved by turn demo")
        await terminal.shows("[y]es")
        terminal.type("n\n")
        await terminal.shows("You denied the run of the tests, so the demo ends here; the edit")
        assert await terminal.end() == 1
        assert "expect" not in terminal.screen
        assert "missing" not in terminal.screen


async def test_the_demo_ends_in_a_sentence_when_the_edit_is_denied() -> None:
    async with prepared_daemon() as daemon:
        terminal = daemon.start_terminal("demo", "--remove")
        await terminal.shows("[y]es")
        terminal.type("n\n")
        await terminal.shows("denied by turn demo")
        await terminal.shows("You denied the edit, so the demo ends here; nothing was changed.")
        assert await terminal.end() == 1
