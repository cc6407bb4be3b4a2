"""Any bytes are legal output; none of them does anything."""

from __future__ import annotations

import itertools
import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnd.tools.harmless import HarmlessStream, NotJson, checked_json, harmless, visible


@pytest.mark.req("TOOL-05")
@given(st.binary())
def test_no_bytes_give_a_control_character_or_invalid_text(data: bytes) -> None:
    text = harmless(data)
    assert not [c for c in text if unicodedata.category(c) == "Cc" and c not in "\n\t"]
    text.encode()


@given(st.text())
def test_text_without_anything_special_stays_as_it_is(text: str) -> None:
    plain = "".join(c for c in text if c.isprintable() or c in "\n\t")
    kept = "".join(c for c in plain if unicodedata.bidirectional(c) not in ("LRE", "RLE", "PDF"))
    assert visible(kept) == kept


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"a\r\nb\rc", "a\nb␍c"),
        (b"\x1b[2J", "␛[2J"),
        (b"\x00\x7f", "␀␡"),
        (b"\xff\xfe", "��"),
        ("\u202eabc".encode(), "<U+202E>abc"),
        ("\x9b31m".encode(), "<9B>31m"),
        ("é👩‍🚀".encode(), "é👩‍🚀"),
    ],
)
def test_what_it_looks_like(raw: bytes, shown: str) -> None:
    assert harmless(raw) == shown


@given(st.text(alphabet=st.characters(blacklist_categories=("Cs", "Cc"))), st.lists(st.integers(0, 40)))
def test_pieces_that_end_within_a_character_are_put_together(text: str, cuts: list[int]) -> None:
    data = text.encode()
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    stream = HarmlessStream()
    pieces = [data[a:b] for a, b in itertools.pairwise(places)]
    assert "".join(map(stream.feed, pieces)) == visible(text)


@given(st.text(alphabet=st.characters(categories=("Cs", "Ll", "So"))), st.integers(-(2**80), 2**80))
def test_json_is_valid_unicode_afterwards_and_numbers_keep_their_digits(text: str, number: int) -> None:
    raw = json.dumps({"text": text, "number": number}).encode()
    clean, value = checked_json(raw)
    clean.decode()
    assert (
        json.loads(clean)
        == value
        == {"text": text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"), "number": number}
    )
    if not any(0xD800 <= ord(c) < 0xE000 for c in text):
        assert clean == raw


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        (rb'"\ud800"', rb'"\ufffd"'),
        (rb'"\ud83d\ude00"', rb'"\ud83d\ude00"'),
        (rb'"\ude00\ud83d"', rb'"\ufffd\ufffd"'),
        (rb'"\\ud800"', rb'"\\ud800"'),
        (rb'"\\\ud800"', rb'"\\\ufffd"'),
        (rb"1.0000000000000000000001e5", rb"1.0000000000000000000001e5"),
    ],
)
def test_only_lone_surrogates_are_replaced(raw: bytes, clean: bytes) -> None:
    assert checked_json(raw)[0] == clean


@pytest.mark.parametrize("raw", [b"", b"{", b"NaN", b"[Infinity]", b"\xff", b"[" * 100_000, b"{'a': 1}"])
def test_what_is_not_json_is_said(raw: bytes) -> None:
    with pytest.raises(NotJson):
        checked_json(raw)
