"""Which directories of tool chains and interpreters a cell is given, and which never."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from turnd.cells import interpreter_paths, tool_chains


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path.resolve() / "home" / "user"
    path.mkdir(parents=True)
    return path


def tool(path: Path) -> Path:
    """A program; its directory is what PATH names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path.parent


def prefix(root: Path) -> Path:
    """A directory that is one tool's, with its programs."""
    (root / "lib").mkdir(parents=True)
    return tool(root / "bin" / "program")


def python(root: Path) -> Path:
    """A Python installation."""
    (root / "lib" / "python3.12").mkdir(parents=True)
    (root / "lib" / "python3.12" / "os.py").touch()
    return tool(root / "bin" / "python3")


def environment(root: Path, base: Path) -> Path:
    """A virtual environment made from an installation."""
    (root / "bin").mkdir(parents=True)
    (root / "lib").mkdir()
    (root / "pyvenv.cfg").write_text(f"home = {base}\nversion = 3.12\n")
    (root / "bin" / "python").symlink_to(base / "python3")
    return root / "bin"


def read(home: Path, *directories: Path, workspace: Path | None = None) -> set[Path]:
    path = os.pathsep.join(["/usr/bin", "relative", "", *map(str, directories), "/no/such/directory"])
    return {Path(found) for found in tool_chains(path, home, workspace).read}


def test_the_system_needs_nothing(home: Path) -> None:
    assert read(home) == set()


def test_a_tools_whole_directory_is_read_not_its_programs_alone(home: Path) -> None:
    node = home / ".nvm" / "versions" / "node" / "v22"
    assert read(home, prefix(node)) == {node}


def test_a_directory_of_several_tools_is_read_with_what_its_links_lead_to(home: Path) -> None:
    black = home / ".local" / "share" / "pipx" / "venvs" / "black"
    base = home / ".pyenv" / "versions" / "3.12"
    environment(black, python(base))
    tool(black / "bin" / "black")
    programs = tool(home / ".local" / "bin" / "uv")
    (programs / "black").symlink_to(black / "bin" / "black")
    assert read(home, programs) == {programs, black, base}


def test_the_interpreter_behind_an_environment_is_read(home: Path) -> None:
    base, venv = home / ".local" / "share" / "uv" / "python" / "cpython-3.12", home / "venvs" / "one"
    assert read(home, environment(venv, python(base))) == {venv, base}


def test_a_path_that_is_a_link_is_read_under_both_names(home: Path) -> None:
    real = home / ".sdkman" / "candidates" / "java" / "21"
    prefix(real)
    current = real.parent / "current"
    current.symlink_to(real)
    assert read(home, current / "bin") == {current, real}


def test_rust_is_read_without_its_credentials(home: Path) -> None:
    programs = tool(home / ".cargo" / "bin" / "cargo")
    (home / ".cargo" / "credentials.toml").touch()
    (home / ".cargo" / "lib").mkdir()
    (home / ".rustup").mkdir()
    chains = tool_chains(str(programs), home)
    assert chains.read == (str(programs), str(home / ".rustup"))
    assert chains.env == {"RUSTUP_HOME": str(home / ".rustup")}


@pytest.mark.req("SBX-04")
@pytest.mark.parametrize("name", [".ssh", ".gnupg", ".aws", ".config", ".docker", ".local/share/keyrings"])
def test_directories_of_secrets_are_never_read(home: Path, name: str) -> None:
    secret = prefix(home / name)
    link = tool(home / "tools" / "bin" / "other")
    (link / "linked").symlink_to(secret / "program")
    assert read(home, secret, link) == {link}


@pytest.mark.req("SBX-04")
def test_a_home_is_never_read_as_a_whole(home: Path) -> None:
    (home / "lib").mkdir()
    own = tool(home / "bin" / "script")
    (home.parent / "lib").mkdir()
    assert read(home, own) == {own}
    assert read(home, home) == set()
    assert read(home, home.parent) == set()


@pytest.mark.req("SBX-03")
def test_a_workspace_cannot_point_at_what_it_wants_to_be_read(home: Path) -> None:
    workspace = home / "project"
    private = home / "private"
    tool(private / "bin" / "notes")
    (private / "lib").mkdir()
    venv = environment(workspace / ".venv", private / "bin")
    (venv / "tool").symlink_to(private / "bin" / "notes")
    assert read(home, venv, workspace=workspace) == set()
    real = home / ".pyenv" / "versions" / "3.12"
    python(real)
    (workspace / ".venv" / "pyvenv.cfg").write_text(f"home = {real / 'bin'}\n")
    assert read(home, venv, workspace=workspace) == {real}


def test_the_running_interpreter_has_what_it_needs(tmp_path: Path) -> None:
    source = tmp_path.resolve() / "source"
    source.mkdir()
    paths = interpreter_paths([source])
    assert str(source) in paths
    needed = [
        Path(sys.prefix),
        Path(sys.base_prefix).resolve(),
        Path(sys.executable).resolve(),
        Path(os.__file__),
    ]
    for path in needed:
        assert any(path.is_relative_to(given) for given in (*paths, "/usr", "/opt")), path
    assert all(not Path(one).is_relative_to(other) for one in paths for other in paths if one != other), (
        "one that lies in another need not be named"
    )


@pytest.mark.req("SBX-03")
def test_a_link_to_secrets_is_never_mounted_whatever_its_name(home: Path, tmp_path: Path) -> None:
    (home / ".ssh").mkdir()
    (home / ".ssh" / "id_ed25519").write_text("secret")
    elsewhere = tmp_path.resolve() / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "bin").symlink_to(home / ".ssh")
    (elsewhere / "all").symlink_to(home)
    assert read(home, elsewhere / "bin", elsewhere / "all") == set()
