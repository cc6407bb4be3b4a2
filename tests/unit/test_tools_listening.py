"""The socket of a provider: where it may be, and what is dialled."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest
import structlog

from turnd.tools.listening import MAX_SOCKET_PATH_BYTES, SOCKET, ListenDirectory, NotReady, ReadyPipe

LOG = structlog.get_logger()


@pytest.mark.req("V04")
def test_a_path_that_is_too_long_in_bytes_is_explained(tmp_path: Path) -> None:
    length = MAX_SOCKET_PATH_BYTES - len(os.fsencode(tmp_path)) - len("/") - len("/123456789abc/s")
    fits = "é" * (length // 2) + "e" * (length % 2)
    made = ListenDirectory.make(tmp_path / fits, LOG, "root", "provider", "1")
    assert len(os.fsencode(made.path / SOCKET)) == MAX_SOCKET_PATH_BYTES
    socket.socket(socket.AF_UNIX).bind(str(made.path / SOCKET))
    with pytest.raises(NotReady, match=f"has {MAX_SOCKET_PATH_BYTES + 1} bytes"):
        ListenDirectory.make(tmp_path / (fits + "e"), LOG, "root", "provider", "1")
    assert len(list(tmp_path.iterdir())) == 1


def test_directories_are_private_empty_and_distinct(short_path: Path) -> None:
    one = ListenDirectory.make(short_path / "p", LOG, "root", "provider", "1")
    assert one.path.stat().st_mode & 0o777 == 0o700
    assert one.path.parent.stat().st_mode & 0o777 == 0o700
    assert ListenDirectory.make(short_path / "p", LOG, "root", "provider", "2").path != one.path
    assert ListenDirectory.make(short_path / "p", LOG, "rootprovider", "", "1").path != one.path
    (one.path / "left").touch()
    again = ListenDirectory.make(short_path / "p", LOG, "root", "provider", "1")
    assert again == one
    assert not list(again.path.iterdir())
    one.remove()
    assert not one.path.exists()


def _bound(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(path))
    return made


def test_only_a_socket_itself_is_opened(short_path: Path) -> None:
    place = ListenDirectory.make(short_path / "p", LOG, "x")
    target = place.path / SOCKET
    with pytest.raises(NotReady, match="there is no socket"):
        place.open_socket()
    victim = _bound(short_path / "victim")
    target.symlink_to(short_path / "victim")
    with pytest.raises(NotReady, match="not a socket, but a link"):
        place.open_socket()
    target.unlink()
    target.touch()
    with pytest.raises(NotReady, match="not a socket"):
        place.open_socket()
    target.unlink()
    own = _bound(target)
    own.listen()
    descriptor = place.open_socket()
    with socket.socket(socket.AF_UNIX) as client:
        # What is dialled is what was looked at, whatever is put in its place meanwhile.
        target.unlink()
        target.symlink_to(short_path / "victim")
        client.connect(f"/proc/self/fd/{descriptor}")
        accepted, _ = own.accept()
        accepted.close()
    os.close(descriptor)
    for opened in (own, victim):
        opened.close()


@pytest.mark.parametrize(
    ("said", "complaint"),
    [(b"", "ended at its start"), (b"hello\n", "said b'hello"), (b"rea", "said b'rea'")],
)
async def test_anything_but_ready_is_told(said: bytes, complaint: str) -> None:
    pipe = ReadyPipe()
    os.write(pipe.theirs, said)
    pipe.given()
    with pytest.raises(NotReady, match=complaint):
        await pipe.wait()
    pipe.close()


async def test_ready_may_come_in_pieces() -> None:
    pipe = ReadyPipe()
    waiting = asyncio.create_task(pipe.wait())
    for part in (b"re", b"ady", b"\n"):
        os.write(pipe.theirs, part)
        await asyncio.sleep(0)
    await waiting
    pipe.close()
