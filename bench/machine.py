"""The machine that the figures are of."""

from __future__ import annotations

import os
import platform
import sqlite3
from importlib.metadata import version
from pathlib import Path

from turnd.store.filesystem import kind_of


def facts(directory: Path) -> dict[str, str]:
    """What the figures depend on; the file system is that of the directory."""
    mounts = Path("/proc/self/mountinfo").read_text()
    load, _, _ = os.getloadavg()
    return {
        "turnd": version("turnd"),
        "cores": f"{len(os.sched_getaffinity(0))} ({platform.machine()})",
        "load at the start": f"{load:.1f}",
        "Python": platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
        "protobuf": version("protobuf"),
        "file system": kind_of(directory.resolve(), mounts),
    }
