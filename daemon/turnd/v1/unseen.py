"""Characters of a text that are not to be seen, or move what is seen: spelled out where people decide by it."""

from __future__ import annotations

import unicodedata
from typing import Final

_KEPT: Final = frozenset("\n\t")
_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# Letters and marks by their category, and yet nothing is to be seen of them.
_LETTERS: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_VARIATION_SELECTORS: Final = (range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0), range(0x180B, 0x1810))


def visible(text: str) -> str:
    """The text with every control, bidirectional, zero-width and otherwise unseen character spelled out.

    Newlines and tabs stay. A character U+202E becomes the eight characters `<U+202E>`.
    """
    return text.translate(_SPELLED_OUT)


def without_unseen(text: str) -> str:
    """The text without what `visible` would spell out: for names that are made of text from elsewhere."""
    return "".join(character for character in text if not is_unseen(character))


def is_unseen(character: str) -> bool:
    """Whether `visible` spells it out."""
    if character in _KEPT:
        return False
    return (
        unicodedata.category(character) in _CATEGORIES
        or character in _LETTERS
        or any(ord(character) in selectors for selectors in _VARIATION_SELECTORS)
    )


class _SpelledOut(dict[int, int | str]):
    """What becomes of each character, found out where it first occurs."""

    def __missing__(self, code: int) -> int | str:
        self[code] = f"<U+{code:04X}>" if is_unseen(chr(code)) else code
        return self[code]


_SPELLED_OUT: Final = _SpelledOut()
