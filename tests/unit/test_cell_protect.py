"""What is mounted over a workspace to protect it, without making the cell."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from turnd.cells import PROTECTED, CellRefused
from turnd.cells.beneath import identity_beneath, open_beneath, open_exact
from turnd.cells.protect import Guarded, guard


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return tmp_path.resolve()


def guarded(workspace: Path, protected: Sequence[str]) -> list[Guarded]:
    root = open_exact(str(workspace))
    try:
        return guard(root, str(workspace), protected)
    finally:
        os.close(root)


def mounts(workspace: Path, *protected: str) -> dict[str, bool]:
    """Path relative to the workspace, and whether it stays writable."""
    found = guarded(workspace, protected or PROTECTED)
    return {str(Path(mount.path).relative_to(workspace)): mount.writable for mount in found}


def repository(git: Path) -> None:
    git.mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")


def test_an_empty_workspace_needs_nothing_and_stays_empty(workspace: Path) -> None:
    assert mounts(workspace) == {}
    assert list(workspace.iterdir()) == []


def test_a_repository_is_guarded_outermost_first_and_completed(workspace: Path) -> None:
    repository(workspace / ".git")
    found = mounts(workspace)
    assert found == {".git": True, ".git/hooks": False, ".git/config": False}
    assert next(iter(found)) == ".git"
    assert (workspace / ".git" / "hooks").is_dir()
    assert (workspace / ".git" / "config").read_bytes() == b""


def test_worktree_configuration_is_made_where_git_would_obey_it(workspace: Path) -> None:
    repository(workspace / ".git")
    (workspace / ".git" / "config").write_text("[extensions]\n\tworktreeConfig = true\n")
    assert mounts(workspace)[".git/config.worktree"] is False


def test_a_directory_that_is_no_repository_is_left_alone(workspace: Path) -> None:
    (workspace / ".git" / "objects").mkdir(parents=True)
    assert mounts(workspace) == {}


@pytest.mark.parametrize("left", ["HEAD", "config", "hooks"])
def test_any_part_of_a_repository_makes_one(workspace: Path, left: str) -> None:
    (workspace / ".git" / left).mkdir(parents=True)
    if left == "config":
        (workspace / ".git" / left).rmdir()
        (workspace / ".git" / left).touch()
    assert mounts(workspace)[".git/hooks"] is False


def test_submodules_at_any_depth_and_their_parents(workspace: Path) -> None:
    repository(workspace / ".git")
    repository(workspace / ".git" / "modules" / "a" / "b")
    repository(workspace / ".git" / "modules" / "a" / "b" / "modules" / "c")
    found = mounts(workspace)
    for module in (".git/modules/a/b", ".git/modules/a/b/modules/c"):
        assert found[module] is True
        assert found[f"{module}/hooks"] is False
        assert found[f"{module}/config"] is False
    assert found[".git/modules"] is found[".git/modules/a"] is True


def test_nesting_without_end_is_refused(workspace: Path) -> None:
    repository(workspace / ".git")
    (workspace / ".git" / "modules" / "/".join("abcdefghijkl")).mkdir(parents=True)
    with pytest.raises(CellRefused, match="nested deeper"):
        mounts(workspace)


def test_named_repositories_elsewhere_are_guarded_too(workspace: Path) -> None:
    repository(workspace / "vendor" / "one" / ".git")
    found = mounts(workspace, "vendor/one/.git")
    assert found["vendor"] is found["vendor/one"] is found["vendor/one/.git"] is True
    assert found["vendor/one/.git/hooks"] is False


def test_identities_are_those_of_what_was_looked_at(workspace: Path) -> None:
    (workspace / ".vscode").mkdir()
    (workspace / ".vscode" / "tasks.json").touch()
    for mount in guarded(workspace, PROTECTED):
        status = Path(mount.path).stat()
        assert mount.identity == (status.st_dev, status.st_ino)


@pytest.mark.req("SBX-03")
def test_paths_are_opened_through_no_link_and_not_upwards(workspace: Path) -> None:
    (workspace / "inside").mkdir()
    (workspace / "inside" / "link").symlink_to("/etc")
    (workspace / "file").touch()
    root = os.open(workspace / "inside", os.O_PATH)
    try:
        for path, message in (
            ("link/passwd", "symbolic links"),
            ("../file", "cross-device"),
            ("/etc", "cross-device"),
        ):
            with pytest.raises(OSError, match=f"(?i){message}"):
                open_beneath(root, path)
        assert identity_beneath(root, "") == identity_beneath(root, ".")
    finally:
        os.close(root)
