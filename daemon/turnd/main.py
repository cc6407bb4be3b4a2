"""`turnd`: argv, lock, ready, signals, drain. `turnd serve` in the foreground is the whole daemon."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from importlib.metadata import version as distribution_version

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


@main.command("check-config")
def check_config() -> None:
    """Check the configuration file and say what is wrong with it, by file, line and key."""
    try:
        paths = resolve(os.environ)
        config = load(paths.config_file)
        refuse_unsupported(config)
        loop_settings(config, lambda: 0.0)
        endpoints(config)
    except (ConfigError, PathError, OSError) as wrong:
        click.echo(str(wrong), err=True)
        sys.exit(EXIT_FAILED)
    for warning in config.warnings:
        click.echo(warning, err=True)
    found = "is fine" if paths.config_file.exists() else "is not there; the defaults apply"
    click.echo(f"{paths.config_file} {found}")


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
def rebuild() -> None:
    """Derive every table beside the events anew, and say what differed; the daemon must not be running."""
    configure_logs(sys.stderr, logging.WARNING, Redactor())
    version = distribution_version("turnd")
    try:
        paths = prepare(os.environ)
        hold = Hold.take(paths.database, version=version, socket="")
    except DaemonRunning as running:
        click.echo(f"turnd: {running}", err=True)
        sys.exit(EXIT_RUNNING)
    except (PathError, OSError) as wrong:
        click.echo(f"turnd: {wrong}", err=True)
        sys.exit(EXIT_FAILED)
    try:
        if not paths.database.exists():
            click.echo(f"turnd: there is no log at {paths.database}", err=True)
            sys.exit(EXIT_FAILED)
        notes, rebuilt = rebuild_file(paths.database, SystemClock().now_us, _say_progress)
    except START_FAILURES as wrong:
        click.echo(f"turnd: {wrong}", err=True)
        sys.exit(EXIT_FAILED)
    finally:
        hold.release()
    for line in (*notes, *(f"cannot go on: {session}" for session in rebuilt.broken)):
        click.echo(line, err=True)
    click.echo(f"{rebuilt.events} events of {rebuilt.sessions} sessions")
    for difference in rebuilt.differences:
        click.echo(str(difference))
    if not rebuilt.differences:
        click.echo("nothing differed")


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
            log.error("turnd cannot go on", error=str(wrong))
            click.echo(f"turnd: {wrong}", err=True)
            return EXIT_FAILED
        finally:
            await app.close()
    return 0


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
