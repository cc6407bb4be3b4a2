"""A daemon that is killed while it migrates an older log: the file is of one version or the other (LOG-15, V10)."""

from __future__ import annotations

import itertools
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from tests.faults.forge import Forge
from tests.faults.migrations import ORDER
from tests.faults.preload import EVERY, NEEDS_SHIM, Action
from tests.faults.soak import in_soak
from tests.unit.stored import database, opened
from tests.unit.test_store_migrate import LONG, OPEN, SHORT, backups, file_of_version_1, old_file

from turnd.store.schema import VERSION, version_of
from turnd.store.transfer import verify_stored

pytestmark = [NEEDS_SHIM, pytest.mark.timeout(240), pytest.mark.req("LOG-15", "V10")]

JOBS = "tests.faults.migrations"
OLDER = [
    pytest.param(0, old_file, id="version 0"),
    pytest.param(0, partial(old_file, wal=True), id="version 0 in WAL mode"),
    pytest.param(1, file_of_version_1, id="version 1"),
]
Make = Callable[[Path], Path]


def content(path: Path) -> tuple[object, ...]:
    """What a start after a kill finds: the version, and everything else as statements."""
    # For writing: what a killed process has begun is undone first.
    with closing(sqlite3.connect(path)) as connection:
        version = connection.execute("PRAGMA user_version").fetchone()
        application = connection.execute("PRAGMA application_id").fetchone()
        return version, application, list(connection.iterdump())


@pytest.mark.parametrize(("version", "make"), OLDER)
async def test_a_migration_that_is_killed_has_done_all_or_nothing(
    memory_path: Path, shim: Path, version: int, make: Make
) -> None:
    made = memory_path / "made"
    made.mkdir()
    old = content(make(made))
    found = set()
    with Forge(JOBS, shim) as forge:
        whole = memory_path / "whole"
        shutil.copytree(made, whole)
        assert forge.run("migrated", whole, version=version, first=EVERY, action=Action.KILL).whole
        new = content(database(whole))
        for first in itertools.count(1, in_soak(1, 5)):
            here = memory_path / str(first)
            shutil.copytree(made, here)
            end = forge.run("migrated", here, version=version, first=first, action=Action.KILL)
            left = content(database(here))
            assert left in (old, new), f"killed at call {first}"
            found.add(version_of(database(here)))
            for backup in here.glob("*Z"):
                assert content(backup) == old, f"killed at call {first}"
            async with opened(here) as log:
                for session in (LONG, OPEN, SHORT):
                    assert (await verify_stored(log, session)).lawful
            assert backups(here) == list(here.glob("*Z")), "what was begun and not ended is not left"
            assert len(backups(here)) == 1
            shutil.rmtree(here)
            if end.whole:
                break
    assert found == {version, VERSION}


@pytest.mark.parametrize(("version", "make"), OLDER)
def test_the_backup_is_on_the_disk_before_the_migration_begins(
    tmp_path: Path, shim: Path, version: int, make: Make
) -> None:
    """A power cut in the middle leaves a copy that is whole, under the name that the error says."""
    make(tmp_path)
    with Forge(JOBS, shim) as forge:
        assert forge.run("in_order", tmp_path, version=version).whole
    order = (tmp_path / ORDER).read_text().splitlines()
    written = [place for place, line in enumerate(order) if line == "write .partial"]
    changed = [place for place, line in enumerate(order) if line in ("write .db", "write .db-wal")]
    renamed = order.index("rename .partial")
    assert "sync .partial" in order[written[-1] : renamed]
    assert "sync directory" in order[renamed : changed[0]]
