"""What a cell may be told to be: the columns of the design's table, and what is refused before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from turnd.cells import Access, CellRefused, CellSpec, Limits

WORKSPACE, TMP, LISTEN = "/home/user/project", "/var/lib/turnd/tmp/1", "/run/user/1000/turnd/p1"


def command(**changes: Any) -> CellSpec:
    return CellSpec.command(
        **{"argv": ["true"], "cwd": WORKSPACE, "env": {}, "workspace": WORKSPACE, "tmp": TMP} | changes
    )


def third_party(**changes: Any) -> CellSpec:
    return CellSpec.third_party(**{"argv": ["true"], "env": {}, "listen_dir": LISTEN} | changes)


@pytest.mark.parametrize(
    ("spec", "access", "private_tmp", "network", "sockets"),
    [
        (
            CellSpec.workspace_provider(["p"], env={}, workspace=WORKSPACE, listen_dir=LISTEN),
            Access.WRITE,
            True,
            False,
            True,
        ),
        (command(), Access.WRITE, False, False, False),
        (
            CellSpec.inspect_command(["c"], cwd=WORKSPACE, env={}, workspace=WORKSPACE, tmp=TMP),
            Access.READ,
            False,
            False,
            False,
        ),
        (third_party(workspace=WORKSPACE), Access.READ, True, False, True),
        (third_party(network=True), Access.NONE, True, True, True),
    ],
)
def test_each_constructor_is_a_column_of_the_table(
    spec: CellSpec, access: Access, private_tmp: bool, network: bool, sockets: bool
) -> None:
    assert spec.access is access
    assert (spec.tmp is None) is private_tmp
    assert (spec.network, spec.connect, spec.sockets) == (network, network, sockets)
    assert (spec.listen_dir is None) is not sockets
    assert (spec.mounted_workspace is None) is (access is Access.NONE)


@pytest.mark.parametrize(
    "workspace",
    [
        "/",
        "/usr",
        "/etc",
        "/tmp",
        "/run",
        "/run/turnd",
        "/run/turnd/x",
        "/proc",
        "/proc/1",
        "/dev/shm",
        "/sys/fs",
    ],
)
def test_a_workspace_over_the_cells_own_directories_is_refused(workspace: str) -> None:
    with pytest.raises(CellRefused, match=f"workspace {workspace} "):
        command(workspace=workspace, tmp="/var/lib/turnd/tmp/1")


@pytest.mark.parametrize("workspace", ["/tmp/project", "/home/user", "/usr/src/app", "/opt/project"])
def test_a_workspace_below_common_directories_is_taken(workspace: str) -> None:
    assert command(workspace=workspace, cwd=workspace).workspace == workspace


@pytest.mark.parametrize(
    ("workspace", "tmp"),
    [
        ("/home/user", "/home/user/.cache/tmp"),
        ("/home/user/p", "/home/user/p"),
        ("/home/user/p/q", "/home/user/p"),
    ],
)
def test_a_workspace_that_overlaps_the_sessions_tmp_is_refused(workspace: str, tmp: str) -> None:
    with pytest.raises(CellRefused, match=f"{workspace} and the session's /tmp {tmp} overlap"):
        command(workspace=workspace, tmp=tmp)


def test_a_workspace_that_holds_the_sockets_directory_is_refused() -> None:
    with pytest.raises(CellRefused, match="socket's directory"):
        third_party(workspace="/run/user/1000")


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/etc",
        "/run",
        "/tmp",
        "/proc/sys",
        "/var/lib/turnd",
        "/var/lib/turnd/tmp/1/x",
        "relative",
        "/a/../b",
    ],
)
def test_paths_to_read_that_would_show_too_much_are_refused(path: str) -> None:
    with pytest.raises(CellRefused):
        command(read=[path])


@pytest.mark.parametrize(
    "path", ["/usr", "/usr/lib/jvm", "/opt/tool", "/home/user", "/home/user/.nvm", "/tmp/tool"]
)
def test_paths_to_read_that_may_be_given(path: str) -> None:
    assert command(read=[path]).read == (path,)


def wrong(message: str, make: Callable[[], object]) -> Any:
    return pytest.param(make, message, id=message)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        wrong("argv is empty", lambda: command(argv=[])),
        wrong("NUL", lambda: command(argv=["a\0b"])),
        wrong("NUL", lambda: command(env={"A": "\0"})),
        wrong("environment variable", lambda: command(env={"A=B": "x"})),
        wrong("working directory", lambda: command(cwd="project")),
        wrong("absolute path", lambda: command(workspace="/home/user/../x")),
        wrong("absolute path", lambda: command(workspace="/home/user/")),
        wrong("relative to the workspace", lambda: command(protected=["/etc"])),
        wrong("relative to the workspace", lambda: command(protected=["../x"])),
        wrong("relative to the workspace", lambda: command(protected=["."])),
        wrong("distinct and above 2", lambda: third_party(pass_fds=[1])),
        wrong("distinct and above 2", lambda: third_party(pass_fds=[5, 5])),
        wrong("at most 6", lambda: third_party(pass_fds=range(10, 17))),
        wrong("limit memory", lambda: Limits(memory=0)),
        wrong("needs a workspace", lambda: replace(command(), workspace=None)),
    ],
)
def test_contradictions_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(CellRefused, match=message):
        make()


def test_a_specification_does_not_change_with_what_it_was_made_from() -> None:
    env = {"A": "1"}
    spec = command(env=env)
    env["A"] = "2"
    assert spec.env["A"] == "1"
    with pytest.raises(TypeError):
        spec.env["A"] = "3"  # type: ignore[index]
