"""`turn`, the command-line client."""

from __future__ import annotations

from turnd_client.cli.app import turn
from turnd_client.cli.attach import attach
from turnd_client.cli.daemon import status, stop
from turnd_client.cli.decide import answer, approve, deny
from turnd_client.cli.demo import demo
from turnd_client.cli.log import export, log
from turnd_client.cli.run import run
from turnd_client.cli.sessions import cancel, close, ls, send, show

__all__ = ["main", "turn"]

for _command in (
    run,
    ls,
    show,
    log,
    attach,
    send,
    approve,
    deny,
    answer,
    cancel,
    close,
    export,
    status,
    stop,
    demo,
):
    turn.add_command(_command)


def main() -> None:
    """The entry point of the `turn` script."""
    turn(prog_name="turn")
