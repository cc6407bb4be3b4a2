"""What the shell at the gate says, read with suspicion, and the shell itself."""

from __future__ import annotations

import socket
import subprocess

import pytest

from turnd.cells.gate import GO, MAX_MESSAGE, NOT_STARTED, read_over, read_up, shell


@pytest.mark.parametrize(
    ("message", "pid"),
    [
        (b"up 2\n", 2),
        (b"up 0\n", None),
        (b"up -1\n", None),
        (b"up 2", None),
        (b"over 2\n", None),
        (b"", None),
    ],
)
def test_only_a_greeting_is_a_greeting(message: bytes, pid: int | None) -> None:
    assert read_up(message) == pid


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"over 0\n", 0),
        (b"over 255\n", 255),
        (b"over 256\n", None),
        (b"over -1\n", None),
        (b"over 1\nover 0\n", None),
        (b"over 0", None),
        (b"\xff" * MAX_MESSAGE, None),
        (b"", None),
    ],
)
def test_only_an_exit_code_is_an_exit_code(message: bytes, code: int | None) -> None:
    assert read_over(message) == code


@pytest.fixture
def gate() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.settimeout(30)
    return ours, theirs


def start(inside: socket.socket, argv: list[str]) -> subprocess.Popen[bytes]:
    with inside:
        return subprocess.Popen(shell(argv, ()), stdin=inside, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_the_program_runs_after_go_only_and_its_end_is_told(
    gate: tuple[socket.socket, socket.socket],
) -> None:
    ours, inside = gate
    with ours, start(inside, ["/bin/sh", "-c", "cat; echo out; echo err >&2; kill -SEGV $$"]) as process:
        assert read_up(ours.recv(MAX_MESSAGE)) == process.pid
        ours.sendall(GO)
        assert read_over(ours.recv(MAX_MESSAGE)) == 128 + 11
        assert process.poll() is None, "it waits until its cell is ended"
        ours.close()
        assert process.communicate(timeout=30) == (b"out\n", b"err\n")


@pytest.mark.parametrize("word", [b"", b"no\n", b"gone\n"])
def test_without_go_nothing_runs(gate: tuple[socket.socket, socket.socket], word: bytes) -> None:
    ours, inside = gate
    with ours, start(inside, ["echo", "ran"]) as process:
        assert read_up(ours.recv(MAX_MESSAGE)) == process.pid
        if word:
            ours.sendall(word)
        ours.close()
        assert process.communicate(timeout=30) == (b"", b"")
        assert process.returncode == NOT_STARTED


def test_the_shells_own_descriptor_avoids_those_that_are_passed() -> None:
    script = shell(["true"], (3, 4, 6))[2]
    assert "exec 5>&2" in script
