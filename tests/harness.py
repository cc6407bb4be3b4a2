"""A real daemon for tests: a process of its own under a home of its own, ended by its pid.

    async with running_daemon() as daemon:
        session = await daemon.client.create_session(str(daemon.workspace), model=daemon.replay({...}, {...}))
        done = await daemon.turn("ls", "--json")

Where a test fails inside the block, what the daemon wrote is shown.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from turnd.v1 import event_pb2
from turnd_client.client import Client
from turnd_client.connect import connect
from turnd_client.errors import ConnectionLost, NoDaemon

DAEMON = (sys.executable, "-m", "turnd.main", "serve")
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0
COMMAND_TIMEOUT_S = 30.0
EVENT_TIMEOUT_S = 60.0
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def lines(self) -> list[str]:
        return self.stdout.splitlines()

    @property
    def json_lines(self) -> list[dict[str, Any]]:
        """Each line of stdout as a JSON object."""
        return [json.loads(line) for line in self.lines]


@dataclass(slots=True)
class RunningDaemon:
    """One daemon, which can be ended and started again under the same home."""

    base: Path
    environment: dict[str, str]
    process: subprocess.Popen[bytes] | None = None
    _client: Client | None = None
    _transcripts: Callable[[], int] = field(default_factory=lambda: count(1).__next__)

    @property
    def home(self) -> Path:
        """TURND_HOME."""
        return self.base / "h"

    @property
    def workspace(self) -> Path:
        """An empty directory for sessions."""
        return self.base / "w"

    @property
    def log(self) -> Path:
        """What the daemon wrote to stdout and stderr."""
        return self.base / "daemon.log"

    @property
    def database(self) -> Path:
        return self.home / "state" / "turnd.db"

    @property
    def socket(self) -> Path:
        return self.home / "run" / "turnd.sock"

    @property
    def token(self) -> Path:
        return self.home / "run" / "token"

    @property
    def pid(self) -> int:
        assert self.process is not None, "the daemon is not running"
        return self.process.pid

    @property
    def client(self) -> Client:
        """A client that is connected; made anew by each start."""
        assert self._client is not None, "the daemon is not running"
        return self._client

    def configure(self, toml: str) -> None:
        """Writes the user's configuration; a running daemon does not see it."""
        directory = self.home / "config"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "config.toml").write_text(toml)

    def replay(self, *lines: Mapping[str, object]) -> str:
        """The model name of a transcript made of these lines (models.md, the replay format)."""
        path = self.base / f"transcript-{self._transcripts()}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return f"replay:{path}"

    async def start(self, command: Sequence[str] = DAEMON) -> None:
        """Starts the daemon and waits until a handshake was answered."""
        assert self.process is None, "the daemon is running already"
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                env=self.environment,
            )
        self._client = await self._ready()

    async def connect(self, name: str = "test") -> Client:
        """One more client; the caller closes it."""
        return await connect(self.environment, name)

    async def _ready(self) -> Client:
        deadline = asyncio.get_running_loop().time() + START_TIMEOUT_S
        while True:
            try:
                return await self.connect()
            except (NoDaemon, ConnectionLost):
                assert self.process is not None
                code = self.process.poll()
                assert code is None, f"the daemon ended with {code} before it was ready:\n{self.log_text()}"
                assert asyncio.get_running_loop().time() < deadline, f"not ready:\n{self.log_text()}"
            await asyncio.sleep(_POLL_S)

    async def stop(self) -> int:
        """Ends the daemon by SIGTERM, which drains it, and gives its exit code."""
        return await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """Ends the daemon by SIGKILL."""
        await self._end(signal.SIGKILL)

    async def _end(self, signal_number: signal.Signals) -> int:
        process, self.process = self.process, None
        assert process is not None, "the daemon is not running"
        if self._client is not None:
            await self._client.close()
            self._client = None
        process.send_signal(signal_number)
        try:
            return await asyncio.to_thread(process.wait, STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(
                f"the daemon did not end by {signal_number.name}:\n{self.log_text()}"
            ) from None

    async def turn(
        self, *arguments: str, stdin: str = "", cwd: Path | None = None, timeout_s: float = COMMAND_TIMEOUT_S
    ) -> Finished:
        """Runs `turn` without a terminal, in the workspace."""
        process = await self.start_turn(*arguments, cwd=cwd)
        try:
            stdout, stderr = await asyncio.wait_for(process.communicate(stdin.encode()), timeout_s)
        except TimeoutError:
            process.kill()
            stdout, stderr = await process.communicate()
            words = " ".join(arguments)
            said = stdout.decode() + stderr.decode()
            raise AssertionError(f"turn {words} took longer than {timeout_s} s:\n{said}") from None
        assert process.returncode is not None
        return Finished(process.returncode, stdout.decode(), stderr.decode())

    async def start_turn(self, *arguments: str, cwd: Path | None = None) -> asyncio.subprocess.Process:
        """Starts `turn` with pipes; the caller waits for its end."""
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "turnd_client.cli",
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=cwd or self.workspace,
            env=self.environment,
            limit=16 * 1024 * 1024,
        )

    def start_terminal(self, *arguments: str) -> Terminal:
        """Starts `turn` on a terminal of its own."""
        return Terminal(
            [sys.executable, "-m", "turnd_client.cli", *arguments], self.workspace, self.environment
        )

    async def events(
        self, session: str, until: Callable[[event_pb2.Event], bool], *, after_seq: int = 0
    ) -> list[event_pb2.Event]:
        """The events of a session up to the first one that satisfies the condition; an error after a minute."""
        seen: list[event_pb2.Event] = []
        try:
            async with asyncio.timeout(EVENT_TIMEOUT_S):
                async for batch in self.client.attach(session, after_seq):
                    for event in batch.events:
                        seen.append(event)
                        if until(event):
                            return seen
        except TimeoutError:
            names = [event.WhichOneof("data") for event in seen]
            raise AssertionError(f"the event did not come; these did: {names}") from None
        raise AssertionError("the stream ended")

    async def run(self, session: str, prompt: str) -> list[event_pb2.Event]:
        """Sends a prompt and gives the events from then on to the end of its Turn."""
        before = (await self.client.get_session(session)).as_of_seq
        await self.client.send_message(session, prompt)
        return await self.events(session, lambda event: event.HasField("turn_end"), after_seq=before)

    def log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else "(it wrote nothing)"


class Terminal:
    """A program on a pseudo-terminal: what it draws is collected, lines can be typed."""

    def __init__(self, command: list[str], cwd: Path, environment: Mapping[str, str]) -> None:
        self._descriptor, slave = os.openpty()
        self.screen = ""
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=cwd,
            env={**environment, "TERM": "xterm"},
            start_new_session=True,
        )
        os.close(slave)

    def type(self, text: str) -> None:
        """Types, with a newline where one is wanted."""
        os.write(self._descriptor, text.encode())

    async def shows(self, text: str) -> None:
        """Waits until the text was drawn, and forgets everything up to it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + COMMAND_TIMEOUT_S
        while text not in self.screen:
            assert loop.time() < deadline, f"{text!r} did not come; the screen:\n{self.screen}"
            if not await self._read():
                raise AssertionError(f"it ended without {text!r}; the screen:\n{self.screen}")
        self.screen = self.screen.partition(text)[2]

    async def end(self) -> int:
        """Reads to the end, and gives the exit code."""
        while await self._read():
            pass
        os.close(self._descriptor)
        return await asyncio.to_thread(self.process.wait, COMMAND_TIMEOUT_S)

    async def _read(self) -> bool:
        ready = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._descriptor, ready.set)
        try:
            async with asyncio.timeout(COMMAND_TIMEOUT_S):
                await ready.wait()
            data = os.read(self._descriptor, 65536)
        except TimeoutError:
            raise AssertionError(f"nothing was drawn for too long; the screen:\n{self.screen}") from None
        except OSError:
            # So Linux tells that the other end is closed.
            return False
        finally:
            loop.remove_reader(self._descriptor)
        self.screen += data.decode("utf-8", "replace").replace("\r\n", "\n")
        return bool(data)


@asynccontextmanager
async def prepared_daemon(
    config: str = "", environment: Mapping[str, str] | None = None
) -> AsyncIterator[RunningDaemon]:
    """Home and workspace for a daemon that is not started yet; whatever runs at the end is ended."""
    base = Path(tempfile.mkdtemp(prefix="td-"))
    daemon = RunningDaemon(
        base,
        {
            "PATH": os.environ["PATH"],
            "HOME": str(base / "u"),
            "LANG": "C.UTF-8",
            "TURND_HOME": str(base / "h"),
            **(environment or {}),
        },
    )
    for directory in (daemon.home, daemon.workspace, base / "u"):
        directory.mkdir(mode=0o700)
    if config:
        daemon.configure(config)
    try:
        yield daemon
    except BaseException:
        sys.stderr.write(f"--- the daemon's log\n{daemon.log_text()}\n---\n")
        raise
    finally:
        if daemon.process is not None:
            await daemon.stop()
        shutil.rmtree(base, ignore_errors=True)


@asynccontextmanager
async def running_daemon(
    config: str = "", environment: Mapping[str, str] | None = None
) -> AsyncIterator[RunningDaemon]:
    """A daemon that answers, with a configuration (TOML) and additions to its environment."""
    async with prepared_daemon(config, environment) as daemon:
        await daemon.start()
        yield daemon
