"""Canonical history as Chat Completions messages.

Results of tools are messages of their own there, directly after the message that called, in its order.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Sequence

from turnd.models.endpoint import CompatibleEndpoint
from turnd.models.invalid import invalid_request
from turnd.ports import Message
from turnd.v1 import common_pb2 as common

_ILLEGAL_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_NAME = 64

Part = dict[str, object]


def chat_messages(
    endpoint: CompatibleEndpoint, system: str, history: Sequence[Message]
) -> list[dict[str, object]]:
    """The messages. Raises ModelFailure `invalid_request` for a block that this model cannot take.

    Neighbouring user messages become one: some servers' chat templates demand that roles alternate.
    """
    messages: list[dict[str, object]] = []
    if system:
        messages.append({"role": "system", "content": system})
    parts: list[Part] = []
    for message in history:
        if message.role == "assistant":
            _end_user(messages, parts)
            said = _assistant(endpoint, message.blocks)
            if said is not None:
                messages.append(said)
            continue
        for block in message.blocks:
            if block.WhichOneof("block") == "tool_result":
                messages.append(_tool_result(block.tool_result))
        parts.extend(_user_parts(endpoint, message.blocks))
    _end_user(messages, parts)
    return messages


def _end_user(messages: list[dict[str, object]], parts: list[Part]) -> None:
    """Moves what was gathered into one user message; text alone goes as text, which every server takes."""
    if not parts:
        return
    texts = [part["text"] for part in parts if part["type"] == "text"]
    content: object = list(parts)
    if len(texts) == len(parts):
        content = "\n\n".join(str(text) for text in texts)
    messages.append({"role": "user", "content": content})
    parts.clear()


def _user_parts(endpoint: CompatibleEndpoint, blocks: Iterable[common.ContentBlock]) -> Iterable[Part]:
    for block in blocks:
        match block.WhichOneof("block"):
            case "text":
                yield {"type": "text", "text": block.text.text}
            case "image":
                if not endpoint.vision:
                    raise invalid_request(
                        f"models.{endpoint.name} takes no images (vision = true says that it does)"
                    )
                yield {
                    "type": "image_url",
                    "image_url": {"url": _data_url(block.image.media_type, block.image.data)},
                }
            case "document":
                if not endpoint.documents:
                    raise invalid_request(
                        f"models.{endpoint.name} takes no documents (documents = true says that it does)"
                    )
                document = block.document
                yield {
                    "type": "file",
                    "file": {
                        "filename": document.title or "document",
                        "file_data": _data_url(document.media_type, document.data),
                    },
                }
            case _:
                continue


def _assistant(
    endpoint: CompatibleEndpoint, blocks: Iterable[common.ContentBlock]
) -> dict[str, object] | None:
    """None where nothing of the message can be said in this API: thinking alone."""
    texts: list[str] = []
    thinking: list[str] = []
    calls: list[dict[str, object]] = []
    for block in blocks:
        match block.WhichOneof("block"):
            case "text":
                texts.append(block.text.text)
            case "thinking":
                thinking.append(block.thinking.thinking)
            case "tool_use":
                calls.append(_tool_call(block.tool_use))
            case _:
                continue
    text = "".join(texts)
    if not text and not calls:
        return None
    message: dict[str, object] = {"role": "assistant", "content": text or None}
    if thinking and endpoint.reasoning_field is not None:
        message[endpoint.reasoning_field] = "".join(thinking)
    if calls:
        message["tool_calls"] = calls
    return message


def _tool_call(use: common.ToolUseBlock) -> dict[str, object]:
    # Servers refuse a name that would not be legal in `tools`, which a model may well have invented.
    name = _ILLEGAL_IN_NAMES.sub("_", use.wire_name or use.tool)[:_LONGEST_NAME] or "unknown"
    return {
        "id": use.call_id,
        "type": "function",
        "function": {"name": name, "arguments": _arguments(use)},
    }


def _arguments(use: common.ToolUseBlock) -> str:
    """Always a JSON object: servers parse it, and one that cannot would refuse this history for ever."""
    if use.input.lstrip().startswith(b"{"):
        return use.input.decode()
    written = use.input.decode("utf-8", "replace") or use.raw_arguments
    return json.dumps({"invalid_arguments": written}, ensure_ascii=False) if written else "{}"


def _tool_result(result: common.ToolResultBlock) -> dict[str, object]:
    text = _result_text(result.content)
    return {
        "role": "tool",
        "tool_call_id": result.call_id,
        "content": f"Error: {text}" if result.is_error else text,
    }


def _result_text(content: bytes) -> str:
    """A JSON text as the text itself, anything else as JSON."""
    text = content.decode("utf-8", "replace")
    if not text.lstrip().startswith('"'):
        return text
    try:
        value: object = json.loads(text)
    except ValueError:
        return text
    # An escape may stand for half a character, which cannot be sent.
    return str(value).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _data_url(media_type: str, data: bytes) -> str:
    return f"data:{media_type};base64,{b64encode(data).decode()}"
