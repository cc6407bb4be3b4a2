"""The history for the model: valid for vendors whatever happened, and the same from Step to Step."""

from __future__ import annotations

import itertools
import json

import pytest
from tests.unit.session_log import (
    SESSION,
    START_US,
    SessionLog,
    call,
    check_vendor_accepts,
    result,
    says,
    started,
    text,
    user,
    uses,
)

from turnd.rules.closing import cancelled, close_step, end_turn, repair
from turnd.rules.history import History
from turnd.rules.history_blocks import (
    CANCELLED_NOTE,
    CUT_OFF,
    OPENING,
    PLAN_MODE_OFF,
    PLAN_MODE_ON,
    PRUNED,
    PRUNED_AGAIN,
    PRUNED_KEPT,
)
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

ABORTED = common.TURN_END_REASON_ABORTED


def chunk(*texts: str, attempt: int = 1) -> event_pb2.AssistantChunk:
    deltas = [event_pb2.Delta(index=i, text=t) for i, t in enumerate(texts)]
    return event_pb2.AssistantChunk(attempt=attempt, deltas=deltas)


def contents(log: SessionLog) -> dict[str, object]:
    """What each call's result tells the model."""
    return {
        block.tool_result.call_id: json.loads(block.tool_result.content)
        for message in log.history.messages()
        for block in message.blocks
        if block.HasField("tool_result")
    }


# --- the ordinary run ---------------------------------------------------------------------------------------


@pytest.mark.req("MODEL-06")
def test_a_turn_with_tools_reads_as_it_went() -> None:
    log = SessionLog().turn("look")
    log.step().calls("c1").add(started("c1"), result("c1", "hello")).end_step()
    log.answer("it says hello").end_turn()
    assert log.roles() == ["user", "assistant", "user", "assistant"]
    assert log.said() == [["look"], ["use:c1"], ["result:c1"], ["it says hello"]]
    assert contents(log) == {"c1": "hello"}
    check_vendor_accepts(log.history.messages())


@pytest.mark.req("LOOP-05")
@pytest.mark.parametrize("order", list(itertools.permutations(["c1", "c2", "c3"])))
def test_results_stand_in_declaration_order_whatever_the_order_of_finishing(order: tuple[str, ...]) -> None:
    log = SessionLog().turn().step().calls("c1", "c2", "c3").add(*(result(c) for c in order)).end_step()
    assert log.said()[-1] == ["result:c1", "result:c2", "result:c3"]


@pytest.mark.req("MODEL-06")
def test_what_is_said_between_steps_follows_the_results_in_one_message() -> None:
    log = SessionLog().turn().step().calls("c1").add(result("c1")).end_step()
    log.add(user("faster", steering=True)).add(user("limit reached"), synthetic=True)
    assert log.said()[-1] == ["result:c1", "faster", "limit reached"]
    check_vendor_accepts(log.history.messages())


@pytest.mark.req("MODEL-06")
def test_images_and_documents_of_a_person_stay_and_nothing_a_vendor_refuses() -> None:
    image = common.ContentBlock(image=common.ImageBlock(media_type="image/png", data=b"x"))
    document = common.ContentBlock(document=common.DocumentBlock(media_type="application/pdf"))
    lone = common.ContentBlock(tool_result=common.ToolResultBlock(call_id="c9"))
    said = event_pb2.UserMessage(blocks=[text(" \n"), image, lone, document, text("see")])
    log = SessionLog().add(event_pb2.TurnStart(turn=0), said)
    assert log.said() == [["image", "document", "see"]]


@pytest.mark.req("MODEL-06")
def test_opaque_tokens_of_the_vendor_are_kept_byte_for_byte() -> None:
    thought = common.ContentBlock(thinking=common.ThinkingBlock(thinking="hm", signature=b"\x00\xffs"))
    hidden = common.ContentBlock(redacted_thinking=common.RedactedThinkingBlock(data=b"\x01\xfe"))
    log = SessionLog().turn().step().add(says(thought, hidden, text("so"))).end_step()
    assert log.history.messages()[-1].blocks == (thought, hidden, text("so"))


@pytest.mark.req("MODEL-06")
def test_a_message_never_ends_in_thinking_and_is_never_empty() -> None:
    thought = common.ContentBlock(thinking=common.ThinkingBlock(thinking="hm"))
    log = SessionLog().turn("a").step().add(says(text("so"), thought)).end_step()
    log.add(user("b"), synthetic=True).step().add(says(thought)).end_step()
    log.add(user("c"), synthetic=True)
    assert log.said() == [["a"], ["so"], ["b", "c"]]


@pytest.mark.req("MODEL-06")
@pytest.mark.parametrize("broken", [b"", b"{", b"[1]", b'"x"', b"7", b"[" * 100_000])
def test_an_input_that_is_no_object_is_shown_as_one_with_what_the_model_wrote(broken: bytes) -> None:
    log = SessionLog().turn().step().add(says(uses("c1", broken)), call("c1"), result("c1")).end_step()
    use = log.history.messages()[1].blocks[0].tool_use
    assert use.input == b"{}"
    assert use.raw_arguments == broken.decode()
    check_vendor_accepts(log.history.messages())


@pytest.mark.req("GATE-08")
def test_the_model_is_told_that_its_input_was_corrected() -> None:
    ran = event_pb2.ToolStarted(call_id="c1", attempt=1, input=b'{"path":"b"}')
    done = event_pb2.ToolResult(call_id="c1", content=b'"ok"', input_corrected=True)
    log = SessionLog().turn().step().calls("c1").add(ran, done).end_step()
    told = contents(log)["c1"]
    assert isinstance(told, dict)
    assert told["input"] == {"path": "b"}
    assert told["result"] == "ok"
    assert "changed the input" in told["note"]


@pytest.mark.req("MODEL-06")
def test_an_error_without_words_still_says_what_kind_it_is() -> None:
    empty = event_pb2.ToolResult(call_id="c1", is_error=True, category=common.TOOL_ERROR_CATEGORY_NOT_FOUND)
    log = SessionLog().turn().step().calls("c1").add(empty).end_step()
    assert contents(log) == {"c1": "not found"}


# --- what went wrong ----------------------------------------------------------------------------------------


@pytest.mark.req("S02", "MODEL-06")
def test_missing_results_are_invented_around_the_one_that_is_there() -> None:
    log = SessionLog().turn().step().calls("c1", "c2", "c3").add(started("c3"), result("c2", "mine"))
    check_vendor_accepts(log.history.messages())
    assert log.said()[-1] == ["result:c1", "result:c2", "result:c3"]
    told = contents(log)
    assert told["c1"] == "no result: not started"
    assert told["c2"] == "mine"
    assert told["c3"] == "no result: outcome unknown, check before repeating"
    errors = [b.tool_result.is_error for b in log.history.messages()[-1].blocks]
    assert errors == [True, False, True]


@pytest.mark.req("LOG-21", "MODEL-06")
def test_an_attempt_that_was_given_up_without_effect_counts_as_not_started() -> None:
    log = SessionLog().turn().step().calls("c1").add(started("c1"))
    assert contents(log) == {"c1": "no result: outcome unknown, check before repeating"}
    log.add(event_pb2.ToolRetry(call_id="c1", attempt=1))
    assert contents(log) == {"c1": "no result: not started"}


@pytest.mark.req("S03", "MODEL-06")
@pytest.mark.parametrize("count", [1, 2, 8])
@pytest.mark.parametrize("with_result", [0, 1])
def test_every_open_call_is_repaired(count: int, with_result: int) -> None:
    ids = [f"c{i}" for i in range(count)]
    log = SessionLog().turn().step().calls(*ids).add(*(result(c) for c in ids[:with_result]))
    check_vendor_accepts(log.history.messages())
    log.add_drafts(repair(log.state, SESSION, START_US))
    assert log.said()[-1] == [f"result:{c}" for c in ids]
    check_vendor_accepts(log.turn("go on").history.messages())


@pytest.mark.req("S03", "MODEL-06")
def test_results_that_were_written_before_the_crash_stay() -> None:
    log = SessionLog().turn().step().calls("c1", "c2").add(result("c2", "b"), result("c1", "a"))
    log.add_drafts(repair(log.state, SESSION, START_US))
    assert contents(log) == {"c1": "a", "c2": "b"}


@pytest.mark.req("S10", "LOOP-07", "MODEL-06")
def test_after_a_cancel_the_next_ordinary_message_says_so_once() -> None:
    log = SessionLog().turn("build it").step().calls("c1", "c2").add(started("c1")).stopping(ABORTED)
    log.add(*close_step(log.state, how=cancelled("cancelled"))).add(*end_turn(log.state, ABORTED))
    log.turn("what is 2+2")
    assert log.said()[-1] == ["result:c1", "result:c2", CANCELLED_NOTE, "what is 2+2"]
    check_vendor_accepts(log.history.messages())
    log.answer("4").end_turn().turn("thanks")
    assert log.said()[-1] == ["thanks"]


@pytest.mark.req("LOOP-11")
def test_a_resumed_turn_is_not_told_that_its_task_was_cancelled() -> None:
    log = SessionLog().turn("build it").end_turn(ABORTED)
    log.add(event_pb2.TurnStart(turn=1)).add(user("go on"), synthetic=True)
    log.answer("done").end_turn().turn("thanks")
    assert log.said() == [["build it", "go on"], ["done"], ["thanks"]]


@pytest.mark.req("LOOP-07")
def test_partial_text_of_a_cancelled_stream_is_marked() -> None:
    partial = event_pb2.AssistantMessage(blocks=[text("so fa")], partial=True)
    log = SessionLog().turn().step().add(chunk("so fa")).stopping(ABORTED).add(partial)
    log.end_step().end_turn(ABORTED)
    assert log.said()[1:] == [["so fa", CUT_OFF]]


@pytest.mark.req("LOOP-07")
def test_a_cancelled_stream_of_calls_and_thoughts_leaves_nothing_open() -> None:
    thought = common.ContentBlock(thinking=common.ThinkingBlock(thinking="hm"))
    partial = event_pb2.AssistantMessage(blocks=[thought, uses("c1")], partial=True)
    log = SessionLog().turn().step().stopping(ABORTED).add(partial).end_step().end_turn(ABORTED).turn("b")
    assert log.said() == [["do it", CANCELLED_NOTE, "b"]]


@pytest.mark.req("LOG-23", "MODEL-06")
def test_text_that_had_streamed_when_the_daemon_was_killed_enters_marked() -> None:
    log = SessionLog().turn().step().add(chunk("so ", "and"), chunk("far", " then"))
    log.add_drafts(repair(log.state, SESSION, START_US))
    assert log.said()[1:] == [["so far", "and then", CUT_OFF]]
    check_vendor_accepts(log.turn("go on").history.messages())


@pytest.mark.req("LOOP-08", "MODEL-05")
def test_text_of_an_abandoned_attempt_is_left_out() -> None:
    log = SessionLog().turn().step().add(chunk("wrong", attempt=1), event_pb2.AgentRetry(attempt=1))
    log.add_drafts(repair(log.state, SESSION, START_US))
    assert log.said() == [["do it"]]

    again = SessionLog().turn().step().add(chunk("wrong", attempt=1), chunk("right", attempt=2))
    again.add_drafts(repair(again.state, SESSION, START_US))
    assert again.said()[1:] == [["right", CUT_OFF]]

    whole = SessionLog().turn().step().add(chunk("wrong"), event_pb2.AgentRetry(attempt=1), chunk("ri"))
    whole.add(says(text("right"))).end_step()
    assert whole.said()[1:] == [["right"]]


@pytest.mark.req("MODEL-06", "LOOP-12")
def test_calls_of_a_truncated_message_have_their_results() -> None:
    log = SessionLog().turn().step().add(says(text("I"), uses("c1", b"")), call("c1"))
    cut = event_pb2.ToolResult(
        call_id="c1", is_error=True, category=common.TOOL_ERROR_CATEGORY_TRUNCATED, content=b'"truncated"'
    )
    log.add(cut).end_step().end_turn(common.TURN_END_REASON_MAX_TOKENS).turn("shorter")
    check_vendor_accepts(log.history.messages())
    assert contents(log) == {"c1": "truncated"}


@pytest.mark.req("MODEL-06")
def test_a_log_that_breaks_the_rules_still_gives_a_lawful_history() -> None:
    history = History()
    for seq, payload in enumerate(
        [
            event_pb2.Event(assistant_message=says(text("first"))),
            event_pb2.Event(tool_result=result("lone")),
            event_pb2.Event(assistant_message=says(uses("c1"), uses("c1"), uses(""))),
            event_pb2.Event(tool_result=result("c1", "one")),
            event_pb2.Event(tool_result=result("c1", "two")),
            event_pb2.Event(assistant_message=says(uses("c1"))),
            event_pb2.Event(tool_result=result("c1", "three")),
            event_pb2.Event(user_message=user("in the middle")),
            event_pb2.Event(tool_result=result("c1", "late")),
            event_pb2.Event(assistant_message=says(text("a"))),
            event_pb2.Event(assistant_message=says(text("b"))),
            event_pb2.Event(assistant_message=says(uses("c2"))),
        ],
        start=1,
    ):
        payload.seq = seq
        history.advance(payload)
        check_vendor_accepts(history.messages())
    told = [
        (b.tool_result.call_id, json.loads(b.tool_result.content))
        for m in history.messages()
        for b in m.blocks
        if b.HasField("tool_result")
    ]
    assert history.messages()[0].blocks == (text(OPENING),)
    assert told == [
        ("c1", "one"),
        ("c1-2", "no result: not started"),
        ("call", "no result: not started"),
        ("c1-3", "three"),
        ("c2", "no result: not started"),
    ]


# --- plan mode ----------------------------------------------------------------------------------------------


@pytest.mark.req("GATE-11")
def test_plan_mode_is_told_when_it_begins_and_when_it_ends() -> None:
    log = SessionLog().add(event_pb2.TurnStart(turn=0), user("look", plan_mode=True))
    assert log.said()[-1] == [PLAN_MODE_ON, "look"]
    log.answer("so").add(user("and", steering=True)).answer("then").end_turn()
    log.turn("do it")
    assert log.said()[2:] == [["and"], ["then"], [PLAN_MODE_OFF, "do it"]]


@pytest.mark.req("GATE-11")
def test_plan_mode_of_the_session_lasts_until_it_is_changed() -> None:
    log = SessionLog(event_pb2.SessionCreated(plan_mode=True)).turn("a").answer("b").end_turn().turn("c")
    assert log.said() == [[PLAN_MODE_ON, "a"], ["b"], ["c"]]
    log.answer("d").end_turn().add(event_pb2.SessionChanged(plan_mode=False)).turn("e")
    assert log.said()[-1] == [PLAN_MODE_OFF, "e"]


# --- compaction ---------------------------------------------------------------------------------------------


def long_log() -> SessionLog:
    log = SessionLog().turn("one").step().calls("c1", "c2")
    log.add(result("c1", "x" * 99), result("c2", "y")).end_step().answer("first").end_turn()
    return log.turn("two").step().calls("c3").add(result("c3", "z")).end_step()


@pytest.mark.req("MODEL-06")
def test_what_was_compacted_is_replaced_at_its_place() -> None:
    log = long_log()
    end = next(e.seq for e in log.events if e.HasField("turn_end"))
    log.add(event_pb2.ContextCompacted(from_seq=1, to_seq=end, replacement=[text("in short")]))
    assert log.said() == [["in short", "two"], ["use:c3"], ["result:c3"]]
    check_vendor_accepts(log.history.messages())
    log.answer("done").end_turn().turn("three")
    log.add(event_pb2.ContextCompacted(from_seq=1, to_seq=log.state.seq - 2, replacement=[text("shorter")]))
    assert log.said() == [["shorter", "three"]]


@pytest.mark.req("S04", "MODEL-06")
def test_no_cut_of_a_compaction_splits_a_pair() -> None:
    length = len(long_log().events)
    for first, last in itertools.combinations(range(1, length + 1), 2):
        log = long_log()
        log.add(event_pb2.ContextCompacted(from_seq=first, to_seq=last, replacement=[text("in short")]))
        check_vendor_accepts(log.history.messages())
        kept = {word for message in log.said() for word in message}
        for call_id in ("c1", "c2", "c3"):
            assert (f"use:{call_id}" in kept) == (f"result:{call_id}" in kept)


@pytest.mark.req("MODEL-06")
def test_pruned_results_keep_their_place() -> None:
    long = event_pb2.ToolResult(call_id="c1", content=json.dumps("x" * 998).encode())
    kept = event_pb2.ToolResult(call_id="c2", content=json.dumps("y" * 998).encode(), spooled_bytes=5000)
    log = (
        SessionLog().turn("one").step().calls("c1", "c2", "c3").add(long, kept, result("c3", "z")).end_step()
    )
    before = log.said()
    log.add(event_pb2.ContextCompacted(method="pruned", pruned_call_ids=["c1", "c2", "c3"]))
    assert log.said() == before
    left_out = PRUNED.format(size=1000)
    assert contents(log) == {
        "c1": f"[{left_out}{PRUNED_AGAIN}]",
        "c2": f"[{left_out}{PRUNED_KEPT.format(call_id='c2')}]",
        "c3": "z",
    }
    once = flat(log.history)
    log.add(event_pb2.ContextCompacted(method="pruned", pruned_call_ids=["c1", "c2", "c3"]))
    assert flat(log.history) == once


# --- stability ----------------------------------------------------------------------------------------------


def flat(history: History) -> list[tuple[str, bytes]]:
    return [
        (message.role, block.SerializeToString(deterministic=True))
        for message in history.messages()
        for block in message.blocks
    ]


@pytest.mark.req("MODEL-06")
def test_from_step_to_step_the_history_only_grows_at_its_end() -> None:
    log = SessionLog().turn("a")
    sent: list[list[tuple[str, bytes]]] = []
    for number in range(5):
        sent.append(flat(log.history))
        log.step().calls(f"c{number}", f"d{number}").add(result(f"d{number}"), result(f"c{number}"))
        log.end_step().add(user(f"s{number}", steering=True))
    log.step().add(chunk("cut")).stopping(ABORTED).end_step().end_turn(ABORTED).turn("b")
    sent.append(flat(log.history))
    for earlier, later in itertools.pairwise(sent):
        assert later[: len(earlier)] == earlier
        assert len(later) > len(earlier)


@pytest.mark.req("LOG-13")
def test_the_same_log_gives_the_same_history() -> None:
    log = long_log()
    replayed = History()
    for event in log.events:
        replayed.advance(event_pb2.Event.FromString(event.SerializeToString()))
    assert replayed.messages() == log.history.messages()
    assert replayed.seq == log.history.seq == len(log.events)


@pytest.mark.req("MODEL-06")
def test_finished_messages_are_not_built_again() -> None:
    log = long_log()
    before = log.history.messages()
    log.add(user("more", steering=True)).step().calls("c4")
    after = log.history.messages()
    for old, new in zip(before[:-1], after, strict=False):
        assert old is new
