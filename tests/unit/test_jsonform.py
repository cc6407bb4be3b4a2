"""The JSON form: its shape, its exactness, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st

from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2, options_pb2, sessions_pb2
from turnd.v1.jsonform import (
    JsonFormError,
    enum_text,
    event_from_json,
    event_to_json,
    message_from_json,
    message_to_json,
    message_to_text,
)

GOLDEN = Path(__file__).parent.parent / "golden"
TIME_US = 1_767_323_045_678_901


def tool_call(**fields: Any) -> event_pb2.Event:
    event = event_pb2.Event(session="01J", seq=7, turn=0, step=1)
    event.time.FromMicroseconds(TIME_US)
    event.tool_call.MergeFrom(event_pb2.ToolCall(call_id="c1", **fields))
    return event


def line(data: str, type_name: str = "note", **envelope: str) -> str:
    """The line of an event with this text for its data, and for what else the envelope has."""
    members = {"session": '"s"', "seq": "1", "type": f'"{type_name}"', "data": data} | envelope
    return "{" + ", ".join(f'"{name}": {text}' for name, text in members.items() if text) + "}"


# --- the shape ----------------------------------------------------------------------------------------------


def test_an_event_has_the_shape_of_the_contract() -> None:
    event = tool_call(
        provider="workspace",
        tool="read_file",
        kind=common.TOOL_KIND_DATA_SOURCE,
        input=b'{"path": "a.txt"}',
    )
    found = json.loads(event_to_json(event))
    assert list(found) == ["session", "seq", "time", "turn", "step", "type", "data"]
    data = found.pop("data")
    assert found == {
        "session": "01J",
        "seq": 7,
        "time": "2026-01-02T03:04:05.678901Z",
        "turn": 0,
        "step": 1,
        "type": "tool/call",
    }
    expected = {
        "call_id": "c1",
        "provider": "workspace",
        "tool": "read_file",
        "kind": "data_source",
        "input": {"path": "a.txt"},
    }
    assert {name: data[name] for name in expected} == expected


def test_synthetic_and_producer_are_there_only_where_they_say_something() -> None:
    event = tool_call()
    event.synthetic = True
    event.producer.MergeFrom(common.Producer(kind=common.PRODUCER_KIND_PROVIDER, name="web", version="1"))
    found = json.loads(event_to_json(event))
    assert list(found)[-2:] == ["synthetic", "producer"]
    assert found["producer"] == {"kind": "provider", "name": "web", "version": "1"}


@pytest.mark.req("LOG-05")
def test_turn_and_step_are_null_outside_of_one_and_zero_in_the_first_turn() -> None:
    outside = event_pb2.Event(session="s", seq=1, session_created=event_pb2.SessionCreated(cwd="/w"))
    assert json.loads(event_to_json(outside))["turn"] is None
    assert json.loads(event_to_json(outside))["step"] is None
    marker = event_pb2.Event(session="s", seq=2, turn=0, turn_start=event_pb2.TurnStart(turn=0))
    found = json.loads(event_to_json(marker))
    assert (found["turn"], found["step"], found["data"]) == (0, None, {"turn": 0})
    assert not event_from_json(event_to_json(outside)).HasField("turn")
    assert event_from_json(event_to_json(marker)).HasField("turn")


def test_words_of_enums_are_those_of_the_documents() -> None:
    words = {enum_text(common.SessionStatus, value) for value in common.SessionStatus.values()}
    assert {"idle", "completed", "error_max_turns", "error_max_budget_usd", "error_doom_loop"} <= words
    assert enum_text(common.TurnEndReason, common.TURN_END_REASON_MAX_TOKENS) == "max-tokens"
    assert enum_text(common.HookPoint, common.HOOK_POINT_PRE_TOOL_CALL) == "pre-tool-call"
    assert enum_text(common.ToolKind, common.TOOL_KIND_DATA_SOURCE) == "data_source"
    assert enum_text(common.ToolKind, 0) == "unspecified"
    assert enum_text(common.ToolKind, 99) == "99"


def test_money_is_exact_and_its_usd_is_derived() -> None:
    usage = event_pb2.Usage(cost_nano_usd=1_234_567_890_123_456_789)
    text = message_to_text(usage)
    assert '"cost_nano_usd": 1234567890123456789, "cost_usd": 1234567890.123456789' in text
    data = message_to_json(usage) | {"cost_usd": 5}
    assert message_from_json(event_pb2.Usage, data) == usage
    assert message_to_json(event_pb2.Usage())["cost_usd"] == 0.0


def test_a_session_has_all_its_names_also_where_they_are_empty() -> None:
    found = message_to_json(sessions_pb2.Session(id="s"))
    names = {"id", "status", "title", "cwd", "profile", "parent", "depth", "turns", "steps", "cost_usd"}
    assert names | {"last_seq", "open_requests", "queued"} <= found.keys()
    assert (found["open_requests"], found["queued"], found["status"]) == ([], [], None)


@pytest.mark.req("LOG-17")
def test_golden_lines_of_every_type_are_read_and_written_the_same() -> None:
    lines = (GOLDEN / "events.jsonl").read_text().splitlines()
    for golden in lines:
        assert event_to_json(event_from_json(golden)) == golden
    types = {json.loads(golden)["type"] for golden in lines}
    fields = event_pb2.Event.DESCRIPTOR.oneofs_by_name["data"].fields
    assert types == {field.name.replace("_", "/", 1) for field in fields}


# --- exactness ----------------------------------------------------------------------------------------------


@pytest.mark.req("LOG-17")
@pytest.mark.parametrize(
    "text",
    [
        "9007199254740993",
        "1.10",
        "-0.0",
        "1e400",
        "1" * 5000,
        '{"b":1,"a":2,"b":3}',
        r'"\ud800"',
        r'"\u00e9 \/ \n"',
        "null",
        '{"session": "not me"}',
        "[" * 200 + "]" * 200,
    ],
)
def test_json_bytes_stand_in_the_line_as_they_are(text: str) -> None:
    event = tool_call(input=text.encode())
    found = event_to_json(event)
    assert f'"input": {text}' in found
    assert event_from_json(found) == event


@pytest.mark.parametrize("data", ['{\n  "a":\r\n 1\n}\n', '{"a": "x\u2028y\u2029z\x85"}'])
def test_an_event_is_one_line_for_every_reader(data: str) -> None:
    event = tool_call(input=data.encode(), raw_arguments="\n\u2028\x85\x1c\x0b")
    found = event_to_json(event)
    assert len(found.splitlines()) == 1
    read = event_from_json(found).tool_call
    assert json.loads(read.input) == json.loads(data)
    assert read.raw_arguments == event.tool_call.raw_arguments


@pytest.mark.req("LOG-17")
@pytest.mark.parametrize(
    "data",
    [
        b"NaN",
        b"{'a': 1}",
        b"\xff\xfe",
        b"\xed\xa0\x80",
        b"01",
        b"1 2",
        b"[" * 201 + b"]" * 201,
        b"[" * 100_000,
        b"\x00",
    ],
)
def test_bytes_that_should_be_json_and_are_not_survive_beside_it(data: bytes) -> None:
    event = tool_call(input=data)
    found = event_to_json(event)
    assert "input" not in json.loads(found)["data"]
    assert event_from_json(found) == event


def test_what_json_cannot_say_survives_beside_it() -> None:
    event = event_pb2.Event(session="s", seq=1, tool_progress=event_pb2.ToolProgress(fraction=float("inf")))
    event.time.seconds = 10**12
    found = event_to_json(event)
    assert "Infinity" not in found
    assert json.loads(found)["time"] is None
    assert event_from_json(found) == event


@pytest.mark.parametrize(
    ("seconds", "nanos"),
    [(0, 0), (-1, 5), (-62135596800, 0), (253402300799, 999_999_999), (1, 123_456_000)],
)
def test_times_keep_their_digits(seconds: int, nanos: int) -> None:
    event = event_pb2.Event(session="s", seq=1, note=event_pb2.Note())
    event.time.seconds, event.time.nanos = seconds, nanos
    assert json.loads(event_to_json(event))["time"] is not None
    assert event_from_json(event_to_json(event)) == event


# --- what is refused ----------------------------------------------------------------------------------------

DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ("", ""),
        ("[]", ""),
        ('{"session": "s", "seq": 1', ""),
        (line("{}") + " {}", ""),
        (line('{"data": NaN}'), ""),
        (line('{"data": -Infinity}'), ""),
        (line(DEEP), ""),
        (line("{}", type=""), "type"),
        (line("{}", session=""), "session"),
        (line("{}", seq=""), "seq"),
        (line("{}", type="4"), "type"),
        (line(""), "data"),
        (line("[]"), "data"),
        (line("{}", seq='"1"'), "seq"),
        (line("{}", seq="-1"), "seq"),
        (line("{}", seq="18446744073709551616"), "seq"),
        (line("{}", seq="1.0"), "seq"),
        (line("{}", seq="true"), "seq"),
        (line("{}", session="5"), "session"),
        (line("{}", time='"yesterday"'), "time"),
        (line("{}", time='"2026-13-01T00:00:00Z"'), "time"),
        (line("{}", time="5"), "time"),
        ('{"seq": 1, ' + line("{}")[1:], "seq"),
        (line("{}", unknown='"!"'), "unknown"),
        (line("{}", unknown='"/w=="'), "unknown"),
        (line('{"text": 3}'), "data.text"),
        (line('{"text": "\\ud800"}'), "data.text"),
        (line('{"text": "\ud800"}'), ""),
        (line('{"reason": "done"}', "turn/end"), "data.reason"),
        (line('{"reason": true}', "turn/end"), "data.reason"),
        (line('{"items": {}}', "plan/ready"), "data.items"),
        (line('{"items": [{}, {"risk": "dire"}]}', "plan/ready"), "data.items[1].risk"),
        (line('{"environment": {"A": 1}}', "session/created"), "data.environment.A"),
        (line('{"environment": []}', "session/created"), "data.environment"),
        (line('{"message_ids": [1]}', "inbox/taken"), "data.message_ids[0]"),
    ],
)
def test_a_wrong_line_is_refused_by_the_name_of_the_field(wrong: str, field: str) -> None:
    with pytest.raises(JsonFormError) as caught:
        event_from_json(wrong)
    assert caught.value.field == field
    assert field in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, "\ud800", 5])
def test_a_message_of_what_json_cannot_say_is_refused(value: object) -> None:
    with pytest.raises(JsonFormError):
        message_from_json(event_pb2.Note, {"text": value})


def test_a_message_is_refused_by_the_path_of_the_value() -> None:
    with pytest.raises(JsonFormError, match=r"item\.risk"):
        message_from_json(event_pb2.ApprovalRequest, {"item": {"risk": []}})


@pytest.mark.req("LOG-07")
def test_old_names_are_read_and_never_written() -> None:
    old = line('{"turn": 0, "stepSeq": 3}', "step/end", turn="0", stepSeq="3")
    event = event_from_json(old)
    assert (event.step, event.step_end.step) == (3, 3)
    assert "stepSeq" not in event_to_json(event)
    ended = event_from_json(line('{"turn": 0, "reason": "finished"}', "turn/end"))
    assert ended.turn_end.reason == common.TURN_END_REASON_COMPLETED
    assert '"completed"' in event_to_json(ended)
    assert "finished" not in event_to_json(ended)


# --- any event ----------------------------------------------------------------------------------------------

numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
json_texts = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
).map(lambda value: json.dumps(value).encode())

not_json = st.binary(max_size=4).map(lambda data: b"\xff" + data)


def scalars(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            return st.text(max_size=8)
        case FieldDescriptor.TYPE_BYTES:
            is_json = field.GetOptions().Extensions[options_pb2.json]
            return json_texts | not_json if is_json else st.binary(max_size=8)
        case FieldDescriptor.TYPE_BOOL:
            return st.booleans()
        case FieldDescriptor.TYPE_ENUM:
            assert field.enum_type is not None
            return st.sampled_from([*(value.number for value in field.enum_type.values), 77])
        case FieldDescriptor.TYPE_DOUBLE:
            return st.floats(allow_nan=False)
        case FieldDescriptor.TYPE_UINT32:
            return st.integers(0, 2**32 - 1)
        case FieldDescriptor.TYPE_UINT64:
            return st.integers(0, 2**64 - 1)
        case other:
            raise AssertionError(f"{field.full_name}: no values for type {other}")


def fill(draw: st.DrawFn, message: Any, depth: int = 0) -> None:
    """Sets some fields of the message."""
    descriptor: Descriptor = message.DESCRIPTOR
    if descriptor.full_name == "google.protobuf.Timestamp":
        message.FromMicroseconds(draw(st.integers(-(10**16), 10**17)))
        return
    fields = [field for field in descriptor.fields if depth < 4 or field.message_type is None]
    if not fields:
        return
    for field in draw(st.lists(st.sampled_from(fields), max_size=4, unique_by=lambda f: f.name)):
        target = getattr(message, field.name)
        if field.message_type is None and field.is_repeated:
            target.extend(draw(st.lists(scalars(field), max_size=2)))
        elif field.message_type is None:
            setattr(message, field.name, draw(scalars(field)))
        elif field.message_type.GetOptions().map_entry:
            target.update(draw(st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2)))
        else:
            for item in [target.add(), target.add()] if field.is_repeated else [target]:
                item.SetInParent()
                fill(draw, item, depth + 1)


@st.composite
def events(draw: st.DrawFn) -> event_pb2.Event:
    event = event_pb2.Event()
    fill(draw, event)
    return event


@pytest.mark.req("LOG-17")
@settings(max_examples=60, deadline=None)
@given(events())
def test_every_event_comes_back_from_its_line(event: event_pb2.Event) -> None:
    found = event_to_json(event)
    assert len(found.splitlines()) == 1
    assert event_from_json(found) == event
