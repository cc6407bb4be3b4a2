"""read_file and list_dir."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.unit.workspace_calls import Workspace, category

from turnd_provider.workspace.reading import MAX_ENTRIES, MAX_LINES, MAX_TEXT_BYTES, list_dir, read_file


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    root = tmp_path / "w"
    root.mkdir()
    return Workspace(root)


async def test_lines_come_as_they_are(workspace: Workspace) -> None:
    (workspace.root / "f").write_bytes(b"one\r\ntwo\rstill two\n\nfour")
    read = await workspace.call(read_file, path="f")
    assert (read.text, read.lines, read.total_lines) == ("one\r\ntwo\rstill two\n\nfour", 4, 4)
    assert (read.path, read.first_line, read.truncated, read.lossy) == ("f", 1, False, False)


async def test_a_range_of_lines(workspace: Workspace) -> None:
    (workspace.root / "f").write_text("".join(f"{n}\n" for n in range(1, 11)))
    read = await workspace.call(read_file, path="f", offset=4, limit=3)
    assert (read.text, read.first_line, read.lines, read.total_lines, read.truncated) == (
        "4\n5\n6\n",
        4,
        3,
        10,
        True,
    )
    last = await workspace.call(read_file, path="f", offset=10, limit=5)
    assert (last.text, last.truncated) == ("10\n", False)
    assert "10 lines" in (await workspace.failure(read_file, path="f", offset=11)).message


async def test_an_empty_file(workspace: Workspace) -> None:
    (workspace.root / "f").touch()
    read = await workspace.call(read_file, path="f")
    assert (read.text, read.lines, read.total_lines, read.truncated) == ("", 0, 0, False)


async def test_long_files_and_long_lines_are_bounded(workspace: Workspace) -> None:
    (workspace.root / "many").write_text("x\n" * (MAX_LINES * 2))
    many = await workspace.call(read_file, path="many")
    assert (many.lines, many.total_lines, many.truncated) == (MAX_LINES, MAX_LINES * 2, True)
    (workspace.root / "wide").write_text("y" * (MAX_TEXT_BYTES * 2) + "\nz\n")
    wide = await workspace.call(read_file, path="wide")
    assert (len(wide.text), wide.lines, wide.truncated) == (MAX_TEXT_BYTES, 1, True)


async def test_what_is_not_text_is_said(workspace: Workspace) -> None:
    (workspace.root / "binary").write_bytes(b"ab\0cd")
    assert "binary" in (await workspace.failure(read_file, path="binary")).message
    (workspace.root / "latin").write_bytes(b"caf\xe9\n")
    latin = await workspace.call(read_file, path="latin")
    assert (latin.text, latin.lossy) == ("caf\ufffd\n", True)


async def test_only_regular_files_are_read(workspace: Workspace) -> None:
    (workspace.root / "d").mkdir()
    os.mkfifo(workspace.root / "pipe")
    assert "list_dir" in (await workspace.failure(read_file, path="d")).message
    assert "regular" in (await workspace.failure(read_file, path="pipe")).message
    assert category(await workspace.failure(read_file, path="nothing")) == "not_found"
    assert category(await workspace.failure(read_file, path="d/../nothing")) == "not_found"
    (workspace.root / "f").touch()
    assert category(await workspace.failure(read_file, path="f/below")) in ("not_found", "invalid_arguments")


@pytest.mark.parametrize("path", ["../out", "a/../../out", "link", "linked/out", "/etc/passwd"])
async def test_paths_that_leave_the_workspace_are_refused(workspace: Workspace, path: str) -> None:
    (workspace.root.parent / "out").write_text("hidden")
    (workspace.root / "link").symlink_to("../out")
    (workspace.root / "linked").symlink_to("..")
    error = await workspace.failure(read_file, path=path)
    assert category(error) == "permission_denied"
    assert "outside of the workspace" in error.message


async def test_links_within_the_workspace_are_followed(workspace: Workspace) -> None:
    (workspace.root / "real").mkdir()
    (workspace.root / "real" / "f").write_text("seen")
    (workspace.root / "d").symlink_to("real")
    (workspace.root / "l").symlink_to(workspace.root / "d" / "f")
    assert (await workspace.call(read_file, path="d/f")).text == "seen"
    assert (await workspace.call(read_file, path="l")).path == "real/f"


async def test_paths_begin_at_the_working_directory(workspace: Workspace) -> None:
    below = workspace.root / "below"
    below.mkdir()
    (workspace.root / "f").write_text("up")
    inside = Workspace(workspace.root, below)
    assert (await inside.call(read_file, path="../f")).text == "up"
    assert category(await inside.failure(read_file, path="../../f")) == "permission_denied"


@pytest.mark.parametrize("path", ["", "a\0b"])
async def test_what_is_no_path_is_refused(workspace: Workspace, path: str) -> None:
    assert category(await workspace.failure(read_file, path=path)) == "invalid_arguments"


async def test_a_listing_says_what_each_entry_is(workspace: Workspace) -> None:
    (workspace.root / "b").write_text("12345")
    (workspace.root / "a").mkdir()
    (workspace.root / ".hidden").touch()
    (workspace.root / "l").symlink_to("nowhere")
    os.mkfifo(workspace.root / "p")
    listing = await workspace.call(list_dir)
    assert [(e.name, e.type, e.size) for e in listing.entries] == [
        (".hidden", "file", 0),
        ("a", "directory", 0),
        ("b", "file", 5),
        ("l", "symlink", 0),
        ("p", "other", 0),
    ]
    assert category(await workspace.failure(list_dir, path="b")) == "invalid_arguments"
    assert category(await workspace.failure(list_dir, path="c")) == "not_found"


async def test_a_long_listing_is_cut(workspace: Workspace) -> None:
    for number in range(MAX_ENTRIES + 5):
        (workspace.root / f"{number:05}").touch()
    listing = await workspace.call(list_dir)
    assert (len(listing.entries), listing.truncated) == (MAX_ENTRIES, True)


async def test_names_that_are_no_text_are_shown_and_do_not_break_anything(workspace: Workspace) -> None:
    (Path(os.fsdecode(os.fsencode(workspace.root) + b"/caf\xe9"))).touch()
    listing = await workspace.call(list_dir)
    assert listing.entries[0].name == "caf\ufffd"
