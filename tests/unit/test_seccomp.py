"""The system call filter: its table of numbers, and what it decides, on both architectures."""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import itertools
import platform
import struct
from dataclasses import dataclass

import pytest

from turnd.cells import seccomp
from turnd.cells.seccomp import ABSENT, ALLOW, AUDIT_ARCH, KILL, REFUSED, Network, program, refused_with
from turnd.cells.syscalls import NEWEST, NUMBERS

COMMAND = Network(connect=False, listen=False)
PROVIDER = Network(connect=False, listen=True)
NETWORKED = Network(connect=True, listen=True)
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, AF_VSOCK = 1, 2, 10, 16, 40
STREAM, DATAGRAM, RAW, SEQPACKET, CLOEXEC = 1, 2, 3, 5, 0o2000000
FILTER_LIMIT = 4096


@dataclass(frozen=True, slots=True)
class Machine:
    """Interprets a filter as the kernel does, for calls of one architecture."""

    code: bytes
    architecture: str

    def decide(self, number: int, *arguments: int, audit: int | None = None) -> int:
        audit = AUDIT_ARCH[self.architecture] if audit is None else audit
        padded = [value & (1 << 64) - 1 for value in (*arguments, *[0] * (6 - len(arguments)))]
        data = struct.pack("<IIQ6Q", number, audit, 0, *padded)
        at = accumulator = 0
        while True:
            operation, when_true, when_false, value = struct.unpack_from("<HBBI", self.code, at * 8)
            at += 1
            match operation:
                case seccomp.LOAD:
                    (accumulator,) = struct.unpack_from("<I", data, value)
                case seccomp.AND:
                    accumulator &= value
                case seccomp.RETURN:
                    return int(value)
                case seccomp.JUMP_EQUAL:
                    at += when_true if accumulator == value else when_false
                case seccomp.JUMP_AT_LEAST:
                    at += when_true if accumulator >= value else when_false
                case seccomp.JUMP_ANY_BIT:
                    at += when_true if accumulator & value else when_false
                case _:
                    pytest.fail(f"instruction {operation:#x} is not one that the filter uses")

    def named(self, name: str, *arguments: int) -> int:
        number = NUMBERS[name][tuple(AUDIT_ARCH).index(self.architecture)]
        assert number is not None
        return self.decide(number, *arguments)


@pytest.fixture(params=list(AUDIT_ARCH))
def architecture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def machine(architecture: str, network: Network = COMMAND) -> Machine:
    return Machine(program(network, architecture), architecture)


def numbers(names: tuple[str, ...], architecture: str) -> list[int]:
    column = tuple(AUDIT_ARCH).index(architecture)
    return [number for name in names if (number := NUMBERS[name][column]) is not None]


def test_the_table_agrees_with_libseccomp() -> None:
    library = ctypes.util.find_library("seccomp")
    if library is None:
        pytest.skip("libseccomp is not installed")
    resolve = ctypes.CDLL(library).seccomp_syscall_resolve_name_arch
    resolve.argtypes = [ctypes.c_uint32, ctypes.c_char_p]
    compared = 0
    for (name, columns), (column, audit) in itertools.product(
        NUMBERS.items(), enumerate(AUDIT_ARCH.values())
    ):
        theirs = resolve(audit, name.encode())
        if theirs == -1:  # newer than this libseccomp
            continue
        compared += 1
        assert columns[column] == (theirs if theirs >= 0 else None), name
    assert compared > 150


def test_no_number_is_given_twice_and_none_is_newer_than_the_newest() -> None:
    for column in range(len(AUDIT_ARCH)):
        given = [columns[column] for columns in NUMBERS.values() if columns[column] is not None]
        assert len(given) == len(set(given))
        assert max(number for number in given if number is not None) <= NEWEST


def test_every_listed_call_is_in_the_table_once() -> None:
    assert set(REFUSED) | set(ABSENT) <= set(NUMBERS)
    assert len(REFUSED + ABSENT) == len({*REFUSED, *ABSENT})


@pytest.mark.parametrize("network", [COMMAND, PROVIDER, NETWORKED])
def test_every_jump_lands_and_every_path_ends(architecture: str, network: Network) -> None:
    code = program(network, architecture)
    length = len(code) // 8
    assert len(code) % 8 == 0
    assert length < FILTER_LIMIT
    last, *_ = struct.unpack_from("<HBBI", code, (length - 1) * 8)
    assert last == seccomp.RETURN
    for at in range(length):
        operation, when_true, when_false, _ = struct.unpack_from("<HBBI", code, at * 8)
        if operation in (seccomp.JUMP_EQUAL, seccomp.JUMP_AT_LEAST, seccomp.JUMP_ANY_BIT):
            assert at + 1 + max(when_true, when_false) < length


@pytest.mark.parametrize("network", [COMMAND, PROVIDER, NETWORKED])
def test_what_is_refused_outright_is_refused(architecture: str, network: Network) -> None:
    tested = machine(architecture, network)
    for number in numbers(REFUSED, architecture):
        assert tested.decide(number) == refused_with(errno.EPERM)
    for number in numbers(ABSENT, architecture):
        assert tested.decide(number) == refused_with(errno.ENOSYS)


@pytest.mark.parametrize("network", [COMMAND, PROVIDER, NETWORKED])
def test_what_is_not_named_is_allowed_up_to_the_newest_known(architecture: str, network: Network) -> None:
    tested = machine(architecture, network)
    named = set(numbers(tuple(NUMBERS), architecture))
    for number in range(NEWEST + 1):
        if number not in named:
            assert tested.decide(number) == ALLOW
    assert tested.decide(NEWEST + 1) == refused_with(errno.ENOSYS)


def test_foreign_architectures_are_killed(architecture: str) -> None:
    tested = machine(architecture)
    i386, other = 0x40000003, next(audit for name, audit in AUDIT_ARCH.items() if name != architecture)
    assert tested.decide(1, audit=i386) == KILL
    assert tested.decide(1, audit=other) == KILL


def test_the_x32_numbers_do_not_exist() -> None:
    tested = machine("x86_64")
    for number in numbers(("ptrace", "socket", "connect"), "x86_64"):
        assert tested.decide(number | 0x40000000) == refused_with(errno.ENOSYS)


def test_namespaces_are_refused_and_threads_are_not(architecture: str) -> None:
    tested = machine(architecture)
    refused = refused_with(errno.EPERM)
    for bit in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert tested.named("clone", bit | 17) == refused
        assert tested.named("unshare", bit) == refused
    assert tested.named("unshare", 0x80) == refused
    assert tested.named("clone", 0x3D0F00) == ALLOW
    assert tested.named("clone", 0x01200011) == ALLOW
    assert tested.named("unshare", 0x400) == ALLOW


def test_terminal_input_is_refused_whatever_the_upper_bits_are(architecture: str) -> None:
    tested = machine(architecture)
    for request in (0x5412, 0x541C, 0x1_0000_5412, 0xFFFFFFFF_0000541C):
        assert tested.named("ioctl", 0, request) == refused_with(errno.EPERM)
    for request in (0x5401, 0x5413, 0x5421):
        assert tested.named("ioctl", 0, request) == ALLOW


@pytest.mark.parametrize("bits", [0o4000, 0o2000, 0o6000, 0o4755])
def test_set_uid_bits_are_refused_wherever_a_mode_is_given(architecture: str, bits: int) -> None:
    tested = machine(architecture)
    refused = refused_with(errno.EPERM)
    creating, temporary = 0o101, 0o20200002
    calls = {
        "fchmod": (0, bits),
        "fchmodat": (0, 0, bits),
        "fchmodat2": (0, 0, bits),
        "mknodat": (0, 0, bits),
    }
    if architecture == "x86_64":
        calls |= {"chmod": (0, bits), "creat": (0, bits), "mknod": (0, bits), "open": (0, creating, bits)}
    calls["openat"] = (0, 0, creating, bits)
    for name, arguments in calls.items():
        assert tested.named(name, *arguments) == refused, name
        assert tested.named(name, *arguments[:-1], 0o1755) == ALLOW, name
    assert tested.named("openat", 0, 0, temporary, bits) == refused
    assert tested.named("openat", 0, 0, 0o2, bits) == ALLOW, "without O_CREAT the argument is not a mode"


def test_personalities(architecture: str) -> None:
    tested = machine(architecture)
    for value in (0, 0x0040000, 0xFFFFFFFF):
        assert tested.named("personality", value) == ALLOW
    for value in (0x0400000, 0x8, 0x0440000):
        assert tested.named("personality", value) == refused_with(errno.EPERM)


@pytest.mark.parametrize("network", [COMMAND, PROVIDER])
def test_without_network_there_are_unix_streams_and_nothing_to_connect_to(
    architecture: str, network: Network
) -> None:
    tested = machine(architecture, network)
    for family in (AF_INET, AF_INET6, AF_VSOCK, 17, 31, 0):
        assert tested.named("socket", family, STREAM) == refused_with(errno.EAFNOSUPPORT)
    for flags in (0, CLOEXEC, 0o4000):
        for kind in (STREAM, SEQPACKET):
            assert tested.named("socket", AF_UNIX, kind | flags) == ALLOW
            assert tested.named("socketpair", AF_UNIX, kind | flags) == ALLOW
        for kind in (DATAGRAM, RAW):
            assert tested.named("socket", AF_UNIX, kind | flags) == refused_with(errno.EACCES)
            assert tested.named("socketpair", AF_UNIX, kind | flags) == refused_with(errno.EACCES)
    assert tested.named("connect", 3, 0, 0) == refused_with(errno.EACCES)


def test_with_network_internet_sockets_connect(architecture: str) -> None:
    tested = machine(architecture, NETWORKED)
    for family in (AF_UNIX, AF_INET, AF_INET6):
        assert tested.named("socket", family, DATAGRAM | CLOEXEC) == ALLOW
    assert tested.named("socket", AF_VSOCK, STREAM) == refused_with(errno.EAFNOSUPPORT)
    assert tested.named("connect", 3, 0, 0) == ALLOW
    assert tested.named("socketpair", AF_UNIX, DATAGRAM) == ALLOW


@pytest.mark.parametrize(("network", "verdict"), [(COMMAND, refused_with(errno.EACCES)), (PROVIDER, ALLOW)])
def test_only_providers_listen(architecture: str, network: Network, verdict: int) -> None:
    tested = machine(architecture, network)
    for name in ("listen", "accept", "accept4"):
        assert tested.named(name, 3, 1) == verdict


@pytest.mark.parametrize("network", [COMMAND, NETWORKED])
def test_netlink_is_for_routes_only(architecture: str, network: Network) -> None:
    tested = machine(architecture, network)
    assert tested.named("socket", AF_NETLINK, RAW, 0) == ALLOW
    for protocol in (4, 9, 12, 15, 16):
        assert tested.named("socket", AF_NETLINK, RAW, protocol) == refused_with(errno.EPROTONOSUPPORT)


def test_an_unknown_machine_has_no_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(seccomp.UnknownArchitecture, match="riscv64"):
        program(COMMAND)
