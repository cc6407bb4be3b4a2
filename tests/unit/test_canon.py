"""The canonical form of JSON, and the hashes made of it."""

from __future__ import annotations

import contextlib
import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnd.rules import canon
from turnd.v1 import common_pb2 as common

Json = None | bool | int | Decimal | str | list["Json"] | dict[str, "Json"]

NUMBERS = st.one_of(
    st.integers(-(10**30), 10**30).map(Decimal),
    st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**9), max_value=10**9),
    st.builds(
        lambda digits, exponent: Decimal(digits).scaleb(exponent),
        st.integers(-999, 999),
        st.integers(-60, 60),
    ),
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def spelt(draw: st.DrawFn, value: object) -> str:
    """One of the many JSON texts of a value."""
    space = draw(st.sampled_from(["", " ", "\n\t"]))
    match value:
        case None | bool():
            return json.dumps(value)
        case Decimal():
            sign, digits, exponent = value.as_tuple()
            assert isinstance(exponent, int)
            zeros = draw(st.integers(0, 3)) if value else 0
            coefficient = "".join(map(str, digits)).lstrip("0") + "0" * zeros or "0"
            minus = "-" if sign else ""
            spelling = draw(st.sampled_from(["plain", "exponent", "fraction"]))
            power = exponent - zeros
            if spelling == "plain" and 0 <= power < 50:
                return f"{minus}{coefficient}{'0' * power}" if coefficient != "0" else "0"
            if spelling == "fraction":
                mark = draw(st.sampled_from(["e", "E", "e+" if power + len(coefficient) >= 1 else "e"]))
                return f"{minus}0.{coefficient}{mark}{power + len(coefficient)}"
            return f"{minus}{coefficient}e{power}"
        case str():
            escaped = draw(st.booleans())
            if escaped:
                units = value.encode("utf-16-be")
                return (
                    '"'
                    + "".join(f"\\u{units[i]:02x}{units[i + 1]:02X}" for i in range(0, len(units), 2))
                    + '"'
                )
            return json.dumps(value, ensure_ascii=False)
        case list():
            return f"[{space}{f',{space}'.join(spelt(draw, each) for each in value)}{space}]"
        case dict():
            keys = draw(st.permutations(list(value)))
            members = (f"{spelt(draw, key)}{space}:{space}{spelt(draw, value[key])}" for key in keys)
            return f"{{{space}{','.join(members)}{space}}}"
        case _:
            raise AssertionError(value)


@pytest.mark.req("BOUND-09")
@given(st.data())
def test_every_spelling_of_a_value_has_one_form_and_other_values_have_others(data: st.DataObject) -> None:
    one, other = data.draw(VALUES), data.draw(VALUES)
    first = data.draw(st.composite(spelt)(one)).encode()
    second = data.draw(st.composite(spelt)(one)).encode()
    third = data.draw(st.composite(spelt)(other)).encode()

    assert canon.canonical(first) == canon.canonical(second)
    assert (canon.canonical(first) == canon.canonical(third)) == (tagged(one) == tagged(other))


def tagged(value: object) -> object:
    """The value in a shape in which Python does not take true for 1, nor -0 for another number than 0."""
    match value:
        case list():
            return ["list", *map(tagged, value)]
        case dict():
            return {key: tagged(member) for key, member in value.items()}
        case _:
            return (type(value).__name__, value)


@given(VALUES, st.data())
def test_the_form_is_json_of_the_same_value_and_its_own_form(value: object, data: st.DataObject) -> None:
    form = canon.canonical(data.draw(st.composite(spelt)(value)).encode())

    assert json.loads(form, parse_int=Decimal, parse_float=Decimal) == value
    assert canon.canonical(form) == form


@pytest.mark.req("BOUND-09")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("9007199254740993", "9007199254740992"),
        ("9007199254740993", "9007199254740993.5"),
        ("0.1", "0.1000000000000000055511151231257827"),
        ("1", "true"),
        ("1", '"1"'),
        ("0", "null"),
        ("1e400", "1e401"),
        ("1e-400", "0"),
        ('{"a": 1}', '{"a": 2}'),
        ("[1, 2]", "[2, 1]"),
        ("[]", "{}"),
        ('"\\ud800"', '"\\ud801"'),
        ('"\\ud800"', '"\\ufffd"'),
        ('{"a": 1, "a": 2}', '{"a": 2}'),
        ('{"a": 1, "a": 2}', '{"a": 2, "a": 1}'),
    ],
)
def test_different_values_differ(one: str, other: str) -> None:
    assert canon.canonical(one.encode()) != canon.canonical(other.encode())


@pytest.mark.req("BOUND-09")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1", "1.0"),
        ("1", "1e0"),
        ("1", "0.1E1"),
        ("0", "-0"),
        ("0", "-0.0e99999999999999999999999"),
        ("100", "1e2"),
        ("1" + "0" * 5000, "1e5000"),
        ('"A"', '"\\u0041"'),
        ('"/"', '"\\/"'),
        ('"\\ud83d\\ude00"', '"\N{GRINNING FACE}"'),
        ('{"a": 1, "b": [2]}', '{ "b" :[ 2.0 ],"\\u0061":1 }'),
    ],
)
def test_equal_values_are_equal(one: str, other: str) -> None:
    assert canon.canonical(one.encode()) == canon.canonical(other.encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"path": "a',
        b"\xff\xfe",
        b'"\xed\xa0\x80"',
        '{"a": 1}'.encode("utf-16"),
        b"NaN",
        b"[Infinity]",
        b"-Infinity",
        b"01",
        b"1 2",
        b'{"a": 1,}',
        b"'a'",
        b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        b"[" * (canon.MAX_DEPTH + 1) + b"]" * (canon.MAX_DEPTH + 1),
        b"1e1000000000000000000",
        b'"' * 100_001,
    ],
    ids=lambda data: repr(data[:12]),
)
def test_what_is_not_looked_into_counts_as_its_bytes(data: bytes) -> None:
    assert canon.canonical(data) == data
    assert not canon.is_json(data)
    assert canon.members(data) is None


@given(st.binary(max_size=40))
def test_any_bytes_have_a_form(data: bytes) -> None:
    canon.canonical(data)
    assert len(canon.call_hash("p", "t", data)) == 64


@pytest.mark.parametrize(
    "data",
    [
        b"1e999999999",
        b"-1E-999999999999999999",
        b"9" * 100_000,
        b"0." + b"9" * 100_000,
        b"[" * canon.MAX_DEPTH + b"]" * canon.MAX_DEPTH,
        b'"' + b"[{" * 10_000 + b'"',
        b'"\\ud800 \\\\ \\" [[["',
    ],
    ids=lambda data: repr(data[:12]),
)
def test_what_is_huge_but_within_bounds_is_json(data: bytes) -> None:
    assert canon.is_json(data)
    assert canon.canonical(canon.canonical(data)) == canon.canonical(data)


def test_near_the_limit_of_the_stack_nothing_escapes() -> None:
    inner = b'{"a":' * (canon.MAX_DEPTH - 1) + b"1" + b"}" * (canon.MAX_DEPTH - 1)
    data = b'{"b": ' + inner + b"}"
    answers: set[tuple[bytes, bool]] = set()
    escaped: list[int] = []

    def deeper(frames: int) -> None:
        if frames:
            deeper(frames - 1)

    def at_depth(frames: int) -> None:
        if frames:
            at_depth(frames - 1)
            return
        deeper(20)  # room to call something at all
        try:
            answers.add((canon.canonical(data), canon.members(data) is None))
        except RecursionError:
            escaped.append(frames)

    with contextlib.suppress(RecursionError):  # of this test's own frames
        for frames in range(100, 1000, 5):
            at_depth(frames)
    assert not escaped
    assert answers == {(b'{"b":' + inner + b"}", False), (data, True)}


def test_members_are_canonical_and_never_ambiguous() -> None:
    assert canon.members(b'{"path": "\\u0061.txt", "n": 1.50, "l": [1.0]}') == {
        "path": b'"a.txt"',
        "n": b"15e-1",
        "l": b"[1]",
    }
    assert canon.members(b"{}") == {}
    assert canon.members(b"[1]") is None
    assert canon.members(b'{"path": "a", "path": "b"}') is None
    assert canon.members(b'{"path": "a", "p\\u0061th": "a"}') is None


def test_the_text_of_a_member() -> None:
    assert canon.text_member(b'{"command": "ls \\u002da"}', "command") == "ls -a"
    assert canon.text_member(b'{"command": ["ls"]}', "command") is None
    assert canon.text_member(b'{"command": "ls", "command": "rm"}', "command") is None
    assert canon.text_member(b"{}", "command") is None
    assert canon.text_member(b"not json", "command") is None


@pytest.mark.req("BOUND-09")
def test_the_hash_of_a_call_is_of_provider_tool_and_input() -> None:
    base = canon.call_hash("workspace", "read_file", b'{"path": "a", "n": 1}')

    assert canon.call_hash("workspace", "read_file", b'{"n": 1.0, "path": "\\u0061"}') == base
    others = {
        canon.call_hash("workspac", "eread_file", b'{"path": "a", "n": 1}'),
        canon.call_hash("workspace", "read_files", b'{"path": "a", "n": 1}'),
        canon.call_hash("mine", "read_file", b'{"path": "a", "n": 1}'),
        canon.call_hash("workspace", "read_file", b'{"path": "a", "n": 2}'),
        canon.call_hash("workspace", "read_file", b'{"path": "a", "n": 1'),
        canon.call_hash("\ud800", "read_file", b""),
    }
    assert len(others) == 6
    assert base not in others


@pytest.mark.req("GATE-16")
def test_the_digest_binds_call_and_states() -> None:
    def of(tool: str, data: bytes, *states: tuple[str, str]) -> str:
        return canon.digest(
            "workspace", tool, data, [common.Precondition(target=t, state=s) for t, s in states]
        )

    base = of("edit_file", b'{"path":"a"}', ("a", "1"), ("b", "2"))
    assert of("edit_file", b'{ "path": "a" }', ("b", "2"), ("a", "1")) == base
    others = {
        of("edit_file", b'{"path":"a"}', ("a", "1")),
        of("edit_file", b'{"path":"a"}', ("a", "2"), ("b", "1")),
        of("edit_file", b'{"path":"a"}', ("a", "1b"), ("", "2")),
        of("edit_file", b'{"path":"b"}', ("a", "1"), ("b", "2")),
        of("write_file", b'{"path":"a"}', ("a", "1"), ("b", "2")),
        of("edit_file", b'{"path":"a"}'),
    }
    assert len(others) == 6
    assert base not in others


def test_the_digest_of_a_request_tells_what_was_sent() -> None:
    text = common.ContentBlock(text=common.TextBlock(text="hello"))
    tool = ("read_file", "Reads.", b'{"type":"object"}')

    def of(
        model: str = "m",
        system: str = "s",
        messages: tuple[tuple[str, tuple[common.ContentBlock, ...]], ...] = (("user", (text,)),),
        tools: tuple[tuple[str, str, bytes], ...] = (tool,),
        withheld: bool = False,
        parameters: bytes = b"{}",
    ) -> str:
        digests = [canon.message_digest(role, blocks) for role, blocks in messages]
        return canon.request_digest(model, system, digests, tools, withheld, parameters)

    assert of() == of(parameters=b" { } ")
    different = {
        of(),
        of(model="n"),
        of(system="t"),
        of(messages=(("assistant", (text,)),)),
        of(messages=(("user", (text, text)),)),
        of(messages=(("user", (text,)), ("user", (text,)))),
        of(messages=()),
        of(tools=()),
        of(tools=(tool, tool)),
        of(withheld=True),
        of(parameters=b'{"temperature":1}'),
    }
    assert len(different) == 11
