"""Keys: where they come from, and that they stay out of texts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from turnd.models.keys import EnvironmentKey, FileKey, Keys, KeyUnavailable

SECRET = "zq9-Xw1_4nothing.like.a.vendor"


def key_file(path: Path, content: str = SECRET, mode: int = 0o600) -> FileKey:
    path.write_text(content)
    path.chmod(mode)
    return FileKey(str(path))


def refusal(keys: Keys, source: EnvironmentKey | FileKey) -> str:
    with pytest.raises(KeyUnavailable) as refused:
        keys.read(source)
    assert SECRET not in str(refused.value)
    return str(refused.value)


def test_from_the_environment() -> None:
    assert Keys({"MY_KEY": f" {SECRET}\n"}).read(EnvironmentKey("MY_KEY")) == SECRET


@pytest.mark.parametrize("environment", [{}, {"MY_KEY": ""}])
def test_a_variable_that_is_not_set_says_what_to_do(environment: dict[str, str]) -> None:
    text = refusal(Keys(environment), EnvironmentKey("MY_KEY"))
    assert "the environment variable MY_KEY is not set in the daemon's environment" in text
    assert "name a file with the key" in text


def test_from_a_private_file_as_it_is_now(tmp_path: Path) -> None:
    source = key_file(tmp_path / "key", SECRET + "\n")
    keys = Keys({})
    assert keys.read(source) == SECRET
    (tmp_path / "key").write_text("another-key")
    assert keys.read(source) == "another-key"


def test_a_file_under_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    key_file(tmp_path / "key")
    assert Keys({}).read(FileKey("~/key")) == SECRET


@pytest.mark.req("MODEL-10")
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o602, 0o660])
def test_a_file_that_others_can_reach_is_refused(tmp_path: Path, mode: int) -> None:
    source = key_file(tmp_path / "key", mode=mode)
    text = refusal(Keys({}), source)
    assert f"has mode {mode:04o}" in text
    assert "chmod 600" in text


def test_what_is_not_a_key_file_is_refused(tmp_path: Path) -> None:
    keys = Keys({})
    assert "No such file" in refusal(keys, FileKey(str(tmp_path / "none")))
    assert "not a regular file" in refusal(keys, FileKey(str(tmp_path)))
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)
    assert "not a regular file" in refusal(keys, FileKey(str(fifo)))
    assert "NUL" in refusal(keys, FileKey("/a\0b"))
    assert "must hold one key" in refusal(keys, key_file(tmp_path / "empty", "\n"))
    assert "must hold one key" in refusal(keys, key_file(tmp_path / "two", f"{SECRET}\n{SECRET}"))
    assert "must hold one key" in refusal(keys, key_file(tmp_path / "sentence", f"key {SECRET}"))
    assert "must hold one key" in refusal(keys, key_file(tmp_path / "accents", f"{SECRET}é"))
    assert "longer than" in refusal(keys, key_file(tmp_path / "long", SECRET * 2000))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    source = key_file(tmp_path / "key")
    os.chown(source.path, 12345, -1)
    assert "belongs to another user (uid 12345)" in refusal(Keys({}), source)


@pytest.mark.req("MODEL-10")
def test_keys_that_were_read_are_taken_out_of_texts(tmp_path: Path) -> None:
    keys = Keys({"MY_KEY": SECRET})
    keys.read(EnvironmentKey("MY_KEY"))
    source = key_file(tmp_path / "key", "first-key-of-two")
    keys.read(source)
    (tmp_path / "key").write_text("second-key-of-two")
    keys.read(source)
    text = keys.redact(f"bad key {SECRET}, or {SECRET}x; first-key-of-two, second-key-of-two")
    assert text == "bad key [redacted], or [redacted]x; [redacted], [redacted]"


@pytest.mark.req("MODEL-10")
@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("Incorrect API key provided: sk-proj-abcd****wxyz.", "Incorrect API key provided: [redacted]"),
        ("gsk_0123456789abcdef is no key", "[redacted] is no key"),
        ("Authorization: Bearer eyJhbGciOi.J9", "Authorization: Bearer [redacted]"),
        ("AIza" + "Sy0123456789abcdefghijk", "[redacted]"),
        ("task-forces and http://api-inference.example/v1 stay", None),
        ("the environment variable OPENAI_API_KEY is not set", None),
    ],
)
def test_what_looks_like_a_key_is_taken_out_too(text: str, clean: str | None) -> None:
    assert Keys({}).redact(text) == (text if clean is None else clean)
