"""Removing what programs left: deep, without rights, with any names, too much of it, or not to be removed."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from turnd.tools.leftovers import remove_aside, remove_tree

LOG = structlog.get_logger()


def _deep(top: Path, levels: int) -> None:
    top.mkdir()
    directory = os.open(top, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=directory)
        below = os.open("d", os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = below
    os.close(os.open("f", os.O_CREAT, 0o600, dir_fd=directory))
    os.close(directory)


@pytest.mark.req("TOOL-04")
def test_any_depth_is_removed(tmp_path: Path) -> None:
    _deep(tmp_path / "t", 3_000)
    assert remove_tree(tmp_path / "t", LOG, within_s=100)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.req("TOOL-04")
def test_names_rights_links_and_special_files_do_not_matter(tmp_path: Path) -> None:
    top, kept = tmp_path / "t", tmp_path / "kept"
    kept.mkdir(mode=0o500)
    (top / "a" / "b").mkdir(parents=True)
    Path(os.fsdecode(os.fsencode(top) + b"/\xff\n")).mkdir()
    (Path(os.fsdecode(os.fsencode(top) + b"/\xff\n")) / "x").touch()
    os.mkfifo(top / "a" / "fifo")
    (top / "a" / "b" / "link").symlink_to(kept)
    (top / "a" / "loop").symlink_to("loop")
    for locked in (top / "a" / "b", top / "a", top):
        locked.chmod(0)
    assert remove_tree(top, LOG)
    assert list(tmp_path.iterdir()) == [kept]
    assert kept.stat().st_mode & 0o777 == 0o500


def test_files_links_and_nothing_are_removed(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    (tmp_path / "l").symlink_to("f")
    assert all(remove_tree(tmp_path / name, LOG) for name in ("l", "f", "f", "not/there"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.req("TOOL-04")
def test_what_is_too_much_is_put_aside_said_once_and_removed_later(tmp_path: Path) -> None:
    _deep(tmp_path / "t", 50)
    with capture_logs() as said:
        assert not remove_tree(tmp_path / "t", LOG, within_s=-1)
    assert len(said) == 1
    assert not (tmp_path / "t").exists()
    (tmp_path / "t").mkdir()
    with capture_logs() as said:
        remove_aside(tmp_path, LOG)
    assert said == []
    assert list(tmp_path.iterdir()) == [tmp_path / "t"]


@pytest.mark.req("TOOL-04")
def test_what_cannot_be_removed_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = tmp_path / "t"
    (top / "a").mkdir(parents=True)
    (top / "a" / "immutable").touch()
    (top / "other").touch()
    real = os.unlink

    def unlink(path: Any, **more: Any) -> None:
        if path == "immutable":
            raise PermissionError(errno.EPERM, "Operation not permitted", path)
        real(path, **more)

    monkeypatch.setattr(os, "unlink", unlink)
    with capture_logs() as said:
        assert not remove_tree(top, LOG)
    assert [line["event"] for line in said] == ["cannot remove what was left; it was put aside"]
    assert "Operation not permitted" in said[0]["reason"]
    assert not top.exists()
