"""Text of models, tools and files, made harmless for whoever reads it on a terminal (gate.md, Requests)."""

from __future__ import annotations

import unicodedata

_KEPT = frozenset("\n\t")
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# Letters and marks by their category, and yet nothing is to be seen of them.
_HIDDEN_LETTERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_VARIATION_SELECTORS = (range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0), range(0x180B, 0x1810))


def visible(text: str) -> str:
    """The text with every control, bidirectional, zero-width and otherwise unseen character spelled out.

    Newlines and tabs stay. A character U+202E becomes the eight characters `<U+202E>`.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(f"<U+{ord(c):04X}>" if _is_hidden(c) else c for c in text)


def cleaned(text: str) -> str:
    """The text without what `visible` would spell out: for names that are made of text from elsewhere."""
    return "".join(c for c in text if not _is_hidden(c))


def one_line(text: str, width: int) -> str:
    """The visible text on one line of at most `width` characters."""
    line = visible(" ".join(text.split()))
    return line if len(line) <= width else line[: width - 3] + "..."


def _is_hidden(character: str) -> bool:
    if character in _KEPT:
        return False
    return (
        unicodedata.category(character) in _HIDDEN_CATEGORIES
        or character in _HIDDEN_LETTERS
        or any(ord(character) in selectors for selectors in _VARIATION_SELECTORS)
    )
