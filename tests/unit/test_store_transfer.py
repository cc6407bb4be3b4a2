"""Export without loss, and a verifier that finds what is wrong with a file (LOG-17)."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.stored import chunk, created, opened, step, stored_events, turn

from turnd.ports import UnknownSession
from turnd.store import lines as lines_module
from turnd.store import transfer
from turnd.store.transfer import Report, Verifier, export_lines, verify_lines, verify_stored
from turnd.v1.jsonform import event_from_json

GOLDEN = (Path(__file__).parent.parent / "golden" / "events.jsonl").read_bytes().splitlines(keepends=True)

pytestmark = pytest.mark.req("LOG-17")


def faults(report: Report) -> list[tuple[int, str]]:
    return [(fault.line, fault.message) for fault in report.faults]


async def test_an_export_is_the_log(tmp_path: Path) -> None:
    async with opened(tmp_path) as log:
        await log.append(created("A"), turn("A"), step("A"), *(chunk("A", "é" * 500) for _ in range(3000)))
        await log.append(created("B"))
        chunks = [part async for part in export_lines(log, "A")]
        assert len(chunks) > 1
        assert all(len(part) < 2**20 for part in chunks)
        lines = b"".join(chunks).decode().splitlines()
        assert [event_from_json(line) for line in lines] == await stored_events(log, "A")
        with pytest.raises(UnknownSession):
            _ = [part async for part in export_lines(log, "C")]
        report = verify_lines(chunks)
        assert (report.events, report.sessions, report.lawful, report.open) == (3003, ("A",), True, True)
        assert await verify_stored(log, "A") == report
        with pytest.raises(UnknownSession):
            await verify_stored(log, "C")


def test_a_lawful_log_has_no_faults() -> None:
    report = verify_lines(GOLDEN)
    assert (report.events, report.faults, report.open) == (len(GOLDEN), (), False)


@pytest.mark.parametrize("removed", range(len(GOLDEN)))
def test_any_line_but_the_last_is_missed(removed: int) -> None:
    """A prefix of a log is a log: one that is not finished."""
    report = verify_lines([line for index, line in enumerate(GOLDEN) if index != removed])
    assert report.lawful == (removed == len(GOLDEN) - 1)
    if not report.lawful:
        assert faults(report)[0][0] == removed + 1
        assert faults(report)[0][1] in ("seq gap", "first event is not session/created")


def test_a_prefix_inside_of_a_turn_is_open() -> None:
    assert verify_lines(GOLDEN[:20]).open
    assert verify_lines(GOLDEN[:20]).lawful


@pytest.mark.parametrize("cut", [1, 60, -2])
def test_a_file_that_ends_in_the_middle_of_a_line_is_refused(cut: int) -> None:
    report = verify_lines([*GOLDEN[:-1], GOLDEN[-1][:cut]])
    ((line, message),) = faults(report)
    assert line == len(GOLDEN)
    assert "ends in the middle of this line" in message


def test_a_last_line_without_its_newline_is_whole() -> None:
    assert verify_lines([*GOLDEN[:-1], GOLDEN[-1].rstrip()]).lawful
    assert verify_lines([*GOLDEN, b"\n"]).events == len(GOLDEN)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, sum(map(len, GOLDEN))), max_size=12))
def test_the_pieces_in_which_a_file_comes_do_not_matter(cuts: list[int]) -> None:
    data = b"".join(GOLDEN)
    edges = [0, *sorted(cuts), len(data)]
    pieces = [data[a:b] for a, b in pairwise(edges)]
    assert verify_lines(pieces) == verify_lines(GOLDEN)


def changed(index: int, **members: object) -> list[bytes]:
    line = json.loads(GOLDEN[index]) | members
    return [*GOLDEN[:index], json.dumps(line).encode() + b"\n", *GOLDEN[index + 1 :]]


def test_each_fault_is_told_with_its_line_and_the_text_of_its_rule() -> None:
    types = [json.loads(line)["type"] for line in GOLDEN]
    start = types.index("turn/start")
    assert faults(verify_lines(changed(start, data={"turn": 1})))[0] == (
        start + 1,
        "turn/start expected turn 0, got 1",
    )
    step_end = types.index("step/end")
    without_result = [
        line for line in GOLDEN if b'"type": "tool/result", "data": {"call_id": "c1"' not in line
    ]
    messages = [message for _, message in faults(verify_lines(without_result))]
    assert messages[0] == "seq gap"
    assert "step/end while tool/call still open" in messages
    data = json.loads(GOLDEN[step_end])["data"] | {"step": 7}
    assert faults(verify_lines(changed(step_end, data=data)))[0] == (
        step_end + 1,
        "step/end expected step 1, got 7",
    )
    assert faults(verify_lines(changed(3, seq=9)))[0] == (4, "seq gap")
    assert faults(verify_lines([*GOLDEN, GOLDEN[-1]])) == [(len(GOLDEN) + 1, "seq gap")]


def test_lines_that_are_no_events_are_told_and_the_rest_is_judged() -> None:
    report = verify_lines([GOLDEN[0], b"nonsense\n", b"\xff\n", b'{"session": "s"}\n', *GOLDEN[1:]])
    lines = [line for line, _ in faults(report)]
    assert lines == [2, 3, 4]
    assert [message.split(":")[0].split(" at ")[0] for _, message in faults(report)] == [
        "expected one JSON object",
        "not UTF-8",
        "seq",
    ]
    assert report.events == len(GOLDEN)


def test_an_event_with_a_wrong_number_still_counts_so_that_it_hides_no_other_fault() -> None:
    start = [json.loads(line)["type"] for line in GOLDEN].index("turn/start")
    report = verify_lines(GOLDEN[: start - 1] + GOLDEN[start:])
    assert faults(report) == [(start, "seq gap")], "the turn/start after the gap opened its Turn"


def test_logs_of_several_sessions_are_judged_each_by_itself() -> None:
    other = [line.replace(b"01JZY3K5V7Q8W9E0R1T2Y3U4I5", b"OTHER") for line in GOLDEN]
    mixed = [line for pair in zip(GOLDEN, other, strict=True) for line in pair]
    report = verify_lines(mixed)
    assert report.lawful
    assert report.sessions == ("01JZY3K5V7Q8W9E0R1T2Y3U4I5", "OTHER")


def test_the_report_and_the_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "MAX_FAULTS", 5)
    report = verify_lines([b"x\n"] * 20)
    assert (len(report.faults), report.faults_in_all, report.lawful) == (5, 5, False)
    monkeypatch.setattr(lines_module, "MAX_LINE_BYTES", 1000)
    verifier = Verifier()
    for _ in range(50):
        verifier.feed(b"y" * 100)
    verifier.feed(b"\n")
    verifier.feed(GOLDEN[0][:900])
    report = verifier.finish()
    assert report.faults[0].message == "line of more than 1000 bytes"
    monkeypatch.setattr(transfer, "MAX_SESSIONS", 2)
    made = [f'{{"session": "{n}", "seq": 1, "type": "session/created", "data": {{}}}}\n' for n in range(4)]
    report = verify_lines(line.encode() for line in made)
    assert [(line, message) for line, message in faults(report)] == [
        (3, "more than 2 sessions in one file"),
        (4, "more than 2 sessions in one file"),
    ]


@pytest.mark.req("LOG-18")
def test_an_event_of_a_newer_version_breaks_no_rule() -> None:
    newer = {"session": "01JZY3K5V7Q8W9E0R1T2Y3U4I5", "seq": 2, "type": "moon/phase", "data": {"light": 1.1}}
    first = json.loads(GOLDEN[0])
    rest = [json.loads(line) for line in GOLDEN[1:]]
    for event in rest:
        event["seq"] += 1
    assert verify_lines(json.dumps(event).encode() + b"\n" for event in (first, newer, *rest)).lawful
