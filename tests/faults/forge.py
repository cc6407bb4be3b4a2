"""Processes to be killed that cost little: one interpreter that has imported everything forks for each job.

    with Forge("tests.faults.rich_session") as forge:
        end = forge.run("play", directory, stop="published", number=7)

A job is a function of the module; it gets a directory of its own and what else is given, and runs in a process of
its own to its end or until it is killed.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog

ROOT = Path(__file__).parents[2]
JOB_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class End:
    """How a job ended."""

    code: int
    said: str
    """What it wrote to stderr."""

    @property
    def killed(self) -> bool:
        """By SIGKILL."""
        return self.code == -signal.SIGKILL

    @property
    def whole(self) -> bool:
        """The job came to its end."""
        return self.code == 0


class Forge:
    """The process that forks, with the shim preloaded where one is given."""

    def __init__(self, module: str, shim: Path | None = None) -> None:
        environment = dict(os.environ) | ({} if shim is None else {"LD_PRELOAD": str(shim)})
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.forge", module],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._process.communicate(timeout=JOB_TIMEOUT_S)
        else:
            self._process.kill()
            self._process.wait()

    def run(self, job: str, directory: Path, **arguments: Any) -> End:
        """Runs a job to its end. Raises AssertionError where it failed by itself or never ended."""
        self.begin(job, directory, **arguments)
        return self.end()

    def begin(self, job: str, directory: Path, **arguments: Any) -> None:
        """Lets a job begin; one at a time."""
        directory.mkdir(parents=True, exist_ok=True)
        assert self._process.stdin is not None
        print(json.dumps([job, str(directory), arguments]), file=self._process.stdin, flush=True)

    def end(self) -> End:
        """Waits for the job that runs."""
        output = self._process.stdout
        assert output is not None
        ready, _, _ = select.select([output], [], [], 2 * JOB_TIMEOUT_S)
        line = output.readline() if ready else ""
        assert line, "the forge is gone, or its job never ended"
        code, said = json.loads(line)
        end = End(code, said)
        assert end.killed or end.whole, f"the job ended with {code}:\n{said}"
        return end


def main(module: str) -> None:
    """Forks for each line of stdin."""
    structlog.configure(
        processors=[structlog.processors.format_exc_info, structlog.processors.JSONRenderer()],
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )
    jobs = importlib.import_module(module)
    for line in sys.stdin:
        job, directory, arguments = json.loads(line)
        stderr = Path(directory, "stderr")
        pid = os.fork()
        if pid == 0:
            os._exit(_run(getattr(jobs, job), Path(directory), stderr, arguments))
        _, status = os.waitpid(pid, 0)
        said = stderr.read_text(errors="replace")[-4000:]
        print(json.dumps([os.waitstatus_to_exitcode(status), said]), flush=True)


def _run(job: Any, directory: Path, stderr: Path, arguments: dict[str, Any]) -> int:
    os.dup2(os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
    # A job that hangs says where, and does not hang the test.
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(JOB_TIMEOUT_S)
    try:
        job(directory, **arguments)
    except BaseException:  # noqa: BLE001 - the test shows it
        traceback.print_exc()
        return 1
    return 0


def _too_long(*_: object) -> None:
    raise TimeoutError(f"the job took longer than {JOB_TIMEOUT_S} s")


if __name__ == "__main__":
    main(sys.argv[1])
