"""bubblewrap's arguments for a cell. Nothing here touches the system but to ask which files exist."""

from __future__ import annotations

import os
import os.path
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from turnd.cells.protect import Guarded
from turnd.cells.spec import HOME, LISTEN_DIR, SYSTEM, TMP, Access, CellSpec, holds

HOST_NAME: Final = "cell"
_UID: Final = 1000
_MERGED: Final = ("bin", "sbin", "lib", "lib64", "lib32")
_ETC: Final = (
    *("ld.so.cache", "alternatives", "nsswitch.conf", "services", "gitconfig", "fonts", "crypto-policies"),
    *("ssl/certs", "ssl/openssl.cnf", "pki/tls/certs", "pki/tls/cert.pem", "pki/ca-trust"),
)
"""Never whole directories that also hold private keys. Each one costs a third of a millisecond."""
_ETC_WITH_NETWORK: Final = ("resolv.conf", "hosts", "gai.conf", "host.conf")
_ETC_LINKS: Final = ("localtime", "os-release")
_PROC_MASKED: Final = ("kcore", "keys", "sched_debug", "latency_stats")
"""Masked for root whatever its mode says; what is for the owner's eyes only is looked up, since kernels differ."""
PASSWD: Final = f"cell:x:{_UID}:{_UID}::{HOME}:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n".encode()
GROUP: Final = f"cell:x:{_UID}:\nnogroup:x:65534:\n".encode()
HOSTS: Final = f"127.0.0.1 localhost {HOST_NAME}\n::1 localhost {HOST_NAME}\n".encode()


@dataclass(frozen=True, slots=True)
class Mount:
    """A host path and the place in the cell where it must be found."""

    source: str
    target: str
    writable: bool


@dataclass(frozen=True, slots=True)
class Descriptors:
    """The numbers under which bubblewrap finds what is not on its command line."""

    passwd: int
    group: int
    hosts: int
    seccomp: int
    status: int


def mounts(spec: CellSpec, guarded: Iterable[Guarded]) -> list[Mount]:
    """Everything of the host that the cell sees but single files of /etc, in the order of mounting.

    /tmp comes before what may lie below it; the workspace after every path that may hold it; its protected
    paths last.
    """
    found = [Mount(path, path, False) for path in SYSTEM if Path(path).is_dir()]
    if spec.tmp is not None:
        found.append(Mount(spec.tmp, TMP, True))
    workspace = spec.mounted_workspace
    shown = [*SYSTEM, *([workspace] if workspace is not None else [])]
    for path in sorted(set(spec.read)):
        if not any(holds(upper, path) for upper in shown):
            shown.append(path)
            found.append(Mount(path, path, False))
    if workspace is not None:
        found.append(Mount(workspace, workspace, spec.access is Access.WRITE))
    found += [Mount(guard.path, guard.path, guard.writable) for guard in guarded]
    if spec.listen_dir is not None:
        found.append(Mount(spec.listen_dir, LISTEN_DIR, True))
    return found


def arguments(spec: CellSpec, mounted: Iterable[Mount], files: Descriptors) -> list[str]:
    """The arguments, for `--args`, so that paths and values are not in the host's list of processes."""
    return [
        *_namespaces(spec),
        *_environment(spec),
        *_root(spec, files),
        *_kernel_files(spec),
        *_mounted(spec, mounted),
        *_closed(),
        *("--chdir", spec.cwd),
        *("--seccomp", str(files.seccomp)),
        *("--json-status-fd", str(files.status)),
    ]


def _namespaces(spec: CellSpec) -> Iterator[str]:
    # Always a user namespace: without one, root would keep all of its capabilities.
    yield from ("--unshare-user", "--disable-userns", "--uid", str(_UID), "--gid", str(_UID))
    yield from ("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
    if not spec.network:
        yield "--unshare-net"
    yield from ("--hostname", HOST_NAME, "--die-with-parent", "--new-session", "--cap-drop", "ALL")


def _environment(spec: CellSpec) -> Iterator[str]:
    yield "--clearenv"
    for name, value in {**spec.env, "HOME": HOME, "TMPDIR": TMP}.items():
        yield from ("--setenv", name, value)


def _root(spec: CellSpec, files: Descriptors) -> Iterator[str]:
    for name in _MERGED:
        path = Path("/", name)
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
    yield from ("--perms", "0755", "--dir", "/etc")
    java = (path.name for path in Path("/etc").glob("java-*") if path.is_dir())
    for name in (*_ETC, *java, *(_ETC_WITH_NETWORK if spec.network else ())):
        yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
    for name in _ETC_LINKS:
        if (path := Path("/etc", name)).is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
    for name, descriptor in (("passwd", files.passwd), ("group", files.group)):
        yield from ("--perms", "0444", "--file", str(descriptor), f"/etc/{name}")
    if not spec.network:
        yield from ("--perms", "0444", "--file", str(files.hosts), "/etc/hosts")


def _kernel_files(spec: CellSpec) -> Iterator[str]:
    yield from ("--proc", "/proc", "--dev", "/dev")
    if os.geteuid() == 0:
        for path in _for_root_only():
            # Bound without permission to be a device, /dev/null cannot be opened there.
            yield from ("--ro-bind", "/dev/null", path)
    yield from ("--size", str(spec.limits.shm_size), "--perms", "1777", "--tmpfs", "/dev/shm")  # noqa: S108


def _for_root_only() -> Iterator[str]:
    """What root may read in /proc without any capability, and no other user may (SBX-03)."""
    for name in sorted(os.listdir("/proc")):  # noqa: PTH208 - names only: there is a directory for each process
        if name.isdigit():
            continue
        path = f"/proc/{name}"
        mode = os.lstat(path).st_mode
        if stat.S_ISREG(mode) and (name in _PROC_MASKED or not mode & stat.S_IROTH):
            yield path


def _mounted(spec: CellSpec, mounted: Iterable[Mount]) -> Iterator[str]:
    if spec.tmp is None:
        yield from ("--size", str(spec.limits.tmp_size), "--perms", "1777", "--tmpfs", TMP)
    for mount in mounted:
        yield from ("--bind" if mount.writable else "--ro-bind", mount.source, mount.target)
    if spec.tmp is not None and spec.access is Access.READ:
        # What needs no approval must not leave behind what later commands obey: .gitconfig, .bash_profile.
        yield from ("--size", str(spec.limits.tmp_size), "--perms", "0700", "--tmpfs", HOME)
    else:
        yield from ("--perms", "0700", "--dir", HOME)


def _closed() -> Iterator[str]:
    # Process 1 is bubblewrap's own, and its memory and environment are nobody's business. A read-only /proc
    # then closes /proc/*/mem for writing, and for root /proc/sys and the modes of everything in /proc.
    yield from ("--size", "4096", "--perms", "0555", "--tmpfs", "/proc/1", "--remount-ro", "/proc/1")
    yield from ("--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/")


def encode(words: Iterable[str]) -> bytes:
    """The form that `--args` reads."""
    return b"".join(os.fsencode(word) + b"\0" for word in words)
