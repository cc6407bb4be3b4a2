"""What is made of a model's answer to the request for a title."""

from __future__ import annotations

import pytest
from tests.unit.session_log import text

from turnd.rules.title import MAX_CHARACTERS, SHOWN_CHARACTERS, cleaned, question


@pytest.mark.parametrize(
    ("answer", "title"),
    [
        ("Fix add()", "Fix add()"),
        ('\n  "Fix   the test."  \nMore words', "Fix the test"),
        ("**Fix it**", "Fix it"),
        ("a\x1b[31mb\u202ec", "a [31mb c"),
        ("", ""),
        (" \n\"'\n", ""),
        ("w" * 200, "w" * (MAX_CHARACTERS - 1) + "\N{HORIZONTAL ELLIPSIS}"),
    ],
)
def test_a_title_is_one_short_line(answer: str, title: str) -> None:
    assert cleaned(answer) == title


def test_the_question_shows_how_the_conversation_begins() -> None:
    asked = question([text("u" * 9000)], [text("hello")]).blocks[0].text.text
    assert asked == f"<conversation>\nUser: {'u' * SHOWN_CHARACTERS}\n\nAgent: hello\n</conversation>"
