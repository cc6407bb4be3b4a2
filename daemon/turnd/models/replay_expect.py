"""What a transcript's line expects of the request that it answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from turnd.models.transcript import Expectation
from turnd.ports import Message, ModelRequest, WireTool

_SHOWN_CHARACTERS = 500


def mismatches(expect: Expectation, request: ModelRequest) -> list[str]:
    """A text for each expectation that the request does not meet: what was expected, what was found."""
    offered = () if request.tools_withheld else request.tools
    names = [f"{tool.provider}.{tool.tool}" for tool in offered]
    wrong: list[str] = []
    if expect.tools is not None and expect.tools != bool(offered):
        wrong.append(f"expect.tools: expected {_yes(expect.tools)}, found {_yes(bool(offered))} {names}")
    missing = [name for name in expect.tools_include if not any(named(tool, name) for tool in offered)]
    if missing:
        wrong.append(f"expect.tools_include: expected {missing} among the offered tools, found {names}")
    present = [name for name in expect.tools_exclude if any(named(tool, name) for tool in offered)]
    if present:
        wrong.append(f"expect.tools_exclude: expected no {present} among the offered tools, found {names}")
    if expect.messages is not None and expect.messages != len(request.messages):
        wrong.append(f"expect.messages: expected {expect.messages}, found {len(request.messages)}")
    if expect.last_contains is not None:
        texts = list(_texts(request.messages[-1:]))
        if not any(expect.last_contains in text for text in texts):
            found = _cut("\n".join(texts))
            wrong.append(
                f"expect.last_contains: expected {expect.last_contains!r} in the last message, "
                f"found {found!r}"
            )
    return wrong


def named(tool: WireTool, written: str) -> bool:
    """Whether a name in a transcript, plain or provider.tool, means this tool."""
    return written in (tool.tool, f"{tool.provider}.{tool.tool}")


def _texts(messages: Sequence[Message]) -> Iterator[str]:
    """What can be read in messages. Results of tools both as JSON and as the texts that the JSON holds."""
    for message in messages:
        for block in message.blocks:
            match block.WhichOneof("block"):
                case "text":
                    yield block.text.text
                case "thinking":
                    yield block.thinking.thinking
                case "tool_use":
                    yield block.tool_use.input.decode("utf-8", "replace") or block.tool_use.raw_arguments
                case "tool_result":
                    content = block.tool_result.content.decode("utf-8", "replace")
                    yield content
                    yield from _strings(_parsed(content))
                case _:
                    continue


def _parsed(content: str) -> object:
    try:
        value: object = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return value


def _strings(value: object) -> Iterator[str]:
    """The texts in a JSON value, in their order. Without recursion: a tool decides how deep its results are."""
    left = [value]
    while left:
        match left.pop():
            case str() as text:
                yield text
            case list() as items:
                left.extend(reversed(items))
            case dict() as members:
                left.extend(reversed(members.values()))
            case _:
                continue


def _yes(offered: bool) -> str:
    return "tools" if offered else "no tools"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
