"""`turnd check-config`: what it says of a file, with file, line and key, and how it ends (OPS-03)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.req("OPS-03")

GOOD = """
[profiles.default]
tools = ["workspace.*"]
max_turns = 3
"""
MISTAKES = {
    "no TOML": ("[profiles.default\n", 1, "not valid TOML"),
    "an unknown section": ("\n[profile.default]\nmax_turns = 3\n", 2, "profile"),
    "an unknown key": ("[profiles.default]\nmax_turn = 3\n", 2, "max_turn"),
    "a wrong type": ('[profiles.default]\n\nmax_turns = "three"\n', 3, "max_turns"),
    "a bound that means nothing": ("[profiles.default]\nmax_cost_usd = -1\n", 2, "max_cost_usd"),
    "a hook without a command": ('[[hooks]]\npoint = "plan-ready"\nmode = "veto"\n', 1, "hooks"),
    "an unknown point": ('[[hooks]]\npoint = "plan-made"\nmode = "veto"\ncommand = ["true"]\n', 2, "point"),
    "an unknown action": (
        '[[policy]]\nname = "a"\nmatch = { tool = "read_file" }\naction = "maybe"\n',
        4,
        "action",
    ),
    "a provider that would be ignored": ('[providers.mine]\ncommand = ["mine"]\n', 1, "providers.mine"),
    "a profile that is not there": ('\n\ndefault_profile = "nobody"\n', 3, "default_profile"),
    "a table twice": ("[profiles.a]\nmax_turns = 1\n[profiles.a]\nmax_turns = 2\n", 3, "twice"),
    "rules that contradict each other": (
        '[[policy]]\nname = "a"\nmatch = { tool = "t" }\naction = "allow"\n\n'
        '[[policy]]\nname = "b"\nmatch = { tool = "t" }\naction = "deny"\n',
        6,
        "policy rules 'a'",
    ),
    "a pattern that is none": (
        '\n[[policy]]\nname = "a"\nmatch = { command = ["git ("] }\naction = "allow"\n',
        2,
        "match.command",
    ),
    "a server that nobody can talk to": ('[models.x]\nkind = "anthropic"\n', 2, "models.x.kind"),
    "a key from where nobody looks": (
        '[models.x]\nkind = "openai-compatible"\nbase_url = "http://127.0.0.1:1/v1"\n'
        'api_key = { keyring = "k" }\n',
        4,
        "models.x.api_key",
    ),
}


def check_config(home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "turnd.main", "check-config", *options],
        env={"TURND_HOME": str(home), "PATH": os.environ["PATH"], "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def configured(home: Path, toml: str) -> Path:
    file = home / "config" / "config.toml"
    file.parent.mkdir()
    file.write_text(toml, encoding="utf-8")
    return file


def test_a_file_that_is_fine(tmp_path: Path) -> None:
    file = configured(tmp_path, GOOD)
    done = check_config(tmp_path)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, f"{file} is fine", "")
    found = json.loads(check_config(tmp_path, "--json").stdout)
    assert found == {"ok": True, "file": str(file), "exists": True, "warnings": []}


def test_without_a_file_the_defaults_apply(tmp_path: Path) -> None:
    done = check_config(tmp_path)
    assert done.returncode == 0
    assert "is not there; the defaults apply" in done.stdout
    assert json.loads(check_config(tmp_path, "--json").stdout)["exists"] is False


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_file_line_and_key(tmp_path: Path, mistake: str) -> None:
    toml, line, key = MISTAKES[mistake]
    file = configured(tmp_path, toml)
    done = check_config(tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{file}:{line}" in done.stderr
    assert key in done.stderr
    assert "Traceback" not in done.stderr
    error = json.loads(check_config(tmp_path, "--json").stdout)["error"]
    assert error["code"] == "CONFIGURATION"
    assert any(f"{file}:{line}" in problem for problem in error["details"]["problems"])


def test_a_warning_is_no_mistake(tmp_path: Path) -> None:
    file = configured(tmp_path, '\n[[policy]]\nname = "all"\nmatch = {}\naction = "deny"\n')
    done = check_config(tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, f"{file} is fine")
    assert f"{file}:2: policy" in done.stderr
    assert "empty match" in done.stderr
    done = check_config(tmp_path, "--json")
    (warning,) = json.loads(done.stdout)["warnings"]
    assert (done.returncode, done.stderr) == (0, "")
    assert warning.startswith(f"{file}:2: policy")


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    configured(tmp_path, '[profiles.default]\nmax_turn = 3\n\n[profiles.other]\nmax_depth = "x"\n')
    said = check_config(tmp_path).stderr
    assert "max_turn" in said
    assert "max_depth" in said


def test_a_file_that_cannot_be_read_is_said_to_be_so(tmp_path: Path) -> None:
    file = tmp_path / "config" / "config.toml"
    file.mkdir(parents=True)
    done = check_config(tmp_path)
    assert done.returncode == 1
    assert str(file) in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads(check_config(tmp_path, "--json").stdout)["error"]["code"] in ("FILE", "CONFIGURATION")
