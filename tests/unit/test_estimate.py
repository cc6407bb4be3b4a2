"""The estimate of tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnd.rules import estimate
from turnd.v1 import common_pb2 as common


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("", 0),
        ("a", 1),
        ("abcd", 1),
        ("abcde", 2),
        ("é", 1),
        ("\N{GRINNING FACE}" * 2, 2),
        ("\ud800", 1),
        (b"12345", 2),
    ],
)
def test_a_quarter_of_the_utf8_bytes_rounded_up(data: str | bytes, expected: int) -> None:
    assert estimate.tokens(data) == expected


@given(st.text(), st.text())
def test_text_and_its_bytes_count_the_same_and_more_text_is_never_less(one: str, more: str) -> None:
    assert estimate.tokens(one) == estimate.tokens(one.encode())
    assert estimate.tokens(one) == estimate.tokens_of_bytes(len(one.encode()))
    assert estimate.tokens(one) <= estimate.tokens(one + more) <= estimate.tokens(one) + estimate.tokens(more)


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (common.ContentBlock(text=common.TextBlock(text="a" * 40)), 10),
        (common.ContentBlock(thinking=common.ThinkingBlock(thinking="a" * 40, signature=b"b" * 8)), 12),
        (common.ContentBlock(redacted_thinking=common.RedactedThinkingBlock(data=b"a" * 40)), 10),
        (common.ContentBlock(tool_use=common.ToolUseBlock(wire_name="read", input=b'{"a":1}')), 3),
        (common.ContentBlock(tool_use=common.ToolUseBlock(wire_name="read", raw_arguments='{"a":')), 3),
        (common.ContentBlock(tool_result=common.ToolResultBlock(content=b'"' + b"a" * 38 + b'"')), 10),
        (common.ContentBlock(document=common.DocumentBlock(title="abcd", data=b"a" * 40)), 11),
        (common.ContentBlock(image=common.ImageBlock(data=b"a" * 10**6)), estimate.TOKENS_OF_IMAGE),
        (common.ContentBlock(), 0),
    ],
    ids=lambda each: each.WhichOneof("block") if isinstance(each, common.ContentBlock) else "",
)
def test_every_kind_of_block_counts(block: common.ContentBlock, expected: int) -> None:
    assert estimate.block_tokens(block) == expected
    assert estimate.message_tokens([block, block]) == 2 * expected + estimate.TOKENS_OF_MESSAGE


def test_a_request_is_its_system_prompt_messages_and_tools() -> None:
    block = common.ContentBlock(text=common.TextBlock(text="a" * 40))
    tools = [("read", "Reads a file.", b'{"type":"object"}')]

    assert (
        estimate.request_tokens("s" * 40, [estimate.message_tokens([block])] * 2, tools)
        == 10 + 2 * 14 + 1 + 4 + 5
    )
