"""Answers are JSON that every reader takes for the same value."""

from __future__ import annotations

import pytest

from turnd.sessions.answers import check_answer
from turnd.sessions.refusal import Code, CommandRefused

pytestmark = pytest.mark.req("GATE-17")


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (b"[" * 100_000, "128 levels"),
        (b"[" * 200 + b"]" * 200, "128 levels"),
        (b'{"answer":"\\ud800"}', "surrogate"),
        (b'{"\\udc00":1}', "surrogate"),
        (b'{"a":1,"a":2}', "'a' is there twice"),
        (b'{"b":{"a":1,"a":2}}', "twice"),
        (b"\xff", "UTF-8"),
        (b"NaN", "not valid JSON"),
        (b"1e999", "too large"),
        (b"9" * 5000, "not valid JSON"),
        (b"", "not valid JSON"),
        (b'{"a":1}', "does not fit"),
    ],
)
def test_an_answer_that_is_none_is_refused_by_its_field(output: bytes, words: str) -> None:
    with pytest.raises(CommandRefused, match=words) as refused:
        check_answer(output, b'{"type":"string"}')
    assert (refused.value.code, refused.value.field_name) == (Code.INVALID_ARGUMENT, "output")


def test_an_answer_that_fits_is_taken() -> None:
    check_answer(b'"\\ud83d\\ude00 \xc3\xa9"', b'{"type":"string"}')
    check_answer(b"[" * 100 + b"]" * 100, b"")
