"""A start that fails ends the process, whatever the failure is: nothing is left that would keep it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.harness import prepared_daemon

FAILING = """
import sys, turnd.main, turnd.app

async def fail(self):
    raise {error}

turnd.app.App._open_sandbox_and_tools = fail
sys.argv = ["turnd", "serve"]
turnd.main.main()
"""


@pytest.mark.req("OPS-02")
@pytest.mark.parametrize("error", ["OSError(5, 'the disk')", "RecursionError('a bug')"])
async def test_a_failure_after_the_log_was_opened_ends_the_process_and_lets_the_lock_go(error: str) -> None:
    async with prepared_daemon() as daemon:
        done = subprocess.run(
            [sys.executable, "-c", FAILING.format(error=error)],
            capture_output=True,
            text=True,
            timeout=60,
            env=daemon.environment,
            check=False,
        )
        assert done.returncode != 0
        assert error.split("'")[1] in done.stderr
        await daemon.start()
