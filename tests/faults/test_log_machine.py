"""The real log in a real file, driven with lawful and unlawful appends in every state, and closed at random.

The reference is `Naive` of the rules' own test: a list of events that is scanned anew for every question. What the
file holds is read by a connection of its own.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.faults.conftest import MEMORY
from tests.faults.soak import in_soak
from tests.faults.stored_sim import started
from tests.unit.stored import TickingClock, query
from tests.unit.test_state_machine import FIELDS, KNOWN_TEXT, WEIGHTS, Candidates, Entry, Naive, entry

from turnd.rules.attention import with_attention
from turnd.rules.closing import repair
from turnd.rules.event import Draft, make_event
from turnd.rules.state import SessionState, Violation, apply, position
from turnd.rules.status import SessionView, advance
from turnd.store.intake import Committed, SessionNotLoaded
from turnd.store.log import EventLog
from turnd.store.transfer import verify_stored
from turnd.v1 import event_pb2

SESSIONS = ("A", "B", "C")
SECOND_US = 1_000_000
SETTLED_S = 30
"""How long a commit may take that nobody waits for."""


@dataclass(slots=True)
class Model:
    """What one session's log should be."""

    session: str
    events: list[event_pb2.Event] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    state: SessionState = field(default_factory=SessionState)

    def take(self, event: event_pb2.Event) -> None:
        self.state = apply(self.state, event)
        self.entries.append(entry(event))
        self.events.append(event)

    def view(self) -> SessionView:
        view = SessionView()
        for event in self.events:
            view = advance(view, event)
        return view

    def copy(self) -> Model:
        return Model(self.session, list(self.events), list(self.entries), self.state)


@dataclass(slots=True)
class Planned:
    """An append, and whether it is lawful where it stands; `told` are its drafts with what the log adds to them."""

    drafts: list[Draft]
    lawful: bool
    told: list[Draft]


class RealLog(RuleBasedStateMachine):
    """Every rule leaves file, memory and model in agreement; the invariants say what that means."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(
            tempfile.mkdtemp(prefix="turnd-machine-", dir=MEMORY if MEMORY.is_dir() else None)
        )
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.log: EventLog
        self.models: dict[str, Model] = {}
        self.published: list[tuple[str, int]] = []
        self.committed: list[tuple[str, int]] = []
        self.clock = TickingClock()

    def run(self, work: Any) -> Any:
        return self.runner.run(work)

    # --- opening and closing ---

    @initialize()
    def first_start(self) -> None:
        self.run(self._open())

    async def _open(self) -> Sequence[str]:
        log, repaired = await self.stack.enter_async_context(started(self.directory, self.clock))
        self.log = log
        log.subscribe(self._published)
        return [one.session for one in repaired]

    def _published(self, committed: Sequence[Committed]) -> None:
        self.published += [(one.event.session, one.event.seq) for one in committed]

    @rule()
    def reopen(self) -> None:
        """A start repairs what is open, and changes nothing else; state and view are those before (LOG-13)."""
        expected = [model.session for model in self.models.values() if self._repair(model)]
        repaired = self.run(self._reopened())
        assert sorted(repaired) == sorted(expected)

    async def _reopened(self) -> Sequence[str]:
        await self.stack.aclose()
        repaired = await self._open()
        for session in self.models:
            await self.log.load(session)
        return repaired

    def _repair(self, model: Model) -> bool:
        """What the next start adds to the model."""
        if not model.state.created:
            return False
        last_us = model.events[-1].time.ToMicroseconds()
        drafts = repair(model.state, model.session, last_us)
        for draft in drafts:
            turn, step = position(model.state, draft.payload)
            time_us = last_us if draft.time_us is None else draft.time_us
            seq = model.state.seq + 1
            model.take(make_event(draft, seq=seq, time_us=time_us, turn=turn, step=step))
            self.committed.append((model.session, seq))
            # A start publishes before anybody subscribes.
            self.published.append((model.session, seq))
        return bool(drafts)

    @rule()
    @precondition(lambda self: self.models)
    def unload_and_load(self) -> None:
        """Folded from the file a session is what it was, in the middle of whatever it does (LOG-13)."""

        async def work() -> None:
            for session in self.models:
                self.log.unload(session)
                with pytest.raises(SessionNotLoaded):
                    self.log.state(session)
                await self.log.load(session)

        self.run(work())

    @rule(session=st.sampled_from(SESSIONS), below=st.sampled_from([False, False, True]))
    def create(self, session: str, below: bool) -> None:
        """`below`: as a sub-agent of the first session, which hears of its requests."""
        parent = next(iter(self.models), "") if below else ""
        created = event_pb2.SessionCreated(cwd="/w", parent=parent, depth=int(bool(parent)))
        if parent:
            created.ancestors.extend([*self.models[parent].view().ancestors, parent])
        draft = Draft(session, created)
        if session in self.models:
            self._append_one_by_one([Planned([draft], False, [draft])])
        else:
            self.models[session] = Model(session)
            self._append_one_by_one([Planned([draft], True, [draft])])

    @rule(field_name=st.sampled_from([name for name in FIELDS if name != "session_created"]))
    def begin_without_creating(self, field_name: str) -> None:
        payload = getattr(event_pb2.Event(), field_name)
        with pytest.raises(SessionNotLoaded):
            self.run(self.log.append(Draft("nobody", payload)))

    @rule(step_s=st.sampled_from([1, 0, -3600]))
    def clock_jumps(self, step_s: int) -> None:
        """Order is by seq alone (LOG-09)."""
        self.clock.step_us = step_s * SECOND_US

    # --- appending ---

    @rule(rng=st.randoms(use_true_random=True), length=st.integers(10, 60))
    @precondition(lambda self: self.models)
    def walk(self, rng: random.Random, length: int) -> None:
        """One event after another, each in the state that the ones before it made."""
        for _ in range(length):
            session = rng.choice(list(self.models))
            self._append_one_by_one([self._planned(rng, {}, [session])])

    @rule(rng=st.randoms(use_true_random=True))
    @precondition(lambda self: self.models)
    def every_type_of_event(self, rng: random.Random) -> None:
        """In this state: what is lawful is stored, everything else refused with one of the texts of log.md."""
        session = rng.choice(list(self.models))
        for kind in rng.sample(FIELDS, len(FIELDS)):
            self._append_one_by_one([self._planned(rng, {}, [session], kinds=[kind])])

    @rule(rng=st.randoms(use_true_random=True), count=st.integers(2, 6), appends=st.integers(1, 4))
    @precondition(lambda self: self.models)
    def several_drafts(self, rng: random.Random, count: int, appends: int) -> None:
        """Of several sessions in one append: all of them, or none."""
        for _ in range(appends):
            self._append_one_by_one([self._planned(rng, {}, list(self.models), count)])

    @rule(rng=st.randoms(use_true_random=True), count=st.integers(2, 12))
    @precondition(lambda self: self.models)
    def at_once(self, rng: random.Random, count: int) -> None:
        """Appends that are begun together; some callers are cancelled, which cancels no append."""
        scratch: dict[str, Model] = {}
        planned = [self._planned(rng, scratch, list(self.models), rng.randint(1, 3)) for _ in range(count)]
        cancelled = {number for number in range(count) if rng.random() < 0.3}
        expected = len(self.published) + sum(len(one.told) for one in planned if one.lawful)

        async def work() -> list[Any]:
            tasks = [asyncio.create_task(self.log.append(*one.drafts)) for one in planned]
            await asyncio.sleep(0)
            for number in cancelled:
                tasks[number].cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            # What nobody waits for any more is published all the same.
            async with asyncio.timeout(SETTLED_S):
                while len(self.published) < expected:
                    await asyncio.sleep(0.001)
            return outcomes

        outcomes = self.run(work())
        for number, (one, outcome) in enumerate(zip(planned, outcomes, strict=True)):
            if number in cancelled and isinstance(outcome, asyncio.CancelledError):
                assert one.lawful, "a refusal comes before anybody can cancel"
                self._take_from_file(one)
            else:
                self._check(one, outcome)

    def _planned(
        self,
        rng: random.Random,
        scratch: dict[str, Model],
        sessions: Sequence[str],
        count: int = 1,
        kinds: Sequence[str] = (),
    ) -> Planned:
        """Drafts for these sessions as they are after what is in `scratch`; lawful ones are added to it."""
        after = {name: model.copy() for name, model in scratch.items()}
        drafts: list[Draft] = []
        told: list[Draft] = []
        lawful = True
        unlawful_wanted = rng.random() < 0.3 if count > 1 else True
        while len(drafts) < count and lawful:
            session = rng.choice(sessions)
            model = self._model(session, after, scratch)
            (kind,) = kinds or rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
            payload = Candidates(rng, model.state).payload(kind)
            synthetic = rng.random() < 0.3
            draft = Draft(session, payload, synthetic=synthetic)
            both = with_attention([draft], lambda name: self._model(name, after, scratch).view())
            lawful = all(
                Naive(self._model(one.session, after, scratch).entries).accepts(
                    one.payload, synthetic=one.synthetic
                )
                for one in both
            )
            if not lawful and not unlawful_wanted:
                lawful = True
                if model.state.ended and rng.random() < 0.2:
                    break
                continue
            drafts.append(draft)
            told += both
            if lawful:
                for one in both:
                    changed = self._model(one.session, after, scratch)
                    turn, step = position(changed.state, one.payload)
                    seq = changed.state.seq + 1
                    changed.take(make_event(one, seq=seq, time_us=0, turn=turn, step=step))
        if lawful:
            scratch |= after
        return Planned(drafts, lawful, told)

    def _model(self, session: str, after: dict[str, Model], scratch: dict[str, Model]) -> Model:
        """The session after what is planned."""
        return after.setdefault(session, scratch.get(session, self.models[session]).copy())

    def _append_one_by_one(self, planned: Sequence[Planned]) -> None:
        for one in planned:
            before = {name: self._memory(name) for name in self.models if self.models[name].events}
            rows = self._rows()
            try:
                outcome: Any = self.run(self.log.append(*one.drafts))
            except Violation as violation:
                outcome = violation
                assert {name: self._memory(name) for name in before} == before
                assert self._rows() == rows
            self._check(one, outcome)

    def _memory(self, session: str) -> tuple[SessionState, SessionView]:
        return self.log.state(session), self.log.view(session)

    def _rows(self) -> list[tuple[object, ...]]:
        tables = ("events", "sessions", "usage_ledger", "plan_items", "producers")
        return [row for table in tables for row in query(self.directory, f"SELECT * FROM {table}")]

    def _check(self, one: Planned, outcome: Any) -> None:
        if not one.lawful:
            assert isinstance(outcome, Violation), outcome
            assert KNOWN_TEXT.fullmatch(outcome.text), outcome.text
            return
        assert isinstance(outcome, list), outcome
        assert len(outcome) == len(one.told)
        for draft, event in zip(one.told, outcome, strict=True):
            self._take(draft, event)

    def _take(self, draft: Draft, event: event_pb2.Event) -> None:
        model = self.models[draft.session]
        assert (event.session, event.seq) == (draft.session, model.state.seq + 1)
        assert entry(event)[1] == draft.payload
        assert event.synthetic == draft.synthetic
        model.take(event)
        self.committed.append((event.session, event.seq))

    def _take_from_file(self, one: Planned) -> None:
        """What became of an append whose caller did not wait for it."""
        for draft in one.told:
            (blob,) = query(
                self.directory,
                "SELECT event FROM events JOIN sessions ON events.session = sessions.key WHERE id = ? AND seq = ?",
                *(draft.session, self.models[draft.session].state.seq + 1),
            )
            assert isinstance(blob[0], bytes)
            self._take(draft, event_pb2.Event.FromString(blob[0]))

    # --- what is always true ---

    @invariant()
    def file_memory_and_model_agree(self) -> None:
        rows = query(
            self.directory,
            "SELECT id, event FROM events JOIN sessions ON events.session = sessions.key ORDER BY position",
        )
        on_disk: dict[str, list[event_pb2.Event]] = {}
        for session, blob in rows:
            assert isinstance(blob, bytes)
            on_disk.setdefault(str(session), []).append(event_pb2.Event.FromString(blob))
        assert on_disk == {name: model.events for name, model in self.models.items()}
        for name, model in self.models.items():
            assert self._memory(name) == (model.state, model.view())
            assert [event.seq for event in model.events] == list(range(1, len(model.events) + 1))
            naive = Naive(model.entries)
            state = self.log.state(name)
            assert state.next_turn == naive.count("turn_end")
            assert state.open_turn == (None if naive.turn is None else naive.count("turn_end"))
            assert state.open_step == (None if naive.step is None else naive.steps_of_turn())

    @invariant()
    def what_is_published_is_what_is_committed(self) -> None:
        assert sorted(self.published) == sorted(self.committed)
        for session in self.models:
            seqs = [seq for name, seq in self.published if name == session]
            assert seqs == sorted(seqs), "in order"

    def teardown(self) -> None:
        try:
            if hasattr(self, "log"):
                self.run(self._verify_and_close())
        finally:
            self.runner.close()
            shutil.rmtree(self.directory)

    async def _verify_and_close(self) -> None:
        try:
            for name in self.models:
                assert (await verify_stored(self.log, name)).lawful
        finally:
            await self.stack.aclose()


@pytest.mark.timeout(in_soak(1800, 240))
@pytest.mark.req(
    *("LOG-01", "LOG-02", "LOG-03", "LOG-04", "LOG-05", "LOG-06", "LOG-08", "LOG-09", "LOG-11", "LOG-13")
)
class TestRealLog(RealLog.TestCase):
    settings = settings(
        max_examples=in_soak(300, 12),
        stateful_step_count=in_soak(30, 12),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
