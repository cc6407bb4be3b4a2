"""Bytes from tools as text: any bytes are legal, none of them does anything to a terminal or to JSON
(TOOL-05).
"""

from __future__ import annotations

import codecs
import json
import re
from typing import Final

# Newlines and tabs stay; other control characters become their pictures; what reorders text is spelled out.
_C0: Final = {code: 0x2400 + code for code in range(0x20) if code not in (0x09, 0x0A)}
_C1: Final = {code: f"<{code:02X}>" for code in range(0x80, 0xA0)}
_REORDERING: Final = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_BIDI: Final = {code: f"<U+{code:04X}>" for code in _REORDERING}
_VISIBLE: Final[dict[int, int | str]] = {**_C0, 0x7F: 0x2421, **_C1, **_BIDI}

# A pair of surrogates, any other escape, or a lone surrogate (the group).
_ESCAPE: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u(?![dD][89a-fA-F])|\\[^u]"
    rb"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)


def harmless(data: bytes) -> str:
    """Output as text: what is not UTF-8 is replaced, control characters are made visible, line ends are
    newlines.
    """
    return visible(data.decode("utf-8", "replace"))


def visible(text: str) -> str:
    """Text with control characters and those that reorder it made visible."""
    return text.replace("\r\n", "\n").translate(_VISIBLE).encode("utf-8", "replace").decode()


class HarmlessStream:
    """As `harmless`, for output that comes in pieces that may end within a character."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> str:
        """The text of one more piece, without a character that is not whole yet."""
        return visible(self._decoder.decode(data))


class NotJson(ValueError):
    """Bytes that should be JSON are not; the message says where."""


def checked_json(data: bytes) -> tuple[bytes, object]:
    """JSON bytes with lone surrogates replaced, and their value. Raises NotJson.

    Numbers keep every digit: the bytes are changed only where a surrogate stands alone.
    """
    clean = data
    if b"\\u" in data:
        clean = _ESCAPE.sub(lambda match: b"\\ufffd" if match.group(1) else match.group(0), data)
    try:
        return clean, json.loads(clean.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise NotJson(str(error)) from error


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
