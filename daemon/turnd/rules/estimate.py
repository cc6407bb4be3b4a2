"""How many tokens a text may be, where there is no tokenizer: one estimate for everything that counts
context.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from turnd.v1 import common_pb2 as common

BYTES_PER_TOKEN: Final = 4
TOKENS_OF_MESSAGE: Final = 4
"""What role and separators of a message come to."""
TOKENS_OF_IMAGE: Final = 1600
"""An image is paid for by its size in pixels, which vendors scale down to about this; its bytes say
nothing.
"""


def tokens(data: str | bytes) -> int:
    """ceil(UTF-8 bytes / 4)."""
    return tokens_of_bytes(len(data.encode("utf-8", "surrogatepass")) if isinstance(data, str) else len(data))


def tokens_of_bytes(size: int) -> int:
    """The same for a text of which only the size is known."""
    return -(-size // BYTES_PER_TOKEN)


def block_tokens(block: common.ContentBlock) -> int:
    """The estimate of one content block."""
    match block.WhichOneof("block"):
        case "text":
            return tokens(block.text.text)
        case "thinking":
            return tokens(block.thinking.thinking) + tokens(block.thinking.signature)
        case "redacted_thinking":
            return tokens(block.redacted_thinking.data)
        case "tool_use":
            use = block.tool_use
            return tokens(use.wire_name) + tokens(use.input or use.raw_arguments)
        case "tool_result":
            return tokens(block.tool_result.content)
        case "image":
            return TOKENS_OF_IMAGE
        case "document":
            return tokens(block.document.title) + tokens(block.document.data)
        case None:
            return 0


def message_tokens(blocks: Iterable[common.ContentBlock]) -> int:
    """The estimate of one message."""
    return TOKENS_OF_MESSAGE + sum(block_tokens(block) for block in blocks)


def request_tokens(
    system: str,
    messages: Iterable[int],
    tools: Iterable[tuple[str, str, bytes]],
) -> int:
    """The estimate of a whole request; `messages` are the estimates of its messages, `tools` are wire name,
    description and input schema."""
    offered = sum(tokens(name) + tokens(text) + tokens(schema) for name, text, schema in tools)
    return tokens(system) + offered + sum(messages)
