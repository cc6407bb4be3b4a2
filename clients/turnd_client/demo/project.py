"""The sample project and the recorded model, written into a fresh directory."""

from __future__ import annotations

import shutil
from importlib import resources
from pathlib import Path

_PACKAGE = resources.files("turnd_client.demo")
_PYTHONS = ("python3", "python3.11", "python3.12", "python3.13", "python")

PROMPT = "One of the tests of this project fails. Find out why, fix it, and run the tests."
FIXED_FILE = "basket.py"
FIXED_LINE = "    return (sum(prices) * (100 - discount_percent) + 50) // 100\n"
TEST_TOOL = "run_command"


class NoPython(Exception):
    """The tests of the sample project need a Python that the session's commands find on PATH."""


def write_project(directory: Path) -> None:
    """The sample project, with its failing test."""
    for source in _PACKAGE.joinpath("sample").iterdir():
        (directory / source.name.removesuffix(".txt")).write_text(source.read_text("utf-8"), "utf-8")


def write_transcript(path: Path, search_path: str) -> None:
    """What the recorded model answers, with the name that Python has on this PATH. Raises NoPython."""
    python = next((name for name in _PYTHONS if shutil.which(name, path=search_path)), None)
    if python is None:
        raise NoPython(f"expected one of {', '.join(_PYTHONS)} on PATH, found none on {search_path}")
    text = _PACKAGE.joinpath("transcript.jsonl").read_text("utf-8")
    path.write_text(text.replace("@PYTHON@", python), "utf-8")
