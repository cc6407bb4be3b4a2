"""grpc in one event loop, children by exec only, and no noise from it in the daemon's log (G07)."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.harness import running_daemon
from tests.marks import NEEDS_CELLS

import turnd

FORKING = {("os", "fork"), ("os", "forkpty"), ("pty", "fork"), ("pty", "spawn")}


@pytest.mark.req("G07")
def test_fork_handlers_are_off_before_grpc_is_imported() -> None:
    code = "import os, sys, turnd.main; print(os.environ['GRPC_ENABLE_FORK_SUPPORT'], 'grpc' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["0", "True"]


@pytest.mark.req("G07")
def test_the_daemon_never_forks_from_python() -> None:
    sources = list(Path(turnd.__path__[0]).rglob("*.py"))
    assert sources
    for source in sources:
        tree = ast.parse(source.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) not in FORKING, f"{source.name}:{node.lineno}"
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                assert not any(name.startswith("multiprocessing") for name in names), source.name
            if isinstance(node, ast.keyword):
                assert node.arg != "preexec_fn", f"{source.name}:{node.value.lineno}"


@NEEDS_CELLS
@pytest.mark.timeout(120)
@pytest.mark.req("G07", "G09")
async def test_a_daemon_that_worked_and_stopped_wrote_nothing_but_its_own_lines() -> None:
    async with running_daemon() as daemon:
        line = {"stream": [{"tool": "list_dir", "input": {"path": "."}}]}
        model = daemon.replay(line, {"stream": [{"text": "done"}]})
        session = await daemon.client.create_session(str(daemon.workspace), model=model)
        await daemon.run(session.id, "go")
        assert await daemon.stop() == 0
        lines = [json.loads(line) for line in daemon.log_text().splitlines()]
    assert [line["event"] for line in lines if line["level"] not in ("info", "debug")] == []
