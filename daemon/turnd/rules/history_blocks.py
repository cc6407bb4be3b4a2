"""Content blocks as the model is sent them: what vendors refuse is left out or put right (MODEL-06)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

Blocks: TypeAlias = tuple[common.ContentBlock, ...]

CANCELLED_NOTE: Final = (
    "[The former task was cancelled before it was finished. Do not go on with it unless you are asked to.]"
)
CUT_OFF: Final = "[cut off here: the answer was interrupted]"
OPENING: Final = "[What came before is not shown.]"
PLAN_MODE_ON: Final = (
    "[Plan mode is on: tools that change anything are not offered. Look, and say what you would do.]"
)
PLAN_MODE_OFF: Final = "[Plan mode is off: tools that change things are offered again.]"
PRUNED: Final = "The result of this call ({size} bytes) was left out to save room. "
PRUNED_AGAIN: Final = "Call the tool again if it is still needed."
PRUNED_KEPT: Final = 'Its whole output is kept: read_output with call_id "{call_id}" shows it.'
CORRECTED: Final = "A person changed the input of this call before it ran; this is what ran, and its result."


def text(words: str) -> common.ContentBlock:
    """A text block."""
    return common.ContentBlock(text=common.TextBlock(text=words))


def user(blocks: Iterable[common.ContentBlock]) -> Blocks:
    """What a person may say: text that is not blank, images, documents."""
    return tuple(block for block in blocks if _says_something(block, _OF_USER))


def assistant(blocks: Iterable[common.ContentBlock], show: Callable[[str], str]) -> Blocks:
    """What a model said. `show` gives the id that a call is shown with.

    A message that ends in thinking is refused by vendors: what was only thought when the answer was cut goes.
    """
    said = [block for block in blocks if _says_something(block, _OF_ASSISTANT)]
    while said and said[-1].WhichOneof("block") in _THOUGHTS:
        said.pop()
    return tuple(_tool_use(block, show) if block.HasField("tool_use") else block for block in said)


def partial(texts: Iterable[str]) -> Blocks:
    """The text of a stream that was cut, marked; nothing where there was none.

    Thoughts are left out: vendors take none without the signature that comes at its end.
    """
    said = tuple(text(words) for words in texts if words.strip())
    return (*said, text(CUT_OFF)) if said else ()


def result(shown_id: str, result: event_pb2.ToolResult, ran_with: bytes) -> common.ContentBlock:
    """The result of a call; `ran_with` is the effective input, shown where a person had changed it."""
    content = result.content or _words(_category(result) if result.is_error else "")
    if result.input_corrected:
        content = b'{"note":%b,"input":%b,"result":%b}' % (_words(CORRECTED), ran_with or b"null", content)
    return _result_block(shown_id, content, is_error=result.is_error)


def missing_result(shown_id: str, *, started: bool) -> common.ContentBlock:
    """What stands for the result of a call that has none in the log."""
    words = "no result: outcome unknown, check before repeating" if started else "no result: not started"
    return _result_block(shown_id, _words(words), is_error=True)


def pruned(block: common.ContentBlock, kept_as: str) -> common.ContentBlock:
    """What stands for a result that was left out: what it was, and how to see it again.

    `kept_as` is the call's own id where its whole output is kept apart; empty where it is not.
    """
    result = block.tool_result
    again = PRUNED_KEPT.format(call_id=kept_as) if kept_as else PRUNED_AGAIN
    told = f"[{PRUNED.format(size=len(result.content))}{again}]"
    return _result_block(result.call_id, _words(told), is_error=result.is_error)


_THOUGHTS: Final = frozenset(("thinking", "redacted_thinking"))
_OF_USER: Final = frozenset(("text", "image", "document"))
_OF_ASSISTANT: Final = frozenset(("text", "tool_use")) | _THOUGHTS


def _says_something(block: common.ContentBlock, lawful: frozenset[str]) -> bool:
    kind = block.WhichOneof("block")
    return kind in lawful and (kind != "text" or bool(block.text.text.strip()))


def _tool_use(block: common.ContentBlock, show: Callable[[str], str]) -> common.ContentBlock:
    """Vendors take an object as input, nothing else; what the model wrote stays in raw_arguments."""
    use = block.tool_use
    shown = show(use.call_id)
    if shown == use.call_id and _is_object(use.input):
        return block
    copy = common.ToolUseBlock()
    copy.CopyFrom(use)
    copy.call_id = shown
    if not _is_object(use.input):
        copy.raw_arguments = use.raw_arguments or use.input.decode(errors="replace")
        copy.input = b"{}"
    return common.ContentBlock(tool_use=copy)


def _is_object(input_json: bytes) -> bool:
    try:
        return isinstance(json.loads(input_json), dict)
    except (ValueError, RecursionError):
        return False


def _result_block(shown_id: str, content: bytes, *, is_error: bool) -> common.ContentBlock:
    block = common.ToolResultBlock(call_id=shown_id, is_error=is_error, content=content)
    return common.ContentBlock(tool_result=block)


def _category(result: event_pb2.ToolResult) -> str:
    if result.category not in common.ToolErrorCategory.values():
        return "error"
    name = common.ToolErrorCategory.Name(result.category)
    return name.removeprefix("TOOL_ERROR_CATEGORY_").lower().replace("_", " ")


def _words(words: str) -> bytes:
    return json.dumps(words, ensure_ascii=False).encode()
