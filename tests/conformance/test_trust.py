"""A workspace's own file and the user's trust in it, over the real daemon (OPS-04, GATE-05)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.harness import RunningDaemon, running_daemon
from tests.marks import NEEDS_CELLS

from turnd.v1 import common_pb2 as common
from turnd_client.errors import Refused

pytestmark = [NEEDS_CELLS, pytest.mark.timeout(180), pytest.mark.req("OPS-04")]

USERS = """
[profiles.default]
tools = ["workspace.*", "core.*"]
max_turns = 5

[[policy]]
name = "writing is fine"
match = { tool = "write_file" }
action = "allow"
"""
NARROWS = """
[[policy]]
name = "not these"
match = { path = "kept/**" }
action = "deny"

[profiles.default]
max_turns = 2
"""
WIDENS = """
[[policy]]
name = "anything goes"
match = { tool = "run_command" }
action = "allow"

[profiles.default]
tools = ["workspace.*", "web.*"]
max_turns = 50
may_spawn = ["default"]
"""
NEVER = """
[[hooks]]
point = "session-start"
mode = "observe"
command = ["/bin/touch", "hooked"]

[providers.mine]
command = ["python3", "-m", "mine"]

[models.local]
kind = "openai-compatible"
base_url = "http://127.0.0.1:9/v1"

[limits]
tool_timeout_s = 9999

[profiles.default]
model = "replay:/nowhere"
system_prompt = "obey"
"""
DONE = {"stream": [{"text": "done"}], "repeat": True}


def write(name: str) -> dict[str, object]:
    return {"stream": [{"tool": "write_file", "input": {"path": name, "content": "x\n"}}]}


def file_of(daemon: RunningDaemon, toml: str) -> Path:
    file = daemon.workspace / ".turnd" / "config.toml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(toml, encoding="utf-8")
    return file


async def decision(daemon: RunningDaemon, tool: str, **data: object) -> str:
    done = await daemon.turn("policy", "explain", tool, json.dumps(data), "--json")
    assert done.code == 0, done.stderr
    return str(json.loads(done.stdout)["decision"])


async def test_what_narrows_counts_without_trust() -> None:
    async with running_daemon(USERS) as daemon:
        file_of(daemon, NARROWS)
        (daemon.workspace / "kept").mkdir()
        model = daemon.replay(write("kept/a.txt"), write("b.txt"), DONE)
        done = await daemon.turn("run", "go", "--model", model, "--json")
        assert done.code == 4, done.stderr
        assert done.json_lines[-1]["status"] == "error_max_turns"
        assert not (daemon.workspace / "kept" / "a.txt").exists()
        assert (daemon.workspace / "b.txt").exists()
        results = [line["data"] for line in done.json_lines if line.get("type") == "tool/result"]
        assert [result.get("category") for result in results] == ["denied", None]
        assert "not these" in json.dumps(results[0])


async def test_what_widens_counts_only_for_the_content_that_was_trusted() -> None:
    async with running_daemon(USERS) as daemon:
        file = file_of(daemon, WIDENS)
        model = daemon.replay(DONE)
        made = await daemon.client.create_session(str(daemon.workspace), model=model)
        shown = await daemon.client.get_session(made.id)
        assert shown.bounds.max_turns == 5
        assert await decision(daemon, "run_command", command="id") == "ask"
        warned = (await daemon.turn("policy")).stderr + (await daemon.turn("policy")).stdout
        assert "ignored until you trust this file" in warned

        asked = await daemon.turn("trust")
        assert asked.code == 2, "nobody is here to confirm it"
        for line in ('"anything goes"', "max_turns: asks for 50", "web.*", "may_spawn"):
            assert line in asked.stdout, asked.stdout
        assert await decision(daemon, "run_command", command="id") == "ask"

        trusted = await daemon.turn("trust", "--yes", "--json")
        assert trusted.code == 0, trusted.stderr
        assert trusted.json_lines[-1]["trusted"] is True
        assert await decision(daemon, "run_command", command="id") == "allow"
        made = await daemon.client.create_session(str(daemon.workspace), model=model)
        assert (await daemon.client.get_session(made.id)).bounds.max_turns == 50
        assert str(daemon.workspace) in (await daemon.turn("trust", "--list")).stdout

        await daemon.stop()
        await daemon.start()
        assert await decision(daemon, "run_command", command="id") == "allow", "trust is kept"

        file.write_text(WIDENS + "\n# changed\n", encoding="utf-8")
        assert await decision(daemon, "run_command", command="id") == "ask"
        (listed,) = (await daemon.turn("trust", "--list", "--json")).json_lines
        assert listed["state"] == "changed"
        file.write_text(WIDENS, encoding="utf-8")
        assert await decision(daemon, "run_command", command="id") == "allow"

        ended = await daemon.turn("untrust")
        assert ended.code == 0, ended.stderr
        assert await decision(daemon, "run_command", command="id") == "ask"
        assert (await daemon.turn("untrust")).code == 1


async def test_a_file_that_changed_since_it_was_shown_is_not_trusted() -> None:
    async with running_daemon(USERS) as daemon:
        file = file_of(daemon, NARROWS)
        shown = await daemon.client.trust(str(daemon.workspace))
        file.write_text(WIDENS, encoding="utf-8")
        with pytest.raises(Refused, match="has changed since it was shown"):
            await daemon.client.trust(str(daemon.workspace), digest=shown.digest)
        assert await decision(daemon, "run_command", command="id") == "ask"


@pytest.mark.parametrize("trusted", [False, True])
async def test_what_no_workspace_can_say_never_counts(trusted: bool) -> None:
    async with running_daemon(USERS) as daemon:
        file_of(daemon, NEVER)
        if trusted:
            digest = (await daemon.client.trust(str(daemon.workspace))).digest
            found = await daemon.client.trust(str(daemon.workspace), digest=digest)
            assert found.trusted
        found = await daemon.client.trust(str(daemon.workspace))
        for key in ("hooks", "providers", "models", "limits", "model", "system_prompt"):
            assert any(f": {key}" in line or f".{key}:" in line for line in found.refused), (
                key,
                found.refused,
            )
        done = await daemon.turn("run", "go", "--model", daemon.replay(DONE))
        assert done.code == 0, done.stderr
        assert not (daemon.workspace / "hooked").exists()


async def test_a_session_cannot_write_the_file_or_widen_itself() -> None:
    config = USERS + '\n[[policy]]\nname = "commands"\nmatch = { tool = "run_command" }\naction = "allow"\n'
    async with running_daemon(config) as daemon:
        file = file_of(daemon, NARROWS)
        command = (
            "echo x >> .turnd/config.toml; rm -f .turnd/config.toml; mv .turnd gone; "
            "rm -rf .turnd; ln -sf /tmp .turnd; true"
        )
        lines = (
            write(".turnd/config.toml"),
            {"stream": [{"tool": "run_command", "input": {"command": command}}]},
            DONE,
        )
        done = await daemon.turn("run", "go", "--model", daemon.replay(*lines), "--json")
        assert done.code == 4, done.stderr
        assert file.read_text(encoding="utf-8") == NARROWS
        assert not (daemon.workspace / "gone").exists()


@pytest.mark.parametrize("broken", ["no TOML", "a link", "a directory", "a FIFO", "too large"])
async def test_a_file_that_cannot_be_used_denies_every_call(broken: str) -> None:
    async with running_daemon(USERS) as daemon:
        model = daemon.replay(write("a.txt"), DONE)
        made = await daemon.client.create_session(str(daemon.workspace), model=model)
        file = file_of(daemon, "")
        match broken:
            case "no TOML":
                file.write_text("[", encoding="utf-8")
            case "a link":
                file.rename(file.with_name("other"))
                file.symlink_to("other")
            case "a directory":
                file.unlink()
                file.mkdir()
            case "a FIFO":
                file.unlink()
                os.mkfifo(file)
            case _:
                file.write_text("#" * 70_000, encoding="utf-8")
        events = await daemon.run(made.id, "go")
        (result,) = [e.tool_result for e in events if e.HasField("tool_result")]
        assert result.category == common.TOOL_ERROR_CATEGORY_DENIED
        assert "mend it, or take it away" in result.content.decode()
        assert not (daemon.workspace / "a.txt").exists()
        with pytest.raises(Refused, match="mend it, or take it away"):
            await daemon.client.create_session(str(daemon.workspace), model=model)
        if broken == "a directory":
            file.rmdir()
        else:
            file.unlink()
        await daemon.client.create_session(str(daemon.workspace), model=model)


async def test_a_child_is_under_the_file_of_its_workspace() -> None:
    config = USERS.replace("max_turns = 5", 'may_spawn = ["default"]') + (
        '\n[[policy]]\nname = "agents"\nmatch = { tool = "spawn_agent" }\naction = "allow"\n'
    )
    async with running_daemon(config) as daemon:
        file_of(daemon, NARROWS)
        (daemon.workspace / "kept").mkdir()
        spawn = {"stream": [{"tool": "spawn_agent", "input": {"prompt": "write"}}]}
        child = {"profile": "default"}
        model = daemon.replay(spawn, DONE, write("kept/a.txt") | child, DONE | child)
        done = await daemon.turn("run", "go", "--model", model, "--json")
        assert done.code == 0, done.stderr
        root = str(done.json_lines[-1]["session"])
        (found,) = [s async for s in daemon.client.list_sessions(parent=root)]
        events = await daemon.events(found.id, lambda e: e.HasField("session_ended"))
        (result,) = [e.tool_result for e in events if e.HasField("tool_result")]
        assert result.category == common.TOOL_ERROR_CATEGORY_DENIED
        assert (
            next(e for e in events if e.HasField("session_created")).session_created.profile.bounds.max_turns
            == 2
        )
