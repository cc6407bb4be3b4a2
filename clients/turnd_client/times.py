"""Times: for people local with their offset from UTC, for programs UTC with a Z; always with the date."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC

from google.protobuf.timestamp_pb2 import Timestamp


def local_text(time: Timestamp, precision: str = "seconds") -> str:
    """For people: `2026-01-02 03:04:05+01:00`, to `minutes`, `seconds` or `milliseconds`."""
    moment = time.ToDatetime(tzinfo=UTC)
    # At the ends of what a calendar holds there is no local time; UTC says so itself.
    with suppress(OverflowError, OSError):
        moment = moment.astimezone()
    return moment.isoformat(sep=" ", timespec=precision)


def utc_text(time: Timestamp) -> str:
    """For programs: `2026-01-02T03:04:05.678901Z`."""
    return time.ToDatetime().isoformat(timespec="microseconds") + "Z"
