"""The daemon as its users start it, on a state directory that is there."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import Final

from turnd_client.client import Client
from turnd_client.connect import connect
from turnd_client.errors import ConnectionLost, NoDaemon

_START_TIMEOUT_S: Final = 30.0
_STOP_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.002


@asynccontextmanager
async def daemon(state: Path) -> AsyncIterator[tuple[Client, float]]:
    """A client of a daemon on this log, and the seconds from its start to its first answer."""
    # The socket's path must be short, wherever the log is.
    home = Path(tempfile.mkdtemp(prefix="turnd-bench-"))
    (home / "state").symlink_to(state)
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TURND_HOME": str(home)}
    said = home / "log"
    try:
        with said.open("wb") as output:
            begin = perf_counter()
            process = subprocess.Popen(
                [sys.executable, "-m", "turnd.main", "serve"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                env=environment,
            )
        try:
            async with await _answering(process, environment, said) as client:
                yield client, perf_counter() - begin
        finally:
            await _end(process)
    finally:
        shutil.rmtree(home)


async def _answering(process: subprocess.Popen[bytes], environment: dict[str, str], said: Path) -> Client:
    deadline = perf_counter() + _START_TIMEOUT_S
    while True:
        try:
            return await connect(environment, "bench")
        except (NoDaemon, ConnectionLost):
            if process.poll() is not None or perf_counter() > deadline:
                raise RuntimeError(f"the daemon does not answer; it said:\n{said.read_text()}") from None
        await asyncio.sleep(_POLL_S)


async def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        await asyncio.to_thread(process.wait, _STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
