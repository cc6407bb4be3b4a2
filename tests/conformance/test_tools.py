"""Tool providers through the registry, in real cells: the contract, commands, and what a provider may not do."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.conformance.tool_bench import (
    Bench,
    Session,
    bench,
    content,
    failure,
    scripted,
    tool,
)

from turnd.ports import ToolFailure, ToolOutcome
from turnd.tools.definition import workspace_provider
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

UNKNOWN = common.TOOL_ERROR_CATEGORY_UNKNOWN
DENIED = "TOOL_ERROR_CATEGORY_PERMISSION_DENIED"
OK = ("result", {"ok": True})


@pytest.fixture
async def files(short_path: Path) -> AsyncIterator[Bench]:
    async with bench(short_path, workspace_provider()) as made:
        yield made


@pytest.fixture
async def script(short_path: Path) -> AsyncIterator[Bench]:
    resource = {"kind": common.TOOL_KIND_RESOURCE, "risk": common.RISK_HIGH}
    tools = (tool("act"), tool("command", runs_commands=True), tool("spawn", spawns=True, **resource))
    async with bench(short_path, scripted("scripted", *tools)) as made:
        yield made


def _processes(word: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if word.encode() in line and int(entry.name) != os.getpid():
                found.append(int(entry.name))
    return found


def _children() -> list[int]:
    """Processes that this one started and that are not over."""
    return [
        int(pid)
        for task in Path("/proc/self/task").iterdir()
        for pid in (task / "children").read_text().split()
    ]


# --- registration -------------------------------------------------------------------------------------------


@pytest.mark.req("TOOL-01")
async def test_registrations_come_over_the_stream_and_a_broken_one_is_refused_by_name(
    short_path: Path,
) -> None:
    keyed = common.ConcurrencySpec(safe=True, key_fields=[common.KeyField(name="nowhere")])
    question = tool("ask", kind=common.TOOL_KIND_INTERACTIVE)
    providers = (
        scripted("sound", tool("one"), tool("two")),
        scripted("asks", question),
        scripted("keys", tool("good"), tool("bad", concurrency=keyed)),
        scripted("impostor", tool(), registers_as="workspace"),
    )
    async with bench(short_path, *providers) as made:
        session = await made.open()
        assert [t.full_name for t in session.tools.offered() if t.provider != "core"] == [
            "sound.one",
            "sound.two",
        ]
        assert session.tools.offered()[0].spec.concurrency.safe
        said = {e.provider: e for e in session.log if isinstance(e, event_pb2.ProviderStatus)}
        assert [said[p.name].state for p in providers] == ["ready", "refused", "refused", "refused"]
        assert "'ask'" in said["asks"].message
        assert "ConcurrencySpec" in said["asks"].message
        assert "'bad'" in said["keys"].message
        assert "'nowhere'" in said["keys"].message
        assert "'workspace'" in said["impostor"].message


@pytest.mark.req("TOOL-13")
async def test_configuration_is_checked_and_secrets_reach_their_provider_only(short_path: Path) -> None:
    schema = b'{"type": "object", "required": ["root"], "properties": {"root": {"type": "string"}}}'
    providers = (
        scripted("unset", tool(), config_schema=schema),
        scripted("first", tool(), config_schema=schema, config={"root": "x"}, secrets={"KEY": "s3cret"}),
        scripted("second", tool()),
    )
    async with bench(short_path, *providers) as made:
        session = await made.open()
        refused = next(
            e for e in session.log if isinstance(e, event_pb2.ProviderStatus) and e.provider == "unset"
        )
        assert refused.state == "refused"
        assert '"root" is a required property' in refused.message
        first = await session.act(("registered",), ("environment",), ("told",), name="first.act")
        second = await session.act(("registered",), ("environment",), ("told",), name="second.act")
        assert content(first)["answers"][0]["registered"]["secrets"] == {"KEY": "s3cret"}
        assert "s3cret" not in str(content(second))
        assert "s3cret" not in str(content(first)["answers"][1])


async def test_a_provider_that_does_not_come_is_left_out_and_said_so(short_path: Path) -> None:
    async with bench(
        short_path, scripted("gone", tool(), registers_as=""), scripted("there", tool())
    ) as made:
        session = await made.open()
        assert dict(session.statuses()) == {"gone": "missing", "there": "ready"}
        assert session.tools.find("gone", "act") is None
        assert content(await session.act(OK, name="there.act")) == {"ok": True}


@pytest.mark.parametrize("version", ["planted", "file"])
async def test_what_is_planted_in_the_place_of_a_socket_is_not_dialled(
    short_path: Path, version: str
) -> None:
    async with bench(short_path, scripted("scripted", tool(), version=version)) as made:
        session = await made.open()
        status = next(e for e in session.log if isinstance(e, event_pb2.ProviderStatus))
        assert status.state == "missing"
        assert "not a socket" in status.message


async def test_globs_decide_what_is_started_and_what_is_offered(short_path: Path) -> None:
    async with bench(short_path, scripted("one", tool("a"), tool("b")), scripted("two", tool("a"))) as made:
        session = await made.open(tools=("one.a", "core.list_*"))
        assert [t.full_name for t in session.tools.offered()] == ["one.a", "core.list_tasks"]
        assert session.statuses() == [("one", "ready")]
        failure(await session.act(OK, name="one.b"), common.TOOL_ERROR_CATEGORY_NOT_FOUND)


async def test_a_tree_of_sessions_shares_an_instance_and_the_last_one_ends_it(script: Bench) -> None:
    parent = await script.open("S1")
    started = _children()
    child = await script.open("S2", root="S1")
    assert _children() == started
    await parent.tools.close()
    assert content(await child.act(OK)) == {"ok": True}
    await child.tools.close()
    assert not _children()


# --- one call -----------------------------------------------------------------------------------------------


@pytest.mark.req("TOOL-02")
async def test_a_stream_is_taken_in_order_up_to_its_one_end(script: Bench) -> None:
    session = await script.open()
    steps = [("progress", "first"), ("progress", "second"), ("exit", 0), OK]
    assert content(await session.act(*steps)) == {"ok": True}
    said = [e.message for e in session.log if isinstance(e, event_pb2.ToolProgress)]
    assert said == ["first", "second"]


@pytest.mark.req("TOOL-02")
@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([OK, OK], "more after the end"),
        ([OK, ("error", 3)], "more after the end"),
        ([("error", 3), OK], "more after the end"),
        ([], "without a result or an error"),
        ([("exit", 0)], "without a result or an error"),
        ([("exit", 0), ("exit", 0), OK], "exit_status after the exit status"),
        ([("exit", 0), ("output", "x"), OK], "output after the exit status"),
        ([("unknown",), OK], "does not know"),
        ([("result", {"ok": "yes"})], "output schema: ok:"),
        ([("result", {})], "output schema"),
        ([("raw", "{")], "not JSON"),
        ([("raw", '{"ok": true, "x": NaN}')], "not JSON"),
        ([("result", {"ok": True, "x": "y" * 2_000_000})], "at most"),
    ],
)
async def test_a_stream_that_breaks_the_contract_is_an_error(
    script: Bench, steps: list[tuple[object, ...]], said: str
) -> None:
    session = await script.open()
    assert said in failure(await session.act(*steps), UNKNOWN).message
    assert content(await session.act(OK)) == {"ok": True}


@pytest.mark.req("TOOL-02")
async def test_input_is_checked_before_the_provider_sees_it(short_path: Path) -> None:
    schema = b'{"type": "object", "properties": {"do": {"type": "array"}, "n": {"type": "integer"}}, "required": ["n"]}'
    spec = tool()
    spec.input_schema = schema
    async with bench(short_path, scripted("scripted", spec)) as made:
        session = await made.open()
        wrong = await session.call("scripted.act", {"do": [["crash"]], "n": "x"})
        assert "n:" in failure(wrong, common.TOOL_ERROR_CATEGORY_INVALID_ARGUMENTS).message
        assert session.statuses() == [("scripted", "ready")]
        shown = await session.tools.preview(session.invocation("scripted.act", {}))
        assert shown.failure is not None
        assert shown.failure.category == common.TOOL_ERROR_CATEGORY_INVALID_ARGUMENTS


@pytest.mark.parametrize("category", [0, 9, 10, 11, 12, 13, 14, 99])
async def test_a_provider_cannot_say_what_only_the_daemon_says(script: Bench, category: int) -> None:
    session = await script.open()
    failure(await session.act(("error", category)), UNKNOWN)


@pytest.mark.req("TOOL-03")
async def test_a_crash_fails_the_calls_at_once_and_the_provider_comes_back(script: Bench) -> None:
    session = await script.open()
    hanging = asyncio.create_task(session.act(("partial", {"done": 2}), ("progress", "hangs"), ("hang",)))
    async with asyncio.timeout(20):
        while not any(isinstance(e, event_pb2.ToolProgress) for e in session.log):
            await asyncio.sleep(0.01)
        crashed = failure(await session.act(("crash",)), common.TOOL_ERROR_CATEGORY_PROCESS_CRASHED)
        beside = failure(await hanging, common.TOOL_ERROR_CATEGORY_PROCESS_CRASHED)
        assert "falling over" in crashed.message
        assert "status 3" in crashed.message
        assert beside.details == b'{"done": 2}'
        assert content(await session.act(OK)) == {"ok": True}
    assert ("scripted", "crashed") in session.statuses()


async def test_a_call_that_does_not_listen_to_its_deadline_is_ended_with_its_process(script: Bench) -> None:
    session = await script.open()
    async with asyncio.timeout(20):
        ended = await session.act(("partial", {"done": 1}), ("stubborn",), timeout_s=0.2)
        assert failure(ended, common.TOOL_ERROR_CATEGORY_TIMEOUT).details == b'{"done": 1}'
        assert content(await session.act(OK)) == {"ok": True}


async def test_a_cancelled_call_is_cancelled_at_the_provider(script: Bench) -> None:
    session = await script.open()
    async with asyncio.timeout(20):
        task = asyncio.create_task(session.act(("progress", "hangs"), ("hang",)))
        while not session.log[1:]:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while content(await session.act(("seen",), ("told",)))["answers"] != [["cancelled"]]:
            await asyncio.sleep(0.01)


async def test_a_preview_that_is_missing_or_broken_is_empty(script: Bench) -> None:
    session = await script.open()
    shown = await session.tools.preview(session.invocation("scripted.act", {}))
    assert shown.text == "shown ␛[31m"
    for how in ("abort", "crash"):
        empty = await session.tools.preview(session.invocation("scripted.act", {"preview": how}))
        assert (empty.text, empty.failure) == ("", None)


# --- what a provider may ask --------------------------------------------------------------------------------


async def _refused(
    session: Session, kind: str, fields: dict[str, object], name: str = "scripted.command"
) -> str:
    answers = content(await session.act(("ask", kind, fields), ("told",), name=name))["answers"]
    assert "refused" in answers[0], answers
    error = answers[0]["refused"]["error"]
    assert error["category"] == DENIED, error
    message: str = error["message"]
    return message


@pytest.mark.req("TOOL-08")
async def test_a_provider_acts_only_for_calls_in_flight_at_itself(short_path: Path) -> None:
    providers = (scripted("scripted", tool("command", runs_commands=True)), scripted("other", tool("act")))
    async with bench(short_path, *providers) as made:
        session = await made.open("S1", root="S1")
        stranger = await made.open("S2", root="S2")
        async with asyncio.timeout(30):
            foreign = asyncio.create_task(
                stranger.act(("progress", "here"), ("hang",), name="scripted.command")
            )
            beside = asyncio.create_task(session.act(("progress", "here"), ("hang",), name="other.act"))
            while not (stranger.log[2:] and session.log[2:]):
                await asyncio.sleep(0.01)
            command = {"command": "touch made", "access": "COMMAND_ACCESS_WRITE"}
            for call_id in ("S2-1", "S1-1", "", "nobody"):
                assert "in flight" in await _refused(session, "run_command", {**command, "call_id": call_id})
                assert "in flight" in await _refused(session, "emit", {"text": "x", "call_id": call_id})
            assert not list(made.workspace.iterdir())
            for task in (foreign, beside):
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
        notes = [e for s in (session, stranger) for e in s.log if isinstance(e, event_pb2.Note)]
        assert not notes


@pytest.mark.req("TOOL-08")
async def test_a_provider_registers_once(script: Bench) -> None:
    session = await script.open()
    assert "registers once" in await _refused(session, "register", {"name": "again"})


@pytest.mark.req("TOOL-08", "SUB-01")
async def test_a_sub_agent_needs_a_tool_that_declares_it(script: Bench) -> None:
    session = await script.open()
    wanted = {"profile": "default", "prompt": "x", "tools": ["read_*"]}
    assert "does not declare spawns" in await _refused(session, "run_session", wanted)
    assert session.children == []

    answers = content(await session.act(("ask", "run_session", wanted), ("told",), name="scripted.spawn"))
    (finished,) = [answer["sessionFinished"] for answer in answers["answers"]]
    assert (finished["session"], finished["text"]) == ("S1-child", "did x")
    assert [(child.profile, child.prompt, child.tools) for child in session.children] == [
        ("default", "x", ("read_*",))
    ]

    none = {"profile": "none", "prompt": "x"}
    assert "there is no profile 'none'" in await _refused(session, "run_session", none, name="scripted.spawn")


@pytest.mark.req("TOOL-08")
async def test_a_command_needs_a_tool_that_declares_it(script: Bench) -> None:
    session = await script.open()
    command = {"command": "true", "access": "COMMAND_ACCESS_READ"}
    assert "runs_commands" in await _refused(session, "run_command", command, name="scripted.act")


async def test_a_note_goes_into_the_log_of_its_call(script: Bench) -> None:
    session = await script.open()
    noted = content(await session.act(("ask", "emit", {"text": "a \x1b note"}), ("told",)))
    assert "noted" in noted["answers"][0]
    note = next(e for e in session.log if isinstance(e, event_pb2.Note))
    assert (note.call_id, note.provider, note.text) == ("S1-1", "scripted", "a ␛ note")


async def test_a_command_ends_with_its_call(script: Bench) -> None:
    session = await script.open()
    marker = f"sleep 8{os.getpid()}"
    start = ("start", "run_command", {"command": f"echo up; {marker}; :", "access": "COMMAND_ACCESS_READ"})
    async with asyncio.timeout(20):
        running = asyncio.create_task(session.act(start, ("hang",), name="scripted.command"))
        while not any(isinstance(e, event_pb2.ToolProgress) and "up" in e.output for e in session.log):
            await asyncio.sleep(0.01)
        assert _processes(marker)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert not _processes(marker)


# --- commands -----------------------------------------------------------------------------------------------


@pytest.mark.req("TOOL-12")
async def test_commands_see_the_sessions_environment_and_tmp_and_nothing_of_turnds(files: Bench) -> None:
    session = await files.open(environment={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "VIRTUAL_ENV": "/v"})
    look = "env; echo kept > /tmp/x; ls -A /run/turnd 2>&1; ls -d /proc/[0-9]*; ls -l /proc/self/fd"
    run = content(await session.call("workspace.run_command", {"command": look}))
    lines = run["output"].splitlines()
    assert "VIRTUAL_ENV=/v" in lines
    assert not [line for line in lines if line.startswith("TURND_")]
    assert [line for line in lines if "/run/turnd" in line and "No such file" in line]
    assert not [line for line in lines if "socket:" in line]
    # Process 1, the two that wait for the command, bash, ls: no other cell's, and none of the host's.
    assert sum(line.startswith("/proc/") for line in lines) <= 5
    again = content(await session.call("workspace.inspect_command", {"command": "cat /tmp/x; echo $$"}))
    assert again["output"].splitlines()[0] == "kept"
    other = await files.open("S2")
    assert (
        content(await other.call("workspace.inspect_command", {"command": "test -e /tmp/x"}))["exit_code"]
        == 1
    )
    below = files.workspace / "below"
    below.mkdir()
    own = await files.open("S3", cwd=below)
    assert content(await own.call("workspace.run_command", {"command": "pwd"}))["output"] == f"{below}\n"


@pytest.mark.req("TOOL-11")
async def test_the_daemons_environment_and_the_clients_secrets_do_not_reach_commands(
    files: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", "/canary-daemon")
    monkeypatch.setenv("CANARY", "canary-daemon")
    given = {
        "PATH": "/usr/bin:/bin",
        "OPENAI_API_KEY": "canary-key",
        "SSH_AUTH_SOCK": "/canary",
        "LC_X": "canary",
    }
    session = await files.open(environment=given)
    look = {"command": "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'"}
    assert "canary" not in content(await session.call("workspace.run_command", look))["output"]


@pytest.mark.req("SBX-07")
async def test_inspect_command_cannot_change_the_workspace(files: Bench) -> None:
    (files.workspace / "a").write_text("old")
    session = await files.open()
    tried = {"command": "echo new > a; touch b; rm a; mkdir c; chmod 777 a; mv a b; true"}
    ended = content(await session.call("workspace.inspect_command", tried))
    assert ended["output"].count("Read-only file system") == 6
    assert [(p.name, p.read_text()) for p in files.workspace.iterdir()] == [("a", "old")]


async def test_a_command_cannot_be_started_outside_of_the_workspace(files: Bench) -> None:
    session = await files.open()
    (files.workspace / "out").symlink_to(files.base)
    for cwd in ("..", "/", "out", str(files.base)):
        ended = await session.call("workspace.run_command", {"command": "pwd", "cwd": cwd})
        failure(ended, common.TOOL_ERROR_CATEGORY_PERMISSION_DENIED)


async def test_the_end_of_a_command_is_its_main_process_and_the_rest_ends_with_it(files: Bench) -> None:
    session = await files.open()
    marker = f"sleep 9{os.getpid()}"
    for how in (
        f"{marker} & echo done",
        f"setsid {marker} & echo done",
        f"(nohup {marker} >/dev/null 2>&1 &); echo done",
    ):
        ended = content(await session.call("workspace.run_command", {"command": how}))
        assert (ended["output"], ended["exit_code"], ended["left_behind"]) == ("done\n", 0, True)
        assert not _processes(marker)
    plain = content(
        await session.call("workspace.run_command", {"command": "exec > >(tee log) 2>&1; echo teed"})
    )
    assert (plain["output"], plain["left_behind"]) == ("teed\n", False)


async def test_exit_codes_and_failures_of_commands(files: Bench) -> None:
    session = await files.open()
    failed = await session.call("workspace.run_command", {"command": "echo out; echo err >&2; exit 3"})
    assert isinstance(failed, ToolOutcome)
    assert not failed.is_error
    assert (content(failed)["exit_code"], content(failed)["output"]) == (3, "out\nerr\n")
    killed = await session.call("workspace.run_command", {"command": "kill -9 $$"})
    assert content(killed)["exit_code"] == 137
    for wrong in (" ", "a\0b", "x" * 200_000):
        failure(
            await session.call("workspace.run_command", {"command": wrong}),
            common.TOOL_ERROR_CATEGORY_INVALID_ARGUMENTS,
        )


async def test_a_time_out_of_a_command_is_told_with_what_it_had_said(files: Bench) -> None:
    session = await files.open()
    own = await session.call("workspace.run_command", {"command": "echo begun; sleep 60", "timeout_s": 0.3})
    assert isinstance(own, ToolOutcome)
    assert own.is_error
    assert (content(own)["timed_out"], content(own)["output"]) == (True, "begun\n")
    late = await session.call("workspace.run_command", {"command": "echo begun; sleep 60"}, timeout_s=4)
    assert "begun" in failure(late, common.TOOL_ERROR_CATEGORY_TIMEOUT).message


@pytest.mark.req("TOOL-05")
async def test_output_is_bounded_and_complete_in_the_spool_whatever_it_is(files: Bench) -> None:
    session = await files.open()
    command = "head -c 300000 /dev/urandom | tee noise; printf 'end\\033[31m'"
    ended = await session.call("workspace.run_command", {"command": command})
    assert isinstance(ended, ToolOutcome)
    shown = content(ended)
    assert len(shown["output"]) < 40_000
    assert shown["total_bytes"] == 300_008
    assert shown["omitted_bytes"] >= 300_008 - 32 * 1024
    assert shown["output"].endswith("end␛[31m")
    assert not [c for c in shown["output"] if ord(c) < 32 and c not in "\n\t"]
    assert ended.spooled_bytes == 300_008
    raw = (files.workspace / "noise").read_bytes() + b"end\x1b[31m"
    assert files.spool.read("S1", "S1-1").data == raw
    read = content(
        await session.call("core.read_output", {"call_id": "S1-1", "offset": 300_000, "limit": 100})
    )
    assert (read["text"], read["next_offset"], read["total_bytes"]) == ("end␛[31m", 300_008, 300_008)


async def test_read_output_reads_only_the_sessions_own(files: Bench) -> None:
    session, other = await files.open("S1"), await files.open("S2")
    await session.call("workspace.run_command", {"command": "seq 1 100000"})
    assert content(await session.call("core.read_output", {"call_id": "S1-1"}))["total_bytes"] > 0
    failure(await other.call("core.read_output", {"call_id": "S1-1"}), common.TOOL_ERROR_CATEGORY_NOT_FOUND)
    wrong = await other.call("core.read_output", {"call_id": "../S1/S1-1"})
    failure(wrong, common.TOOL_ERROR_CATEGORY_NOT_FOUND)


async def test_a_flood_neither_grows_memory_nor_delays_the_time_out(files: Bench) -> None:
    session = await files.open()
    ended = await session.call("workspace.run_command", {"command": "yes", "timeout_s": 0.5})
    assert content(ended)["timed_out"]
    assert len(content(ended)["output"]) < 40_000
    live = sum(len(e.output) for e in session.log if isinstance(e, event_pb2.ToolProgress))
    assert live < 100_000


async def test_commands_of_one_instance_overlap(files: Bench) -> None:
    session = await files.open()
    # Each waits for the other's file: alone, neither would end.
    pair = [
        f"echo > /tmp/{mine}; until [ -e /tmp/{theirs} ]; do sleep 0.01; done; echo met"
        for mine, theirs in (("a", "b"), ("b", "a"))
    ]
    ended = await asyncio.gather(*(session.call("workspace.inspect_command", {"command": c}) for c in pair))
    assert [content(e)["output"] for e in ended] == ["met\n", "met\n"]


# --- files --------------------------------------------------------------------------------------------------


@pytest.mark.req("GATE-16")
async def test_an_edit_is_bound_to_the_state_that_was_shown(files: Bench) -> None:
    target = files.workspace / "f.txt"
    target.write_text("one\ntwo\n")
    session = await files.open()
    edit = {"path": "f.txt", "old_text": "two", "new_text": "2"}
    shown = await session.tools.preview(session.invocation("workspace.edit_file", edit))
    assert "-two\n+2\n" in shown.text
    target.write_text("one\ntwo\nthree\n")
    drifted = await session.call("workspace.edit_file", edit, preconditions=shown.preconditions)
    failure(drifted, common.TOOL_ERROR_CATEGORY_PRECONDITION_FAILED)
    assert target.read_text() == "one\ntwo\nthree\n"
    again = await session.tools.preview(session.invocation("workspace.edit_file", edit))
    done = await session.call("workspace.edit_file", edit, preconditions=again.preconditions)
    assert isinstance(done, ToolOutcome)
    assert target.read_text() == "one\n2\nthree\n"
    after = {"path": "./f.txt", "old_text": "three", "new_text": "3"}
    follows = await session.call("workspace.edit_file", after, preconditions=done.left_state)
    assert isinstance(follows, ToolOutcome)
    assert target.read_text() == "one\n2\n3\n"


async def test_the_provider_sees_the_workspace_and_not_what_is_around_it(files: Bench) -> None:
    secret = files.base / "secret"
    secret.write_text("hidden")
    (files.workspace / "link").symlink_to(secret)
    session = await files.open()
    for path in ("../secret", str(secret), "link"):
        for name, more in (("read_file", {}), ("write_file", {"content": "x"}), ("grep", {"pattern": "h"})):
            ended = await session.call(f"workspace.{name}", {"path": path, **more})
            failure(ended, common.TOOL_ERROR_CATEGORY_PERMISSION_DENIED)
    assert secret.read_text() == "hidden"


# --- core ---------------------------------------------------------------------------------------------------


async def test_the_task_list_is_the_sessions_own(files: Bench) -> None:
    session, other = await files.open("S1"), await files.open("S2")
    tasks = [{"title": "look", "state": "done"}, {"title": "change", "state": "doing"}]
    assert content(await session.call("core.update_tasks", {"tasks": tasks})) == {"tasks": 2}
    assert content(await session.call("core.list_tasks", {})) == {"tasks": tasks}
    assert content(await other.call("core.list_tasks", {})) == {"tasks": []}


async def test_a_question_is_never_run(files: Bench) -> None:
    session = await files.open()
    ended = await session.call("core.ask_user", {"question": "which?"})
    assert isinstance(ended, ToolFailure)
