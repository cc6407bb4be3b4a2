"""doctor: whether the daemon's files and its sandbox are in order, and what to do where they are not."""

from __future__ import annotations

import time
from collections.abc import Iterable

import click

from turnd.v1 import daemon_pb2
from turnd_client.cli.app import Caller, command, json_option, print_json
from turnd_client.text import visible


@click.command()
@click.option("--quick", is_flag=True, help="Do not read the whole log, which takes its time.")
@json_option
@command
async def doctor(caller: Caller, quick: bool, as_json: bool) -> int:
    """Check the daemon's log, directories, socket and sandbox. Exit code 1 where something is wrong."""
    async with caller.client() as client:
        found = list((await client.doctor()).checks)
        if not as_json:
            _show(found)
        if not quick:
            size = next((check.finding for check in found if check.name == "log file"), "")
            caller.say(f"reading the whole log: {visible(size)}")
            started = time.monotonic()
            everything = await caller.patiently(
                client.doctor(full=True), lambda: f"still reading, for {time.monotonic() - started:.0f} s"
            )
            names = {check.name for check in found}
            more = [check for check in everything.checks if check.name not in names]
            found += more
            if not as_json:
                _show(more)
    sound = all(check.ok for check in found)
    if as_json:
        print_json({"ok": sound, "checks": [_check_json(check) for check in found]})
    elif sound:
        click.echo("everything is in order")
    return 0 if sound else 1


def _show(checks: Iterable[daemon_pb2.DoctorCheck]) -> None:
    for check in checks:
        click.echo(f"{'ok' if check.ok else 'WRONG':<6} {check.name:<18} {visible(check.finding)}")
        if check.advice and not check.ok:
            click.echo(f"{'':<6} {'':<18} {visible(check.advice)}")


def _check_json(check: daemon_pb2.DoctorCheck) -> dict[str, object]:
    return {"name": check.name, "ok": check.ok, "finding": check.finding, "advice": check.advice or None}
