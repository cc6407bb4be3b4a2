"""A vendor's wish how long to wait, in each form that vendors use (MODEL-04)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

LONGEST_MS = 366 * 24 * 3600 * 1000
"""A wish for more than a year is read as one for a year."""

_NUMBER = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s)?", re.IGNORECASE)


def retry_after_ms(headers: Mapping[str, str], now_us: int) -> int | None:
    """Milliseconds to wait, rounded up; None where the headers, by their names in lower case, do not say.

    `retry-after-ms` is in milliseconds; `retry-after` is in seconds, or in what unit it names, or a date. The
    more exact header wins; one that says nothing that can be read counts as absent.
    """
    exact = _number_ms(headers.get("retry-after-ms", ""), unit_ms=1)
    if exact is not None:
        return exact
    written = headers.get("retry-after", "")
    in_seconds = _number_ms(written, unit_ms=1000)
    return _date_ms(written, now_us) if in_seconds is None else in_seconds


def _number_ms(written: str, unit_ms: int) -> int | None:
    match = _NUMBER.fullmatch(written.strip())
    if match is None:
        return None
    named = match[2].lower() if match[2] else ""
    factor = {"ms": 1, "s": 1000}.get(named, unit_ms)
    return math.ceil(min(float(match[1]) * factor, LONGEST_MS))


def _date_ms(written: str, now_us: int) -> int | None:
    try:
        date = parsedate_to_datetime(written)
    except (ValueError, OverflowError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    try:
        until_us = round((date - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1e6)
    except OverflowError:
        return None
    return min(max(math.ceil((until_us - now_us) / 1000), 0), LONGEST_MS)
