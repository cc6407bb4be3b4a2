"""Reads JSON objects of a known form, with errors that name place and key."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import cast


class FormError(ValueError):
    """A JSON value is not of the form that was expected; the text names the key."""


class JsonObject:
    """An object whose keys are known: any other is an error at once, as is a value of another type."""

    def __init__(self, value: object, where: str, known: tuple[str, ...]) -> None:
        """`where` is the key that holds the object; empty for the object that is a whole line."""
        if not isinstance(value, dict):
            raise FormError(f"{where or 'a line'} must be an object, got {_shown(value)}")
        self._values = cast(Mapping[str, object], value)
        self._where = where
        for key in self._values:
            if key not in known:
                close = difflib.get_close_matches(key, known, n=1)
                meant = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
                raise FormError(f"{self._named('unknown key ' + repr(key))}; {meant}")

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def raw(self, key: str) -> object:
        """The value as it was read. KeyError where there is none."""
        return self._values[key]

    def text(self, key: str) -> str:
        value = self._values[key]
        if not isinstance(value, str):
            raise self.wrong(key, "text")
        return value

    def flag(self, key: str) -> bool:
        value = self._values[key]
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def whole(self, key: str, at_least: int) -> int:
        value = self._values[key]
        if isinstance(value, bool) or not isinstance(value, int) or not at_least <= value < 2**63:
            raise self.wrong(key, f"a whole number from {at_least}")
        return value

    def seconds(self, key: str) -> float:
        value = self._values[key]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, "seconds, 0 or more")
        seconds = float(value) if abs(value) < 1e9 else math.inf
        if not 0 <= seconds < math.inf:
            raise self.wrong(key, "seconds, 0 or more")
        return seconds

    def texts(self, key: str) -> tuple[str, ...]:
        return tuple(self._text_of(key, item) for item in self.items(key))

    def items(self, key: str) -> list[object]:
        value = self._values[key]
        if not isinstance(value, list):
            raise self.wrong(key, "a list")
        return cast(list[object], value)

    def named(self, key: str) -> str:
        """How a key of this object is called in an error."""
        return self._named(key)

    def wrong(self, key: str, expected: str) -> FormError:
        """The error that a key holds something else than expected."""
        return FormError(f"{self._named(key)} must be {expected}, got {_shown(self._values[key])}")

    def _text_of(self, key: str, item: object) -> str:
        if not isinstance(item, str):
            raise self.wrong(key, "a list of texts")
        return item

    def _named(self, key: str) -> str:
        return f"{self._where}: {key}" if self._where else key


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
