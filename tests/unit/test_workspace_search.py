"""glob and grep by ripgrep: arguments that stay arguments, bounded results."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.unit.workspace_calls import Workspace, category

from turnd_provider.workspace.search import MAX_LINE_CHARACTERS, MAX_PATHS, glob, grep


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    root = tmp_path / "w"
    (root / "src" / "deep").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("needle")
    (root / "a.py").write_text("first\nneedle = 1\nlast\n")
    (root / "src" / "b.py").write_text("NEEDLE\n")
    (root / "src" / "deep" / "c.txt").write_text("needle a.b\n")
    (root / ".env.py").write_text("hidden needle\n")
    (root / "ignored").mkdir()
    (root / "ignored" / "d.py").write_text("needle\n")
    (root / ".gitignore").write_text("ignored/\n")
    return Workspace(root)


async def test_files_are_found_at_any_depth_hidden_ones_too_ignored_ones_not(workspace: Workspace) -> None:
    found = await workspace.call(glob, pattern="*.py")
    assert (found.paths, found.truncated) == ([".env.py", "a.py", "src/b.py"], False)
    assert (await workspace.call(glob, pattern="src/**/*.txt")).paths == ["src/deep/c.txt"]
    assert (await workspace.call(glob, pattern="*.txt", path="src")).paths == ["src/deep/c.txt"]
    assert (await workspace.call(glob, pattern="config")).paths == []


async def test_many_files_are_cut(workspace: Workspace) -> None:
    for number in range(MAX_PATHS + 1):
        (workspace.root / "src" / f"{number}.x").touch()
    found = await workspace.call(glob, pattern="*.x")
    assert (len(found.paths), found.truncated) == (MAX_PATHS, True)


async def test_lines_are_found_with_path_and_number(workspace: Workspace) -> None:
    found = await workspace.call(grep, pattern="needle")
    assert [(line.path, line.line, line.text) for line in found.lines] == [
        (".env.py", 1, "hidden needle"),
        ("a.py", 2, "needle = 1"),
        ("src/deep/c.txt", 1, "needle a.b"),
    ]


async def test_the_options_of_a_search(workspace: Workspace) -> None:
    upper = await workspace.call(grep, pattern="needle", path="src", ignore_case=True, glob="*.py")
    assert [line.path for line in upper.lines] == ["src/b.py"]
    around = await workspace.call(grep, pattern="needle", path="a.py", context=1)
    assert [(line.line, line.kind) for line in around.lines] == [(1, "context"), (2, "match"), (3, "context")]
    assert not (await workspace.call(grep, pattern="a.*b", literal=True)).lines
    assert (await workspace.call(grep, pattern="a.b", literal=True)).lines
    few = await workspace.call(grep, pattern="needle", limit=2)
    assert (len(few.lines), few.truncated) == (2, True)


async def test_what_looks_like_an_option_is_a_pattern(workspace: Workspace) -> None:
    (workspace.root / "-rf").write_text("--pre=sh\n-e x\n")
    assert [line.text for line in (await workspace.call(grep, pattern="--pre=sh")).lines] == ["--pre=sh"]
    assert [line.text for line in (await workspace.call(grep, pattern="-e", path="-rf")).lines] == ["-e x"]
    assert (await workspace.call(glob, pattern="-rf")).paths == ["-rf"]


async def test_a_pattern_that_is_none_is_told_to_the_model(workspace: Workspace) -> None:
    error = await workspace.failure(grep, pattern="(")
    assert category(error) == "invalid_arguments"
    assert "unclosed group" in error.message
    assert category(await workspace.failure(glob, pattern="[")) == "invalid_arguments"


async def test_places_that_are_not_there(workspace: Workspace) -> None:
    assert category(await workspace.failure(grep, pattern="x", path="nowhere")) == "not_found"
    assert category(await workspace.failure(glob, pattern="x", path="a.py")) == "not_found"
    assert category(await workspace.failure(grep, pattern="x", path="..")) == "permission_denied"


async def test_long_lines_and_strange_bytes(workspace: Workspace) -> None:
    (workspace.root / "wide").write_bytes(b"needle" + b"\xff" + b"x" * 10_000 + b"\n")
    found = await workspace.call(grep, pattern="needle", path="wide")
    assert found.lines[0].text.startswith("needle\ufffdx")
    assert len(found.lines[0].text) <= MAX_LINE_CHARACTERS + 4


async def test_a_search_that_is_cancelled_leaves_no_process(workspace: Workspace) -> None:
    (workspace.root / "huge").write_text("needle\n" * 2_000_000)
    searching = asyncio.create_task(
        workspace.call(grep, pattern="needle.*needle|needle$", path="huge", limit=1000)
    )
    await asyncio.sleep(0)
    searching.cancel()
    await asyncio.gather(searching, return_exceptions=True)
    children = [
        pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()
    ]
    names = [
        Path("/proc", pid, "comm").read_text().strip() for pid in children if Path("/proc", pid).exists()
    ]
    assert "rg" not in names
