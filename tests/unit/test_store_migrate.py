"""Older files are migrated after a backup, or left as they were with one clear error (LOG-15, V09, V10)."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from tests.golden import make_version_2
from tests.golden.make_version_0 import SCRIPT, version_0
from tests.unit.store_samples import tables
from tests.unit.stored import database, note, opened, payloads, query, stored_events

from turnd.store import migrate as migration
from turnd.store.check import integrity_check
from turnd.store.migrate import STEPS, MigrationFailed, migrate
from turnd.store.opening import rebuild_file
from turnd.store.reading import UnreadableLog
from turnd.store.rebuild import Progress, rebuild
from turnd.store.schema import APPLICATION_ID, VERSION, NotALog, SchemaTooNew, open_for_writing, version_of
from turnd.store.transfer import verify_stored

VERSION_1 = SCRIPT.with_name("version-1.sql")
"""A log that the last turnd of version 1 wrote, as SQL text; there is nothing left that could write it anew."""
LONG, OPEN, SHORT = (f"01JZY3K5V7Q8W9E0R1T2Y3U4{end}" for end in ("I5", "A1", "B2"))


def old_file(directory: Path, *, wal: bool = False) -> Path:
    """A file of version 0."""
    path = database(directory)
    with closing(sqlite3.connect(path)) as connection:
        if wal:
            connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(SCRIPT.read_text(encoding="utf-8"))
    return path


def backups(directory: Path) -> list[Path]:
    return sorted(directory.glob("turnd.db.version-*"))


def rows_of(path: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return connection.execute("SELECT * FROM events ORDER BY position").fetchall()


def test_the_fixture_is_what_its_script_makes() -> None:
    assert SCRIPT.read_text(encoding="utf-8") == version_0()


@pytest.mark.req("LOG-15", "V09")
@pytest.mark.parametrize("wal", [False, True])
async def test_version_0_is_migrated_after_a_backup(tmp_path: Path, wal: bool) -> None:
    path = old_file(tmp_path, wal=wal)
    before = rows_of(path)
    async with opened(tmp_path) as log:
        (backup,) = backups(tmp_path)
        assert stat.S_IMODE(backup.stat().st_mode) == 0o600
        assert rows_of(backup) == before
        assert query(tmp_path, "PRAGMA user_version") == [(VERSION,)]
        assert query(tmp_path, "PRAGMA application_id") == [(APPLICATION_ID,)]
        ids = query(tmp_path, "SELECT id FROM sessions ORDER BY key")
        assert ids == [(LONG,), (OPEN,), (SHORT,)]
        events = await stored_events(log, OPEN)
        assert payloads(events)[:2] == ["session_created", "turn_start"]
        assert events[-1].synthetic, "what a killed daemon had left open is repaired"
        for session in (LONG, OPEN, SHORT):
            assert (await verify_stored(log, session)).lawful
        await log.load(SHORT)
        (added,) = await log.append(note(SHORT))
        assert added.seq == 3
        blobs = query(tmp_path, "SELECT position, event FROM events WHERE position <= ?", len(before))
        assert blobs == [(row[0], row[3]) for row in before]
    live = tables(path)
    assert live["usage_ledger"]
    assert live["plan_items"]
    with closing(open_for_writing(path)) as connection:
        assert rebuild(connection, lambda done, total: None).differences == []


def file_of_version_1(directory: Path, *statements: str) -> Path:
    """With a stored answer, and what else was done to it."""
    path = database(directory)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(VERSION_1.read_text(encoding="utf-8"))
        connection.execute("INSERT INTO requests VALUES ('r', 'SendMessage', X'01', X'02', 3)")
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    return path


@pytest.mark.req("LOG-13", "LOG-15")
@pytest.mark.parametrize("batch", [1, 3, 1000])
async def test_version_1_gets_checksums_after_a_backup_and_nothing_else_changes(
    tmp_path: Path, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file_of_version_1(tmp_path)
    before = tables(path)
    for name in ("_WITH_CHECKSUMS", "_MOVED"):
        statement = getattr(migration, name).replace("LIMIT 1000", f"LIMIT {batch}")
        monkeypatch.setattr(migration, name, statement)
    notes, found = rebuild_file(path, lambda: 0, lambda done, total: None)
    assert (notes, found.differences, found.broken) == ([], [], [])
    (backup,) = backups(tmp_path)
    assert tables(backup) == before
    after = tables(path)
    assert [row[:4] for row in after["events"]] == before["events"]
    assert after["usage_ledger"] == before["usage_ledger"]
    assert after["plan_items"] == before["plan_items"]
    assert query(tmp_path, "SELECT request_id FROM requests") == [("r",)]
    assert integrity_check(path, threading.Event()) == []
    async with opened(tmp_path) as log:
        assert log.problems() == []
        for session in (LONG, OPEN, SHORT):
            assert (await verify_stored(log, session)).lawful
    assert backups(tmp_path) == [backup]


@pytest.mark.req("LOG-15")
async def test_a_file_of_this_version_is_what_it_was_when_the_version_came(tmp_path: Path) -> None:
    """What is stored changes with the version only; a file of it is opened as it is, without a copy of it."""
    assert make_version_2.SCRIPT.read_text(encoding="utf-8") == make_version_2.version_2()
    assert make_version_2.VERSION == VERSION, "record the new version beside the others"
    path = database(tmp_path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(make_version_2.SCRIPT.read_text(encoding="utf-8"))
    notes, found = rebuild_file(path, lambda: 0, lambda done, total: None)
    assert (notes, found.differences, found.broken) == ([], [], [])
    async with opened(tmp_path) as log:
        assert log.problems() == []
        assert await log.answer_to("r") is not None
        for session in (LONG, OPEN, SHORT):
            assert (await verify_stored(log, session)).lawful
    assert backups(tmp_path) == []


@pytest.mark.req("LOG-15", "V10")
def test_a_step_that_fails_after_others_undoes_all_of_them(tmp_path: Path) -> None:
    path = old_file(tmp_path)
    content = path.read_bytes()

    def full(connection: sqlite3.Connection, progress: Progress) -> None:
        STEPS[1](connection, progress)
        raise sqlite3.OperationalError("database or disk is full")

    with pytest.raises(MigrationFailed):
        migrate(path, 0, 0, lambda done, total: None, {0: STEPS[0], 1: full})
    assert path.read_bytes() == content


@pytest.mark.req("LOG-15", "LOG-16")
async def test_what_was_garbled_in_version_1_is_found_after_the_migration_too(tmp_path: Path) -> None:
    """A text in the place of a blob has no checksum; a blob that is no event has one, and is no event."""
    garbled = ("UPDATE events SET event = CAST(X'FF' AS TEXT) WHERE session = 1 AND seq = 2",)
    file_of_version_1(tmp_path, *garbled)
    async with opened(tmp_path) as log:
        with pytest.raises(UnreadableLog, match=f"the log of {LONG} is damaged at event 2"):
            await verify_stored(log, LONG)
        assert (await verify_stored(log, OPEN)).lawful
    other = tmp_path / "other"
    other.mkdir()
    file_of_version_1(other, *garbled, "UPDATE events SET event = X'FF' WHERE session = 3 AND seq = 2")
    async with opened(other) as log:
        (problem,) = log.problems()
        assert f"{LONG}: 1 of at least 55 events kept" in problem
        assert f"{SHORT}: 1 of at least 2 events kept" in problem
        for session in (LONG, OPEN, SHORT):
            assert (await verify_stored(log, session)).lawful


@pytest.mark.req("LOG-15", "LOG-16")
async def test_a_file_of_version_1_with_a_damaged_page_is_recovered(tmp_path: Path) -> None:
    path = file_of_version_1(tmp_path, "INSERT INTO events VALUES (1000, 3, 3, zeroblob(100000))")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
    content = bytearray(path.read_bytes())
    long = [at for at in range(4096, 4096 * pages, 4096) if not any(content[at + 4 : at + 4096])]
    content[long[3] : long[3] + 4] = b"\xff" * 4
    path.write_bytes(content)
    async with opened(tmp_path) as log:
        (problem,) = log.problems()
        assert "the log was damaged" in problem
        for session in (LONG, OPEN, SHORT):
            assert (await verify_stored(log, session)).lawful


@pytest.mark.req("LOG-15")
async def test_a_migrated_file_has_the_schema_of_a_new_one(tmp_path: Path) -> None:
    schema = "SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name"
    fresh, old = tmp_path / "fresh", tmp_path / "old"
    for directory in (fresh, old):
        directory.mkdir()
    old_file(old)
    for directory in (fresh, old):
        async with opened(directory):
            pass
    assert query(old, schema) == query(fresh, schema)


def failing(connection: sqlite3.Connection, progress: Progress) -> None:
    """As far as the real step goes, and then not further."""
    STEPS[0](connection, progress)
    raise sqlite3.OperationalError("database or disk is full")


@pytest.mark.req("LOG-15", "V10")
@pytest.mark.parametrize("wal", [False, True])
def test_a_migration_that_fails_leaves_the_file_and_names_the_backup(tmp_path: Path, wal: bool) -> None:
    path = old_file(tmp_path, wal=wal)
    before, content = rows_of(path), path.read_bytes()
    with pytest.raises(MigrationFailed) as caught:
        migrate(path, 0, 1_700_000_000_000_000, lambda done, total: None, {0: failing})
    (backup,) = backups(tmp_path)
    assert backup.name == "turnd.db.version-0-20231114T221320Z"
    for part in (str(path), "version 0", str(backup), "disk is full", "left as it was"):
        assert part in str(caught.value)
    assert path.read_bytes() == content
    assert rows_of(path) == before == rows_of(backup)
    assert version_of(path) == 0
    with pytest.raises(MigrationFailed):
        migrate(path, 0, 1_800_000_000_000_000, lambda done, total: None, {0: failing})
    assert backups(tmp_path) == [backup], "trying again does not fill the disk with copies"
    assert migrate(path, 0, 1_800_000_000_000_000, lambda done, total: None) == backup
    assert version_of(path) == VERSION


@pytest.mark.req("V10")
def test_the_daemon_says_it_in_one_message(tmp_path: Path) -> None:
    """An events table that version 1 cannot take: two rows of one seq, which version 0 did not forbid by itself."""
    state = tmp_path / "state"
    for directory in (tmp_path, state):
        directory.mkdir(mode=0o700, exist_ok=True)
    path = old_file(state)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("DROP INDEX events_of_session")
        other.execute(
            "INSERT INTO events (session, seq, event) SELECT session, seq, event FROM events LIMIT 1"
        )
    before = path.read_bytes()
    served = subprocess.run(
        [sys.executable, "-m", "turnd.main", "serve", "--log-level", "error"],
        env={**os.environ, "TURND_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert served.returncode == 1
    (backup,) = backups(state)
    lines = [line for line in served.stderr.splitlines() if "cannot go on" in line]
    assert len(lines) == 1
    assert str(backup) in lines[0]
    assert "Traceback" not in served.stderr
    assert path.read_bytes() == before


@pytest.mark.req("LOG-15", "V09")
async def test_an_old_binary_does_not_touch_what_a_newer_one_has_migrated(tmp_path: Path) -> None:
    old_file(tmp_path)
    async with opened(tmp_path):
        pass
    with closing(sqlite3.connect(database(tmp_path), isolation_level=None)) as newer:
        newer.execute(f"PRAGMA user_version = {VERSION + 1}")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(SchemaTooNew):
        async with opened(tmp_path):
            pass
    assert {path: path.read_bytes() for path in before if path.name != "turnd.lock"} == {
        path: content for path, content in before.items() if path.name != "turnd.lock"
    }


async def test_someone_elses_database_is_no_version_0(tmp_path: Path) -> None:
    with closing(sqlite3.connect(database(tmp_path))) as other:
        other.execute(
            "CREATE TABLE events (position INTEGER PRIMARY KEY, session TEXT, seq INTEGER, event BLOB)"
        )
    content = database(tmp_path).read_bytes()
    with pytest.raises(NotALog, match="application id 0x0"):
        async with opened(tmp_path):
            pass
    assert database(tmp_path).read_bytes() == content
    assert not backups(tmp_path)
