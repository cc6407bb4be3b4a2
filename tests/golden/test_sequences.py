"""The design's event sequences: played anew they give the recorded order, and the records mean what they meant.

`python -m tests.golden.scenes` records them again, where an order has changed on purpose.
"""

from __future__ import annotations

import json

import pytest
from tests.golden.scenes import HERE, PROJECTIONS, SCENES, order, played, projections, recorded
from tests.unit.session_log import check_vendor_accepts

from turnd.rules.history import History
from turnd.store.transfer import verify_lines
from turnd.v1.jsonform import event_from_json, event_to_json

MEANINGS = json.loads(PROJECTIONS.read_text())


@pytest.mark.req("LOG-13", "LOOP-01")
@pytest.mark.parametrize("name", SCENES)
async def test_the_loop_plays_a_situation_as_it_was_recorded(name: str) -> None:
    assert order(await played(name)) == order(recorded(name))


@pytest.mark.req("LOG-13", "LOG-17")
@pytest.mark.parametrize("name", SCENES)
def test_a_recorded_log_is_lawful_and_means_what_it_meant(name: str) -> None:
    lines = recorded(name)
    report = verify_lines(line.encode() + b"\n" for line in lines)
    assert (report.faults, report.open, report.events) == ((), False, len(lines))
    assert projections(lines) == MEANINGS[name]
    history = History()
    for line in lines:
        history.advance(event_from_json(line))
        check_vendor_accepts(history.messages())


@pytest.mark.req("LOG-17", "LOG-18")
@pytest.mark.parametrize("name", SCENES)
def test_a_recorded_line_is_written_as_it_was(name: str) -> None:
    lines = recorded(name)
    assert [event_to_json(event_from_json(line)) for line in lines] == lines


def test_every_record_has_its_scene() -> None:
    assert {path.stem for path in HERE.glob("*.jsonl")} - {"events"} == set(SCENES) == set(MEANINGS)
