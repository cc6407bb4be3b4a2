"""What a command does and its request id stand in one transaction: a kill leaves both, or neither (RPC-04, LOG-20)."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

import pytest
from google.protobuf.message import Message
from tests.faults.removals import ENDED, housekeeping, make, request
from tests.sim.world import SimTool, spec
from tests.unit.slow_disk import Disk, disk_below
from tests.unit.stored import query
from tests.unit.test_standing import (
    DONE,
    HELLO,
    INTERRUPTED,
    PAUSED,
    RUNNING,
    Office,
    approval,
    office_over,
    question,
    turn_that_ended,
)

from turnd.ports import LogFailed, World
from turnd.rules.event import Draft
from turnd.rules.policy import Policy
from turnd.sessions.commands import Commands
from turnd.sessions.policies import Policies
from turnd.sessions.requests import Requests
from turnd.sessions.surroundings import Surroundings
from turnd.v1 import common_pb2 as common
from turnd.v1 import daemon_pb2, event_pb2, sessions_pb2
from turnd.v1.jsonform import event_to_json

pytestmark = [pytest.mark.timeout(60), pytest.mark.req("RPC-04", "LOG-20")]

ID: Final = "the request"
QUEUED: Final = event_pb2.InboxQueued(message_id="m", blocks=[HELLO])
HELD: Final = {"stream": [{"tool": "read", "input": {"name": "held"}}]}


@dataclass(frozen=True)
class Commit:
    """What a transaction adds to the file."""

    requests: frozenset[str]
    events: Sequence[event_pb2.Event]

    @property
    def fields(self) -> set[str]:
        """What is set in its events, which are not history: `turn_start`."""
        return {event.WhichOneof("data") or "" for event in self.events if not event.HasField("imported")}


@dataclass
class Commits(Disk):
    """Looks at each transaction right before it is committed; `fails` says of which commits it takes none."""

    fails: Callable[[Commit], bool] = lambda commit: False
    seen: list[Commit] = field(default_factory=list)
    rules: int = 0
    """Rules of decisions that are left with the transaction."""
    _requests: frozenset[str] = frozenset()
    _position: int = 0

    def __post_init__(self) -> None:
        super().__init__()

    def committing(self, connection: sqlite3.Connection) -> None:
        rows = connection.execute(
            "SELECT position, event FROM events WHERE position > ? ORDER BY position", (self._position,)
        ).fetchall()
        requests = frozenset(name for (name,) in connection.execute("SELECT request_id FROM requests"))
        events = [event_pb2.Event.FromString(blob) for _, blob in rows]
        ((self.rules,),) = connection.execute("SELECT count(*) FROM policy_rules").fetchall()
        commit = Commit(requests - self._requests, events)
        if self.fails(commit):
            raise sqlite3.OperationalError("disk I/O error")
        self.seen.append(commit)
        self._requests = requests
        self._position = rows[-1][0] if rows else self._position


@dataclass(frozen=True)
class Case:
    """A command: what its session went through before, and the events that carry it out."""

    run: Callable[[Commands, Path], Awaitable[Message]]
    effect: set[str]
    before: Sequence[Message] = ()
    at_work: bool = False
    """A Turn is open whose call runs."""


def parts(cwd: Path) -> AsyncIterator[sessions_pb2.ImportRequest]:
    """A file with a session that is to be imported."""

    async def made() -> AsyncIterator[sessions_pb2.ImportRequest]:
        event = event_pb2.Event(session="theirs", seq=1, session_created=event_pb2.SessionCreated(cwd="/w"))
        line = event_to_json(event).encode() + b"\n"
        yield sessions_pb2.ImportRequest(start=sessions_pb2.ImportStart(request_id=ID, cwd=str(cwd)))
        yield sessions_pb2.ImportRequest(lines=line)
        yield sessions_pb2.ImportRequest(end=sessions_pb2.ImportEnd(bytes=len(line)))

    return made()


CASES = {
    "CreateSession": Case(
        lambda to, cwd: to.create_session(sessions_pb2.CreateSessionRequest(request_id=ID, cwd=str(cwd))),
        {"session_created", "session_status"},
    ),
    "SendMessage": Case(
        lambda to, _: to.send_message(
            sessions_pb2.SendMessageRequest(request_id=ID, session="S", blocks=[HELLO])
        ),
        {"inbox_queued"},
    ),
    "ClearQueue": Case(
        lambda to, _: to.clear_queue(sessions_pb2.ClearQueueRequest(request_id=ID, session="S")),
        {"inbox_cleared"},
        [QUEUED],
    ),
    "Cancel": Case(
        lambda to, _: to.cancel(sessions_pb2.CancelRequest(request_id=ID, session="S")),
        {"inbox_cleared", "turn_stopping"},
        [QUEUED],
        at_work=True,
    ),
    "Continue": Case(
        lambda to, _: to.continue_session(
            sessions_pb2.ContinueRequest(request_id=ID, session="S", allowance=common.Bounds(max_turns=9))
        ),
        {"session_changed", "turn_start", "user_message"},
        [event_pb2.SessionStatusChanged(status=PAUSED)],
    ),
    "Resume": Case(
        lambda to, _: to.resume(sessions_pb2.ResumeRequest(request_id=ID, session="S")),
        {"turn_start", "user_message"},
        [RUNNING, *turn_that_ended(INTERRUPTED)],
    ),
    "UpdateSession": Case(
        lambda to, _: to.update_session(
            sessions_pb2.UpdateSessionRequest(request_id=ID, session="S", title="new")
        ),
        {"session_changed"},
    ),
    "CloseSession": Case(
        lambda to, _: to.close_session(sessions_pb2.CloseSessionRequest(request_id=ID, session="S")),
        {"session_status", "session_ended"},
    ),
    "Decide": Case(
        lambda to, _: to.decide(
            sessions_pb2.DecideRequest(request_id=ID, session="S", approval="r", approve=True)
        ),
        {"approval_decided"},
        [RUNNING, *approval()],
    ),
    "Answer": Case(
        lambda to, _: to.answer(
            sessions_pb2.AnswerRequest(request_id=ID, session="S", question="r", output=b"2")
        ),
        {"interactive_answered"},
        [RUNNING, *question()],
    ),
    "Fork": Case(
        lambda to, _: to.fork(sessions_pb2.ForkRequest(request_id=ID, session="S")), {"session_created"}
    ),
    "Import": Case(lambda to, cwd: to.import_session(parts(cwd)), {"session_created"}),
}


@asynccontextmanager
async def prepared(directory: Path, commits: Commits, case: Case) -> AsyncIterator[Office]:
    """The session is where the command fits."""
    lines = [HELD, DONE] if case.at_work else [DONE]
    async with office_over(directory, commits, [SimTool(spec("read"), hold=True)], lines) as office:
        await _go_there(office, case)
        yield office


async def _go_there(office: Office, case: Case) -> None:
    if case.at_work:
        await office.commands.send_message(sessions_pb2.SendMessageRequest(session="S", blocks=[HELLO]))
        await office.sim.tools.until_running(1)
    for payload in case.before:
        await office.log.append(Draft("S", payload))


def stored(directory: Path, effect: set[str]) -> tuple[int, int]:
    """How often the request is in the file, and how many events that are not history could be its effect."""
    blobs = query(directory, "SELECT event FROM events")
    events = [event_pb2.Event.FromString(blob) for (blob,) in blobs if isinstance(blob, bytes)]
    mine = [e for e in events if e.WhichOneof("data") in effect and not e.HasField("imported")]
    (requests,) = query(directory, "SELECT count(*) FROM requests")
    assert isinstance(requests[0], int)
    return requests[0], len(mine)


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> Commits:
    return disk_below(monkeypatch, Commits())


@pytest.mark.parametrize("name", CASES)
async def test_a_command_and_its_request_id_are_committed_together(
    tmp_path: Path, commits: Commits, name: str
) -> None:
    case = CASES[name]
    async with prepared(tmp_path, commits, case) as office:
        commits.seen.clear()
        await asyncio.wait_for(case.run(office.commands, tmp_path), 20)
        (carried_out,) = (commit for commit in commits.seen if commit.requests)
        assert carried_out.requests == {ID}
        assert carried_out.fields >= case.effect
        for other in commits.seen:
            assert other is carried_out or not other.fields & case.effect, other.fields


@pytest.mark.parametrize("name", CASES)
async def test_of_a_command_whose_commit_fails_nothing_is_stored_and_it_can_be_sent_again(
    tmp_path: Path, commits: Commits, name: str
) -> None:
    case = CASES[name]
    async with prepared(tmp_path, commits, case) as office:
        before = stored(tmp_path, case.effect)
        commits.fails = lambda commit: bool(commit.requests)
        with pytest.raises(LogFailed):
            await asyncio.wait_for(case.run(office.commands, tmp_path), 20)
        assert stored(tmp_path, case.effect) == before
        commits.fails = lambda commit: False
        first = await asyncio.wait_for(case.run(office.commands, tmp_path), 20)
        assert stored(tmp_path, case.effect) == (1, before[1] + len(case.effect))
        assert await case.run(office.commands, tmp_path) == first


@pytest.mark.req("GATE-09")
async def test_a_rule_is_removed_together_with_the_request_that_asks_for_it(
    tmp_path: Path, commits: Commits
) -> None:
    left: list[tuple[frozenset[str], int]] = []
    before = [RUNNING, *approval(), decision_for_always()]
    async with office_over(tmp_path, commits) as office:
        for payload in before:
            await office.log.append(Draft("S", payload))
        policies = Policies(
            cast(World, None), office.log, Policy, cast(Surroundings, None), Requests(office.log)
        )
        removal = daemon_pb2.RemovePolicyRequest(request_id=ID, name="always-1")
        commits.fails = lambda commit: bool(commit.requests)
        with pytest.raises(LogFailed):
            await policies.remove(removal)
        assert (stored(tmp_path, set()), rules_left(tmp_path)) == ((0, 0), 1)

        def looks(commit: Commit) -> bool:
            left.append((commit.requests, commits.rules))
            return False

        commits.fails = looks
        first = await policies.remove(removal)
        assert await policies.remove(removal) == first
        assert (stored(tmp_path, set()), rules_left(tmp_path)) == ((1, 0), 0)
    assert left == [(frozenset({ID}), 0)]


def decision_for_always() -> event_pb2.ApprovalDecided:
    """What answers the open request, and stores a rule."""
    return event_pb2.ApprovalDecided(
        request_id="r",
        call_id="c",
        outcome=common.APPROVAL_OUTCOME_APPROVED,
        scope=common.APPROVAL_SCOPE_ALWAYS,
        client="me",
        grant=common.GrantRule(provider="p", tool="t", command=["make test"]),
        stored=event_pb2.StoredRule(name="always-1", workspace="/w", profile="default", cwd="/w"),
    )


def rules_left(directory: Path) -> int:
    """How many rules are in the file."""
    ((count,),) = query(directory, "SELECT count(*) FROM policy_rules")
    assert isinstance(count, int)
    return count


async def test_each_removal_of_a_gc_is_committed_with_an_answer_that_says_so(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At no commit is a session gone that the answer so far does not call removed, nor the other way round."""
    await asyncio.to_thread(make, memory_path)
    found: list[tuple[set[str], set[str]]] = []

    class Looking(Disk):
        def committing(self, connection: sqlite3.Connection) -> None:
            left = {session for (session,) in connection.execute("SELECT id FROM sessions")}
            answers = connection.execute("SELECT answer FROM requests").fetchall()
            items = [item for (blob,) in answers for item in daemon_pb2.GcResponse.FromString(blob).items]
            found.append((set(ENDED) - left, {item.name for item in items if item.removed} & set(ENDED)))

    disk_below(monkeypatch, Looking())
    async with housekeeping(memory_path) as (_, keeping):
        await keeping.gc(request("gc"))
    assert all(gone == recorded for gone, recorded in found), found
    assert {len(gone) for gone, _ in found} >= {1, 2, 3}
