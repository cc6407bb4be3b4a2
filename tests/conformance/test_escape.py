"""From inside run_command, through the real daemon: what is not there cannot be reached (SBX-03, SBX-04)."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.harness import RunningDaemon, running_daemon
from tests.marks import NEEDS_CELLS

from turnd.v1 import event_pb2

pytestmark = [NEEDS_CELLS, pytest.mark.timeout(120)]

ALLOW_ALL = """
[[policy]]
name = "everything may run"
match = { provider = "workspace" }
action = "allow"
"""
CANARY = "canary-3f9a1c77"


async def _outputs(
    daemon: RunningDaemon, commands: Sequence[str], tool: str = "run_command"
) -> list[dict[str, object]]:
    lines = (
        {"stream": [{"tool": tool, "input": {"command": command}} for command in commands]},
        {"stream": [{"text": "done"}]},
    )
    path = f"{Path(sys.executable).parent}:{daemon.environment['PATH']}"
    session = await daemon.client.create_session(
        str(daemon.workspace), model=daemon.replay(*lines), environment={"PATH": path}
    )
    events: list[event_pb2.Event] = await daemon.run(session.id, "go")
    # Reads end in any order.
    ended = {
        event.tool_result.call_id: event.tool_result for event in events if event.HasField("tool_result")
    }
    results = [ended[event.tool_call.call_id] for event in events if event.HasField("tool_call")]
    assert len(results) == len(commands)
    assert not any(result.category for result in results), results
    return [json.loads(result.content) for result in results]


@pytest.mark.req("SBX-03", "SBX-04", "TOOL-12", "TOOL-11")
@pytest.mark.parametrize("tool", ["run_command", "inspect_command"])
async def test_what_belongs_to_the_daemon_and_its_user_is_not_there(tool: str) -> None:
    async with running_daemon(ALLOW_ALL, {"TURND_CANARY": CANARY}) as daemon:
        (daemon.base / "u" / "secret").write_text(CANARY)
        (daemon.workspace / "to-home").symlink_to(daemon.base / "u")
        (daemon.workspace / "to-token").symlink_to(daemon.token)
        (daemon.workspace / "to-proc").symlink_to(f"/proc/{daemon.pid}/environ")
        found = await _outputs(
            daemon,
            [
                f"cat {daemon.base}/u/secret to-home/secret {daemon.workspace}/../u/secret",
                f"ls -la {daemon.home} {daemon.home}/state {daemon.home}/run; cat {daemon.token} to-token",
                f"cat {daemon.database} | head -c 100; ls -la {daemon.socket}",
                "env; cat /proc/*/environ to-proc 2>/dev/null | tr '\\0' '\\n'",
                "ls /proc | grep -c '^[0-9]'; cat /proc/[0-9]*/cmdline | tr '\\0' ' '",
            ],
            tool,
        )
        token = daemon.token.read_text().strip()
        everything = json.dumps(found)
        assert CANARY not in everything
        assert token not in everything
        assert "turnd.main" not in everything, "the daemon's process is seen"
        assert "turnd.sock" not in str(found[1]["output"]).replace(str(daemon.socket), "")
        assert found[0]["exit_code"] != 0


@pytest.mark.req("SBX-03", "SBX-04")
async def test_nothing_listens_for_a_command_and_nobody_can_be_reached() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        async with running_daemon(ALLOW_ALL) as daemon:
            abstract = socket.socket(socket.AF_UNIX)
            abstract.bind(f"\0turnd-test-{daemon.pid}")
            abstract.listen()
            planted = socket.socket(socket.AF_UNIX)
            planted.bind(str(daemon.workspace / "planted.sock"))
            planted.listen()
            python = (
                "import socket,sys\n"
                "def t(f,a):\n"
                "    try:\n"
                "        s=socket.socket(f); s.connect(a); print('REACHED',a)\n"
                "    except OSError as e: print('no',e)\n"
                f"t(socket.AF_INET,('127.0.0.1',{port}))\n"
                f"t(socket.AF_UNIX,'\\0turnd-test-{daemon.pid}')\n"
                f"t(socket.AF_UNIX,'planted.sock')\n"
                f"t(socket.AF_UNIX,'{daemon.socket}')\n"
            )
            (daemon.workspace / "reach.py").write_text(python)
            found = await _outputs(
                daemon,
                [
                    f"{sys.executable} -I -S reach.py",
                    f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo REACHED",
                ],
            )
            abstract.close()
            planted.close()
    assert str(found[0]["output"]).count("no [") == 4, found[0]
    assert "REACHED" not in json.dumps(found)


@pytest.mark.req("SBX-03")
async def test_a_repository_keeps_its_hooks_and_its_place() -> None:
    async with running_daemon(ALLOW_ALL) as daemon:
        hooks = daemon.workspace / ".git" / "hooks"
        hooks.mkdir(parents=True)
        (daemon.workspace / ".git" / "config").write_text("[core]\n")
        await _outputs(
            daemon,
            [
                "mv .git .git-away; mv .git/hooks h; rm -rf .git/hooks",
                "echo 'touch /pwned' > .git/hooks/pre-commit; echo '[core]\nfsmonitor = evil' > .git/config",
                "mkdir -p other/.git/hooks && ln -s ../.git/config c && echo evil > c",
            ],
        )
        assert sorted(path.name for path in hooks.iterdir()) == []
        assert (daemon.workspace / ".git" / "config").read_text() == "[core]\n"
        assert not (daemon.workspace / ".git-away").exists()


@pytest.mark.req("SBX-07")
async def test_an_inspection_changes_nothing() -> None:
    async with running_daemon() as daemon:
        (daemon.workspace / "kept").write_text("as it was")
        found = await _outputs(
            daemon, ["echo x > kept; touch new; rm kept; sed -i s/was/is/ kept; cat kept"], "inspect_command"
        )
        assert (daemon.workspace / "kept").read_text() == "as it was"
        assert [path.name for path in daemon.workspace.iterdir()] == ["kept"]
    assert "as it was" in str(found[0]["output"])
