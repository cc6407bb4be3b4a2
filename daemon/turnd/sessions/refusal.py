"""Why a command is refused: one type that the edge turns into a status with details (RPC-05)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Code(Enum):
    """The gRPC codes that commands use."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    NOT_FOUND = "NOT_FOUND"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    OUT_OF_RANGE = "OUT_OF_RANGE"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    UNAVAILABLE = "UNAVAILABLE"


# Not frozen: whoever hands an exception on sets its traceback.
@dataclass(eq=False)
class CommandRefused(Exception):
    """A command that changed nothing. `text` says what was expected, what was found and what to do."""

    code: Code
    text: str
    field_name: str = ""
    """For INVALID_ARGUMENT: the field of the request."""
    details: Mapping[str, str] = field(default_factory=dict)
    """Machine-readable facts: who decided and when, what was not found."""

    def __str__(self) -> str:
        return self.text


def invalid(field_name: str, text: str) -> CommandRefused:
    """A field of the request is wrong."""
    return CommandRefused(Code.INVALID_ARGUMENT, text, field_name)


def not_now(text: str, **details: str) -> CommandRefused:
    """The session's state does not allow the command."""
    return CommandRefused(Code.FAILED_PRECONDITION, text, details=details)


def not_found(kind: str, name: str, text: str) -> CommandRefused:
    """What the request names is not there."""
    return CommandRefused(Code.NOT_FOUND, text, details={"resource_type": kind, "resource_name": name})
