"""Which directories a session may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnd.sessions.refusal import Code, CommandRefused
from turnd.sessions.workspace import checked

HOME = "/nonexistent/home"


@pytest.mark.req("SBX-03")
@pytest.mark.parametrize(
    "path", ["/", "/dev", "/dev/shm", "/proc", "/proc/self", "/sys", "/etc", "/usr", "/bin"]
)
def test_the_systems_own_directories_are_refused(path: str) -> None:
    with pytest.raises(CommandRefused, match="cannot be a workspace"):
        checked(path, HOME, ())


@pytest.mark.req("SBX-03")
@pytest.mark.parametrize(
    "path", ["/lib", "/boot", "/run", "/var/run", "/usr/bin", "/usr/share", "/usr/src", "/sbin"]
)
def test_others_are_refused_where_there_are_any(path: str) -> None:
    with pytest.raises(CommandRefused, match=r"cannot be a workspace|not a directory") as refused:
        checked(path, HOME, ())
    assert refused.value.code is Code.INVALID_ARGUMENT


@pytest.mark.req("RPC-05")
@pytest.mark.parametrize(
    "path", ["/a\0b", "/" + "x" * 300, "/" + "x/" * 3000, "/" + "../" * 3000 + "y", "relative"]
)
def test_what_is_no_path_is_an_invalid_argument(path: str) -> None:
    with pytest.raises(CommandRefused) as refused:
        checked(path, HOME, ())
    assert (refused.value.code, refused.value.field_name) == (Code.INVALID_ARGUMENT, "cwd")


def test_projects_are_taken_and_what_holds_the_home_is_not(tmp_path: Path) -> None:
    base = tmp_path.resolve()
    project = base / "users" / "me" / "project"
    project.mkdir(parents=True)
    home = str(project.parent)
    assert checked(str(project), home, ()) == str(project)
    for wide in (project.parent, project.parent.parent):
        with pytest.raises(CommandRefused, match="home directory"):
            checked(str(wide), home, ())


@pytest.mark.req("OPS-04")
def test_a_named_directory_is_taken_though_it_is_the_home(tmp_path: Path) -> None:
    home = tmp_path.resolve() / "me"
    (home / "projects").mkdir(parents=True)
    with pytest.raises(CommandRefused, match="or name it under `workspaces`"):
        checked(str(home), str(home), ())
    assert checked(str(home), str(home), (), [str(home)]) == str(home)
    with pytest.raises(CommandRefused, match="home directory"):
        checked(str(tmp_path), str(home), (), [str(home)])


@pytest.mark.req("SBX-03")
@pytest.mark.parametrize("of_home", ["", ".state", ".state/turnd", ".state/turnd/spool"])
def test_nothing_lets_turnds_own_files_into_a_workspace(tmp_path: Path, of_home: str) -> None:
    home = tmp_path.resolve() / "me"
    own = home / ".state" / "turnd"
    (own / "spool").mkdir(parents=True)
    workspace = str(home / of_home)
    with pytest.raises(
        CommandRefused, match=r"turnd keeps its own files under it|it is of turnd's own files"
    ):
        checked(workspace, str(home), [str(own)], [workspace])
    (tmp_path / "link").symlink_to(workspace)
    with pytest.raises(CommandRefused, match="own files"):
        checked(str(tmp_path / "link"), str(home), [str(own)], [workspace])
