"""`turn`, the command-line client."""

from __future__ import annotations

from turnd_client.cli.app import open_standard_streams, turn
from turnd_client.cli.attach import attach
from turnd_client.cli.cost import cost
from turnd_client.cli.daemon import reload, status, stop
from turnd_client.cli.decide import answer, approve, deny
from turnd_client.cli.demo import demo
from turnd_client.cli.doctor import doctor
from turnd_client.cli.fork import fork
from turnd_client.cli.gc import gc
from turnd_client.cli.going_on import continue_, resume, set_
from turnd_client.cli.importing import import_
from turnd_client.cli.log import export, log
from turnd_client.cli.policy import policy
from turnd_client.cli.run import run
from turnd_client.cli.sessions import cancel, close, ls, send, show
from turnd_client.cli.trust import trust, untrust

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
    cost,
    cancel,
    continue_,
    resume,
    set_,
    close,
    export,
    import_,
    fork,
    status,
    stop,
    reload,
    doctor,
    gc,
    policy,
    trust,
    untrust,
    demo,
):
    turn.add_command(_command)


def main() -> None:
    """The entry point of the `turn` script."""
    open_standard_streams()
    turn(prog_name="turn")
