"""The systemd user service, read by systemd's own checker."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
from pathlib import Path

import pytest

UNIT = Path(__file__).parents[2] / "systemd" / "turnd.service"
ANALYZE = shutil.which("systemd-analyze")

NO_CELLS_UNDER = {
    "PrivateTmp",
    "PrivateUsers",
    "ProcSubset",
    "ProtectControlGroups",
    "ProtectHome",
    "ProtectKernelTunables",
    "ProtectProc",
    "ProtectSystem",
    "RestrictNamespaces",
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with the program that the service starts."""
    program = tmp_path / ".local" / "bin" / "turnd"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o755)
    return tmp_path


def verify(home: Path, unit: Path) -> subprocess.CompletedProcess[str]:
    if ANALYZE is None:
        pytest.skip("systemd-analyze is not installed (Debian: apt-get install systemd)")
    runtime = home / "runtime"
    runtime.mkdir(mode=0o700)
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "XDG_RUNTIME_DIR": str(runtime)}
    return subprocess.run(
        [ANALYZE, "--user", "--man=no", "verify", str(unit)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.req("OPS-01")
def test_the_unit_is_clean(home: Path) -> None:
    done = verify(home, UNIT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_checker_sees_what_is_wrong(home: Path) -> None:
    unit = home / "turnd.service"
    unit.write_text(UNIT.read_text(encoding="utf-8").replace("Type=notify", "Type=notfy"), encoding="utf-8")
    done = verify(home, unit)
    assert "turnd.service:12: Failed to parse service type" in done.stderr


def settings() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT, encoding="utf-8")
    return parser["Service"]


@pytest.mark.req("OPS-01")
def test_notify_watchdog_drain_and_delegation_are_asked_for() -> None:
    service = settings()
    assert service["Type"] == "notify"
    assert service["NotifyAccess"] == "main"
    assert int(service["WatchdogSec"]) > 0
    assert service["KillMode"] == "mixed"
    assert service["Delegate"] == "yes"
    assert service["ExecReload"].endswith("-HUP $MAINPID")


def test_nothing_is_set_under_which_no_cell_can_be_made() -> None:
    assert not NO_CELLS_UNDER & set(settings())
