"""What people read and type: visible text, amounts, answers."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnd_client.answers import NotAnAnswer, answer_json
from turnd_client.content import fields, readable
from turnd_client.text import one_line, visible
from turnd_client.units import (
    NotAQuantity,
    duration_text,
    parse_count,
    parse_duration_ms,
    parse_usd,
    usd,
    usd_text,
)


@pytest.mark.parametrize(
    ("hidden", "shown"),
    [
        ("\x1b[2J", "<U+001B>[2J"),
        ("a\rb", "a<U+000D>b"),
        ("\x9b31m", "<U+009B>31m"),
        ("safe\u202egnp.exe", "safe<U+202E>gnp.exe"),
        ("\u2066x\u2069", "<U+2066>x<U+2069>"),
        ("rm\u200b -rf", "rm<U+200B> -rf"),
        ("\ufeffx", "<U+FEFF>x"),
        ("a\u2028b", "a<U+2028>b"),
        ("\U000e0041", "<U+E0041>"),
        ("\u3164", "<U+3164>"),
        ("x\ufe0f", "x<U+FE0F>"),
        ("\ud800", "<U+D800>"),
    ],
)
def test_what_cannot_be_seen_is_spelled_out(hidden: str, shown: str) -> None:
    assert visible(hidden) == shown


def test_what_can_be_seen_stays() -> None:
    text = "tabs\tand lines\n, ümläute, 漢字, 🙂, ‘quotes’ – dashes"
    assert visible(text) == text


@given(st.text())
def test_nothing_invisible_is_left(text: str) -> None:
    left = {unicodedata.category(c) for c in visible(text) if c not in "\n\t"}
    assert not left & {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def test_one_line_is_one_and_no_longer_than_it_says() -> None:
    assert one_line("a\n  b\t c", 20) == "a b c"
    assert one_line("x" * 50, 20) == "x" * 17 + "..."


@pytest.mark.req("BOUND-13")
@pytest.mark.parametrize(
    ("text", "nano"), [("0", 0), ("0.25", 250_000_000), ("5", 5 * 10**9), ("1e-9", 1), (" 2 ", 2 * 10**9)]
)
def test_amounts(text: str, nano: int) -> None:
    assert parse_usd(text) == nano


@pytest.mark.req("BOUND-13")
@pytest.mark.parametrize(
    "text", ["-1", "-0.01", "nan", "NaN", "inf", "-inf", "", "five", "1,5", "0.0000000001", "1e30"]
)
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(NotAQuantity):
        parse_usd(text)


@pytest.mark.req("BOUND-13")
@pytest.mark.parametrize("text", ["-1", "1.5", "", "NaN", "ten", "٣", "99999999999999999999"])
def test_what_is_no_count_is_refused(text: str) -> None:
    assert parse_count("0") == 0
    assert parse_count("17") == 17
    with pytest.raises(NotAQuantity):
        parse_count(text)


@pytest.mark.req("BOUND-13")
def test_times_have_units() -> None:
    assert [parse_duration_ms(text) for text in ("0", "90", "90s", "1.5m", "2h")] == [
        0,
        90_000,
        90_000,
        90_000,
        7_200_000,
    ]
    for text in ("-1", "nan", "", "5 d", "1e3", "h"):
        with pytest.raises(NotAQuantity):
            parse_duration_ms(text)


def test_money_and_time_for_people() -> None:
    assert [usd_text(nano) for nano in (0, 1, 35_010_000, 5 * 10**9)] == [
        "$0",
        "$0.000000001",
        "$0.0350",
        "$5.0000",
    ]
    assert usd(35_010_000) == 0.03501
    assert [duration_text(ms) for ms in (850, 12_340, 245_000)] == ["850 ms", "12.3 s", "4 min 5 s"]


@pytest.mark.parametrize(
    ("text", "schema", "answer"),
    [
        ("blue", {"type": "string"}, "blue"),
        ("3", {"type": "string"}, "3"),
        (
            "blue",
            {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]},
            {"answer": "blue"},
        ),
        (
            '{"answer": "x"}',
            {"type": "object", "properties": {"answer": {"type": "string"}}},
            {"answer": "x"},
        ),
        (
            '{"other": 1}',
            {"type": "object", "properties": {"answer": {"type": "string"}}},
            {"answer": '{"other": 1}'},
        ),
        ("3", {"type": "integer"}, 3),
        ("true", {"type": "boolean"}, True),
        ("null", {"type": "null"}, None),
        ('["a"]', {"type": "array"}, ["a"]),
        ("anything", {}, "anything"),
    ],
)
def test_words_become_the_json_that_the_question_wants(
    text: str, schema: dict[str, object], answer: object
) -> None:
    assert json.loads(answer_json(text, json.dumps(schema).encode())) == answer


def test_words_that_cannot_be_that_json_are_refused() -> None:
    with pytest.raises(NotAnAnswer, match="integer"):
        answer_json("blue", b'{"type": "integer"}')


def test_the_text_in_a_result_and_what_else_it_says() -> None:
    data = json.dumps({"exit_code": 0, "output": "ok\n", "timed_out": False, "limit": ""}).encode()
    assert readable(data) == ("exit_code: 0", "ok\n")
    assert readable(b'{"path": "a", "entries": [1]}') == ("path: a, entries: [1]", "")
    assert readable(b'"words"') == ("", "words")
    assert readable(b"\xff not json") == ("", "\ufffd not json")
    assert fields(b'{"path": "a.txt", "limit": 3}') == "path: a.txt, limit: 3"
