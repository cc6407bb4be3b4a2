"""From inside a command's cell: what the user's git and editor obey cannot be changed, and git works all the
same.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from tests.security.fort import Fort

from turnd.cells import Bubblewrap, CellFailed, CellRefused
from turnd.cells.bubblewrap import Programs

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

COMMIT = "git -c user.name=Tester -c user.email=tester@example.org commit -q --allow-empty -m"


@pytest.fixture
def repository(fort: Fort) -> Path:
    """The workspace as a repository with a commit, made outside."""
    subprocess.run(["git", "init", "-q", "--template=", str(fort.workspace)], check=True)
    subprocess.run(["sh", "-c", f"{COMMIT} first"], cwd=fort.workspace, check=True)
    return fort.workspace / ".git"


@pytest.mark.req("SBX-03")
async def test_hooks_and_config_cannot_be_written_moved_or_replaced(fort: Fort, repository: Path) -> None:
    config = (repository / "config").read_bytes()
    found = await fort.attack("""
new = os.O_WRONLY | os.O_CREAT
found["rename .git"] = attempt(os.rename, ".git", "other")
found["hook"] = attempt(open_file, ".git/hooks/pre-commit", new, 0o755)
found["rename hooks"] = attempt(os.rename, ".git/hooks", ".git/other")
found["remove hooks"] = attempt(os.rmdir, ".git/hooks")
found["config"] = attempt(open_file, ".git/config", os.O_WRONLY)
found["remove config"] = attempt(os.remove, ".git/config")
open(".git/mine", "w").close()
found["replace config"] = attempt(os.rename, ".git/mine", ".git/config")
""")
    assert found == {
        "rename .git": "EBUSY",
        "hook": "EROFS",
        "rename hooks": "EBUSY",
        "remove hooks": "EBUSY",
        "config": "EROFS",
        "remove config": "EBUSY",
        "replace config": "EBUSY",
    }
    assert (repository / "config").read_bytes() == config
    assert list((repository / "hooks").iterdir()) == []


async def test_git_works_in_a_protected_repository(fort: Fort, repository: Path) -> None:
    result = await fort.shell(
        f"echo x > file && git add file && {COMMIT} second && git gc -q && git log --format=%s"
    )
    assert result.end.code == 0, result.err
    assert result.out == "second\nfirst\n"
    outside = subprocess.run(["git", "-C", str(fort.workspace), "fsck"], capture_output=True, check=False)
    assert outside.returncode == 0
    assert (repository / "HEAD").exists()


@pytest.mark.req("SBX-03")
async def test_a_repository_stays_protected_when_a_program_takes_its_head_away(
    fort: Fort, repository: Path
) -> None:
    assert (await fort.shell("mv .git/HEAD .git/kept && rm -rf .git/refs")).end.code == 0
    result = await fort.shell("mv .git/kept .git/HEAD; echo evil > .git/hooks/pre-commit")
    assert result.end.code != 0
    assert list((repository / "hooks").iterdir()) == []


@pytest.mark.req("SBX-03")
async def test_a_planted_commondir_is_refused_at_the_next_cell(fort: Fort, repository: Path) -> None:
    assert (await fort.shell("mkdir evil && echo ../evil > .git/commondir")).end.code == 0
    with pytest.raises(CellRefused, match="commondir"):
        await fort.shell("true")
    (repository / "commondir").unlink()
    assert (await fort.shell("true")).end.code == 0


@pytest.mark.req("SBX-03")
@pytest.mark.parametrize("place", [".git", ".git/hooks", ".git/config", ".vscode"])
async def test_a_link_in_place_of_what_is_protected_is_refused(fort: Fort, place: str) -> None:
    outside = fort.base / "outside"
    outside.mkdir()
    (outside / "tasks.json").write_text("{}")
    path = fort.workspace / place
    path.parent.mkdir(exist_ok=True)
    if path.parent.name == ".git":
        (path.parent / "HEAD").write_text("ref: refs/heads/main\n")
    path.symlink_to(outside)
    with pytest.raises(CellRefused, match="symbolic link"):
        await fort.shell("true")


@pytest.mark.req("SBX-02", "SBX-03")
async def test_a_protected_path_that_is_swapped_while_the_cell_is_made_makes_no_cell(
    fort: Fort, repository: Path
) -> None:
    (fort.workspace / "evil").mkdir()
    programs = Programs.find()
    launcher = fort.base / "bwrap"
    swap = f"cd {repository} && rm -r hooks && ln -s ../evil hooks"
    launcher.write_text(f'#!/bin/sh\n({swap})\nexec {programs.bwrap} "$@"\n')
    launcher.chmod(0o755)
    swapping = Fort(Bubblewrap(replace(programs, bwrap=str(launcher))), fort.base)
    with pytest.raises(CellFailed, match=r"hooks is not reachable in the finished cell"):
        await swapping.shell("touch /tmp/ran")
    assert not (fort.tmp / "ran").exists()


@pytest.mark.req("SBX-03")
async def test_submodules_and_linked_worktrees_are_protected_too(fort: Fort, repository: Path) -> None:
    for module in ("one", "group/two"):
        subprocess.run(["git", "init", "-q", "--bare", str(repository / "modules" / module)], check=True)
    subprocess.run(
        ["git", "-C", str(fort.workspace), "worktree", "add", "-q", str(fort.base / "linked")], check=True
    )
    found = await fort.attack("""
new = os.O_WRONLY | os.O_CREAT
for module in ("one", "group/two"):
    base = ".git/modules/" + module
    found[module + " hook"] = attempt(open_file, base + "/hooks/post-checkout", new, 0o755)
    found[module + " config"] = attempt(open_file, base + "/config", os.O_WRONLY)
    found[module + " rename"] = attempt(os.rename, base, base + "-moved")
found["modules"] = attempt(os.rename, ".git/modules", ".git/other")
found["worktree"] = attempt(open_file, ".git/worktrees/linked/commondir", os.O_WRONLY)
""")
    assert {name: error for name, error in found.items() if "rename" not in name and name != "modules"} == {
        "one hook": "EROFS",
        "one config": "EROFS",
        "group/two hook": "EROFS",
        "group/two config": "EROFS",
        "worktree": "EROFS",
    }
    assert {found["one rename"], found["group/two rename"], found["modules"]} == {"EBUSY"}


@pytest.mark.req("SBX-03")
async def test_the_file_that_makes_a_linked_worktree_is_read_only(fort: Fort) -> None:
    (fort.workspace / ".git").write_text("gitdir: /elsewhere\n")
    found = await fort.attack("""
found["write"] = attempt(open_file, ".git", os.O_WRONLY)
found["remove"] = attempt(os.remove, ".git")
""")
    assert found == {"write": "EROFS", "remove": "EBUSY"}


async def test_a_new_repository_can_be_made_and_is_protected_from_the_next_cell_on(fort: Fort) -> None:
    made = await fort.shell(f"git init -q . && {COMMIT} first && echo '#!/bin/sh' > .git/hooks/post-commit")
    assert made.end.code == 0, made.err
    later = await fort.shell("echo evil > .git/hooks/pre-commit")
    assert later.end.code != 0
    assert not (fort.workspace / ".git" / "hooks" / "pre-commit").exists()


@pytest.mark.req("SBX-03")
async def test_editor_tasks_and_turnds_own_configuration_are_read_only(fort: Fort) -> None:
    for name in (".turnd/config.toml", ".vscode/tasks.json", ".vscode/settings.json"):
        path = fort.workspace / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    found = await fort.attack("""
for name in (".turnd/config.toml", ".vscode/tasks.json", ".vscode/settings.json"):
    found[name] = attempt(open_file, name, os.O_WRONLY)
found["new in .turnd"] = attempt(open_file, ".turnd/new", os.O_WRONLY | os.O_CREAT)
found["new in .vscode"] = attempt(open_file, ".vscode/words.txt", os.O_WRONLY | os.O_CREAT)
found["move .vscode"] = attempt(os.rename, ".vscode", "other")
found["move .turnd"] = attempt(os.rename, ".turnd", "other")
""")
    assert found == {
        ".turnd/config.toml": "EROFS",
        ".vscode/tasks.json": "EROFS",
        ".vscode/settings.json": "EROFS",
        "new in .turnd": "EROFS",
        "new in .vscode": "done",
        "move .vscode": "EBUSY",
        "move .turnd": "EBUSY",
    }
