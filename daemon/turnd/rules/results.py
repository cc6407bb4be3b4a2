"""What a tool result may cost the context: one result is capped when it is written."""

from __future__ import annotations

import json


def capped(content: bytes, limit: int) -> bytes:
    """The content as it is, or, where it is longer than `limit` bytes, its head and tail as a JSON string.

    The middle is counted, so the model knows that something is missing and how much.
    """
    if len(content) <= limit:
        return content
    keep = limit // 2
    head = content[:keep].decode(errors="ignore")
    tail = content[-keep:].decode(errors="ignore")
    return json.dumps(
        f"{head}\n[{len(content) - 2 * keep} bytes left out]\n{tail}", ensure_ascii=False
    ).encode()
