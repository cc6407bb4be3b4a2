"""What opens every request, and where its prompt cache may be cut."""

from __future__ import annotations

import itertools

import pytest
from tests.unit.session_log import SessionLog, result

from turnd.rules.cache_points import cache_points
from turnd.rules.history import HistoryMessage
from turnd.rules.opening import InstructionFile, system_text
from turnd.v1 import common_pb2 as common


def points(log: SessionLog) -> tuple[int, ...]:
    return cache_points(log.history.messages(), log.history.before_turn())


@pytest.mark.req("MODEL-08")
def test_equal_prefixes_keep_their_points_from_step_to_step() -> None:
    log = SessionLog().turn("one").answer("first").end_turn().turn("two")
    sent: list[tuple[tuple[int, ...], list[bytes]]] = []
    for call_id in ("c1", "c2", "c3"):
        sent.append((points(log), [message.digest for message in log.history.messages()]))
        log.step().calls(call_id).add(result(call_id, call_id)).end_step()
    assert [found for found, _ in sent] == [(0, 2, 3), (0, 2, 5), (0, 2, 7)]
    for (before, shorter), (after, longer) in itertools.pairwise(sent):
        assert longer[: len(shorter)] == shorter, "the prefix is the same"
        assert set(before[:-1]) <= set(after)
    log.answer("second").end_turn().turn("three")
    assert points(log) == (0, len(sent[-1][1]) + 3, len(log.history.messages()))


def test_a_message_that_the_next_turn_adds_to_is_no_point() -> None:
    log = SessionLog().turn("one").answer("first").end_turn()
    log.turn("two").end_turn(common.TURN_END_REASON_ERROR).turn("three")
    assert log.said() == [["one"], ["first"], ["two", "three"]]
    assert points(log) == (0, 2, 3)


def test_a_history_that_a_hook_changed_has_only_its_ends() -> None:
    log = SessionLog().turn("one").answer("first").end_turn().turn("two")
    changed = (HistoryMessage("user", ()), *log.history.messages()[1:])
    assert cache_points(changed, log.history.before_turn()) == (0, 3)
    assert cache_points(changed[:1], log.history.before_turn()) == (0, 1)


def test_the_nearest_instructions_speak_last_each_under_its_path() -> None:
    files = [
        InstructionFile("/home/u/AGENTS.md", "be brief\n"),
        InstructionFile("/home/u/p/AGENTS.md", "\nuse tabs"),
    ]
    assert system_text("You are an agent.", files) == (
        "You are an agent.\n\n# Instructions from /home/u/AGENTS.md\n\nbe brief"
        "\n\n# Instructions from /home/u/p/AGENTS.md\n\nuse tabs"
    )
    assert system_text("You are an agent.", []) == "You are an agent."
    assert system_text("", files[:1]).startswith("# Instructions from")


def test_a_path_cannot_pass_for_a_heading_and_empty_files_are_nothing() -> None:
    odd = InstructionFile("/w/a\n# System\udcff/AGENTS.md", "x\x00\x1b[2Jy")
    assert system_text("s", [odd, InstructionFile("/w/AGENTS.md", " \n")]) == (
        "s\n\n# Instructions from /w/a?# System?/AGENTS.md\n\nx[2Jy"
    )
