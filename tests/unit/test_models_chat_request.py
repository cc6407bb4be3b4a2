"""Canonical requests as bodies of Chat Completions requests."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.models_fakes import request, text_block, tool_result, tool_use, user, wire_tool

from turnd.models.chat_request import chat_request
from turnd.models.endpoint import CompatibleEndpoint
from turnd.ports import Message, ModelFailure, ModelRequest
from turnd.v1 import common_pb2 as common

PLAIN = CompatibleEndpoint(name="local", base_url="http://127.0.0.1:1/v1", max_output_tokens=4000)
READ = wire_tool("workspace.read_file", schema=b'{"type":"object","properties":{"path":{"type":"string"}}}')


def endpoint(**values: Any) -> CompatibleEndpoint:
    return CompatibleEndpoint(name="local", base_url="http://127.0.0.1:1/v1", **values)


def body(asked: ModelRequest, server: CompatibleEndpoint = PLAIN) -> dict[str, Any]:
    made = chat_request(server, "m", asked)
    json.dumps(made).encode()
    return made


def messages(*history: Message, server: CompatibleEndpoint = PLAIN) -> Any:
    return body(request(*history), server)["messages"]


def refusal(asked: ModelRequest, server: CompatibleEndpoint = PLAIN) -> str:
    with pytest.raises(ModelFailure) as refused:
        chat_request(server, "m", asked)
    assert refused.value.error.category == common.MODEL_ERROR_CATEGORY_INVALID_REQUEST
    return refused.value.error.message


def assistant(*blocks: common.ContentBlock) -> Message:
    return Message(role="assistant", blocks=blocks)


def thinking(text: str) -> common.ContentBlock:
    return common.ContentBlock(thinking=common.ThinkingBlock(thinking=text, signature=b"s"))


def test_a_request_streams_and_asks_for_usage() -> None:
    assert body(request(user("hi"), system="be brief")) == {
        "model": "m",
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_calls_and_their_results_in_order_directly_after() -> None:
    history = (
        user("go"),
        assistant(
            text_block("I read "),
            text_block("both."),
            tool_use("c1", "read_file", {"path": "a"}),
            tool_use("c2", "read_file", {"path": "b"}),
        ),
        Message(
            role="user",
            blocks=(
                text_block("and hurry"),
                tool_result("c1", "text of a\n"),
                tool_result("c2", {"message": "no such file"}, is_error=True),
            ),
        ),
        assistant(text_block("done")),
    )
    assert messages(*history) == [
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": "I read both.",
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "read_file", "arguments": '{"path": "a"}'},
                },
                {
                    "id": "c2",
                    "type": "function",
                    "function": {"name": "read_file", "arguments": '{"path": "b"}'},
                },
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "text of a\n"},
        {"role": "tool", "tool_call_id": "c2", "content": 'Error: {"message": "no such file"}'},
        {"role": "user", "content": "and hurry"},
        {"role": "assistant", "content": "done"},
    ]


def test_a_message_of_calls_alone_has_no_content() -> None:
    (_, said) = messages(user("go"), assistant(tool_use("c1", "t", {})))
    assert said["content"] is None


def test_neighbouring_user_messages_are_one() -> None:
    assert messages(user("one", "two"), user("three"), assistant(text_block("ok")), user("four")) == [
        {"role": "user", "content": "one\n\ntwo\n\nthree"},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": "four"},
    ]


def test_a_longer_history_only_adds() -> None:
    history = [user("go"), assistant(tool_use("c1", "t", {})), Message("user", (tool_result("c1", "r"),))]
    shorter = messages(*history)
    longer = messages(*history, assistant(text_block("ok")), user("more"))
    assert longer[: len(shorter)] == shorter
    assert json.dumps(messages(*history)) == json.dumps(shorter)


@pytest.mark.parametrize(
    ("block", "arguments"),
    [
        (tool_use("c", "t", {"n": 9007199254740993}), '{"n": 9007199254740993}'),
        (tool_use("c", "t", [1]), '{"invalid_arguments": "[1]"}'),
        (tool_use("c", "t", None, raw='{"path": "a'), '{"invalid_arguments": "{\\"path\\": \\"a"}'),
        (common.ContentBlock(tool_use=common.ToolUseBlock(call_id="c", wire_name="t")), "{}"),
    ],
)
def test_arguments_are_always_an_object(block: common.ContentBlock, arguments: str) -> None:
    (said,) = messages(assistant(block))
    sent = said["tool_calls"][0]["function"]["arguments"]
    assert sent == arguments
    assert isinstance(json.loads(sent), dict)


@pytest.mark.parametrize(
    ("name", "sent"),
    [("read_file", "read_file"), ("rm -rf /", "rm_-rf__"), ("x" * 100, "x" * 64), ("", "unknown")],
)
def test_names_that_a_model_invented_are_made_legal(name: str, sent: str) -> None:
    (said,) = messages(assistant(tool_use("c", name, {})))
    assert said["tool_calls"][0]["function"]["name"] == sent


def test_half_characters_in_results_are_replaced() -> None:
    block = common.ContentBlock(
        tool_result=common.ToolResultBlock(call_id="c", content=b'"a\\ud83d b\\ud83d\\ude00 \xff"')
    )
    (sent,) = messages(Message("user", (block,)))
    assert sent["content"] == "a\ufffd b\U0001f600 \ufffd"


def test_thinking_is_sent_only_where_the_server_takes_it() -> None:
    history = (assistant(thinking("hm"), text_block("a")), user("b"), assistant(thinking("only")))
    assert messages(*history) == [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
    kept = messages(*history, server=endpoint(reasoning_field="reasoning_content"))
    assert kept[0] == {"role": "assistant", "content": "a", "reasoning_content": "hm"}


def test_images_and_documents_where_the_server_takes_them() -> None:
    image = common.ContentBlock(image=common.ImageBlock(media_type="image/png", data=b"\x89PNG"))
    document = common.ContentBlock(
        document=common.DocumentBlock(media_type="application/pdf", data=b"%PDF", title="a.pdf")
    )
    history = Message("user", (text_block("what is it?"), image, document))
    (sent,) = messages(history, server=endpoint(vision=True, documents=True))
    assert sent["content"] == [
        {"type": "text", "text": "what is it?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="}},
    ]
    assert "takes no images" in refusal(request(history))
    assert "takes no documents" in refusal(request(history), endpoint(vision=True))


def test_tools_are_functions() -> None:
    made = body(request(tools=[READ, wire_tool("core.stop", schema=b"")]))
    assert made["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "read_file",
                "description": "the tool read_file",
                "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
            },
        },
        {
            "type": "function",
            "function": {
                "name": "stop",
                "description": "the tool stop",
                "parameters": {"type": "object", "properties": {}},
            },
        },
    ]
    assert "tool_choice" not in made
    assert "parallel_tool_calls" not in made


def test_withheld_tools_are_sent_with_tool_choice_none_or_not_at_all() -> None:
    asked = request(tools=[READ], tools_withheld=True, parameters={"tool_choice": "required"})
    assert body(asked)["tool_choice"] == "none"
    without = body(request(tools_withheld=True, parameters={"tool_choice": "required"}))
    assert "tools" not in without
    assert "tool_choice" not in without


def test_a_server_without_parallel_calls_is_told_so() -> None:
    assert body(request(tools=[READ]), endpoint(parallel_tool_calls=False))["parallel_tool_calls"] is False
    assert "parallel_tool_calls" not in body(request(), endpoint(parallel_tool_calls=False))


def test_a_server_without_tools_gets_none() -> None:
    assert "cannot call tools" in refusal(request(tools=[READ]), endpoint(tool_use=False))


def test_parameters() -> None:
    made = body(
        request(parameters={"temperature": 0.2, "max_output_tokens": 100, "thinking": "low"}),
        endpoint(thinking=True, max_tokens_field="max_completion_tokens"),
    )
    assert (made["temperature"], made["max_completion_tokens"], made["reasoning_effort"]) == (0.2, 100, "low")
    assert "max_tokens" not in made
    assert body(request(parameters={"max_output_tokens": 4000}))["max_tokens"] == 4000


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("any", "required"),
        ("read_file", {"type": "function", "function": {"name": "read_file"}}),
        ("workspace.read_file", {"type": "function", "function": {"name": "read_file"}}),
        ({"tool": "read_file"}, {"type": "function", "function": {"name": "read_file"}}),
    ],
)
def test_tool_choice(written: object, sent: object) -> None:
    assert body(request(tools=[READ], parameters={"tool_choice": written}))["tool_choice"] == sent


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"temperature": "hot"}, "temperature must be a number from 0 to 2, got 'hot'"),
        ({"temperature": 3}, "temperature must be a number from 0 to 2, got 3"),
        ({"temperature": float("nan")}, "temperature must be a number from 0 to 2"),
        ({"max_output_tokens": 4001}, "max_output_tokens must be from 1 to the model's 4000, got 4001"),
        ({"max_output_tokens": 0}, "max_output_tokens must be from 1"),
        ({"thinking": "low"}, "does not say that it can think"),
        ({"tool_choice": "write_file"}, "or a tool that is offered, got 'write_file'"),
        ({"top_k": 3}, "parameter 'top_k' is not known"),
    ],
)
def test_parameters_are_checked_before_anything_is_sent(parameters: dict[str, object], says: str) -> None:
    assert says in refusal(request(tools=[READ], parameters=parameters))
