"""Playing a transcript: deltas, rows, failures, and what a line expects of its request."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.models_fakes import (
    VirtualClock,
    assembled,
    failure_of,
    received,
    request,
    text_block,
    tool_result,
    tool_use,
    user,
    wire_tool,
)

from turnd.models.replay import ReplayModel
from turnd.models.transcript_reader import parse_transcript
from turnd.ports import (
    Message,
    ModelRequest,
    Stop,
    TextDelta,
    ThinkingDelta,
    ThinkingSignature,
    ToolCallDelta,
    ToolCallDone,
    ToolCallStart,
    UsageReport,
)
from turnd.v1 import common_pb2 as common

READ = wire_tool("workspace.read_file", "read_file")
WRITE = wire_tool("workspace.write_file", "write_file")


def model(*lines: object, clock: VirtualClock | None = None) -> ReplayModel:
    transcript = parse_transcript("\n".join(json.dumps(line) for line in lines).encode())
    return ReplayModel("/t.jsonl", transcript, clock or VirtualClock())


async def said(replay: ReplayModel, asked: ModelRequest) -> str:
    events, error = await received(replay.stream(asked))
    assert error is None, error
    return "".join(event.text for event in events if isinstance(event, TextDelta))


async def test_blocks_arrive_in_order_whole_and_end_with_usage_and_stop() -> None:
    replay = model(
        {
            "stream": [
                {"thinking": "let me see", "signature": "c2ln"},
                {"text": "I will look."},
                {"tool": "read_file", "input": {"path": "a.txt"}},
                {"tool": "workspace.write_file", "input": {}, "id": "call_x"},
            ],
            "usage": {"input_tokens": 100, "output_tokens": 20},
        }
    )
    events, error = await received(replay.stream(request(tools=[READ, WRITE], number=0)))
    assert error is None
    assert events == [
        ThinkingDelta("let me see"),
        ThinkingSignature(b"c2ln"),
        TextDelta("I will look."),
        ToolCallStart(2, "replay_0_2", "read_file"),
        ToolCallDelta(2, '{"path":"a.txt"}'),
        ToolCallDone(2),
        ToolCallStart(3, "call_x", "write_file"),
        ToolCallDelta(3, "{}"),
        ToolCallDone(3),
        UsageReport(common.TokenCounts(input_tokens=100, output_tokens=20)),
        Stop(common.STOP_REASON_TOOL_USE),
    ]


async def test_no_usage_is_no_report() -> None:
    events, _ = await received(model({"stream": [{"text": "a"}]}).stream(request()))
    assert events == [TextDelta("a"), Stop(common.STOP_REASON_END_TURN)]


async def test_an_empty_answer_can_be_played() -> None:
    events, error = await received(model({"stream": []}).stream(request()))
    assert (events, error) == ([Stop(common.STOP_REASON_END_TURN)], None)


async def test_chunks_and_delays() -> None:
    clock = VirtualClock()
    replay = model(
        {
            "stream": [{"text": "abcde"}, {"tool": "t", "arguments": "{}"}, {"text": ""}],
            "chunk": 2,
            "delay_s": 0.5,
            "hang_s": 60,
        },
        clock=clock,
    )
    events, _ = await received(replay.stream(request()))
    assert events == [
        TextDelta("ab"),
        TextDelta("cd"),
        TextDelta("e"),
        ToolCallStart(1, "replay_0_1", "t"),
        ToolCallDelta(1, "{}"),
        ToolCallDone(1),
        TextDelta(""),
        Stop(common.STOP_REASON_TOOL_USE),
    ]
    assert clock.slept == [0.5] * 5 + [60]


@pytest.mark.req("MODEL-02")
@given(
    chunk=st.integers(1, 12),
    texts=st.lists(st.text(max_size=20), min_size=1, max_size=4),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=6,
    ),
)
async def test_any_chunking_of_a_line_makes_the_same_message(
    chunk: int, texts: list[str], value: object
) -> None:
    stream = [
        *({"thinking": text, "signature": "s"} if i % 2 else {"text": text} for i, text in enumerate(texts)),
        {"tool": "t", "input": {"v": value}},
        {"tool": "t", "arguments": json.dumps(value)[:-1]},
        {"text": "after"},
    ]
    whole, _ = await received(model({"stream": stream}).stream(request()))
    pieces, _ = await received(model({"stream": stream, "chunk": chunk}).stream(request()))
    assert assembled(pieces) == assembled(whole)


async def test_the_number_of_the_request_picks_the_line() -> None:
    replay = model({"stream": [{"text": "one"}]}, {"stream": [{"text": "two"}]})
    assert await said(replay, request(number=1)) == "two"
    assert await said(replay, request(number=0)) == "one"
    restarted = model({"stream": [{"text": "one"}]}, {"stream": [{"text": "two"}]})
    assert await said(restarted, request(number=1)) == "two"


async def test_a_transcript_that_is_used_up_says_so() -> None:
    replay = model({"stream": [{"text": "one"}]})
    error = await failure_of(replay.stream(request(number=1)))
    assert error.category == common.MODEL_ERROR_CATEGORY_INVALID_REQUEST
    assert error.message == (
        "/t.jsonl is used up: it has 1 line for step requests, and this is request 2; add a line, or "
        '"repeat": true to the last'
    )


async def test_a_line_that_repeats_is_never_used_up() -> None:
    replay = model({"stream": [{"text": "one"}]}, {"stream": [{"text": "again"}], "repeat": True})
    assert [await said(replay, request(number=n)) for n in (0, 1, 2, 500)] == [
        "one",
        "again",
        "again",
        "again",
    ]


async def test_sub_agents_have_lines_of_their_own() -> None:
    replay = model(
        {"stream": [{"text": "main"}]},
        {"stream": [{"text": "explorer"}], "profile": "explore"},
    )
    assert await said(replay, request(profile="explore", depth=0)) == "main"
    assert await said(replay, request(profile="explore", depth=1)) == "explorer"
    error = await failure_of(replay.stream(request(profile="default", depth=1)))
    assert error.message == "/t.jsonl has no line for step requests of sub-agents with profile 'default'"


async def test_other_purposes_have_lines_of_their_own() -> None:
    replay = model({"stream": [{"text": "step"}]}, {"stream": [{"text": "sum"}], "purpose": "compaction"})
    assert await said(replay, request(purpose=common.REQUEST_PURPOSE_COMPACTION)) == "sum"
    assert await said(replay, request()) == "step"
    error = await failure_of(replay.stream(request(purpose=common.REQUEST_PURPOSE_TITLE)))
    assert error.message == "/t.jsonl has no line for title requests"


@pytest.mark.parametrize("after", range(7))
async def test_a_failure_comes_right_after_its_delta(after: int) -> None:
    replay = model(
        {
            "stream": [{"text": "abcd"}, {"tool": "t", "arguments": "{}  "}],
            "chunk": 2,
            "error": {"category": "overloaded", "retry_after_s": 2, "after_deltas": after},
        }
    )
    events, error = await received(replay.stream(request()))
    assert error == common.ModelError(
        category=common.MODEL_ERROR_CATEGORY_OVERLOADED,
        message="the transcript says overloaded",
        retry_after_ms=2000,
    )
    deltas = [event for event in events if isinstance(event, TextDelta | ToolCallDelta)]
    assert len(deltas) == min(after, 4)
    # After the last delta of the call its end is not sent: the call is not whole. Beyond, everything is.
    assert (ToolCallDone(1) in events) == (after > 4)
    assert not any(isinstance(event, Stop) for event in events)
    assert bool(events) == (after > 0)


async def test_a_failed_request_that_was_billed_reports_its_usage() -> None:
    replay = model(
        {
            "stream": [{"text": "part"}],
            "usage": {"input_tokens": 7, "output_tokens": 1},
            "error": {"category": "stream_broken", "message": "cut", "after_deltas": 1},
        }
    )
    events, error = await received(replay.stream(request()))
    assert events == [
        TextDelta("part"),
        UsageReport(common.TokenCounts(input_tokens=7, output_tokens=1)),
    ]
    assert error is not None
    assert error.message == "cut"


async def test_tools_go_by_the_name_that_the_request_gave_them() -> None:
    replay = model(
        {"stream": [{"tool": "search", "input": {}}]},
        {"stream": [{"tool": "web.search", "input": {}}]},
        {"stream": [{"tool": "files.search", "input": {}}]},
        {"stream": [{"tool": "nowhere", "input": {}}]},
        {"stream": [{"tool": "mail.send", "input": {}}]},
        {"stream": [{"tool": "other.files_search", "input": {}}]},
    )
    tools = [wire_tool("web.search", "web_search"), wire_tool("files.search", "files_search")]

    async def name(number: int) -> str:
        events, _ = await received(replay.stream(request(number=number, tools=tools)))
        return next(event.wire_name for event in events if isinstance(event, ToolCallStart))

    error = await failure_of(replay.stream(request(number=0, tools=tools)))
    assert error.category == common.MODEL_ERROR_CATEGORY_INVALID_REQUEST
    assert "line 1: tool 'search' may be any of web.search, files.search" in error.message
    assert await name(1) == "web_search"
    assert await name(2) == "files_search"
    assert await name(3) == "nowhere"
    assert await name(4) == "send"
    # The plain name would be the wire name of a tool that was not meant.
    assert await name(5) == "other.files_search"


def expecting(expect: dict[str, object]) -> ReplayModel:
    return model({"stream": [{"text": "fine"}], "expect": expect})


HISTORY = (
    user("fix the test"),
    Message(role="assistant", blocks=(text_block("looking"), tool_use("c1", "read_file", {"path": "a"}))),
    Message(role="user", blocks=(tool_result("c1", {"text": 'say "hello"\nworld'}),)),
)


@pytest.mark.parametrize(
    "expect",
    [
        {"tools": True},
        {"tools_include": ["read_file", "workspace.write_file"]},
        {"tools_exclude": ["run_command"]},
        {"last_contains": 'say "hello"\nworld'},
        {"last_contains": '{"text": "say'},
        {"messages": 3},
        {"tools": True, "messages": 3, "last_contains": "hello", "tools_include": ["read_file"]},
    ],
)
async def test_a_request_as_expected_is_answered(expect: dict[str, object]) -> None:
    assert await said(expecting(expect), request(*HISTORY, tools=[READ, WRITE])) == "fine"


@pytest.mark.parametrize(
    ("expect", "says"),
    [
        ({"tools": False}, "expect.tools: expected no tools, found tools ['workspace.read_file', "),
        (
            {"tools_include": ["read_file", "grep"]},
            "expect.tools_include: expected ['grep'] among the offered tools, found ['workspace.read_file', "
            "'workspace.write_file']",
        ),
        (
            {"tools_exclude": ["workspace.read_file"]},
            "expect.tools_exclude: expected no ['workspace.read_file'] among the offered tools, found",
        ),
        ({"messages": 2}, "expect.messages: expected 2, found 3"),
        (
            {"last_contains": "fix the test"},
            "expect.last_contains: expected 'fix the test' in the last message, found",
        ),
    ],
)
async def test_a_mismatch_shows_both(expect: dict[str, object], says: str) -> None:
    error = await failure_of(expecting(expect).stream(request(*HISTORY, tools=[READ, WRITE])))
    assert error.category == common.MODEL_ERROR_CATEGORY_INVALID_REQUEST
    assert error.message.startswith("/t.jsonl line 1: the request is not as expected: ")
    assert says in error.message


async def test_all_mismatches_are_told_at_once() -> None:
    error = await failure_of(
        expecting({"messages": 9, "tools": True, "last_contains": "zzz"}).stream(request())
    )
    assert "expect.messages" in error.message
    assert "expect.tools" in error.message
    assert "found 'hello'" in error.message


async def test_withheld_tools_are_not_offered() -> None:
    asked = request(tools=[READ], tools_withheld=True)
    assert await said(expecting({"tools": False, "tools_exclude": ["read_file"]}), asked) == "fine"


async def test_a_result_that_is_nested_deeply_can_still_be_read() -> None:
    nested = "[" * 400 + '"needle"' + "]" * 400
    block = common.ContentBlock(
        tool_result=common.ToolResultBlock(call_id="c", content=f'["esc\\u0061ped", {nested}]'.encode())
    )
    message = Message(role="user", blocks=(block,))
    assert await said(expecting({"last_contains": "escaped"}), request(message)) == "fine"
    hostile = common.ContentBlock(tool_result=common.ToolResultBlock(call_id="c", content=b"[" * 100_000))
    error = await failure_of(
        expecting({"last_contains": "x"}).stream(request(Message(role="user", blocks=(hostile,))))
    )
    assert len(error.message) < 1000


async def test_closing_the_stream_ends_it() -> None:
    stream = model({"stream": [{"text": "abc"}], "chunk": 1}).stream(request())
    assert await anext(stream) == TextDelta("a")
    await stream.aclose()
    assert await anext(stream, None) is None


def test_the_price_is_the_transcripts() -> None:
    priced = model(
        {"model": {"pricing": {"input_per_mtok": 3, "output_per_mtok": 15, "cache_read_per_mtok": 0.3}}},
        {"stream": []},
    )
    price = priced.price(0, common.TokenCounts())
    assert price is not None
    assert (price.input, price.output, price.cache_read, price.cache_write, price.free) == (
        3_000_000_000,
        15_000_000_000,
        300_000_000,
        3_000_000_000,
        False,
    )
    free = model({"stream": []}).price(0, common.TokenCounts())
    assert free is not None
    assert free.free
