"""The system call filter of a cell, put together without a compiler or libseccomp.

What is refused outright is a list; what is refused by its arguments is a block of its own. Calls newer than
the list do not exist in a cell (ENOSYS): programs then do as on an older kernel. A call of a foreign
architecture kills the program, since its numbers mean something else.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from turnd.cells.syscalls import NEWEST, NUMBERS

AUDIT_ARCH: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""The architectures that a filter can be made for, as the kernel numbers them."""

KILL: Final = 0x80000000
ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000

LOAD, AND, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_ANY_BIT, RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
"""The instructions that are used: BPF_LD|W|ABS, BPF_ALU|AND|K, BPF_JMP|{JEQ,JGE,JSET}|K, BPF_RET|K."""

_NUMBER_OFFSET, _ARCH_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16
_X32_BIT: Final = 0x40000000
_SPECIAL_MODE: Final = 0o6000
_MAKES_FILE: Final = 0o100 | 0o20000000
"""O_CREAT, O_TMPFILE: only with one of them does the mode of open() count."""
_NEW_NAMESPACE: Final = 0x7E020000
_NEW_TIME_NAMESPACE: Final = 0x80
"""In clone() this bit is part of the exit signal; only unshare() takes it."""
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_NETLINK_ROUTE: Final = 0
_SOCK_STREAM, _SOCK_SEQPACKET, _SOCK_TYPE_MASK = 1, 5, 0xF
_PERSONALITIES: Final = (0, 0x0040000, 0xFFFFFFFF)
"""Linux as it is, without address randomisation (debuggers), and the question which it is."""

REFUSED: Final = (
    *("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp", "process_madvise"),
    *("process_mrelease", "mount", "umount2", "pivot_root", "chroot", "open_tree", "move_mount", "fsopen"),
    *("fsconfig", "fsmount", "fspick", "mount_setattr", "open_tree_attr", "setns", "add_key", "request_key"),
    *("keyctl", "bpf", "userfaultfd", "perf_event_open", "io_uring_setup", "io_uring_enter"),
    *("io_uring_register", "fanotify_init", "lookup_dcookie", "open_by_handle_at", "migrate_pages"),
    *("move_pages", "mbind", "set_mempolicy", "set_mempolicy_home_node", "kexec_load", "kexec_file_load"),
    *("init_module", "finit_module", "delete_module", "swapon", "swapoff", "quotactl", "quotactl_fd", "acct"),
    *("reboot", "sethostname", "setdomainname", "settimeofday", "clock_settime", "clock_adjtime", "adjtimex"),
    *("syslog", "vhangup", "iopl", "ioperm", "modify_ldt", "uselib", "ustat", "sysfs", "_sysctl"),
    *("create_module", "query_module", "get_kernel_syms", "nfsservctl"),
)
"""Refused with EPERM whatever the arguments are."""

ABSENT: Final = ("clone3", "openat2", "memfd_create", "memfd_secret")
"""ENOSYS, so that programs fall back: the first two hide what is filtered behind a pointer, which a filter
cannot follow; the others make memory that neither a limit nor a look at the processes counts."""


class UnknownArchitecture(Exception):
    """There is no table of system calls for this machine, so no filter can be made (SBX-02)."""


@dataclass(frozen=True, slots=True)
class Network:
    """Which socket calls a cell may make."""

    connect: bool
    """connect(), and internet sockets. Without it Unix sockets are streams only: a datagram socket reaches an
    address without connect(), and the address is behind a pointer where it cannot be filtered."""
    listen: bool
    """listen() and accept(). bind() alone is harmless, and the C library needs it to list interfaces."""


def program(network: Network, architecture: str | None = None) -> bytes:
    """The filter as an array of `struct sock_filter`. Raises UnknownArchitecture."""
    return b"".join(_instructions(network, architecture or platform.machine()))


def refused_with(error: int) -> int:
    """What a filter returns for a call that fails with this error."""
    return _ERRNO | error


def _instructions(network: Network, architecture: str) -> Iterable[bytes]:
    if architecture not in AUDIT_ARCH:
        raise UnknownArchitecture(
            f"no system call filter is known for {architecture}, only for {' and '.join(AUDIT_ARCH)}"
        )
    column = tuple(AUDIT_ARCH).index(architecture)

    def number(name: str) -> int | None:
        return NUMBERS[name][column]

    yield _op(LOAD, _ARCH_OFFSET)
    yield _op(JUMP_EQUAL, AUDIT_ARCH[architecture], 1, 0)
    yield _op(RETURN, KILL)
    yield _op(LOAD, _NUMBER_OFFSET)
    if architecture == "x86_64":
        yield _op(JUMP_AT_LEAST, _X32_BIT, 0, 1)
        yield _fail(errno.ENOSYS)
    yield _op(JUMP_AT_LEAST, NEWEST + 1, 0, 1)
    yield _fail(errno.ENOSYS)
    for names, error in ((REFUSED, errno.EPERM), (ABSENT, errno.ENOSYS)):
        for name in names:
            if (call := number(name)) is not None:
                yield _op(JUMP_EQUAL, call, 0, 1)
                yield _fail(error)
    for name, block in (*_files().items(), *_processes().items(), *_sockets(network).items()):
        if (call := number(name)) is not None:
            yield _only_for(call, block)
    yield _op(RETURN, ALLOW)


def _files() -> dict[str, list[bytes]]:
    """No set-uid or set-gid bits: such a file in the workspace would be a real one on the host."""
    modes = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "creat": 1, "mknod": 1, "mknodat": 2}
    blocks = {name: _refuse_bits(position, _SPECIAL_MODE) for name, position in modes.items()}
    for name, flags in (("open", 1), ("openat", 2)):
        blocks[name] = [
            _argument(flags),
            _op(JUMP_ANY_BIT, _MAKES_FILE, 1, 0),
            _op(RETURN, ALLOW),
            *_refuse_bits(flags + 1, _SPECIAL_MODE),
        ]
    return blocks


def _processes() -> dict[str, list[bytes]]:
    return {
        "clone": _refuse_bits(0, _NEW_NAMESPACE),
        "unshare": _refuse_bits(0, _NEW_NAMESPACE | _NEW_TIME_NAMESPACE),
        "ioctl": [
            _argument(1),
            *(_op(JUMP_EQUAL, _TIOCSTI, 1, 0), _op(JUMP_EQUAL, _TIOCLINUX, 0, 1), _fail(errno.EPERM)),
        ],
        "personality": _allow_only(0, _PERSONALITIES, errno.EPERM),
    }


def _sockets(network: Network) -> dict[str, list[bytes]]:
    blocks: dict[str, list[bytes]] = {}
    families = (_AF_UNIX, _AF_NETLINK, _AF_INET, _AF_INET6) if network.connect else (_AF_UNIX, _AF_NETLINK)
    routes_only = [
        _argument(0),
        _op(JUMP_EQUAL, _AF_NETLINK, 0, 3),
        _argument(2),
        _op(JUMP_EQUAL, _NETLINK_ROUTE, 1, 0),
        _fail(errno.EPROTONOSUPPORT),
    ]
    blocks["socket"] = [*routes_only, *_allow_only(0, families, errno.EAFNOSUPPORT)]
    if not network.connect:
        streams = [
            _argument(1),
            _op(AND, _SOCK_TYPE_MASK),
            *_unless_one_of((_SOCK_STREAM, _SOCK_SEQPACKET), errno.EACCES),
        ]
        blocks["socket"] = [
            _argument(0),
            _op(JUMP_EQUAL, _AF_UNIX, 0, len(streams)),
            *streams,
            *blocks["socket"],
        ]
        blocks["socketpair"] = streams
        blocks["connect"] = [_fail(errno.EACCES)]
    if not network.listen:
        blocks |= {name: [_fail(errno.EACCES)] for name in ("listen", "accept", "accept4")}
    return blocks


def _op(code: int, value: int, when_true: int = 0, when_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, when_true, when_false, value & 0xFFFFFFFF)


def _fail(error: int) -> bytes:
    return _op(RETURN, refused_with(error))


def _argument(position: int) -> bytes:
    """Loads the lower half of an argument: all arguments that are compared are ints to the kernel."""
    return _op(LOAD, _ARGUMENTS_OFFSET + 8 * position)


def _only_for(number: int, block: Sequence[bytes]) -> bytes:
    """A block that is skipped for other calls. It may spoil the loaded number, so it ends in a verdict."""
    body = [*block, _op(RETURN, ALLOW)]
    return b"".join([_op(JUMP_EQUAL, number, 0, len(body)), *body])


def _refuse_bits(position: int, bits: int) -> list[bytes]:
    return [_argument(position), _op(JUMP_ANY_BIT, bits, 0, 1), _fail(errno.EPERM)]


def _allow_only(position: int, values: Sequence[int], error: int) -> list[bytes]:
    return [_argument(position), *_unless_one_of(values, error)]


def _unless_one_of(values: Sequence[int], error: int) -> list[bytes]:
    """Fails unless the loaded value is one of these; falls through to what comes after it if it is."""
    comparisons = [_op(JUMP_EQUAL, value, len(values) - index, 0) for index, value in enumerate(values)]
    return [*comparisons, _fail(error)]
