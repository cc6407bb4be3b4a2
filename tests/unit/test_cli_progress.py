"""Commands that take long say how far they are, on a terminal."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from turnd_client.cli import app
from turnd_client.cli.importing import _Upload

pytestmark = [pytest.mark.req("LOG-17"), pytest.mark.timeout(30)]


@pytest.mark.parametrize("terminal", [True, False])
async def test_a_terminal_is_told_until_the_work_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    monkeypatch.setattr(app, "PROGRESS_S", 0.001)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    asked = asyncio.Event()

    def progress() -> str:
        asked.set()
        return "half of it"

    async def work() -> int:
        if terminal:
            await asked.wait()
        else:
            await asyncio.sleep(0.01)
        return 7

    assert await app.Caller("import", {}).patiently(work(), progress) == 7
    told = capsys.readouterr().err
    assert (told.startswith("turn: half of it\n"), told == "") == (terminal, not terminal)


def test_an_upload_says_how_much_of_its_file_was_taken(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_bytes(b"x" * (5 * 2**19))
    with file.open("rb") as opened:
        upload = _Upload("log.jsonl", opened)
        said = [upload.progress() for _ in upload]
        assert [words.partition(" are ")[0] for words in said] == [
            "1.0 MiB of 2.5 MiB",
            "2.0 MiB of 2.5 MiB",
            "2.5 MiB of 2.5 MiB",
        ]
        assert upload.progress() == "2.5 MiB are with the daemon, which makes a session of them"
