"""`turnd`: argv, lock, ready, signals, drain. `turnd serve` in the foreground is the whole daemon."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import version as distribution_version
from typing import NoReturn

# Before grpc is imported anywhere: children are made by exec only, and fork handlers hang beside a live server.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import click
import structlog
import uvloop

from turnd.app import START_FAILURES, App
from turnd.config import ConfigError, load
from turnd.config.paths import prepare
from turnd.configured import endpoints, loop_settings, refuse_unsupported
from turnd.notify import Notifier
from turnd.store.hold import DaemonRunning, Hold
from turnd.store.opening import rebuild_file
from turnd.store.rebuild import Rebuilt
from turnd.system import SystemClock
from turnd.telemetry import Redactor, configure_logs
from turnd.v1.paths import PathError, resolve

log = structlog.get_logger(__name__)

EXIT_FAILED, EXIT_USAGE, EXIT_RUNNING = 1, 2, 3
DRAIN_GRACE_S = 5.0
"""How long open Turns may go on after SIGTERM before they are interrupted."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(distribution_version("turnd"), prog_name="turnd")
def main() -> None:
    """The daemon that owns agent sessions. `turn` is its client."""


_json_option = click.option(
    "--json", "as_json", is_flag=True, help='Print one JSON object, also where it fails: {"error": {...}}.'
)


@main.command("check-config")
@_json_option
def check_config(as_json: bool) -> None:
    """Check the configuration file and say what is wrong with it, by file, line and key."""
    try:
        paths = resolve(os.environ)
        config = load(paths.config_file)
        refuse_unsupported(config)
        loop_settings(config, lambda: 0.0)
        endpoints(config)
    except ConfigError as wrong:
        _fail("CONFIGURATION", str(wrong), as_json, problems=list(wrong.lines))
    except (PathError, OSError) as wrong:
        _fail("FILE", str(wrong), as_json)
    is_there = paths.config_file.exists()
    if as_json:
        found = {
            "ok": True,
            "file": str(paths.config_file),
            "exists": is_there,
            "warnings": [*config.warnings],
        }
        click.echo(json.dumps(found, ensure_ascii=False))
        return
    for warning in config.warnings:
        click.echo(warning, err=True)
    click.echo(f"{paths.config_file} {'is fine' if is_there else 'is not there; the defaults apply'}")


def _fail(
    code: str, text: str, as_json: bool, *, exit_code: int = EXIT_FAILED, **details: object
) -> NoReturn:
    """Ends the command: the text on stderr, or one JSON object on stdout."""
    if as_json:
        error = {"code": code, "message": text, "details": details}
        click.echo(json.dumps({"error": error}, ensure_ascii=False))
    else:
        click.echo(text, err=True)
    sys.exit(exit_code)


@main.command()
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
def serve(log_level: str) -> None:
    """Run the daemon in the foreground until SIGTERM; a second signal stops it at once."""
    redactor = Redactor()
    configure_logs(sys.stderr, getattr(logging, log_level.upper()), redactor)
    version = distribution_version("turnd")
    try:
        paths = prepare(os.environ)
        hold = Hold.take(paths.database, version=version, socket=str(paths.socket))
    except DaemonRunning as running:
        click.echo(f"turnd: already running: {running}", err=True)
        sys.exit(EXIT_RUNNING)
    except (PathError, OSError) as wrong:
        click.echo(f"turnd: {wrong}", err=True)
        sys.exit(EXIT_FAILED)
    try:
        app = App(paths, hold, version, redactor, os.environ)
    except (ConfigError, OSError) as wrong:
        hold.release()
        click.echo(f"turnd: {wrong}", err=True)
        sys.exit(EXIT_USAGE)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            code = runner.run(_serve(app))
    finally:
        hold.release()
    sys.exit(code)


@main.command()
@_json_option
def rebuild(as_json: bool) -> None:
    """Derive every table beside the events anew, and say what differed; the daemon must not be running."""
    configure_logs(sys.stderr, logging.WARNING, Redactor())
    version = distribution_version("turnd")
    try:
        paths = prepare(os.environ)
        hold = Hold.take(paths.database, version=version, socket="")
    except DaemonRunning as running:
        _fail("ALREADY_RUNNING", f"turnd: {running}", as_json, exit_code=EXIT_RUNNING)
    except (PathError, OSError) as wrong:
        _fail("FILE", f"turnd: {wrong}", as_json)
    try:
        if not paths.database.exists():
            _fail("NOT_FOUND", f"turnd: there is no log at {paths.database}", as_json)
        notes, rebuilt = rebuild_file(paths.database, SystemClock().now_us, _say_progress)
    except START_FAILURES as wrong:
        _fail("LOG", f"turnd: {wrong}", as_json)
    finally:
        hold.release()
    if as_json:
        click.echo(json.dumps(_rebuilt_json(notes, rebuilt), ensure_ascii=False))
        return
    for line in (*notes, *(f"cannot go on: {session}" for session in rebuilt.broken)):
        click.echo(line, err=True)
    click.echo(f"{rebuilt.events} events of {rebuilt.sessions} sessions")
    for difference in rebuilt.differences:
        click.echo(str(difference))
    if not rebuilt.differences:
        click.echo("nothing differed")


def _rebuilt_json(notes: Sequence[str], rebuilt: Rebuilt) -> dict[str, object]:
    return {
        "events": rebuilt.events,
        "sessions": rebuilt.sessions,
        "differences": [
            {"table": each.table, "shape": each.shape, "missing": each.missing, "wrong": each.wrong}
            for each in rebuilt.differences
        ],
        "broken": [*rebuilt.broken],
        "notes": [*notes],
    }


def _say_progress(done: int, total: int) -> None:
    click.echo(f"{done} of {total} events", err=True)


async def _serve(app: App) -> int:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop, app, number)
    loop.add_signal_handler(signal.SIGHUP, _reload, app)
    with Notifier(os.environ) as notifier:
        # Whatever happens, what was opened is closed: a thread that is left would keep the process for ever.
        try:
            await app.start()
            await _until_stopped(app, notifier)
        except START_FAILURES as wrong:
            _say_failed(wrong)
            return EXIT_FAILED
        finally:
            await app.close()
    return 0


def _say_failed(wrong: Exception) -> None:
    """Once: to a person as text, into a file or a journal as a line of the log."""
    if sys.stderr.isatty():
        click.echo(f"turnd: {wrong}", err=True)
    else:
        log.error("turnd cannot go on", error=str(wrong))


async def _until_stopped(app: App, notifier: Notifier) -> None:
    notifier.ready()
    alive = asyncio.create_task(notifier.feed_watchdog())
    try:
        grace_s = await app.stopping()
    finally:
        alive.cancel()
        await asyncio.wait({alive})
    notifier.stopping()
    await app.drain(DRAIN_GRACE_S if grace_s is None else grace_s)


def _reload(app: App) -> None:
    try:
        app.reload()
    except (ConfigError, OSError) as wrong:
        log.error("the configuration was not reloaded; the old one stays in force", error=str(wrong))


def _stop(app: App, number: int) -> None:
    if app.stop_requested:
        log.warning("stopping at once", signal=signal.Signals(number).name)
        os._exit(128 + number)
    log.info("draining; a second signal stops at once", signal=signal.Signals(number).name)
    app.request_stop(None)


if __name__ == "__main__":
    main()
