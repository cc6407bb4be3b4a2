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


ELSEWHERE = """
import sys, turnd.main, turnd.store.filesystem
from pathlib import Path

turnd.store.filesystem._MOUNTS = Path(sys.argv[1])
sys.argv = ["turnd", "serve"]
turnd.main.main()
"""


@pytest.mark.req("LOG-10")
async def test_a_log_on_a_network_file_system_is_refused_unless_that_is_accepted() -> None:
    """Nothing is made there before; the words of the refusal are those that accept it."""
    async with prepared_daemon() as daemon:
        mounts = daemon.base / "mountinfo"
        mounts.write_text(
            "1 0 0:1 / / rw - ext4 a rw\n2 1 0:2 / " + f"{daemon.base.resolve()} rw - nfs4 b rw\n"
        )
        command = [sys.executable, "-c", ELSEWHERE, str(mounts)]
        refused = subprocess.run(
            command, capture_output=True, text=True, timeout=60, env=daemon.environment, check=False
        )
        assert refused.returncode == 1
        assert "nfs4" in refused.stderr
        assert "[storage] accept_network_file_system = true" in refused.stderr
        assert not daemon.database.exists()
        daemon.configure("[storage]\naccept_network_file_system = true\n")
        await daemon.start(command)
        assert (await daemon.client.status()).pid == daemon.pid
        assert daemon.database.exists()


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
