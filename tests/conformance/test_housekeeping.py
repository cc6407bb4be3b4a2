"""`turn gc` and `turn doctor`: what could go and what is wrong, over real files and the real daemon."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from tests.harness import RunningDaemon, running_daemon
from tests.unit.stored import START_US, TickingClock, created, database, ended, note, opened, query, status

from turnd.ports import UnknownSession
from turnd.rules.event import Draft
from turnd.sessions.tail import Tail
from turnd.store.check import CheckStopped
from turnd.store.damage import suspect
from turnd.store.examine import Check, copies, examine, examine_all
from turnd.store.gc import TABLES, EndedTree, SessionChanged, ended_before
from turnd.store.health import LARGE_WAL_BYTES
from turnd.store.log import EventLog
from turnd.store.schema import VERSION
from turnd.v1 import common_pb2 as common
from turnd.v1 import daemon_pb2, event_pb2
from turnd_client.errors import Refused

pytestmark = pytest.mark.timeout(120)

DAY_US = 86400 * 1_000_000
DONE = {"stream": [{"text": "Done."}], "usage": {"input_tokens": 10, "output_tokens": 2}}
COMPLETED = common.SESSION_STATUS_COMPLETED


# --- gc: what can go ----------------------------------------------------------------------------------------


async def trees_of_each_kind(log: EventLog, clock: TickingClock) -> None:
    async def end(*sessions: str) -> None:
        for session in sessions:
            await log.append(status(session, COMPLETED), ended(session, COMPLETED))

    await log.append(created("IDLE"))
    await log.append(created("OLD"), note("OLD", "x" * 1000))
    await log.append(created("OLD.CHILD", parent="OLD", depth=1))
    await log.append(created("OLD.GRANDCHILD", parent="OLD.CHILD", depth=2))
    await log.append(created("HALF"), created("HALF.CHILD", parent="HALF", depth=1))
    await log.append(created("AGAIN"))
    await end("OLD.GRANDCHILD", "OLD.CHILD", "OLD", "HALF", "AGAIN")
    clock.us += 10 * DAY_US
    await log.append(created("YOUNG"), created("NEWEST"))
    await end("YOUNG", "NEWEST")


def ids(trees: Sequence[EndedTree]) -> list[list[str]]:
    return [[member.id for member in tree.members] for tree in trees]


async def test_whole_trees_that_have_ended_are_found_by_age(tmp_path: Path) -> None:
    clock = TickingClock()
    async with opened(tmp_path, clock) as log:
        await trees_of_each_kind(log, clock)
        long_ago = clock.us - 5 * DAY_US
        old = ended_before(database(tmp_path), long_ago)
        assert ids(old) == [["OLD", "OLD.CHILD", "OLD.GRANDCHILD"], ["AGAIN"]]
        assert old[0].bytes > 1000
        assert old[0].updated_us < long_ago
        every = ids(ended_before(database(tmp_path), clock.us + DAY_US))
        assert every == [["OLD", "OLD.CHILD", "OLD.GRANDCHILD"], ["AGAIN"], ["YOUNG"]]
        assert ended_before(database(tmp_path), START_US) == []


async def test_a_tree_is_removed_whole_and_nothing_else_is(tmp_path: Path) -> None:
    clock = TickingClock()
    async with opened(tmp_path, clock) as log:
        await trees_of_each_kind(log, clock)
        await log.load("OLD")
        tree = ended_before(database(tmp_path), clock.us + DAY_US)[0]
        keys = {member.key for member in tree.members}
        kept = [row for row in query(tmp_path, "SELECT * FROM events") if row[1] not in keys]
        await log.remove(tree)
        assert query(tmp_path, "SELECT * FROM events") == kept
        assert {key for (key,) in query(tmp_path, "SELECT key FROM sessions")}.isdisjoint(keys)
        for look in (log.load, log.resolve, log.head):
            with pytest.raises(UnknownSession):
                await look("OLD")
        assert (await log.append(note("IDLE")))[0].seq == 2


async def test_no_position_is_given_out_again(tmp_path: Path) -> None:
    clock = TickingClock()
    async with opened(tmp_path, clock) as log:
        await trees_of_each_kind(log, clock)
        for tree in ended_before(database(tmp_path), clock.us + DAY_US):
            await log.remove(tree)
        last = log.position
    async with opened(tmp_path, clock) as log:
        await log.load("IDLE")
        await log.append(note("IDLE"))
        new = query(tmp_path, "SELECT position FROM events WHERE position > ?", last)
        assert (log.position,) in new


async def test_followers_that_are_behind_pass_over_what_is_gone(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        # No room in memory, so that all is read from the file, in pages of a few MiB.
        tail = Tail(log, max_bytes=0)
        await log.append(created("IDLE"), created("BIG"))
        for _ in range(4):
            await log.append(note("BIG", "x" * 3_000_000))
        await log.append(status("BIG", COMPLETED), ended("BIG", COMPLETED))
        of_all, of_one = tail.follow(None, 0), tail.follow("BIG", 0)
        await anext(of_all)
        await anext(of_one)
        await log.append(note("IDLE"))
        (tree,) = ended_before(database(tmp_path), START_US + DAY_US)
        await log.remove(tree)
        caught_up, sessions = False, []
        async with asyncio.timeout(30):
            while not caught_up or sessions[-1:] != ["IDLE"]:
                batch = await anext(of_all)
                sessions += [event_pb2.Event.FromString(blob).session for blob in batch.blobs]
                caught_up = caught_up or batch.caught_up
            with pytest.raises(UnknownSession):
                _ = [batch async for batch in of_one]
        assert len(sessions) < 6
        await of_all.aclose()
        with pytest.raises(UnknownSession):
            await anext(tail.follow("BIG", 0))


async def test_every_table_with_rows_of_a_session_is_cleared(tmp_path: Path) -> None:
    async with opened(tmp_path):
        tables = query(
            tmp_path,
            "SELECT m.name FROM sqlite_schema AS m JOIN pragma_table_info(m.name) AS c "
            "WHERE m.type = 'table' AND c.name = 'session' AND m.name <> 'sessions'",
        )
    # A rule outlives the session in which it was decided.
    assert {name for (name,) in tables} - {"policy_rules"} == set(TABLES)


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(Draft("YOUNG", event_pb2.SessionReopened(client="c")), id="reopened"),
        pytest.param(created("YOUNG.CHILD", parent="YOUNG", depth=1), id="a child"),
    ],
)
@pytest.mark.parametrize("in_memory", [True, False])
async def test_a_session_that_was_used_meanwhile_stays_whole(
    tmp_path: Path, use: Draft, in_memory: bool
) -> None:
    clock = TickingClock()
    async with opened(tmp_path, clock) as log:
        await trees_of_each_kind(log, clock)
        tree = next(
            tree for tree in ended_before(database(tmp_path), clock.us + DAY_US) if tree.id == "YOUNG"
        )
        await log.append(use)
        await log.append(note("IDLE"))
        if not in_memory:
            log.unload("YOUNG")
        before = query(tmp_path, "SELECT position FROM events")
        with pytest.raises(SessionChanged, match="was used meanwhile"):
            await log.remove(tree)
        assert query(tmp_path, "SELECT position FROM events") == before
        await log.load("YOUNG")


# --- turn gc ------------------------------------------------------------------------------------------------


async def ended_session(daemon: RunningDaemon) -> str:
    model = daemon.replay(DONE)
    session = (await daemon.client.create_session(str(daemon.workspace), model=model, title="old one")).id
    await daemon.run(session, "go")
    await daemon.client.close_session(session)
    return session


def spooled(daemon: RunningDaemon, session: str) -> Path:
    directory = daemon.home / "state" / "spool" / session
    directory.mkdir(parents=True)
    (directory / "c1").write_bytes(b"x" * 5000)
    return directory


def rows(daemon: RunningDaemon, table: str) -> int:
    with closing(sqlite3.connect(f"file:{daemon.database}?mode=ro", uri=True)) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


@pytest.mark.req("LOG-19")
async def test_gc_says_what_it_would_remove_and_removes_it_when_told() -> None:
    async with running_daemon() as daemon:
        gone = await ended_session(daemon)
        spool = spooled(daemon, gone)
        orphan = spooled(daemon, "01NOBODY")
        for name in ("turnd.db.version-0-20200101T000000Z", "turnd.db.damaged-20200101T000000Z"):
            (daemon.home / "state" / name).write_bytes(b"copy")
            os.utime(daemon.home / "state" / name, (0, 0))
        # This one is newer, and open: it stays.
        kept = (await daemon.client.create_session(str(daemon.workspace), model=daemon.replay(DONE))).id
        ledger = rows(daemon, "usage_ledger")
        assert ledger == 1

        recent = await daemon.turn("gc", "--dry-run", "--json")
        assert recent.code == 0, recent.stderr
        kinds = sorted(item["kind"] for item in recent.json_lines[0]["items"])
        assert kinds == ["backup", "damaged", "spool"]

        refused = await daemon.turn("gc", "--older-than", "0")
        assert refused.code == 2
        assert "give --yes" in refused.stderr
        assert gone in refused.stdout
        assert "old one" in refused.stdout
        assert spool.exists()
        assert orphan.exists()

        done = await daemon.turn("gc", "--older-than", "0", "--yes", "--json")
        assert done.code == 0, done.stderr
        (answer,) = done.json_lines
        removed = {item["kind"]: item for item in answer["items"] if item["removed"]}
        assert removed["session"]["name"] == gone
        assert removed["session"]["bytes"] > 5000
        assert removed["spool"]["name"] == "01NOBODY"
        assert answer["bytes"] == sum(item["bytes"] for item in removed.values())
        assert not spool.exists()
        assert not orphan.exists()
        assert rows(daemon, "usage_ledger") == 0
        assert len(list((daemon.home / "state").glob("turnd.db.*-2020*"))) == 2, "copies are only listed"

        with pytest.raises(Refused, match="no session"):
            await daemon.client.get_session(gone)
        assert [session.id async for session in daemon.client.list_sessions()] == [kept]
        again = await daemon.turn("gc", "--older-than", "0", "--yes")
        assert again.code == 0, again.stderr
        # Nothing is wrong with the file, and the next daemon finds it as it is.
        await daemon.kill()
        await daemon.start()
        assert [session.id async for session in daemon.client.list_sessions()] == [kept]
        assert (await daemon.run(kept, "go"))[-1].turn_end.reason == common.TURN_END_REASON_COMPLETED


async def test_gc_asks_on_a_terminal_and_takes_no_for_an_answer() -> None:
    async with running_daemon() as daemon:
        orphan = spooled(daemon, "01NOBODY")
        for typed, code, there in (("n\n", 0, True), ("y\n", 0, False)):
            terminal = daemon.start_terminal("gc")
            await terminal.shows("remove 1 thing, 4.9 KiB? This cannot be undone")
            assert orphan.exists()
            terminal.type(typed)
            assert await terminal.end() == code
            assert orphan.exists() is there


@pytest.mark.req("RPC-04")
async def test_gc_removes_only_what_was_named_and_a_request_once() -> None:
    async with running_daemon() as daemon:
        first, second = spooled(daemon, "01FIRST"), spooled(daemon, "01SECOND")
        done = await daemon.client.gc(0, remove=["01FIRST"], request_id="gc")
        assert [item.name for item in done.items if item.removed] == ["01FIRST"]
        assert (first.exists(), second.exists()) == (False, True)
        first = spooled(daemon, "01FIRST")
        assert await daemon.client.gc(0, remove=["01FIRST"], request_id="gc") == done
        assert first.exists(), "it is another one now"
        with pytest.raises(Refused) as refused:
            await daemon.client.gc(40_000)
        assert refused.value.field == "older_than_days"


# --- doctor: each thing that it can find --------------------------------------------------------------------


def found(directory: Path, name: str, mounts: str | None = None, low_space_bytes: int = 0) -> Check:
    checks = {c.name: c for c in examine(database(directory), mounts=mounts, low_space_bytes=low_space_bytes)}
    return checks[name]


def execute(directory: Path, sql: str) -> None:
    with closing(sqlite3.connect(database(directory), isolation_level=None)) as connection:
        connection.execute(sql)


def no_wal(directory: Path) -> None:
    directory.joinpath("turnd.db-wal").unlink()


def large_wal(directory: Path) -> None:
    os.truncate(directory / "turnd.db-wal", LARGE_WAL_BYTES + 1)


def no_lock(directory: Path) -> None:
    directory.joinpath("turnd.lock").unlink()


def other_lock(directory: Path) -> None:
    no_lock(directory)
    directory.joinpath("turnd.lock").touch()


def damaged_copy(directory: Path) -> None:
    directory.joinpath("turnd.db.damaged-20200101T000000Z").write_bytes(b"x")


def removed_log(directory: Path) -> None:
    copy = directory / "away"
    copy.write_bytes(database(directory).read_bytes())
    database(directory).unlink()


def no_log(directory: Path) -> None:
    database(directory).rename(directory / "away")


@pytest.mark.parametrize(
    ("name", "harm", "text"),
    [
        ("schema version", lambda at: execute(at, "PRAGMA user_version = 99"), "99"),
        ("tables", lambda at: execute(at, "DROP INDEX requests_by_age"), "has them: requests_by_age"),
        ("tables", lambda at: execute(at, "ALTER TABLE producers ADD COLUMN x"), "has them: producers"),
        ("damage", lambda at: suspect(database(at), "event 3 of A is damaged"), "event 3 of A"),
        ("wal", no_wal, "is not the file that this daemon writes"),
        ("wal", large_wal, "64.0 MiB"),
        ("lock", no_lock, "is not there"),
        ("lock", other_lock, "is not the file that this daemon has locked"),
        ("copies of the log", damaged_copy, "turnd.db.damaged-20200101T000000Z"),
        ("log file", removed_log, "is not the file that this daemon writes"),
        ("log file", no_log, "cannot be looked at"),
    ],
)
async def test_doctor_finds_what_is_wrong_with_the_file(
    tmp_path: Path, name: str, harm: Callable[[Path], None], text: str
) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("A"))
        assert [check for check in examine(database(tmp_path), low_space_bytes=0) if not check.ok] == []
        harm(tmp_path)
        check = found(tmp_path, name)
        assert not check.ok
        assert text in check.finding
        assert check.advice
        if database(tmp_path).exists():
            execute(tmp_path, f"PRAGMA user_version = {VERSION}")
        else:
            tmp_path.joinpath("away").rename(database(tmp_path))


def test_doctor_finds_another_journal_mode(tmp_path: Path) -> None:
    execute(tmp_path, "CREATE TABLE t (x)")
    check = found(tmp_path, "journal mode")
    assert (check.ok, check.finding) == (False, "delete")
    assert check.advice


async def test_doctor_knows_file_systems_and_space(tmp_path: Path) -> None:
    async with opened(tmp_path):
        here = found(tmp_path, "file system")
        assert here.ok
        assert here.finding != "unknown"
        mounts = f"1 1 0:1 / / rw - ext4 a rw\n2 1 0:2 / {tmp_path} rw - nfs4 b rw\n"
        network = found(tmp_path, "file system", mounts)
        assert (network.ok, network.finding) == (False, "nfs4")
        assert "local disk" in network.advice
        assert found(tmp_path, "disk space").ok
        assert not found(tmp_path, "disk space", low_space_bytes=2**62).ok
        assert str(os.getpid()) in found(tmp_path, "lock").finding


async def test_doctor_reads_every_event(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("A"), note("A"))
    path = database(tmp_path)
    assert examine_all(path, threading.Event()).ok
    execute(tmp_path, "UPDATE events SET event = x'ff' WHERE seq = 2")
    garbled = examine_all(path, threading.Event())
    assert not garbled.ok
    assert "event 2 of A, at position 2 does not fit its checksum" in garbled.finding
    execute(tmp_path, "DELETE FROM events WHERE seq = 1")
    assert "expected 2 from 1 on" in examine_all(path, threading.Event()).finding
    path.write_bytes(b"not a database" * 1000)
    assert not examine_all(path, threading.Event()).ok


async def test_reading_every_event_can_be_ended(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("A"))
        await log.append(*(note("A") for _ in range(2000)))
    stop = threading.Event()
    stop.set()
    with pytest.raises(CheckStopped):
        examine_all(database(tmp_path), stop)


def test_copies_of_the_log_are_told_from_other_files(tmp_path: Path) -> None:
    for name in ("turnd.db", "turnd.db-wal", "turnd.db.unchecked", "turnd.lock", "x.damaged-1"):
        (tmp_path / name).touch()
    assert list(copies(database(tmp_path))) == []
    for name in ("turnd.db.version-0-x", "turnd.db.damaged-x"):
        (tmp_path / name).write_bytes(b"12")
    assert {(copy.path.name, copy.damaged, copy.bytes) for copy in copies(database(tmp_path))} == {
        ("turnd.db.version-0-x", False, 2),
        ("turnd.db.damaged-x", True, 2),
    }


# --- turn doctor --------------------------------------------------------------------------------------------


async def wrong(daemon: RunningDaemon, full: bool = False) -> dict[str, daemon_pb2.DoctorCheck]:
    checks = (await daemon.client.doctor(full=full)).checks
    # Whether there is a sandbox depends on the machine.
    return {
        check.name: check for check in checks if not check.ok and check.name not in ("sandbox", "disk space")
    }


async def test_doctor_finds_what_others_can_reach_and_what_is_gone() -> None:
    async with running_daemon() as daemon:
        assert await wrong(daemon, full=True) == {}
        state, run = daemon.home / "state", daemon.home / "run"
        for path, name, mode in (
            (state, "state directory", 0o755),
            (run, "runtime directory", 0o750),
            (daemon.database, "log permissions", 0o644),
            (daemon.socket, "socket", 0o666),
            (daemon.token, "token", 0o640),
        ):
            before = path.stat().st_mode
            path.chmod(mode)
            check = (await wrong(daemon))[name]
            assert f"chmod {before & 0o777:o}" in check.advice
            path.chmod(before)
        assert await wrong(daemon) == {}
        away = run / "token-away"
        daemon.token.rename(away)
        assert "is not there" in (await wrong(daemon))["token"].finding
        away.rename(daemon.token)


async def test_doctor_tells_of_damage_that_was_met_and_exits_with_1() -> None:
    async with running_daemon() as daemon:
        good = await daemon.turn("doctor", "--json")
        (answer,) = good.json_lines
        names = [check["name"] for check in answer["checks"]]
        assert {"log file", "schema version", "lock", "socket", "sandbox", "integrity"} <= set(names)
        assert all(set(check) == {"name", "ok", "finding", "advice"} for check in answer["checks"])
        assert answer["ok"] is all(check["ok"] for check in answer["checks"])
        assert good.code == (0 if answer["ok"] else 1)
        assert "reading the whole log" in good.stderr

        session = (await daemon.client.create_session(str(daemon.workspace), model=daemon.replay(DONE))).id
        await daemon.stop()
        await daemon.start()
        with closing(sqlite3.connect(daemon.database, isolation_level=None)) as connection:
            connection.execute("UPDATE events SET event = x'ff' WHERE seq = 2")
        with pytest.raises(Refused):
            await daemon.client.get_session(session)
        bad = await daemon.turn("doctor")
        assert bad.code == 1
        lines = [line.split(maxsplit=1)[1] for line in bad.lines if line.startswith("WRONG")]
        assert [line for line in lines if line.startswith("known problems") and session in line]
        assert [
            line for line in lines if line.startswith("integrity") and "does not fit its checksum" in line
        ]
        quick = await daemon.turn("doctor", "--quick", "--json")
        assert "integrity" not in [check["name"] for check in quick.json_lines[0]["checks"]]


async def test_doctor_says_that_there_is_no_sandbox(tmp_path: Path) -> None:
    async with running_daemon(environment={"PATH": str(tmp_path)}) as daemon:
        checks = {check.name: check for check in (await daemon.client.doctor()).checks}
        assert not checks["sandbox"].ok
        assert checks["sandbox"].advice
