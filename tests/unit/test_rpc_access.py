"""Who may call, and what protects the socket and the token."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import sys
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.unit.rpc_fakes import place_of, served

from turnd.rpc.endpoint import prepare_runtime
from turnd.v1 import daemon_pb2, daemon_pb2_grpc, sessions_pb2, sessions_pb2_grpc
from turnd.v1.paths import SocketPathTooLong, UnsafePath
from turnd_client.client import Client
from turnd_client.endpoint import Endpoint, find_endpoint
from turnd_client.errors import NoDaemon, UnsafeEndpoint


@pytest.mark.req("RPC-06")
@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", "Bearer " + "0" * 64),),
        (("authorization", "Basic x"),),
        (("authorization", ""),),
    ],
)
async def test_no_token_or_a_wrong_one_is_refused(
    short_path: Path, metadata: tuple[tuple[str, str], ...]
) -> None:
    async with served(short_path) as it, it.channel() as channel:
        daemon = daemon_pb2_grpc.DaemonStub(channel)
        sessions = sessions_pb2_grpc.SessionsStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as unary:
            await daemon.Status(daemon_pb2.StatusRequest(), metadata=metadata, timeout=10)
        with pytest.raises(grpc.aio.AioRpcError) as stream:
            async for _ in sessions.Attach(sessions_pb2.AttachRequest(), metadata=metadata, timeout=10):
                pass
        with pytest.raises(grpc.aio.AioRpcError) as upload:
            await sessions.Verify(iter([sessions_pb2.VerifyRequest()]), metadata=metadata, timeout=10)
        for refused in (unary, stream, upload):
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert "token" in (refused.value.details() or "")


@pytest.mark.req("RPC-06")
async def test_health_answers_without_a_token_and_nothing_else_does(short_path: Path) -> None:
    async with served(short_path) as it, it.channel() as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "turnd.v1.Sessions", "turnd.v1.Daemon"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflect = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await reflect(iter([b""]), timeout=10).read()
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.req("RPC-06", "V11")
@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
async def test_modes_do_not_depend_on_the_umask(short_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        async with served(short_path) as it:
            modes = [
                stat.S_IMODE(path.stat().st_mode)
                for path in (it.place.runtime, it.place.socket, it.place.token)
            ]
            assert [oct(mode) for mode in modes] == ["0o700", "0o600", "0o600"]
            assert os.umask(umask) == umask
            async with it.client() as client:
                assert (await client.status()).pid == 1
    finally:
        os.umask(before)


@pytest.mark.req("V11")
async def test_a_runtime_directory_that_others_can_reach_is_refused_by_both_sides(short_path: Path) -> None:
    place = place_of(short_path)
    place.runtime.mkdir()
    place.runtime.chmod(0o755)
    with pytest.raises(UnsafePath, match="chmod 700"):
        prepare_runtime(place)
    assert list(place.runtime.iterdir()) == []
    with pytest.raises(UnsafeEndpoint, match="chmod 700"):
        find_endpoint((place,))


@pytest.mark.req("V11")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file that belongs to somebody else")
async def test_what_belongs_to_somebody_else_is_refused(short_path: Path) -> None:
    async with served(short_path) as it:
        os.chown(it.place.token, 12345, 12345)
        with pytest.raises(UnsafeEndpoint, match="belongs to user 12345"):
            Endpoint(it.place).token()
        os.chown(it.place.socket, 12345, 12345)
        with pytest.raises(UnsafeEndpoint, match="belongs to user 12345"):
            find_endpoint((it.place,))
        os.chown(it.place.runtime, 12345, 12345)
        with pytest.raises(UnsafeEndpoint, match="belongs to user 12345"):
            find_endpoint((it.place, place_of(short_path / "other")))
        os.chown(it.place.runtime, 0, 0)
    os.chown(it.place.runtime, 12345, 12345)
    with pytest.raises(UnsafePath, match="belongs to user 12345"):
        prepare_runtime(it.place)
    os.chown(it.place.runtime, 0, 0)


@pytest.mark.req("RPC-06", "V11")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_another_user_cannot_connect_nor_read_the_token(short_path: Path) -> None:
    short_path.chmod(0o755)
    async with served(short_path) as it:
        program = (
            "import os, socket, sys\n"
            "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            "for attempt in (lambda: socket.socket(socket.AF_UNIX).connect(sys.argv[1]), lambda: open(sys.argv[2])):\n"
            "    try:\n"
            "        attempt()\n"
            "    except PermissionError:\n"
            "        print('refused')\n"
        )
        arguments = (sys.executable, "-I", "-c", program, str(it.place.socket), str(it.place.token))
        process = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
        stdout, _ = await process.communicate()
    assert stdout == b"refused\nrefused\n"


@pytest.mark.req("V11")
async def test_a_token_that_is_a_link_or_open_to_others_is_not_read(short_path: Path) -> None:
    async with served(short_path) as it:
        it.place.token.chmod(0o640)
        with pytest.raises(UnsafeEndpoint, match="chmod 600"):
            Endpoint(it.place).token()
        elsewhere = short_path / "elsewhere"
        it.place.token.rename(elsewhere)
        elsewhere.chmod(0o600)
        it.place.token.symlink_to(elsewhere)
        with pytest.raises(UnsafeEndpoint):
            Endpoint(it.place).token()


async def test_the_token_is_new_for_each_start_and_gone_after_it(short_path: Path) -> None:
    async with served(short_path) as it:
        first = Endpoint(it.place).token()
        assert len(bytes.fromhex(first)) == 32
    with pytest.raises(NoDaemon):
        Endpoint(it.place).token()
    async with served(short_path) as it:
        assert Endpoint(it.place).token() != first


async def test_a_client_reads_the_token_again_when_the_daemon_was_started_anew(short_path: Path) -> None:
    async with served(short_path) as it:
        client = Client(Endpoint(it.place), "test")
        assert (await client.status()).pid == 1
        # What a client sees of a restart that it did not notice: the token it holds is not valid any more.
        client._token = "0" * 64
        assert (await client.status()).pid == 1
        client._token = "0" * 64
        assert (await client.verify_lines([b"a\n", b"b\n"])).events == 2
        client._token = "0" * 64
        assert [part async for part in client.export("x")] == []
        await client.close()


@pytest.mark.req("V04")
async def test_a_path_that_is_too_long_is_explained_in_bytes(short_path: Path) -> None:
    room = 107 - len(os.fsencode(short_path / "x" / "run" / "turnd.sock")) + 1
    fits = short_path / ("ä" * (room // 2) + "a" * (room % 2))
    async with served(fits) as it, it.client() as client:
        assert len(os.fsencode(it.place.socket)) == 107
        assert (await client.status()).pid == 1
    too_long = place_of(short_path / ("ä" * (room // 2) + "aa"))
    with pytest.raises(SocketPathTooLong, match=r"10[89] bytes"):
        prepare_runtime(too_long)
    assert not too_long.runtime.exists()
    with pytest.raises(UnsafeEndpoint, match=r"10[89] bytes"):
        find_endpoint((too_long,))


@pytest.mark.req("V02")
async def test_a_stale_socket_is_nobody_and_is_replaced(short_path: Path) -> None:
    place = place_of(short_path)
    place.runtime.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(place.socket))
    place.socket.chmod(0o600)
    with pytest.raises(NoDaemon):
        find_endpoint((place,))
    async with served(short_path) as it, it.client() as client:
        assert (await client.status()).pid == 1
