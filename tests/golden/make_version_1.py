"""Writes `version-1.sql`, which is `version-0.sql` migrated: `python -m tests.golden.make_version_1`."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from tests.golden.make_version_0 import SCRIPT as VERSION_0

from turnd.store.migrate import migrate
from turnd.store.schema import APPLICATION_ID

SCRIPT = Path(__file__).parent / "version-1.sql"


def version_1() -> str:
    """The statements that make the file."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "turnd.db"
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(VERSION_0.read_text(encoding="utf-8"))
        migrate(path, 0, 0, lambda done, total: None)
        with closing(sqlite3.connect(path)) as connection:
            lines = [f"PRAGMA application_id = {APPLICATION_ID};", "PRAGMA user_version = 1;"]
            return "\n".join([*lines, *connection.iterdump()]) + "\n"


if __name__ == "__main__":
    SCRIPT.write_text(version_1(), encoding="utf-8")
