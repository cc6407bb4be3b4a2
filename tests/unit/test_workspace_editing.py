"""write_file and edit_file: exact, atomic, bound to the state that was shown."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
from pathlib import Path

import pytest
from tests.unit.workspace_calls import Workspace, category

from turnd_provider.workspace.editing import edit_file, write_file


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    root = tmp_path / "w"
    root.mkdir()
    return Workspace(root)


async def test_a_piece_of_text_is_replaced(workspace: Workspace) -> None:
    target = workspace.root / "f"
    target.write_text("one\ntwo\nthree\n")
    done = await workspace.call(edit_file, path="f", old_text="two\n", new_text="2\n2\n")
    assert target.read_text() == "one\n2\n2\nthree\n"
    assert (done.content.path, done.content.created, done.content.changed, done.content.bytes) == (
        "f",
        False,
        True,
        14,
    )


async def test_text_that_is_there_twice_is_not_guessed(workspace: Workspace) -> None:
    target = workspace.root / "f"
    target.write_text("x\na\nx\nb\nx\n")
    error = await workspace.failure(edit_file, path="f", old_text="x", new_text="y")
    assert category(error) == "invalid_arguments"
    assert "3 times (lines 1, 3, 5)" in error.message
    assert target.read_text() == "x\na\nx\nb\nx\n"
    await workspace.call(edit_file, path="f", old_text="x", new_text="y", replace_all=True)
    assert target.read_text() == "y\na\ny\nb\ny\n"


@pytest.mark.parametrize(
    ("old_text", "said"),
    [
        ("def f():\n  return 1", "line 2 has it with other white space"),
        ("def f():\n    return 2", "its first line is at line 2"),
        ("nothing like it", "read the file again"),
    ],
)
async def test_text_that_is_not_there_is_explained(workspace: Workspace, old_text: str, said: str) -> None:
    (workspace.root / "f").write_text("import x\ndef f():\n    return 1\n")
    assert said in (await workspace.failure(edit_file, path="f", old_text=old_text, new_text="")).message


async def test_an_edit_that_changes_nothing_is_refused(workspace: Workspace) -> None:
    (workspace.root / "f").write_text("a")
    error = await workspace.failure(edit_file, path="f", old_text="a", new_text="a")
    assert "nothing to change" in error.message


async def test_an_edit_of_no_file_says_what_to_do(workspace: Workspace) -> None:
    error = await workspace.failure(edit_file, path="f", old_text="a", new_text="b")
    assert (category(error), "write_file" in error.message) == ("not_found", True)


async def test_bytes_around_the_edit_stay_and_windows_line_ends_too(workspace: Workspace) -> None:
    target = workspace.root / "f"
    target.write_bytes(b"caf\xe9\r\none\r\ntwo\r\n")
    await workspace.call(edit_file, path="f", old_text="one\ntwo", new_text="1\n2")
    assert target.read_bytes() == b"caf\xe9\r\n1\r\n2\r\n"


async def test_a_new_file_gets_its_directories_and_ordinary_permissions(workspace: Workspace) -> None:
    done = await workspace.call(write_file, path="a/b/f", content="new")
    target = workspace.root / "a" / "b" / "f"
    assert target.read_text() == "new"
    assert done.content.created
    beside = workspace.root / "beside"
    beside.touch()
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE(beside.stat().st_mode)


@pytest.mark.parametrize("mode", [0o755, 0o600, 0o640])
async def test_permissions_are_kept(workspace: Workspace, mode: int) -> None:
    target = workspace.root / "f"
    target.write_text("old")
    target.chmod(mode)
    await workspace.call(write_file, path="f", content="new")
    assert stat.S_IMODE(target.stat().st_mode) == mode


async def test_a_read_only_file_is_not_replaced(workspace: Workspace) -> None:
    target = workspace.root / "f"
    target.write_text("old")
    target.chmod(0o444)
    assert category(await workspace.failure(write_file, path="f", content="new")) == "permission_denied"
    assert target.read_text() == "old"
    assert [p.name for p in workspace.root.iterdir()] == ["f"]


async def test_a_file_is_replaced_whole_and_nothing_else_is_left(workspace: Workspace) -> None:
    target = workspace.root / "f"
    target.write_text("old")
    before = target.stat().st_ino
    with target.open() as held:
        await workspace.call(write_file, path="f", content="new")
        assert held.read() == "old"
    assert target.stat().st_ino != before
    assert [p.name for p in workspace.root.iterdir()] == ["f"]


async def test_the_same_content_is_not_written_again(workspace: Workspace) -> None:
    target = workspace.root / "f"
    target.write_text("same")
    before = target.stat().st_ino
    done = await workspace.call(write_file, path="f", content="same")
    assert (done.content.changed, target.stat().st_ino) == (False, before)


async def test_a_link_stays_a_link(workspace: Workspace) -> None:
    (workspace.root / "real").write_text("old")
    (workspace.root / "link").symlink_to("real")
    done = await workspace.call(write_file, path="link", content="new")
    assert (workspace.root / "link").is_symlink()
    assert (workspace.root / "real").read_text() == "new"
    assert done.content.path == "real"


@pytest.mark.parametrize("path", ["../out", "link", "linked/new", "/tmp/turnd-never"])
async def test_nothing_outside_of_the_workspace_is_written(workspace: Workspace, path: str) -> None:
    outside = workspace.root.parent / "out"
    outside.write_text("old")
    (workspace.root / "link").symlink_to(outside)
    (workspace.root / "linked").symlink_to("..")
    assert category(await workspace.failure(write_file, path=path, content="new")) == "permission_denied"
    assert sorted(p.name for p in workspace.root.parent.iterdir()) == ["out", "w"]
    assert outside.read_text() == "old"


async def test_what_is_no_file_is_not_replaced(workspace: Workspace) -> None:
    (workspace.root / "d").mkdir()
    os.mkfifo(workspace.root / "pipe")
    for path in ("d", "pipe", "."):
        assert category(await workspace.failure(write_file, path=path, content="x")) == "invalid_arguments"
    (workspace.root / "f").touch()
    await workspace.failure(write_file, path="f/below", content="x")
    assert sorted(p.name for p in workspace.root.iterdir()) == ["d", "f", "pipe"]


# --- previews and preconditions -----------------------------------------------------------------------------


@pytest.mark.req("GATE-16")
async def test_a_preview_shows_the_diff_changes_nothing_and_names_the_state(workspace: Workspace) -> None:
    target = workspace.root / "f"
    target.write_text("one\ntwo\n")
    shown = await workspace.preview(edit_file, path="f", old_text="two", new_text="2")
    assert shown.text == "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"
    assert target.read_text() == "one\ntwo\n"
    done = await workspace.call(edit_file, shown.preconditions, path="f", old_text="two", new_text="2")
    follows = await workspace.call(edit_file, done.left_state, path="./f", old_text="one", new_text="1")
    assert follows.content.changed
    assert target.read_text() == "1\n2\n"


@pytest.mark.req("GATE-16")
async def test_a_new_file_is_bound_to_its_absence(workspace: Workspace) -> None:
    shown = await workspace.preview(write_file, path="a/f", content="x\n")
    assert shown.text == "--- /dev/null\n+++ b/a/f\n@@ -0,0 +1 @@\n+x\n"
    assert list(shown.preconditions.values()) == ["absent"]
    assert not list(workspace.root.iterdir())
    (workspace.root / "a").mkdir()
    (workspace.root / "a" / "f").write_text("somebody else's")
    error = await workspace.failure(write_file, shown.preconditions, path="a/f", content="x\n")
    assert category(error) == "precondition_failed"
    assert (workspace.root / "a" / "f").read_text() == "somebody else's"


@pytest.mark.req("GATE-16")
@pytest.mark.parametrize("drift", ["other", None])
async def test_drift_is_seen_and_nothing_is_changed(workspace: Workspace, drift: str | None) -> None:
    target = workspace.root / "f"
    target.write_text("shown")
    shown = await workspace.preview(write_file, path="f", content="new")
    if drift is None:
        target.unlink()
    else:
        target.write_text(drift)
    error = await workspace.failure(write_file, shown.preconditions, path="f", content="new")
    assert category(error) == "precondition_failed"
    assert [(p.name, p.read_text()) for p in workspace.root.iterdir()] == ([("f", drift)] if drift else [])


@pytest.mark.req("GATE-16")
async def test_a_link_that_leads_elsewhere_now_is_drift(workspace: Workspace) -> None:
    for name in ("one", "two"):
        (workspace.root / name).write_text("same")
    link = workspace.root / "link"
    link.symlink_to("one")
    shown = await workspace.preview(write_file, path="link", content="new")
    link.unlink()
    link.symlink_to("two")
    error = await workspace.failure(write_file, shown.preconditions, path="link", content="new")
    assert category(error) == "precondition_failed"
    assert (workspace.root / "two").read_text() == "same"


async def test_of_many_changes_bound_to_one_state_one_lands(workspace: Workspace) -> None:
    target = workspace.root / "f"
    target.write_text("shown")
    shown = await workspace.preview(write_file, path="f", content="new")
    calls = [workspace.call(write_file, shown.preconditions, path="f", content=f"new {n}") for n in range(20)]
    ended = await asyncio.gather(*calls, return_exceptions=True)
    landed = [e for e in ended if not isinstance(e, BaseException)]
    assert len(landed) == 1
    assert target.read_text().startswith("new ")
    assert [p.name for p in workspace.root.iterdir()] == ["f"]


async def test_a_preview_that_cannot_succeed_says_so(workspace: Workspace) -> None:
    (workspace.root / "f").write_text("a")
    with pytest.raises(Exception, match="read the file again"):
        await workspace.preview(edit_file, path="f", old_text="zzz", new_text="")


async def test_previews_are_bounded(workspace: Workspace) -> None:
    target = workspace.root / "f"
    target.write_text("".join(f"{n}\n" for n in range(30_000)))
    large = await workspace.preview(write_file, path="f", content="x\n")
    assert large.text == "f: 30000 lines -> 1 lines, too many to compare\n"
    target.write_text("".join(f"{n} {'y' * 100}\n" for n in range(5000)))
    cut = await workspace.preview(write_file, path="f", content="x\n")
    assert cut.text.endswith("... the rest of the diff is left out\n")
    target.write_bytes(b"\0\1")
    binary = await workspace.preview(write_file, path="f", content="x\n")
    assert binary.text == "f: binary content (2 bytes -> 2 bytes)\n"


@pytest.mark.parametrize(
    ("old", "new"), [("a\nb", "a\nb\n"), ("a\nb\n", "a\nc"), ("", "x"), ("a\r\n", "b\r\n")]
)
async def test_a_diff_is_one_that_patch_applies(workspace: Workspace, old: str, new: str) -> None:
    target = workspace.root / "f"
    target.write_bytes(old.encode())
    shown = await workspace.preview(write_file, path="f", content=new)
    applied = subprocess.run(
        ["git", "apply", "--unsafe-paths", "-"],
        cwd=workspace.root,
        input=shown.text.encode(),
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert applied.returncode == 0, applied.stderr
    assert target.read_bytes() == new.encode()
