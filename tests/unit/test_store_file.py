"""The file: who may open it, which versions, and on which file systems."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.unit.stored import created, database, note, opened, query

from turnd.store.filesystem import NetworkFileSystem, kind_of, require_local
from turnd.store.hold import LOCK_NAME, DaemonRunning, Hold
from turnd.store.schema import VERSION, NotALog, SchemaTooNew, open_for_writing

HOLDER = """
import sys
from pathlib import Path
from turnd.store.hold import Hold
Hold.take(Path(sys.argv[1]), version="9.9", socket="/run/there.sock")
print("held", flush=True)
sys.stdin.read()
"""


# --- the lock -----------------------------------------------------------------------------------------------


@pytest.mark.req("OPS-02")
def test_a_living_daemon_is_named_and_a_dead_one_is_no_obstacle(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(database(tmp_path))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(DaemonRunning) as caught:
            Hold.take(database(tmp_path), version="0", socket="")
        running = caught.value
        assert (running.pid, running.version, running.socket) == (holder.pid, "9.9", "/run/there.sock")
        for part in (str(holder.pid), "9.9", "/run/there.sock", "turn stop"):
            assert part in str(running)
        assert [path.name for path in tmp_path.iterdir()] == [LOCK_NAME]
    finally:
        holder.kill()
        holder.communicate()
    assert (tmp_path / LOCK_NAME).read_text(), "what it wrote is still there"
    Hold.take(database(tmp_path), version="0", socket="").release()


@pytest.mark.req("OPS-02")
def test_only_the_kernel_lock_counts(tmp_path: Path) -> None:
    lock = tmp_path / LOCK_NAME
    lock.write_text(f'{{"pid": {os.getpid()}, "version": "1"}}')
    held = Hold.take(database(tmp_path), version="2", socket="s")
    lock.write_text("not JSON")
    with pytest.raises(DaemonRunning) as caught:
        Hold.take(database(tmp_path), version="3", socket="s")
    assert caught.value.pid is None
    held.release()
    again = Hold.take(database(tmp_path), version="3", socket="s")
    again.release()


@pytest.mark.req("OPS-02")
def test_a_lock_on_a_file_that_others_no_longer_find_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Someone removes the lock file between open and lock."""
    lock_file = fcntl.flock
    removed: list[int] = []

    def remove_first(descriptor: int, operation: int) -> None:
        if not removed:
            (tmp_path / LOCK_NAME).unlink()
        removed.append(descriptor)
        lock_file(descriptor, operation)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", remove_first)
        held = Hold.take(database(tmp_path), version="1", socket="")
    assert len(removed) == 2
    with pytest.raises(DaemonRunning) as caught:
        Hold.take(database(tmp_path), version="2", socket="")
    assert caught.value.version == "1"
    held.release()


def test_a_lock_is_not_followed_to_another_file(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / LOCK_NAME).symlink_to(target)
    with pytest.raises(OSError, match="symbolic"):
        Hold.take(database(tmp_path), version="1", socket="")
    assert target.read_text() == "precious"


# --- the schema ---------------------------------------------------------------------------------------------


@pytest.mark.req("LOG-10")
async def test_the_file_is_private_in_wal_mode_and_has_its_version(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("A"))
        for path in tmp_path.iterdir():
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
        assert query(tmp_path, "PRAGMA journal_mode") == [("wal",)]
        assert query(tmp_path, "PRAGMA user_version") == [(VERSION,)]


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != LOCK_NAME}


@pytest.mark.req("LOG-15")
async def test_a_newer_file_is_refused_and_not_touched(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("A"))
    copy = tmp_path / "copy"
    copy.mkdir()
    with closing(sqlite3.connect(database(tmp_path), isolation_level=None)) as newer:
        newer.execute("PRAGMA wal_autocheckpoint = 0")
        newer.execute(f"PRAGMA user_version = {VERSION + 1}")
        # As after a kill: the new version is in the WAL only.
        for name in ("turnd.db", "turnd.db-wal"):
            (copy / name).write_bytes((tmp_path / name).read_bytes())
    before = contents(copy)
    with pytest.raises(SchemaTooNew, match=f"version {VERSION + 1}.*knows {VERSION}"):
        async with opened(copy):
            pass
    after = contents(copy)
    assert {name: after[name] for name in before} == before
    assert sorted(set(after) - set(before)) in ([], ["turnd.db-shm"])


@pytest.mark.parametrize("make", ["database", "text"])
async def test_a_file_that_is_no_log_is_refused_and_not_touched(tmp_path: Path, make: str) -> None:
    if make == "database":
        with closing(sqlite3.connect(database(tmp_path))) as other:
            other.execute("CREATE TABLE recipes (name)")
    else:
        database(tmp_path).write_text("dear diary, " * 100)
    before = contents(tmp_path)
    with pytest.raises(NotALog, match="not turnd's log"):
        async with opened(tmp_path):
            pass
    assert contents(tmp_path) == before


def test_an_empty_file_becomes_a_log(tmp_path: Path) -> None:
    database(tmp_path).touch()
    with closing(open_for_writing(database(tmp_path))) as connection:
        assert connection.execute("SELECT count(*) FROM events").fetchone() == (0,)


async def test_what_is_stored_is_there_after_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("A"))
        await log.append(created("B"))
    async with opened(tmp_path) as log:
        assert log.position == 2
        await log.load("A")
        await log.append(note("A"), created("C"))
        rows = query(tmp_path, "SELECT position, session, seq FROM events ORDER BY position")
        assert rows == [(1, 1, 1), (2, 2, 1), (3, 1, 2), (4, 3, 1)]


# --- file systems -------------------------------------------------------------------------------------------

MOUNTS = """\
22 1 0:20 / / rw,relatime shared:1 - ext4 /dev/root rw
23 22 0:21 / /home rw,relatime shared:2 - nfs4 server:/home rw
24 23 0:22 / /home/local rw - tmpfs tmpfs rw
25 22 0:23 / /mnt/with\\040space rw - 9p share rw
26 22 0:24 / /srv rw - ext4 /dev/sdb rw
27 22 0:25 / /srv rw - virtiofs share rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/homely", "ext4"),
        ("/home", "nfs4"),
        ("/home/me/state", "nfs4"),
        ("/home/local/state", "tmpfs"),
        ("/mnt/with space/x", "9p"),
        ("/srv/turnd", "virtiofs"),
    ],
)
def test_the_innermost_and_latest_mount_decides(path: str, kind: str) -> None:
    assert kind_of(Path(path), MOUNTS) == kind


def test_a_network_file_system_is_refused_with_the_reason(tmp_path: Path) -> None:
    mounts = f"1 0 0:1 / {tmp_path} rw - nfs4 server:/x rw\n"
    with pytest.raises(NetworkFileSystem, match=r"nfs4.*WAL is unsafe.*local disk"):
        require_local(tmp_path, mounts)
    require_local(tmp_path, mounts.replace("nfs4", "ext4"))
    require_local(tmp_path)
