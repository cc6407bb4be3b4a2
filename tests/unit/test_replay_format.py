"""The replay format: what it reads, and what it says of what it cannot read."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnd.models.transcript import Completion, Row, TextBlock, ThinkingBlock, ToolBlock, Transcript
from turnd.models.transcript_reader import TranscriptError, parse_transcript
from turnd.rules.price import PriceTier, Pricing
from turnd.v1 import common_pb2 as common

STEPS = Row(common.REQUEST_PURPOSE_STEP, None)

DESIGN_EXAMPLE = """\
{"model": {"context_window": 200000, "max_output_tokens": 8000, "parallel_tool_calls": true, "pricing": \
{"input_per_mtok": 3.0, "output_per_mtok": 15.0}}}
{"stream": [{"text": "I will look."}, {"tool": "read_file", "input": {"path": "a.txt"}}], "usage": \
{"input_tokens": 100, "output_tokens": 20}}
{"stream": [{"text": "It says hello."}], "usage": {"input_tokens": 140, "output_tokens": 8}}
"""


def parsed(*lines: object) -> Transcript:
    return parse_transcript("\n".join(json.dumps(line) for line in lines).encode())


def only(line: object) -> Completion:
    transcript = parsed(line)
    ((completion,),) = transcript.rows.values()
    return completion


def refusal(*lines: str) -> str:
    with pytest.raises(TranscriptError) as refused:
        parse_transcript("\n".join(lines).encode())
    return str(refused.value)


def test_the_example_of_the_format() -> None:
    transcript = parse_transcript(DESIGN_EXAMPLE.encode())
    assert transcript.context_window == 200_000
    assert transcript.max_output_tokens == 8000
    assert transcript.parallel_tool_calls
    assert transcript.pricing == Pricing(
        (PriceTier("flat", 3_000_000_000, 15_000_000_000, 3_000_000_000, 3_000_000_000),)
    )
    first, second = transcript.rows[STEPS]
    assert first.blocks == (
        TextBlock("I will look."),
        ToolBlock("read_file", '{"path":"a.txt"}', None),
    )
    assert first.stop == common.STOP_REASON_TOOL_USE
    assert first.tokens == common.TokenCounts(input_tokens=100, output_tokens=20)
    assert second.stop == common.STOP_REASON_END_TURN
    assert (first.line, second.line) == (2, 3)


def test_without_a_model_line_it_is_free_with_a_window_of_200000() -> None:
    transcript = parsed({"stream": []})
    assert (transcript.context_window, transcript.parallel_tool_calls) == (200_000, True)
    assert transcript.pricing.tiers[0].free
    assert parsed({"model": {"context_window": 1000}}, {"stream": []}).max_output_tokens <= 250
    assert parsed({"model": {"parallel_tool_calls": False}}, {"stream": []}).parallel_tool_calls is False


def test_every_key_of_a_completion() -> None:
    completion = only(
        {
            "stream": [
                {"thinking": "hm", "signature": "c2ln"},
                {"text": "a"},
                {"tool": "workspace.write_file", "arguments": '{"path": "a', "id": "call_7"},
            ],
            "chunk": 3,
            "delay_s": 0.25,
            "usage": {
                "input_tokens": 1,
                "output_tokens": 2,
                "cache_read_tokens": 3,
                "cache_write_tokens": 4,
                "reasoning_tokens": 5,
            },
            "stop": "max_tokens",
            "error": {
                "category": "rate_limited",
                "message": "slow down",
                "retry_after_s": 1.5,
                "after_deltas": 2,
            },
            "hang_s": 600,
            "expect": {
                "tools": True,
                "tools_include": ["a"],
                "tools_exclude": ["b", "c.d"],
                "last_contains": "x",
                "messages": 3,
            },
            "repeat": True,
        }
    )
    assert completion.blocks == (
        ThinkingBlock("hm", b"c2ln"),
        TextBlock("a"),
        ToolBlock("workspace.write_file", '{"path": "a', "call_7"),
    )
    assert (completion.chunk, completion.delay_s, completion.hang_s, completion.repeat) == (
        3,
        0.25,
        600,
        True,
    )
    assert completion.tokens == common.TokenCounts(
        input_tokens=1, output_tokens=2, cache_read_tokens=3, cache_write_tokens=4, reasoning_tokens=5
    )
    assert completion.stop == common.STOP_REASON_MAX_TOKENS
    assert completion.failure is not None
    assert completion.failure.after_deltas == 2
    assert completion.failure.error == common.ModelError(
        category=common.MODEL_ERROR_CATEGORY_RATE_LIMITED, message="slow down", retry_after_ms=1500
    )
    expect = completion.expect
    assert expect is not None
    assert (expect.tools, expect.tools_include, expect.tools_exclude) == (True, ("a",), ("b", "c.d"))
    assert (expect.last_contains, expect.messages) == ("x", 3)


@pytest.mark.parametrize(
    ("written", "reason", "vendor"),
    [
        ("end_turn", common.STOP_REASON_END_TURN, ""),
        ("tool_use", common.STOP_REASON_TOOL_USE, ""),
        ("stop_sequence", common.STOP_REASON_STOP_SEQUENCE, ""),
        ("content_filtered", common.STOP_REASON_CONTENT_FILTERED, ""),
        ("refusal", common.STOP_REASON_REFUSAL, ""),
        ("pause_turn", common.STOP_REASON_UNKNOWN, "pause_turn"),
    ],
)
def test_stop_reasons(written: str, reason: common.StopReason.ValueType, vendor: str) -> None:
    completion = only({"stream": [], "stop": written})
    assert (completion.stop, completion.vendor_stop) == (reason, vendor)


def test_every_error_category_can_be_played() -> None:
    for name, number in common.ModelErrorCategory.items():
        if number == common.MODEL_ERROR_CATEGORY_UNSPECIFIED:
            continue
        written = name.removeprefix("MODEL_ERROR_CATEGORY_").lower()
        completion = only({"error": {"category": written}})
        assert completion.failure is not None
        assert completion.failure.error.category == number
        assert not completion.failure.error.HasField("retry_after_ms")


def test_rows_are_apart() -> None:
    transcript = parsed(
        {"stream": [{"text": "main 1"}]},
        {"stream": [{"text": "child"}], "profile": "explore"},
        {"stream": [{"text": "summary"}], "purpose": "compaction"},
        {"stream": [{"text": "main 2"}]},
        {"stream": [{"text": "child's title"}], "purpose": "title", "profile": "explore"},
    )
    said = {row: [c.blocks[0] for c in lines] for row, lines in transcript.rows.items()}
    assert said == {
        STEPS: [TextBlock("main 1"), TextBlock("main 2")],
        Row(common.REQUEST_PURPOSE_STEP, "explore"): [TextBlock("child")],
        Row(common.REQUEST_PURPOSE_COMPACTION, None): [TextBlock("summary")],
        Row(common.REQUEST_PURPOSE_TITLE, "explore"): [TextBlock("child's title")],
    }


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.integers(0, 20))
def test_the_first_repeating_line_answers_all_that_follow(repeats: list[bool], number: int) -> None:
    transcript = parsed(*({"stream": [], "repeat": repeat} for repeat in repeats))
    picked = transcript.pick(STEPS, number)
    last = repeats.index(True) if True in repeats else len(repeats)
    expected = min(number, last)
    if expected == len(repeats):
        assert picked is None
    else:
        assert picked is not None
        assert picked.line == expected + 1


def test_integers_of_any_size_and_the_order_of_keys_survive() -> None:
    line = '{"stream": [{"tool": "t", "input": {"z": 9007199254740993, "a": [1.5, "é", null]}}]}'
    ((completion,),) = parse_transcript(line.encode()).rows.values()
    assert completion.blocks == (ToolBlock("t", '{"z":9007199254740993,"a":[1.5,"é",null]}', None),)


def test_money_is_exact() -> None:
    def rate(written: str) -> int:
        pricing = '{"input_per_mtok": ' + written + ', "output_per_mtok": 0}'
        line = '{"model": {"pricing": ' + pricing + '}}\n{"stream": []}'
        return parse_transcript(line.encode()).pricing.tiers[0].input

    assert rate("0.1") == 100_000_000
    assert rate("0.000000001") == 1
    assert rate("123456789.123456789") == 123_456_789_123_456_789
    assert rate("3") == 3_000_000_000
    assert "more than nine decimals" in refusal(
        '{"model": {"pricing": {"input_per_mtok": 0.0000000001, "output_per_mtok": 0}}}', '{"stream": []}'
    )


def test_blank_lines_and_a_byte_order_mark_are_nothing() -> None:
    transcript = parse_transcript(
        b'\xef\xbb\xbf\n{"stream": []}\r\n\n{"stream": [{"text": "a\xe2\x80\xa8b"}]}\n'
    )
    assert [completion.line for completion in transcript.rows[STEPS]] == [2, 4]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"stream": [}', "line 1: not valid JSON: Expecting value at column 13"),
        ("[]", "line 1: a line must be an object, got []"),
        ('{"strem": []}', "unknown key 'strem'; did you mean 'stream'?"),
        ('{"stream": [], "zzz": 1}', "unknown key 'zzz'; known are stream, chunk"),
        ("{}", "stream: missing"),
        ('{"chunk": 3}', "stream: missing"),
        ('{"stream": {}}', "stream must be a list, got {}"),
        ('{"stream": [{}]}', "stream[0] must be an object with one of text, thinking or tool"),
        ('{"stream": ["a"]}', "stream[0] must be an object with one of text, thinking or tool"),
        ('{"stream": [{"text": "a"}, {"text": 1}]}', "stream[1]: text must be text, got 1"),
        ('{"stream": [{"text": "a", "id": "x"}]}', "stream[0]: unknown key 'id'"),
        ('{"stream": [{"text": "a", "tool": "b"}]}', "stream[0] must be an object with one of"),
        ('{"stream": [{"tool": "b"}]}', "stream[0]: tool needs either input or arguments"),
        ('{"stream": [{"tool": "b", "input": {}, "arguments": ""}]}', "needs either input or arguments"),
        ('{"stream": [{"tool": "", "input": {}}]}', "stream[0]: tool must be a name"),
        ('{"stream": [{"signature": "x"}]}', "stream[0] must be an object with one of"),
        ('{"stream": [], "chunk": 0}', "chunk must be a whole number from 1, got 0"),
        ('{"stream": [], "chunk": true}', "chunk must be a whole number from 1, got True"),
        ('{"stream": [], "delay_s": -1}', "delay_s must be seconds, 0 or more, got -1"),
        ('{"stream": [], "hang_s": "long"}', "hang_s must be seconds, 0 or more, got 'long'"),
        ('{"stream": [], "delay_s": NaN}', "NaN is no number"),
        ('{"stream": [], "delay_s": 1e999}', "the number 1e999 is too large"),
        ('{"stream": [], "usage": {"input_tokens": 1}}', "usage: output_tokens is missing"),
        ('{"stream": [], "usage": {"input_tokens": -1, "output_tokens": 1}}', "usage: input_tokens must be"),
        (
            '{"stream": [], "usage": {"input_token": 1}}',
            "usage: unknown key 'input_token'; did you mean 'input_tokens'?",
        ),
        ('{"error": {}}', "error: category is missing"),
        ('{"error": {"category": "bad"}}', "error: category must be one of rate_limited, overloaded"),
        ('{"error": "rate_limited"}', "error must be an object"),
        ('{"error": {"category": "overloaded", "after_deltas": 1.5}}', "error: after_deltas must be"),
        ('{"stream": [], "expect": {"tools": "yes"}}', "expect: tools must be true or false, got 'yes'"),
        ('{"stream": [], "expect": {"tools_include": "a"}}', "expect: tools_include must be a list"),
        ('{"stream": [], "expect": {"tools_include": [1]}}', "expect: tools_include must be a list of texts"),
        ('{"stream": [], "expect": {"first": 1}}', "expect: unknown key 'first'"),
        ('{"stream": [], "purpose": "step"}', "purpose must be one of compaction, title, doom_check"),
        ('{"stream": [], "repeat": 1}', "repeat must be true or false, got 1"),
        ('{"stream": [], "profile": 1}', "profile must be text, got 1"),
        ('{"stream": [], "stream": []}', "stream: given twice"),
        ('{"model": {"context": 1}}', "model: unknown key 'context'; did you mean 'context_window'?"),
        ('{"model": {}, "stream": []}', "unknown key 'stream'"),
        (
            '{"model": {"context_window": 10, "max_output_tokens": 20}}',
            "model: max_output_tokens must be at most",
        ),
        ('{"model": {"pricing": 3}}', "model: pricing must be an object, got 3"),
        ('{"model": {"pricing": {"input_per_mtok": 3}}}', "model: pricing: output_per_mtok is missing"),
        ('{"model": {"pricing": {"in": 3}}}', "model: pricing: unknown key 'in'"),
        (
            '{"model": {"pricing": {"tiers": [{"free": true, "name": "a", "until_tokens": 5}]}}}',
            "line 1: model: pricing: gap after price tier 'a'",
        ),
        (
            '{"model": {"pricing": {"tiers": [{"free": true, "name": "a"}, {"free": true, "name": "b"}]}}}',
            "line 1: model: pricing: price tiers 'a' and 'b' overlap",
        ),
        pytest.param("[" * 200_000, "nested too deeply", id="deep"),
        pytest.param("1" * 5000, "not valid JSON", id="long"),
    ],
)
def test_errors_name_line_and_key(line: str, says: str) -> None:
    assert says in refusal(line)
    assert refusal('{"stream": []}', line).startswith("line 2: ")


def test_the_model_comes_first() -> None:
    assert (
        refusal('{"stream": []}', '{"model": {}}')
        == "line 2: model: only the first line may describe the model"
    )


def test_what_is_not_text_is_refused() -> None:
    with pytest.raises(TranscriptError, match="line 2: not valid UTF-8"):
        parse_transcript(b'{"stream": []}\n{"stream": [{"text": "\xff"}]}')


def test_a_file_without_completions_is_refused() -> None:
    assert refusal("") == "there is no completion in it"
    assert refusal('{"model": {}}') == "there is no completion in it"


def test_the_examples_of_the_documentation_can_be_played() -> None:
    page = (Path(__file__).parents[2] / "docs" / "replay.md").read_text(encoding="utf-8")
    examples = re.findall(r"```jsonl?\n(.*?)```", page, re.DOTALL)
    transcripts = [parse_transcript(example.encode()) for example in examples]
    assert [len(completions) for completions in transcripts[0].rows.values()] == [4, 1, 1]
    assert transcripts[2].rows[STEPS][0].failure is not None
    categories = {
        name.lower() for name in re.findall(r"`([a-z_]+)`", page.split("| `category` |")[1].split("|")[0])
    }
    assert categories == {
        name.removeprefix("MODEL_ERROR_CATEGORY_").lower() for name in common.ModelErrorCategory.keys()[1:]
    }
