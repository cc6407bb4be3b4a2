"""Where PATH finds programs, whether tools could have put them there, and where paths lead."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from turnd.ports import Facts, Where
from turnd.rules.commands import Found
from turnd.tools.disk import HostDisk


@pytest.fixture
def base() -> Iterator[Path]:
    """A directory that is not in /tmp, which is every session's own."""
    made = Path(tempfile.mkdtemp(prefix="turnd-test-", dir="/var/tmp")).resolve()
    (made / "ws").mkdir()
    yield made
    shutil.rmtree(made)


def program(path: Path, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return path


async def facts(base: Path, path: str, *names: str, looked_at: str | None = None) -> Facts:
    where = Where(str(base / "ws"), str(base / "ws"), {"PATH": path} if path else {})
    return await HostDisk().facts(where, names, looked_at)


@pytest.mark.req("GATE-14")
async def test_programs_are_found_as_the_sessions_commands_find_them(base: Path) -> None:
    mine = program(base / "bin" / "mine")
    program(base / "bin" / "no_program", 0o644)
    (base / "bin" / "directory").mkdir()
    found = (
        await facts(base, f"{base}/bin:/usr/bin:/bin", "mine", "sort", "nowhere", "no_program", "directory")
    ).programs
    assert found["mine"] == Found(str(mine), writable=False)
    assert Path(found["sort"].path).name == "sort"
    assert not found["sort"].writable
    assert set(found) == {"mine", "sort"}
    assert not (await facts(base, "", "sort")).programs["sort"].writable


@pytest.mark.req("GATE-14")
async def test_what_tools_can_write_is_told(base: Path) -> None:
    outside, workspace = base / "bin", base / "ws"
    planted = program(workspace / "venv" / "sort")
    program(workspace / "venv" / "mine")
    program(outside / "mine")
    (base / "link").symlink_to(workspace / "venv")
    program(outside / "real")
    (outside / "led_in").symlink_to(planted)

    async def writable(path: str, name: str) -> bool:
        return (await facts(base, path, name)).programs[name].writable

    assert await writable(f"{workspace}/venv:/usr/bin", "sort")
    assert await writable(f"{workspace}/x/../venv:/usr/bin", "sort")
    assert await writable(f"{base}/link:/usr/bin", "sort")
    assert await writable(f"{outside}:/usr/bin", "led_in")
    for relative in ("", ".", "bin"):
        assert await writable(f"{relative}:/usr/bin", "sort"), relative
    assert await writable("/tmp/anything:/usr/bin", "sort")
    # A cell need not show what lies before on this machine, and would go on to the workspace's.
    assert await writable(f"{outside}:{workspace}/venv", "mine")
    assert not await writable(f"{outside}:{workspace}/venv", "real")
    # The system's directories are in every cell.
    assert not await writable(f"/usr/bin:{workspace}/venv:.:/tmp", "sort")
    assert not await writable(f"{workspace}/empty:/usr/bin", "sort")


async def test_where_a_path_leads(base: Path) -> None:
    workspace = base / "ws"
    (workspace / "a").mkdir()
    (workspace / "link").symlink_to(base)
    for spelled in ("new", "./new", "a/../new", str(workspace / "new"), "link/ws/new"):
        assert (await facts(base, "", looked_at=spelled)).canonical == str(workspace / "new"), spelled
    assert (await facts(base, "", looked_at="link/x")).canonical == str(base / "x")
    assert (await facts(base, "")).canonical == ""
    with pytest.raises(ValueError, match="null"):
        await facts(base, "", looked_at="a\0b")
