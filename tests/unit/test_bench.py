"""The benchmark runs and prints every row; what it measures is nobody's to assert."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

GROUPS = {
    "Appends, ordinary grade (assistant/chunk)": 15,
    "Appends, commitments (usage)": 15,
    "A Step late in a session": 3,
    "Replay": 3,
    "Many sessions": 4,
}
"""Rows in each."""


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *arguments, "--directory", str(directory)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)


def test_every_row_has_a_figure_a_floor_and_their_ratio(tmp_path: Path) -> None:
    done = run(tmp_path, "log", "--quick", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["machine"].keys() >= {"cores", "Python", "SQLite", "file system"}
    counted = dict.fromkeys(GROUPS, 0)
    for row in found["rows"]:
        counted[row["group"]] += 1
        assert row["value"] > 0
        assert row["floor_value"] > 0
        better, worse = row["value"], row["floor_value"]
        ratio = worse / better if row["unit"] == "events/s" else better / worse
        assert row["ratio"] == pytest.approx(ratio)
    assert counted == GROUPS
    assert not list(tmp_path.iterdir()), "its files are gone"


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "nothing")
    assert done.returncode == 2
    assert "no benchmark is named 'nothing': there are log" in done.stderr
