"""From inside cells: no network and no sockets but those that the kind of cell has."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.security.fort import Fort, attacking

from turnd.cells import LISTEN_DIR


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A TCP server of the host's, on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def tried(listener: socket.socket) -> str:
    return f"""
port = {listener.getsockname()[1]}
found["tcp"] = attempt(socket.create_connection, ("127.0.0.1", port), 2)
def udp():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x", ("127.0.0.1", port))
found["udp"] = attempt(udp)
found["ipv6"] = attempt(socket.socket, socket.AF_INET6)
found["vsock"] = attempt(socket.socket, 40)
found["packet"] = attempt(socket.socket, 17, socket.SOCK_RAW)
found["bluetooth"] = attempt(socket.socket, 31)
found["audit"] = attempt(socket.socket, socket.AF_NETLINK, socket.SOCK_RAW, 9)
found["interfaces"] = attempt(socket.if_nameindex)
"""


@pytest.mark.req("SBX-03")
async def test_commands_and_providers_without_network_have_no_internet_sockets(
    fort: Fort, listener: socket.socket
) -> None:
    code = attacking(tried(listener))
    for spec in (
        fort.command(code),
        fort.inspect(code),
        fort.provider(code),
        fort.third_party(code, network=False),
    ):
        found = (await fort.run(spec)).found
        assert {found[name] for name in ("tcp", "udp", "ipv6", "vsock", "packet", "bluetooth")} == {
            "EAFNOSUPPORT"
        }
        assert found["audit"] == "EPROTONOSUPPORT"
    with pytest.raises(BlockingIOError):
        listener.accept()


async def test_a_provider_with_network_reaches_the_internet_families_only(
    fort: Fort, listener: socket.socket
) -> None:
    found = (await fort.run(fort.third_party(attacking(tried(listener)), network=True))).found
    assert (found["tcp"], found["udp"]) == ("done", "done")
    assert {found["vsock"], found["packet"], found["bluetooth"]} == {"EAFNOSUPPORT"}
    connection, _ = listener.accept()
    connection.close()


@pytest.mark.req("SBX-03")
async def test_planted_and_abstract_sockets_cannot_be_reached(fort: Fort, short_path: Path) -> None:
    with ExitStack() as stack:
        servers = []
        for name, address in (("path", str(short_path / "s")), ("abstract", f"\0turnd-test-{fort.base}")):
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            server.bind(address)
            server.listen()
            server.setblocking(False)
            servers.append((name, server))
        planted = fort.workspace / "planted.sock"
        planted.hardlink_to(short_path / "s")
        found = await fort.attack(f"""
def reach(address):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(address)
os.chdir({str(fort.workspace)!r})
found["seen"] = os.path.exists("planted.sock")
found["planted"] = attempt(reach, "planted.sock")
found["abstract"] = attempt(reach, {servers[1][1].getsockname()!r})
for name, kind in (("datagram", socket.SOCK_DGRAM), ("raw", socket.SOCK_RAW)):
    found[name] = attempt(socket.socket, socket.AF_UNIX, kind)
    found[name + " pair"] = attempt(socket.socketpair, socket.AF_UNIX, kind)
found["pair"] = attempt(socket.socketpair)
""")
        assert found == {
            "seen": True,
            "planted": "EACCES",
            "abstract": "EACCES",
            "datagram": "EACCES",
            "datagram pair": "EACCES",
            "raw": "EACCES",
            "raw pair": "EACCES",
            "pair": "done",
        }
        for _, server in servers:
            with pytest.raises(BlockingIOError):
                server.accept()


@pytest.mark.req("SBX-03")
async def test_a_command_cannot_listen(fort: Fort) -> None:
    found = await fort.attack("""
os.chdir("/tmp")
server = socket.socket(socket.AF_UNIX)
server.bind("lure.sock")
found["listen"] = attempt(server.listen)
found["accept"] = attempt(server.accept)
found["directory"] = os.path.exists("/run/turnd")
""")
    assert found == {"listen": "EACCES", "accept": "EACCES", "directory": False}


async def test_a_provider_is_dialled_through_its_own_directory(fort: Fort, short_path: Path) -> None:
    code = f"""
import socket
server = socket.socket(socket.AF_UNIX)
server.bind("{LISTEN_DIR}/s")
server.listen()
print("ready", flush=True)
connection, _ = server.accept()
connection.sendall(b"served " + connection.recv(100))
"""
    listen = short_path / "listen"
    listen.mkdir()
    spec = type(fort.provider(["true"])).third_party(
        [*attacking(code)[:-1], code],
        env={},
        listen_dir=str(listen.resolve()),
        read=fort.provider(["true"]).read,
    )
    async with await fort.cells.start(spec) as cell:
        assert await cell.stdout.readline() == b"ready\n"
        reader, writer = await asyncio.open_unix_connection(str(listen / "s"))
        writer.write(b"you")
        assert await reader.read() == b"served you"
        writer.close()
        await writer.wait_closed()
        assert (await cell.wait()).code == 0
