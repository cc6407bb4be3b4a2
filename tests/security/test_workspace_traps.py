"""A workspace that is full of things to run: nothing of it runs unless a call says so (X06, GATE-14)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.harness import running_daemon
from tests.marks import NEEDS_CELLS

from turnd.v1 import common_pb2 as common

pytestmark = [NEEDS_CELLS, pytest.mark.timeout(120)]

PROGRAMS = (
    "git",
    "bwrap",
    "rg",
    "sh",
    "bash",
    "python",
    "python3",
    "ls",
    "cat",
    "env",
    "ssh",
    "pager",
    "editor",
)
HOOKS = ("pre-commit", "post-checkout", "post-index-change", "fsmonitor-watchman", "post-merge")
ALLOW = '[[policy]]\nmatch = { tool = "*" }\naction = "allow"\n'
CALLS = (
    ("list_dir", {"path": "."}),
    ("read_file", {"path": "notes.txt"}),
    ("grep", {"pattern": "line"}),
    ("write_file", {"path": "made.txt", "content": "made\n"}),
    ("edit_file", {"path": "notes.txt", "old_text": "line", "new_text": "row"}),
    ("inspect_command", {"command": "/bin/true"}),
    ("run_command", {"command": "/bin/true"}),
)


def set_traps(workspace: Path) -> None:
    """Whatever is run leaves a file that begins with `sprung`."""

    def trap(path: Path, name: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n: > {workspace}/sprung-{name}\n")
        path.chmod(0o755)

    for program in PROGRAMS:
        trap(workspace / program, program)
        trap(workspace / "bin" / program, f"bin-{program}")
    for hook in HOOKS:
        trap(workspace / ".git" / "hooks" / hook, hook)
    (workspace / ".git" / "config").write_text(
        "[core]\n\trepositoryformatversion = 0\n"
        f"\tfsmonitor = {workspace}/git\n\tsshCommand = {workspace}/ssh\n\tpager = {workspace}/pager\n"
        f'[filter "x"]\n\tclean = {workspace}/cat\n\tsmudge = {workspace}/cat\n'
    )
    (workspace / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (workspace / ".gitattributes").write_text("* filter=x\n")
    for module in ("sitecustomize", "usercustomize", "turnd", "grpc", "json", "asyncio", "encodings"):
        (workspace / f"{module}.py").write_text(f"open({str(workspace / f'sprung-{module}')!r}, 'w')\n")
    for profile in (".envrc", ".bashrc", ".bash_profile", ".profile", ".zshenv"):
        (workspace / profile).write_text(f": > {workspace}/sprung{profile}\n")
    (workspace / "AGENTS.md").write_text("be kind\n")
    (workspace / "notes.txt").write_text("line\n")


@pytest.mark.req("X06", "GATE-14", "TOOL-11")
async def test_nothing_of_the_workspace_runs_unless_a_call_says_so() -> None:
    async with running_daemon(ALLOW) as daemon:
        workspace = daemon.workspace
        set_traps(workspace)
        calls = {"stream": [{"tool": tool, "input": data} for tool, data in CALLS]}
        environment = {
            "PATH": f"{workspace}:{workspace}/bin:{daemon.environment['PATH']}",
            "BASH_ENV": f"{workspace}/.bashrc",
            "ENV": f"{workspace}/.profile",
            "PYTHONPATH": str(workspace),
            "PYTHONSTARTUP": f"{workspace}/json.py",
            "GIT_EXEC_PATH": str(workspace),
            "LD_PRELOAD": f"{workspace}/git",
            "EDITOR": f"{workspace}/editor",
            "PAGER": f"{workspace}/pager",
        }
        model = daemon.replay(calls, {"stream": [{"text": "done"}]})
        made = await daemon.client.create_session(str(workspace), model=model, environment=environment)
        events = await daemon.run(made.id, "go")
        results = [event.tool_result for event in events if event.HasField("tool_result")]
        assert len(results) == len(CALLS)
        assert not any(result.category for result in results), results
        assert events[-1].turn_end.reason == common.TURN_END_REASON_COMPLETED
        said = await daemon.client.explain_policy(
            str(workspace),
            "run_command",
            json.dumps({"command": "git status"}).encode(),
            environment=environment,
        )
        assert said.decision == common.POLICY_ACTION_ALLOW
        for command in (("export", made.id), ("fork", made.id), ("show", made.id), ("doctor",)):
            assert (await daemon.turn(*command, cwd=daemon.base / "u")).code == 0
        assert not [path.name for path in workspace.iterdir() if path.name.startswith("sprung")]
        # The traps do work.
        sprung = {"stream": [{"tool": "run_command", "input": {"command": "git status"}}]}
        model = daemon.replay(sprung, {"stream": [{"text": "done"}]})
        made = await daemon.client.create_session(str(workspace), model=model, environment=environment)
        await daemon.run(made.id, "go")
        assert (workspace / "sprung-git").exists()
