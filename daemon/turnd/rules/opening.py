"""What opens every request of a session: the system prompt, and the instructions that its directories hold."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_UNWANTED: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class InstructionFile:
    """A file of instructions as it was read when the Turn began."""

    path: str
    text: str
    """What is in it, cut to a bound, with what was left out."""


def system_text(system_prompt: str, files: Sequence[InstructionFile]) -> str:
    """The system prompt, and each file under its path; what comes last speaks last."""
    parts = [system_prompt]
    for file in files:
        said = _UNWANTED.sub("", file.text).strip()
        if said:
            parts.append(f"# Instructions from {_CONTROL.sub('?', file.path)}\n\n{said}")
    return "\n\n".join(part for part in parts if part.strip())
