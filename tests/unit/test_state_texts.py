"""The texts of the rules: those of the design, and those that the decisions list beside them (LOG-03)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from turnd.rules import state

RULES = Path(state.__file__).parent
DECISIONS = Path(__file__).parents[2] / "docs" / "decisions" / "events.md"
DESIGN = {
    "seq gap",
    "session already ended",
    "turn/start while turn already open",
    "turn/start expected turn N, got N",
    "turn/stopping without open turn",
    "turn/stopping twice",
    "… after turn/stopping",
    "step/start after turn/stopping",
    "turn/end without open turn/start",
    "turn/end expected turn N, got N",
    "turn/end while step still open",
    "turn/end without turn/stopping",
    "step/start without open turn",
    "step/start in turn N but open turn is N",
    "step/start while step already open",
    "step/start expected step N, got N",
    "step/end without open step/start",
    "step/end in turn N but open turn is N",
    "step/end expected step N, got N",
    "step/end while tool/call still open",
    "step/end while approval/request still open",
    "step/end while interactive/request still open",
    "step/end while child/started still open",
    "user/message without open turn",
    "user/message while step open",
    "… without open step",
    "tool/call without open step",
    "tool/call id already used",
    "tool/started without open tool/call",
    "tool/started twice",
    "tool/started without approval",
    "tool/retry without open attempt",
    "tool/progress without open attempt",
    "tool/result without open tool/call",
    "approval/decided without open approval/request",
    "interactive/answered without open interactive/request",
    "child/started without open tool/call",
    "child/ended without open child/started",
}
"""`…` is the event's type, N a number."""


def texts_of_the_code() -> Iterator[str]:
    for file in RULES.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Violation":
                yield text_of(node.args[0])


def text_of(argument: ast.expr) -> str:
    match argument:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(text_of(part) for part in parts)
        case ast.FormattedValue(value=value):
            return "…" if ast.unparse(value) == "event_type(event)" else "N"
        case _:
            raise AssertionError(f"a rule's text is written where it is broken, not {ast.unparse(argument)}")


@pytest.mark.req("LOG-03")
def test_every_text_is_one_of_the_design_or_one_of_the_decisions() -> None:
    decided = re.findall(r"^\| `([^`]+)` \|", DECISIONS.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(decided) == len(set(decided))
    assert not DESIGN & set(decided)
    assert set(texts_of_the_code()) == DESIGN | set(decided)
