"""A workspace whose path others can write around: what was checked once is what is mounted, or nothing is."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.conformance.tool_bench import Bench, bench, content, failure
from tests.security.fort import Fort

from turnd.cells import CellRefused
from turnd.ports import SandboxUnavailable
from turnd.tools.definition import workspace_provider
from turnd.v1 import common_pb2 as common

DENIED = common.TOOL_ERROR_CATEGORY_PERMISSION_DENIED


@pytest.fixture
async def files(short_path: Path) -> AsyncIterator[Bench]:
    async with bench(short_path, workspace_provider()) as made:
        (made.base / "secret").mkdir()
        (made.base / "secret" / "key").write_text("s3cret")
        yield made


@pytest.mark.req("SBX-03")
@pytest.mark.parametrize("tool", ["workspace.run_command", "workspace.inspect_command"])
async def test_a_link_in_the_place_of_the_workspace_is_not_followed(files: Bench, tool: str) -> None:
    session = await files.open()
    files.workspace.rename(files.base / "old")
    files.workspace.symlink_to(files.base / "secret")
    refused = failure(await session.call(tool, {"command": "cat key; echo x > planted"}), DENIED)
    assert "symbolic link" in refused.message
    assert [path.name for path in (files.base / "secret").iterdir()] == ["key"]
    with pytest.raises(SandboxUnavailable, match="symbolic link"):
        await files.open("S2")


@pytest.mark.req("SBX-03")
async def test_a_link_above_the_workspace_is_not_followed(fort: Fort) -> None:
    inner = fort.base / "above" / "w"
    inner.mkdir(parents=True)
    (fort.base / "above").rename(fort.base / "moved")
    (fort.base / "above").symlink_to(fort.base / "moved")
    spec = fort.command(["true"])
    for name, value in (("workspace", str(inner)), ("cwd", str(inner))):
        object.__setattr__(spec, name, value)
    with pytest.raises(CellRefused, match="symbolic link"):
        await fort.cells.start(spec)


@pytest.mark.req("SBX-03")
async def test_another_directory_in_the_place_of_the_workspace_is_refused(files: Bench) -> None:
    session = await files.open()
    files.workspace.rename(files.base / "old")
    (files.base / "secret").rename(files.workspace)
    refused = failure(await session.call("workspace.run_command", {"command": "cat key"}), DENIED)
    assert "another directory" in refused.message


@pytest.mark.req("SBX-03")
async def test_a_command_runs_where_links_lead_inside_and_nowhere_else(files: Bench) -> None:
    session = await files.open()
    (files.workspace / "a" / "b").mkdir(parents=True)
    (files.workspace / "inside").symlink_to("a/b")
    (files.workspace / "outside").symlink_to(files.base / "secret")
    run = "workspace.inspect_command"
    ended = content(await session.call(run, {"command": "pwd", "cwd": "inside"}))
    assert ended["output"] == f"{files.workspace}/a/b\n"
    failure(await session.call(run, {"command": "pwd", "cwd": "outside"}), DENIED)


@pytest.mark.req("TOOL-04")
async def test_what_a_command_left_in_tmp_stops_neither_a_close_nor_a_start(files: Bench) -> None:
    session = await files.open()
    make = 'mkdir -p "/tmp/$(printf "d/%.0s" {1..1200})"'
    assert content(await session.call("workspace.inspect_command", {"command": make}))["exit_code"] == 0
    await session.tools.close()
    assert not (files.base / "s" / "tmp" / "S1").exists()
    session = await files.open()
    content(await session.call("workspace.inspect_command", {"command": make}))
    await files.registry.close()
    await files.registry.start()
    assert not (files.base / "s" / "tmp").exists()


@pytest.mark.req("TOOL-02")
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("workspace.run_command", {"command": "true", "timeout_s": 1e300}),
        ("workspace.inspect_command", {"command": "true", "timeout_s": -1}),
        ("workspace.read_file", {"path": "f", "offset": 1e300}),
        ("workspace.read_file", {"path": "f", "limit": 10**400}),
        ("workspace.grep", {"pattern": "x", "context": 1e300}),
        ("core.read_output", {"call_id": "c", "offset": 1e300}),
        ("core.read_output", {"call_id": "c", "offset": 10**400}),
    ],
)
async def test_numbers_out_of_range_are_invalid_arguments(
    files: Bench, tool: str, arguments: dict[str, object]
) -> None:
    session = await files.open()
    invalid = failure(await session.call(tool, arguments), common.TOOL_ERROR_CATEGORY_INVALID_ARGUMENTS)
    assert "schema" in invalid.message


@pytest.mark.req("SBX-02")
async def test_a_sandbox_that_is_killed_from_outside_is_said_to_be(files: Bench) -> None:
    session = await files.open()
    ended = await session.call("workspace.inspect_command", {"command": "kill -9 2 $PPID; sleep 60"})
    found = content(ended)
    assert found["ended_from_outside"]
    assert ended.is_error  # type: ignore[union-attr]
    plain = await session.call("workspace.inspect_command", {"command": "kill -9 $$"})
    assert content(plain)["exit_code"] == 137
    assert not content(plain)["ended_from_outside"]


@pytest.mark.req("SBX-02")
async def test_a_launcher_that_is_killed_is_told_from_a_program_that_is(fort: Fort) -> None:
    async with await fort.cells.start(fort.command(["sleep", "60"])) as cell:
        os.kill(cell.pid, 9)
        assert (await cell.wait()).from_outside
    async with await fort.cells.start(fort.command(["sleep", "60"])) as cell:
        cell.kill()
        assert not (await cell.wait()).from_outside
