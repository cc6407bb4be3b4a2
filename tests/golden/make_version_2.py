"""Writes `version-2.sql`, a log as this turnd stores it, as SQL text: `python -m tests.golden.make_version_2`.

It is `version-1.sql`, migrated. Where it differs from what is recorded, files that are in use are not what this turnd
writes: then the version has to rise, a step of the migration has to bring them there, and the record has to stay.
"""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from turnd.store.migrate import migrate
from turnd.store.schema import APPLICATION_ID

HERE = Path(__file__).parent
OLDER = HERE / "version-1.sql"
SCRIPT = HERE / "version-2.sql"
VERSION = 2


def version_2() -> str:
    """The statements that make the file."""
    with tempfile.TemporaryDirectory(prefix="turnd-golden-") as directory:
        path = Path(directory, "turnd.db")
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(OLDER.read_text(encoding="utf-8"))
            connection.execute("INSERT INTO requests VALUES ('r', 'SendMessage', X'01', X'02', 3)")
            connection.commit()
        migrate(path, 1, 0, lambda done, total: None)
        with closing(sqlite3.connect(path)) as connection:
            numbers = [f"PRAGMA application_id = {APPLICATION_ID};", f"PRAGMA user_version = {VERSION};"]
            return "\n".join([*numbers, *connection.iterdump()]) + "\n"


if __name__ == "__main__":
    SCRIPT.write_text(version_2(), encoding="utf-8")
