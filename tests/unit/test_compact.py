"""What compaction leaves out and summarises: whole pairs, less and less, and the same again from the same log."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from google.protobuf.message import Message
from tests.unit.session_log import SessionLog, check_vendor_accepts, result, says, text, user, uses

from turnd.rules import estimate
from turnd.rules.closing import repair
from turnd.rules.compact import KEPT_STEPS, Budget, budget, pruning, span, tokens
from turnd.rules.history import History, Unit
from turnd.rules.summary import CUT, OPENING, question, replacement
from turnd.v1 import event_pb2

TIGHT = Budget(due=600, aim=420, room=800)
TIGHTER = Budget(due=100, aim=70, room=800)


def grown(rng: random.Random, *, turns: int, open_steps: int) -> SessionLog:
    """A log of some Turns with calls, answers and steering, the last Turn open."""
    log = SessionLog()
    calls = 0
    for number in range(turns + 1):
        log.turn(f"wish {number} " + "x" * rng.randrange(200))
        for _ in range(open_steps if number == turns else rng.randrange(4)):
            made = [f"c{calls + at}" for at in range(rng.randrange(1, 4))]
            calls += len(made)
            log.step().calls(*made)
            log.add(*(result(call_id, "r" * rng.randrange(2000)) for call_id in made)).end_step()
            if rng.random() < 0.2:
                log.add(user("rather so", steering=True))
        if number < turns:
            log.answer("a" * rng.randrange(1, 300)).end_turn()
    return log


def compacted(
    log: SessionLog, limits: Budget, summary: str = "in short"
) -> Iterator[event_pb2.ContextCompacted]:
    """One thing after the other, as the loop does it, until there is nothing to do."""
    while True:
        units, turn = log.history.units(), log.history.turns
        leave = pruning(units, turn, limits)
        if leave is not None:
            event = event_pb2.ContextCompacted(method="pruned", pruned_call_ids=leave.call_ids)
        else:
            found = span(units, turn, limits)
            if found is None:
                return
            event = event_pb2.ContextCompacted(
                method="summarised",
                from_seq=found.first_seq,
                to_seq=found.last_seq,
                replacement=replacement(summary, cut=False),
            )
        log.add(event)
        yield event


@pytest.mark.req("MODEL-08", "MODEL-06")
@pytest.mark.parametrize("seed", range(60))
def test_compaction_shrinks_in_whole_pairs_until_it_changes_nothing(seed: int) -> None:
    rng = random.Random(seed)
    log = grown(rng, turns=rng.randrange(5), open_steps=rng.randrange(8))
    limits = replace(TIGHT, due=rng.randrange(0, 3000))
    limits = replace(limits, aim=limits.due * 7 // 10)
    sizes = [tokens(log.history.units())]
    for event in compacted(log, limits):
        check_vendor_accepts(log.history.messages())
        sizes.append(tokens(log.history.units()))
        assert sizes[-1] < sizes[-2], f"{event.method} made it no smaller"
    assert len(sizes) < 50
    units, turn = log.history.units(), log.history.turns
    assert pruning(units, turn, limits) is None
    assert span(units, turn, limits) is None
    again = History()
    for taken in log.events:
        again.advance(taken)
    assert [m.digest for m in again.messages()] == [m.digest for m in log.history.messages()]
    assert again.units() == units


@pytest.mark.req("S04", "MODEL-08")
def test_a_summary_of_any_units_leaves_a_history_that_vendors_take() -> None:
    def fresh() -> SessionLog:
        return grown(random.Random(3), turns=3, open_steps=4)

    length = len(fresh().history.units())
    for first in range(length):
        for last in range(first, length):
            log = fresh()
            units = log.history.units()
            log.add(
                event_pb2.ContextCompacted(
                    from_seq=units[first].seq, to_seq=units[last].seq, replacement=[text("in short")]
                )
            )
            check_vendor_accepts(log.history.messages())
            assert len(log.history.units()) == length - (last - first)


@pytest.mark.req("MODEL-08")
def test_what_is_within_its_budget_is_left_alone() -> None:
    log = grown(random.Random(1), turns=3, open_steps=3)
    units = log.history.units()
    enough = Budget(due=tokens(units), aim=0, room=0)
    assert pruning(units, log.history.turns, enough) is None
    assert span(units, log.history.turns, enough) is None


def session(*, old: int, steps: int, size: int) -> SessionLog:
    """Old Turns with one call each, then an open one with some Steps; each result has `size` characters."""
    log = SessionLog()
    for number in range(old):
        log.turn(f"wish {number}").step().calls(f"old{number}")
        log.add(result(f"old{number}", "o" * size)).end_step().answer(f"did {number}").end_turn()
    log.turn("the wish of now")
    for number in range(steps):
        log.step().calls(f"new{number}").add(result(f"new{number}", "n" * size)).end_step()
    return log


@pytest.mark.req("MODEL-08")
def test_the_oldest_results_go_first_and_those_just_asked_for_stay() -> None:
    log = session(old=3, steps=3, size=4000)
    units, turn = log.history.units(), log.history.turns
    found = pruning(units, turn, Budget(due=5000, aim=4500, room=9000))
    assert found is not None
    assert found.call_ids == ("old0", "old1")
    everything = pruning(units, turn, Budget(due=10, aim=0, room=10))
    assert everything is not None
    assert everything.call_ids == ("old0", "old1", "old2", "new0", "new1")
    done = log.answer("done").end_turn().turn("and now?")
    later = pruning(done.history.units(), done.history.turns, Budget(due=10, aim=0, room=10))
    assert later is not None
    assert "new2" in later.call_ids, "nobody waits for it any more"


@pytest.mark.req("MODEL-08")
def test_older_turns_are_summarised_before_steps_of_the_open_one_whose_wish_and_last_steps_stay() -> None:
    log = session(old=3, steps=6, size=2000)
    turn = log.history.turns

    def said(found_units: tuple[Unit, ...]) -> list[str]:
        return [unit.messages[0].blocks[0].text.text for unit in found_units if len(unit.messages) == 1]

    enough = tokens(log.history.units()) - 1
    first = span(log.history.units(), turn, Budget(due=enough, aim=enough, room=9000))
    assert first is not None
    assert said(first.units) == ["wish 0", "did 0"], "no more than it takes"
    older = span(log.history.units(), turn, TIGHT)
    assert older is not None
    assert said(older.units) == ["wish 0", "did 0", "wish 1", "did 1", "wish 2", "did 2"]
    log.add(
        event_pb2.ContextCompacted(
            from_seq=older.first_seq, to_seq=older.last_seq, replacement=replacement("before", cut=False)
        )
    )
    steps = span(log.history.units(), turn, TIGHT)
    assert steps is not None
    assert [unit.messages[0].blocks[0].tool_use.call_id for unit in steps.units] == ["new0", "new1", "new2"]
    assert KEPT_STEPS == 3
    log.add(
        event_pb2.ContextCompacted(
            from_seq=steps.first_seq, to_seq=steps.last_seq, replacement=replacement("meanwhile", cut=False)
        )
    )
    words = [word for message in log.said() for word in message]
    assert words[1] == "the wish of now"
    assert [word for word in words if word.startswith("use:")] == ["use:new3", "use:new4", "use:new5"]
    assert span(log.history.units(), turn, TIGHT) is None


@pytest.mark.req("MODEL-08")
def test_what_was_tried_in_vain_is_not_tried_again_before_there_is_more() -> None:
    log = session(old=2, steps=0, size=4000)
    found = span(log.history.units(), log.history.turns, TIGHT)
    assert found is not None
    log.add(
        event_pb2.ContextCompacted(
            method="summarised", from_seq=found.first_seq, to_seq=found.last_seq, stopped_because="no use"
        )
    )
    vain = log.history.summarised_in_vain
    assert vain == log.state.seq
    assert span(log.history.units(), log.history.turns, TIGHT, vain) is None
    log.answer("done").end_turn().turn("more")
    assert span(log.history.units(), log.history.turns, TIGHT, vain) is not None


@pytest.mark.req("MODEL-08")
@pytest.mark.parametrize(
    ("most_output", "asked", "due", "room"),
    [
        (8_000, None, 160_000 - 8_000 - 3_000, 200_000 - 8_000 - 3_000),
        (128_000, None, 160_000 - 50_000 - 3_000, 200_000 - 50_000 - 3_000),
        (128_000, 64_000, 160_000 - 64_000 - 3_000, 200_000 - 64_000 - 3_000),
        (128_000, 128_000, 160_000 - 100_000 - 3_000, 200_000 - 100_000 - 3_000),
    ],
)
def test_the_budget_is_a_share_of_the_window_less_answer_tools_and_system(
    most_output: int, asked: int | None, due: int, room: int
) -> None:
    found = budget(200_000, 0.8, most_output=most_output, asked_output=asked, system=1_000, tools=2_000)
    assert (found.due, found.room) == (due, room)
    assert found.aim < found.due


def test_a_budget_is_never_below_nothing() -> None:
    found = budget(100, 0.5, most_output=10, asked_output=None, system=1_000, tools=0)
    assert found == Budget(due=0, aim=0, room=0)


@pytest.mark.req("MODEL-08")
def test_the_question_for_a_summary_holds_what_fits_from_both_ends() -> None:
    log = session(old=30, steps=0, size=3000)
    units = log.history.units()[:-1]
    whole = question(units, 100_000).blocks[0].text.text
    assert whole.startswith("<conversation>\n\nUser: wish 0\n\nAgent calls read_file: ")
    assert whole.count("Result: ") == 30
    assert "characters ...]" in whole, "long results are shortened"
    assert whole.endswith("Agent: did 29\n\n</conversation>")
    small = question(units, 1_000).blocks[0].text.text
    assert estimate.tokens(small) < 1_050
    assert "wish 0" in small
    assert "did 29" in small
    assert "entries left out ...]" in small


def test_a_summary_that_was_cut_says_so() -> None:
    (block,) = replacement(" short \n", cut=True)
    assert block.text.text == f"{OPENING}\n\nshort\n\n{CUT}"


@pytest.mark.req("S06", "MODEL-08", "MODEL-06")
def test_a_broken_history_is_compacted_as_it_is_shown() -> None:
    """Calls without results, results without calls, ids used twice: what no vendor would take as it stands."""
    broken = SessionLog()
    history = History()

    def take(*payloads: Message) -> None:
        for payload in payloads:
            history.advance(broken.event(payload))
            broken.state = broken.state._replace(seq=broken.state.seq + 1)

    long = event_pb2.ToolResult(call_id="c1", content=json.dumps("x" * 4000).encode())
    for number in range(4):
        take(event_pb2.TurnStart(turn=number), user(f"wish {number}"))
        take(says(uses("c1"), uses("c2")), long, result("nobody's"), says(uses("c1"), text("and on")), long)
    take(event_pb2.TurnStart(turn=4), user("now"))
    check_vendor_accepts(history.messages())
    sizes = [tokens(history.units())]
    while (leave := pruning(history.units(), history.turns, TIGHTER)) is not None:
        take(event_pb2.ContextCompacted(method="pruned", pruned_call_ids=leave.call_ids))
        check_vendor_accepts(history.messages())
        sizes.append(tokens(history.units()))
    found = span(history.units(), history.turns, TIGHTER)
    assert found is not None
    take(
        event_pb2.ContextCompacted(
            from_seq=found.first_seq, to_seq=found.last_seq, replacement=replacement("before", cut=False)
        )
    )
    check_vendor_accepts(history.messages())
    assert sizes[0] > sizes[-1] > tokens(history.units())


@pytest.mark.req("S08", "MODEL-08", "LOG-08")
def test_what_comes_after_a_compaction_is_all_there_after_a_crash() -> None:
    log = session(old=10, steps=0, size=2000)
    *_, last = compacted(log, TIGHTER)
    assert last.replacement
    before = len(log.events)
    for number in range(5):
        log.step().calls(f"after{number}").add(result(f"after{number}", "seen")).end_step()
    log.step().calls("cut")
    log.add_drafts(repair(log.state, "01SESSION", 1))
    log.turn("go on")
    again = History()
    for event in log.events:
        again.advance(event)
    check_vendor_accepts(again.messages())
    words = [word for message in log.said() for word in message]
    assert [word for word in words if word.startswith("use:after")] == [
        f"use:after{number}" for number in range(5)
    ]
    assert words[-2:] == ["result:cut", "go on"]
    assert [m.digest for m in again.messages()] == [m.digest for m in log.history.messages()]
    assert len(log.events) - before > 20, "nothing was taken from the log"


@pytest.mark.req("MODEL-08")
def test_a_summary_alone_is_never_summarised() -> None:
    log = session(old=3, steps=0, size=2000)
    first = span(log.history.units(), log.history.turns, TIGHTER)
    assert first is not None
    long = replacement("x" * 3000, cut=False)
    log.add(event_pb2.ContextCompacted(from_seq=first.first_seq, to_seq=first.last_seq, replacement=long))
    assert tokens(log.history.units()) > TIGHTER.due
    assert span(log.history.units(), log.history.turns, TIGHTER) is None
    log.answer("done").end_turn().turn("more")
    again = span(log.history.units(), log.history.turns, TIGHTER)
    assert again is not None
    assert [unit.summary for unit in again.units] == [True, False, False]
