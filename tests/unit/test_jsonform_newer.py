"""What a newer version wrote survives this one, as bytes and as JSON (LOG-18)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2, options_pb2
from turnd.v1.jsonform import event_from_json, event_to_json

pytestmark = pytest.mark.req("LOG-18")

ADDED = {
    "added": FieldDescriptor.TYPE_STRING,
    "added_fixed": FieldDescriptor.TYPE_DOUBLE,
    "added_float": FieldDescriptor.TYPE_FLOAT,
    "added_count": FieldDescriptor.TYPE_INT64,
}


def newer_event() -> type[Message]:
    """The Event of a later version: more fields at several levels, and one more type."""
    pool = descriptor_pool.DescriptorPool()
    for known in ("google/protobuf/descriptor.proto", "google/protobuf/timestamp.proto"):
        file = descriptor_pb2.FileDescriptorProto()
        descriptor_pool.Default().FindFileByName(known).CopyToProto(file)
        pool.Add(file)
    for module in (options_pb2, common, event_pb2):
        file = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        for message in file.message_type:
            if message.name in {"Event", "ToolCall", "TextBlock"}:
                add_fields(message)
            if message.name == "Event":
                add_type(message)
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("turnd.v1.Event"))


def add_fields(message: descriptor_pb2.DescriptorProto) -> None:
    for number, (name, kind) in enumerate(ADDED.items(), 900):
        field = message.field.add(name=name, number=number)
        field.type = kind  # type: ignore[assignment]  # the same numbers
        field.label = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL


def add_type(message: descriptor_pb2.DescriptorProto) -> None:
    field = message.field.add(name="moon_phase", number=950, type_name=".turnd.v1.Note")
    field.type = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
    field.label = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
    field.oneof_index = [oneof.name for oneof in message.oneof_decl].index("data")


def set_added(message: Any) -> None:
    message.added = "höher"
    message.added_fixed = 1.5
    message.added_float = -2.5
    message.added_count = -1


def test_fields_survive_at_every_level() -> None:
    newer = newer_event()
    event: Any = newer(session="s", seq=1)
    set_added(event)
    set_added(event.assistant_message.blocks.add().text)
    event.assistant_message.blocks.add().text.text = "plain"
    old = event_pb2.Event.FromString(event.SerializeToString())
    line = event_to_json(old)
    assert json.loads(line)["data"]["blocks"][1] == {"text": {"text": "plain", "cleaned": False}}
    assert newer.FromString(event_from_json(line).SerializeToString()) == event
    assert event_to_json(event_from_json(line)) == line


def test_fields_survive_beside_json_that_is_none() -> None:
    newer = newer_event()
    event: Any = newer(session="s", seq=1)
    event.tool_call.input = b"not JSON"
    set_added(event.tool_call)
    line = event_to_json(event_pb2.Event.FromString(event.SerializeToString()))
    assert newer.FromString(event_from_json(line).SerializeToString()) == event


def test_a_group_survives() -> None:
    group = b"\xc3\x3e\x08\x01\x12\x01a\xc4\x3e"
    event = event_pb2.Event.FromString(b"\x0a\x01s" + group)
    assert event_from_json(event_to_json(event)).SerializeToString() == event.SerializeToString()


def test_a_type_survives() -> None:
    newer = newer_event()
    event: Any = newer(session="s", seq=1, turn=0)
    event.moon_phase.text = "waxing"
    line = event_to_json(event_pb2.Event.FromString(event.SerializeToString()))
    assert json.loads(line)["type"] == "unknown"
    assert newer.FromString(event_from_json(line).SerializeToString()) == event


def test_the_json_of_a_newer_type_survives_storing_it() -> None:
    line = (
        '{"session": "s", "seq": 1, "time": null, "turn": null, "step": null, "type": "moon/phase", '
        '"data": {"light": 1.10, "data": {"n": 9007199254740993}}, "tide": ["\\ud800"]}'
    )
    event = event_from_json(line)
    assert event.WhichOneof("data") is None
    stored = event_pb2.Event.FromString(event.SerializeToString())
    assert event_to_json(stored) == line


def test_members_of_a_newer_json_survive_beside_known_ones() -> None:
    line = '{"session": "s", "seq": 1, "type": "note", "data": {"colour": {"r": 1.0}, "text": "a", "no\\tte": null}}'
    found = event_to_json(event_from_json(line))
    assert '"colour": {"r": 1.0}' in found
    assert json.loads(found)["data"] == {
        "call_id": "",
        "provider": "",
        "text": "a",
        "colour": {"r": 1.0},
        "no\tte": None,
    }
    assert event_to_json(event_from_json(found)) == found


@pytest.mark.parametrize("content", [b"[1]", b"\xff", b"{"])
def test_what_only_looks_like_members_of_json_is_kept_as_bytes(content: bytes) -> None:
    """The highest field number is used by the JSON form; another writer may have used it otherwise."""
    field = b"\xfa\xff\xff\xff\x0f" + bytes([len(content)]) + content
    event = event_pb2.Event.FromString(b"\x0a\x01s" + field)
    line = event_to_json(event)
    assert json.loads(line)["unknown"]
    assert event_from_json(line) == event
