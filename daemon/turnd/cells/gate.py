"""The first program in every cell: a shell that waits at a gate, runs the program, and says when it is over.

Its standard input is one end of a socket pair. Nothing of the program's runs before the daemon has looked at
the finished cell and written `go`; a daemon that dies in between leaves an end of file, and the shell gives
up. After the program it stays until its cell is ended, so that the daemon can see what else is still running.
What it says after `go` may be the program's doing, so it is read with suspicion.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from turnd.cells.spec import MAX_PASS_FDS

GO = b"go\n"
MAX_MESSAGE = 64
"""Bytes; neither message is longer."""
NOT_STARTED = 125
"""Exit code of a gate that was never opened."""

_UP = re.compile(rb"up ([1-9][0-9]{0,9})\n")
_OVER = re.compile(rb"over ([0-9]{1,3})\n")


def shell(argv: Collection[str], pass_fds: Collection[int]) -> list[str]:
    """The argument list that runs `argv` behind the gate.

    The shell keeps the program's standard error under a number of its own and has none itself: it would say
    "Killed" there in the program's name.
    """
    spare = next(number for number in range(3, 4 + MAX_PASS_FDS) if number not in pass_fds)
    script = (
        f'echo "up $$" >&0; read -r word && [ "$word" = go ] || exit {NOT_STARTED}\n'
        f"exec {spare}>&2 2>/dev/null\n"
        f'(exec "$@" </dev/null 2>&{spare} {spare}>&-)\n'
        'echo "over $?" >&0; read -r word\n'
    )
    return ["/bin/sh", "-c", script, "cell", *argv]


def read_up(message: bytes) -> int | None:
    """The shell's own process id in the cell, or None where this is not its greeting."""
    match = _UP.fullmatch(message)
    return int(match[1]) if match else None


def read_over(message: bytes) -> int | None:
    """The program's exit code, or None where the message is anything else."""
    match = _OVER.fullmatch(message)
    code = int(match[1]) if match else 256
    return code if code < 256 else None
