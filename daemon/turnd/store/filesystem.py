"""Which file system a path is on: WAL needs memory that all processes share, which network file systems lack."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_MOUNTS: Final = Path("/proc/self/mountinfo")
_NETWORK: Final = frozenset(
    {
        "9p",
        "afs",
        "ceph",
        "cifs",
        "coda",
        "davfs",
        "fuse.sshfs",
        "glusterfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
    }
    | {"fuse.glusterfs", "fuse.rclone", "fuse.s3fs", "gfs2", "ocfs2", "smb3", "smbfs", "vboxsf", "virtiofs"}
)


class NetworkFileSystem(Exception):
    """The log would be on a file system where WAL can lose or corrupt it."""

    def __init__(self, path: Path, kind: str) -> None:
        super().__init__(
            f"{path} is on {kind}, a network file system, where SQLite's WAL is unsafe; "
            "put the state directory on a local disk, or accept the risk in the configuration: "
            "[storage] accept_network_file_system = true"
        )
        self.kind = kind


def require_local(directory: Path, mounts: str | None = None) -> None:
    """Raises NetworkFileSystem where the directory is on one. `mounts` is the text of a mountinfo file."""
    kind = kind_of(directory.resolve(), _MOUNTS.read_text() if mounts is None else mounts)
    if kind in _NETWORK:
        raise NetworkFileSystem(directory, kind)


def kind_of(path: Path, mounts: str) -> str:
    """The type of the file system that holds an absolute path; empty where no mount does."""
    best, kind = -1, ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        point = Path(_unescape(before.split(" ")[4]))
        # A later mount hides an earlier one on the same point.
        if path.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), after.split(" ", 1)[0]
    return kind


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), text)
