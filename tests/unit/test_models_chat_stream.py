"""Chunks of Chat Completions, in the dialects of many servers, as canonical events."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.models_fakes import assembled

from turnd.models.chat_stream import ChatFormError, ChatStream
from turnd.models.chat_usage import token_counts
from turnd.ports import (
    Stop,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolCallDone,
    ToolCallStart,
    UsageReport,
)
from turnd.v1 import common_pb2 as common


def delta(finish: str | None = None, **values: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": values, "finish_reason": finish}]}


def call(**values: Any) -> dict[str, object]:
    """A delta of one tool call; name and arguments go into its function."""
    function = {key: values.pop(key) for key in ("name", "arguments") if key in values}
    return {**values, "function": function} if function else values


def calls(*items: dict[str, object]) -> dict[str, object]:
    return delta(tool_calls=list(items))


def events(*chunks: object) -> list[StreamEvent]:
    stream = ChatStream()
    out = [event for chunk in chunks for event in stream.feed(chunk)]
    return [*out, *stream.end()]


def made(*chunks: object) -> list[tuple[str, str, str]]:
    """Each call's vendor id, name and arguments, with the stream's end added."""
    message = assembled(events(*chunks, delta("tool_calls")))
    return [(c.vendor_call_id, c.wire_name, c.input.decode() or c.raw_arguments) for c in message.calls]


def test_text_thinking_and_usage_in_a_chunk_without_choices() -> None:
    assert events(
        delta(role="assistant", content=""),
        delta(reasoning_content="hm"),
        delta(content="Hello"),
        delta(content=" there"),
        delta("stop"),
        {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}},
    ) == [
        ThinkingDelta("hm"),
        TextDelta("Hello"),
        TextDelta(" there"),
        UsageReport(common.TokenCounts(input_tokens=10, output_tokens=2)),
        Stop(common.STOP_REASON_END_TURN, "stop"),
    ]


def test_parallel_calls_whose_pieces_alternate() -> None:
    assert events(
        calls(call(index=0, id="a", type="function", name="read", arguments="")),
        calls(call(index=1, id="b", type="function", name="grep", arguments='{"q"')),
        calls(call(index=0, arguments='{"p":'), call(index=1, arguments=":1}")),
        calls(call(index=0, arguments="2}")),
        delta("tool_calls"),
    ) == [
        ToolCallStart(0, "a", "read"),
        ToolCallStart(1, "b", "grep"),
        ToolCallDelta(1, '{"q"'),
        ToolCallDelta(0, '{"p":'),
        ToolCallDelta(1, ":1}"),
        ToolCallDelta(0, "2}"),
        ToolCallDone(0),
        ToolCallDone(1),
        Stop(common.STOP_REASON_TOOL_USE, "tool_calls"),
    ]


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param(
            [
                calls(call(index=0, id="a", name="f", arguments='{"x":1}')),
                calls(call(index=0, id="b", name="g", arguments='{"y":2}')),
            ],
            id="every call has index 0",
        ),
        pytest.param(
            [
                calls(call(index=0, id="a", name="f", arguments='{"x"')),
                calls(call(index=0, arguments=":1}")),
                calls(call(index=0, id="b", name="g", arguments='{"y"')),
                calls(call(index=0, arguments=":2}")),
            ],
            id="every call has index 0, in pieces",
        ),
        pytest.param(
            [
                calls(
                    call(id="a", name="f", arguments='{"x":1}'),
                    call(id="b", name="g", arguments='{"y":2}'),
                )
            ],
            id="no index, whole",
        ),
        pytest.param(
            [
                calls(call(id="a", name="f", arguments='{"x"')),
                calls(call(arguments=":1}")),
                calls(call(id="b", name="g", arguments='{"y"')),
                calls(call(arguments=":2}")),
            ],
            id="no index, in pieces",
        ),
        pytest.param(
            [
                calls(call(index=0, id="a", name="f", arguments='{"x"')),
                calls(call(index=0, id="a", name="f", arguments=":1}")),
                calls(call(index=1, id="b", name="g", arguments='{"y"')),
                calls(call(index=1, id="b", name="g", arguments=":2}")),
            ],
            id="id and name in every piece",
        ),
        pytest.param(
            [
                calls(call(index=0, id="a")),
                calls(call(index=0, arguments='{"x":')),
                calls(call(index=0, name="f")),
                calls(call(index=0, arguments="1}")),
                calls(call(index=1, name="g", arguments='{"y":2}')),
                calls(call(index=1, id="b")),
            ],
            id="the name comes late, and an id later still",
        ),
        pytest.param(
            [
                calls(call(index=0, id="a", name="f", arguments={"x": 1})),
                calls(call(index=1, id="b", name="g", arguments={"y": 2})),
            ],
            id="arguments as an object",
        ),
    ],
)
def test_dialects_of_parallel_calls(chunks: list[object]) -> None:
    found = made(*chunks)
    assert [(name, json.loads(arguments)) for _, name, arguments in found] == [
        ("f", {"x": 1}),
        ("g", {"y": 2}),
    ]
    assert found[0][0] == "a"


def test_calls_without_ids_and_indexes() -> None:
    found = made(
        calls(call(name="f", arguments='{"x":1}'), call(name="f", arguments='{"x":1}')),
        calls(call(name="g", arguments="")),
        calls(call(arguments="{}")),
    )
    assert found == [("", "f", '{"x":1}'), ("", "f", '{"x":1}'), ("", "g", "{}")]


def test_equal_ids_at_different_indexes_are_different_calls() -> None:
    found = made(
        calls(call(index=0, id="call_0", name="f", arguments='{"x":1}')),
        calls(call(index=1, id="call_0", name="f", arguments='{"x":2}')),
    )
    assert found == [("call_0", "f", '{"x":1}'), ("call_0", "f", '{"x":2}')]


def test_equal_ids_without_indexes_are_different_calls() -> None:
    found = made(
        calls(
            call(id="call_0", name="f", arguments='{"x":1}'),
            call(id="call_0", name="f", arguments='{"x":2}'),
            call(id="call_0", name="g", arguments="{}"),
        ),
    )
    assert found == [("call_0", "f", '{"x":1}'), ("call_0", "f", '{"x":2}'), ("call_0", "g", "{}")]


def test_a_repeated_name_without_more_arguments_is_no_other_call() -> None:
    found = made(
        calls(call(index=0, name="f", arguments='{"x":1}')),
        calls(call(index=0, name="f", arguments="")),
    )
    assert found == [("", "f", '{"x":1}')]


@pytest.mark.req("MODEL-02")
@given(
    cuts=st.lists(st.sampled_from([0, 1, 2, 3, 5, 8, 13]), min_size=3, max_size=3),
    text=st.text(max_size=30),
    inputs=st.lists(st.dictionaries(st.text(max_size=3), st.integers(), max_size=3), max_size=3),
)
def test_any_chunking_of_a_stream_makes_the_same_message(
    cuts: list[int], text: str, inputs: list[dict[str, int]]
) -> None:
    def pieces(whole: str, size: int) -> list[str]:
        return [whole[i : i + size] for i in range(0, len(whole), size)] if size else [whole]

    def chunks(sizes: list[int]) -> list[object]:
        out: list[object] = [delta(content=piece) for piece in pieces(text, sizes[0])]
        for index, value in enumerate(inputs):
            out.append(calls(call(index=index, id=f"c{index}", name="f", arguments="")))
            size = sizes[1 + index % 2]
            out.extend(calls(call(index=index, arguments=p)) for p in pieces(json.dumps(value), size))
        return [*out, delta("tool_calls" if inputs else "stop")]

    assert assembled(events(*chunks(cuts))) == assembled(events(*chunks([0, 0, 0])))


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("stop", common.STOP_REASON_END_TURN),
        ("length", common.STOP_REASON_MAX_TOKENS),
        ("tool_calls", common.STOP_REASON_TOOL_USE),
        ("function_call", common.STOP_REASON_TOOL_USE),
        ("content_filter", common.STOP_REASON_CONTENT_FILTERED),
        ("recitation", common.STOP_REASON_UNKNOWN),
    ],
)
def test_finish_reasons(finish: str, reason: common.StopReason.ValueType) -> None:
    assert events(delta(finish, content="a"))[-1] == Stop(reason, finish)


def test_stop_after_a_call_is_tool_use() -> None:
    out = events(calls(call(index=0, id="a", name="f", arguments="{}")), delta("stop"))
    assert out[-1] == Stop(common.STOP_REASON_TOOL_USE, "stop")


def test_a_refusal_is_text_and_says_so() -> None:
    out = events(delta(refusal="I will not."), delta("stop"))
    assert out == [TextDelta("I will not."), Stop(common.STOP_REASON_REFUSAL, "stop")]


def test_reasoning_that_is_sent_under_two_names_counts_once() -> None:
    out = events(delta(reasoning="hm", reasoning_content="hm"), delta(reasoning="ok"), delta("stop"))
    assert out[:-1] == [ThinkingDelta("hm"), ThinkingDelta("ok")]


def test_other_choices_are_nothing() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "no"}, "finish_reason": "stop"}]}
    assert events(other, delta(content="yes"), delta("length")) == [
        TextDelta("yes"),
        Stop(common.STOP_REASON_MAX_TOKENS, "length"),
    ]


def test_it_is_complete_once_finish_and_the_usage_after_it_have_come() -> None:
    stream = ChatStream()
    running = {"prompt_tokens": 1, "completion_tokens": 1}
    list(stream.feed({**delta(content="a"), "usage": running}))
    assert not stream.complete
    list(stream.feed(delta("stop")))
    assert not stream.complete
    list(stream.feed({"choices": [], "usage": None}))
    assert not stream.complete
    list(stream.feed({"choices": [], "usage": running}))
    assert stream.complete


@pytest.mark.req("MODEL-05")
@pytest.mark.parametrize(
    "chunks",
    [
        [],
        [delta(content="half an ans")],
        [calls(call(index=0, id="a", name="f", arguments="{}"))],
        [{"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}],
    ],
)
def test_a_stream_without_a_finish_reason_is_broken(chunks: list[object]) -> None:
    with pytest.raises(ChatFormError, match=f"ended after {len(chunks)} chunks without a finish reason"):
        events(*chunks)


@pytest.mark.parametrize(
    ("chunk", "says"),
    [
        (7, "a chunk must be an object, got int"),
        ({"choices": "x"}, "choices must be a list, got str"),
        ({"choices": [7]}, "a choice must be an object"),
        ({"choices": [{"delta": []}]}, "a delta must be an object"),
        (delta(content=["x"]), "content must be a text, got list"),
        (delta(tool_calls={"index": 0}), "tool_calls must be a list"),
        (calls(call(index=0, id="a", name=7)), "a function's name must be a text"),
        (calls(call(index=0, id="a", name="f", arguments=7)), "arguments must be a text"),
        ({"choices": [{"delta": {}, "finish_reason": 3}]}, "finish_reason must be a text"),
    ],
)
def test_what_is_not_a_chat_completion_is_broken(chunk: object, says: str) -> None:
    with pytest.raises(ChatFormError) as wrong:
        events(chunk, delta("stop"))
    assert says in str(wrong.value)


def test_a_call_that_never_gets_a_name_is_broken() -> None:
    with pytest.raises(ChatFormError, match="a tool call without a name"):
        events(calls(call(index=0, id="a", arguments="{}")), delta("tool_calls"))


@pytest.mark.req("BOUND-05")
@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        ({"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14}, (10, 4, 0, 0, 0)),
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 50,
                "total_tokens": 150,
                "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30},
                "completion_tokens_details": {"reasoning_tokens": 20},
            },
            (10, 30, 60, 30, 20),
        ),
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 50,
                "total_tokens": 170,
                "completion_tokens_details": {"reasoning_tokens": 20},
            },
            (100, 50, 0, 0, 20),
        ),
        (
            {
                "prompt_tokens": 1,
                "completion_tokens": 2,
                "completion_tokens_details": {"reasoning_tokens": 9},
            },
            (1, 2, 0, 0, 9),
        ),
        ({"prompt_tokens": 30, "completion_tokens": 1, "prompt_cache_hit_tokens": 20}, (10, 1, 20, 0, 0)),
        ({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 40}}, (5, 0, 40, 0, 0)),
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 50,
                "total_tokens": 240,
                "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30},
            },
            (100, 50, 60, 30, 0),
        ),
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 50,
                "total_tokens": 230,
                "prompt_tokens_details": {"cached_tokens": 60},
                "completion_tokens_details": {"reasoning_tokens": 20},
            },
            (100, 50, 60, 0, 20),
        ),
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 50,
                "total_tokens": 150,
                "cache_read_input_tokens": 60,
                "cache_creation_input_tokens": 30,
            },
            (10, 50, 60, 30, 0),
        ),
        (
            {"prompt_tokens": 5, "prompt_tokens_details": None, "completion_tokens_details": None},
            (5, 0, 0, 0, 0),
        ),
        ({"prompt_tokens": -1, "completion_tokens": 3}, (0, 3, 0, 0, 0)),
    ],
)
def test_the_five_counts_do_not_overlap(usage: object, counts: tuple[int, ...]) -> None:
    found = token_counts(usage)
    assert found is not None
    assert (
        found.input_tokens,
        found.output_tokens,
        found.cache_read_tokens,
        found.cache_write_tokens,
        found.reasoning_tokens,
    ) == counts


@pytest.mark.parametrize(
    "usage", [None, {}, [], "x", {"total_tokens": 3}, {"prompt_tokens": "10"}, {"prompt_tokens": 10**12 + 1}]
)
def test_usage_that_counts_nothing_is_none(usage: object) -> None:
    assert token_counts(usage) is None
