"""Instruction files: found from the workspace upwards, and nothing else is read on the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from turnd.cells import instructions
from turnd.cells.instructions import MAX_BYTES, MAX_FILE_BYTES, DirectoryInstructions

NAME = "AGENTS.md"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home directory below one that is not looked at, with a project in it."""
    place = tmp_path.resolve() / "home"
    (place / "code" / "project").mkdir(parents=True)
    (tmp_path / NAME).write_text("above home")
    return place


async def read(home: Path, names: tuple[str, ...] = (NAME,)) -> list[tuple[str, str]]:
    found = await DirectoryInstructions(str(home)).read(str(home / "code" / "project"), names)
    return [(str(Path(file.path).relative_to(home)), file.text) for file in found]


async def test_from_the_home_directory_down_to_the_workspace(home: Path) -> None:
    for at, text in ((home, "home"), (home / "code", "code"), (home / "code" / "project", "project")):
        (at / NAME).write_text(text)
    assert await read(home) == [(NAME, "home"), (f"code/{NAME}", "code"), (f"code/project/{NAME}", "project")]


async def test_outside_of_the_home_directory_up_to_the_root(home: Path, tmp_path: Path) -> None:
    found = await DirectoryInstructions("/nowhere").read(str(home), (NAME,))
    assert [file.text for file in found][-1:] == ["above home"]


async def test_names_in_their_order_and_each_file_once(home: Path) -> None:
    project = home / "code" / "project"
    (project / "docs").mkdir()
    (project / "docs" / "style.md").write_text("style")
    (project / NAME).write_text("agents")
    (project / "CLAUDE.md").symlink_to(NAME)
    assert await read(home, (NAME, "CLAUDE.md", "docs/style.md")) == [
        ("code/project/CLAUDE.md", "agents"),
        ("code/project/docs/style.md", "style"),
    ]
    assert await read(home, ()) == []


@pytest.mark.parametrize("name", ["../outside.md", "{outside}", "link.md", "dirlink/outside.md"])
async def test_nothing_outside_of_the_directory_is_read(home: Path, name: str) -> None:
    outside = home / "code" / "outside.md"
    outside.write_text("secret")
    project = home / "code" / "project"
    (project / "link.md").symlink_to(outside)
    (project / "dirlink").symlink_to(outside.parent)
    assert await read(home, (name.format(outside=outside),)) == []


async def test_only_regular_files_are_opened(home: Path) -> None:
    project = home / "code" / "project"
    os.mkfifo(project / NAME)
    (home / "code" / NAME).mkdir()
    (home / NAME).write_text("home")
    assert await read(home) == [(NAME, "home")]


async def test_a_workspace_that_is_a_link_now_is_not_followed(home: Path, tmp_path: Path) -> None:
    project = home / "code" / "project"
    project.rmdir()
    other = tmp_path / "other"
    other.mkdir()
    (other / NAME).write_text("another's")
    project.symlink_to(other)
    assert await read(home) == []


async def test_above_the_workspace_only_files_of_the_user_or_root_count(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = home / "code" / "project"
    for at in (project, home / "code"):
        (at / NAME).write_text(at.name)
    real = os.fstat

    class Another:
        """A file's status, with somebody else as its owner."""

        def __init__(self, status: os.stat_result) -> None:
            self._status = status
            self.st_uid = 65534 if os.geteuid() != 65534 else 65533

        def __getattr__(self, name: str) -> object:
            return getattr(self._status, name)

    monkeypatch.setattr(instructions.os, "fstat", lambda descriptor: Another(real(descriptor)))
    assert await read(home) == [(f"code/project/{NAME}", "project")]


async def test_long_files_are_cut_and_say_so(home: Path) -> None:
    path = home / "code" / "project" / NAME
    path.write_bytes(b"x" * (MAX_FILE_BYTES - 1) + "\N{EURO SIGN}".encode() + b"tail")
    ((_, text),) = await read(home)
    size = path.stat().st_size
    assert text == "x" * (MAX_FILE_BYTES - 1) + (
        f"\n\n[cut off here: the file has {size} bytes, {MAX_FILE_BYTES} are shown]"
    )


async def test_all_files_together_are_bounded_the_nearest_first(home: Path) -> None:
    names = tuple(f"{number}.md" for number in range(4))
    for name in names:
        (home / "code" / "project" / name).write_text(name[0] * MAX_FILE_BYTES)
    found = await read(home, names)
    assert [path for path, _ in found] == [f"code/project/{name}" for name in names[1:]]
    assert sum(text.count(str(number)) for number, (_, text) in enumerate(found, 1)) <= MAX_BYTES
    assert "cut off here" in found[0][1]


async def test_what_is_no_utf_8_is_replaced(home: Path) -> None:
    path = home / "code" / "project" / NAME
    path.write_bytes(b"\xef\xbb\xbfa\xffb\xe2\x82")
    assert await read(home) == [
        (f"code/project/{NAME}", "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}")
    ]
