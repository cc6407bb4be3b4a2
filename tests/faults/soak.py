"""How much is tried: a sample in every run, everything where `TURND_TEST_SOAK` is set (`make soak`)."""

from __future__ import annotations

import os
from typing import Final, TypeVar

SOAK: Final = bool(os.environ.get("TURND_TEST_SOAK"))

T = TypeVar("T")


def in_soak(long: T, short: T) -> T:
    """The size for the long form, or for the short one."""
    return long if SOAK else short
