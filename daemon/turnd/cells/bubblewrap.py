"""The mode that makes cells with bubblewrap: namespaces, mounts, a system call filter, limits, and a gate."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import socket
import stat
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final, Self

from turnd.cells import seccomp
from turnd.cells.arguments import GROUP, HOSTS, PASSWD, Descriptors, Mount, arguments, encode, mounts
from turnd.cells.beneath import identity, open_exact
from turnd.cells.entry import Entry, enter
from turnd.cells.gate import shell
from turnd.cells.limits import LOOK_EVERY_S, find_prlimit, with_rlimits
from turnd.cells.output import Output
from turnd.cells.port import CellFailed
from turnd.cells.protect import Guarded, guard, identity_of
from turnd.cells.running import BubblewrapCell, Inside
from turnd.cells.spawn import Memfile, Spawned, Standard
from turnd.cells.spec import Access, CellRefused, CellSpec
from turnd.ports import SandboxUnavailable

MODE: Final = "bubblewrap"
START_S: Final = 15.0
"""Making a cell takes about 10 ms; after this long it has failed."""

GIVE_UP_S: Final = 5.0
"""A cell that is not to start ends by itself, as soon as it is made; after this long it is killed."""

_OUT_OF_MEMORY_FIRST: Final = "1000"
_MAX_VERSION: Final = 200
_DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty")


@dataclass(frozen=True, slots=True)
class Programs:
    """Absolute paths of what is run to make a cell."""

    bwrap: str
    prlimit: str
    choom: str
    unshare: str
    mount: str

    @classmethod
    def find(cls) -> Self:
        """Looks on PATH. Raises SandboxUnavailable with what to install."""
        bwrap = shutil.which("bwrap")
        if bwrap is None:
            raise SandboxUnavailable(
                "bubblewrap is not installed, and tools run only in sandboxes that it makes: "
                "apt-get install bubblewrap (or your system's package of that name, version 0.8 or newer)"
            )
        found = {name: shutil.which(name) for name in ("choom", "unshare", "mount")}
        found["prlimit"] = find_prlimit()
        missing = sorted(name for name, path in found.items() if path is None)
        if missing:
            raise SandboxUnavailable(
                f"{', '.join(missing)} not found (util-linux 2.33 or newer): apt-get install util-linux mount"
            )
        return cls(bwrap=bwrap, **{name: path for name, path in found.items() if path is not None})


class Bubblewrap:
    """Makes cells with bubblewrap. Holds no state between cells; see `port.Cells`."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs

    @classmethod
    def find(cls) -> Self:
        """With the programs that are on PATH. Raises SandboxUnavailable where one is missing (SBX-02)."""
        return cls(Programs.find())

    @property
    def mode(self) -> str:
        return MODE

    async def version(self) -> tuple[int, ...]:
        """bubblewrap's own. Raises SandboxUnavailable where it does not say."""
        out, out_inside = os.pipe()
        output = Output(out)
        try:
            with ExitStack() as given:
                given.callback(os.close, out_inside)
                nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
                given.callback(os.close, nothing)
                asked = Spawned(
                    [self._programs.bwrap, "--version"], Standard(nothing, out_inside, nothing), ()
                )
            try:
                async with asyncio.timeout(START_S):
                    said = await output.reader.read(_MAX_VERSION)
            finally:
                asked.kill()
                await asked.end()
        finally:
            output.close()
        numbers = said.decode("ascii", errors="replace").rpartition(" ")[2].strip().split(".")
        if not all(number.isdecimal() for number in numbers):
            raise SandboxUnavailable(f"{self._programs.bwrap} does not say which version it is, but {said!r}")
        return tuple(int(number) for number in numbers)

    async def start(self, spec: CellSpec) -> BubblewrapCell:
        """See `port.Cells.start`. It must be called on the event loop's own thread, which must outlive the
        cell.
        """
        try:
            return await self._start(spec)
        except OSError as error:
            raise CellFailed(f"the cell cannot be prepared: {error}") from error

    async def _start(self, spec: CellSpec) -> BubblewrapCell:
        _check_host(spec)
        with ExitStack() as looking:
            held = _held(spec, looking)
            guarded: Sequence[Guarded] = ()
            if spec.workspace is not None and spec.access is Access.WRITE:
                guarded = guard(held[spec.workspace], spec.workspace, spec.protected)
            planned = mounts(spec, guarded)
            identities = _identities(planned, guarded, held)
        with (
            ExitStack() as undo,
            Memfile("devices", _device_table()) as devices,
            Memfile("status", b"") as status,
        ):
            gate, gate_inside = socket.socketpair()
            undo.callback(gate.close)
            gate.setblocking(False)
            with ExitStack() as given:
                given.callback(gate_inside.close)
                stdout, stdout_inside = _output(given, undo)
                stderr, stderr_inside = _output(given, undo)
                standard = Standard(gate_inside.fileno(), stdout_inside, stderr_inside)
                launcher = self._launch(spec, planned, standard, status.number, devices.number)
            inside = await _enter_or_end(launcher, Entry(gate, status.number, stderr.reader, identities))
            undo.pop_all()
        return BubblewrapCell(launcher, inside, stdout, stderr, spec.limits)

    def unenforced(self) -> tuple[str, ...]:
        """What a cell of this mode does not enforce here, in plain sentences for `turn doctor` and the
        session.
        """
        sampled = f"is looked at every {LOOK_EVERY_S:g} s; between two looks it can be above its limit"
        sentences = [
            f"The sum of a cell's memory {sampled}.",
            "Writing into the workspace and the session's /tmp is limited for each file, not in sum.",
            "A cell with network reaches this machine's abstract Unix sockets and loopback services.",
        ]
        if os.geteuid() == 0:
            sentences += [
                f"The number of processes does not bind root (RLIMIT_NPROC); it {sampled}.",
                "Programs have root's rights on the files that a cell shows: they read what only root may "
                "read in /usr, and can do anything to the workspace's files.",
            ]
        return tuple(sentences)

    def _launch(
        self, spec: CellSpec, planned: Sequence[Mount], standard: Standard, status: int, devices: int
    ) -> Spawned:
        filtered = seccomp.program(seccomp.Network(connect=spec.connect, listen=spec.sockets))
        with ExitStack() as stack:

            def file(name: str, content: bytes) -> int:
                return stack.enter_context(Memfile(name, content)).number

            own = Descriptors(
                passwd=file("passwd", PASSWD),
                group=file("group", GROUP),
                hosts=file("hosts", HOSTS),
                seccomp=file("filter", filtered),
                status=status,
            )
            words = file("arguments", encode(arguments(spec, planned, own)))
            confined = shell(with_rlimits(self._programs.prlimit, spec.limits, spec.argv), spec.pass_fds)
            argv = [self._programs.bwrap, "--args", str(words), "--", *confined]
            given = (*astuple(own), words, *spec.pass_fds)
            try:
                return Spawned(self._prepared(argv, devices), standard, given)
            except OSError as error:
                raise CellFailed(f"{argv[0]} cannot be started: {error.strerror}") from error

    def _prepared(self, argv: Sequence[str], devices: int) -> list[str]:
        """With the kernel told to end a cell first when memory runs out, and for root with devices kept as
        they are.

        A device that bubblewrap binds stays writable in its mode and times, and root owns it: `chmod 0
        /dev/null` in a cell would be the host's. Only a mount made with root's real capabilities, in a mount
        namespace of its own, is both read-only and a device.
        """
        words = [self._programs.choom, "-n", _OUT_OF_MEMORY_FIRST, "--", *argv]
        if os.geteuid() != 0:
            return words
        # The daemon's own descriptor is named, not passed on: bubblewrap would pass it into the cell.
        table = f"/proc/{os.getpid()}/fd/{devices}"
        script = '"$1" -n -a -T "$2" && shift 2 && exec "$@"'
        own = [self._programs.unshare, "--mount", "--propagation", "private", "--"]
        return [*own, "/bin/sh", "-c", script, "cell", self._programs.mount, table, *words]


def _device_table() -> bytes:
    """The devices of every cell, in the form of fstab, each mounted on itself read-only."""
    paths = (path for name in _DEVICES if (path := Path("/dev", name)).exists())
    return "".join(f"{path} {path} none bind,ro 0 0\n" for path in paths).encode()


async def _enter_or_end(launcher: Spawned, entry: Entry) -> Inside:
    try:
        async with asyncio.timeout(START_S):
            return await enter(launcher.pid, entry)
    except BaseException as error:
        # The shell gives up by itself then. A launcher that is killed now can leave a process that waits for
        # it.
        entry.gate.close()
        await _give_up(launcher)
        if isinstance(error, TimeoutError):
            raise CellFailed(f"the cell did not come up within {START_S:.0f} s") from None
        raise


async def _give_up(launcher: Spawned) -> None:
    try:
        async with asyncio.timeout(GIVE_UP_S):
            await launcher.end()
    except TimeoutError:
        launcher.kill()
        await launcher.end()


def _pipe(given: ExitStack) -> tuple[int, int]:
    """The daemon's end, and the cell's, which is closed with `given`."""
    ours, theirs = os.pipe()
    given.callback(os.close, theirs)
    return ours, theirs


def _output(given: ExitStack, undo: ExitStack) -> tuple[Output, int]:
    ours, theirs = _pipe(given)
    output = Output(ours)
    undo.callback(output.close)
    return output, theirs


def _identities(
    planned: Sequence[Mount], guarded: Sequence[Guarded], held: Mapping[str, int]
) -> dict[str, tuple[int, int]]:
    """What must be found at each place of the finished cell."""
    seen = {mount.path: mount.identity for mount in guarded}
    found = {}
    for mount in planned:
        if mount.target in seen:
            found[mount.target] = seen[mount.target]
        elif mount.source in held:
            found[mount.target] = identity(held[mount.source])
        else:
            found[mount.target] = identity_of(Path(mount.source).stat())
    return found


def _held(spec: CellSpec, looking: ExitStack) -> dict[str, int]:
    """A descriptor of each directory of the session's, by its path; closed with `looking`.

    Other cells may write around these directories, so no link is followed on the way to them, and what is
    compared with the finished cell is what was opened here. Raises CellRefused.
    """
    held: dict[str, int] = {}
    for what, path in (
        ("workspace", spec.workspace),
        ("session's /tmp", spec.tmp),
        ("socket's directory", spec.listen_dir),
    ):
        if path is None:
            continue
        try:
            held[path] = open_exact(path)
        except OSError as error:
            raise CellRefused(f"the {what} {path} {_why_not(error)}") from error
        looking.callback(os.close, held[path])
    if spec.workspace is not None and spec.identity not in (None, identity(held[spec.workspace])):
        raise CellRefused(
            f"the workspace {spec.workspace} is another directory than the one that the session was given: "
            "it was moved or removed, and this one put in its place"
        )
    return held


def _why_not(error: OSError) -> str:
    match error.errno:
        case errno.ELOOP:
            return "leads through a symbolic link, and none is followed: it must be the directory's own path"
        case errno.ENOENT | errno.ENOTDIR:
            return "is not a directory"
        case _:
            return f"cannot be opened: {error.strerror}"


def _check_host(spec: CellSpec) -> None:
    """Raises CellRefused where what the cell is to be given is not there, or not what it should be."""
    for path in spec.read:
        if not Path(path).exists():
            raise CellRefused(f"the path to read {path} does not exist")
    for number in spec.pass_fds:
        # A directory or file that is inherited can be opened anew with more rights; a pipe leads nowhere.
        try:
            mode = os.fstat(number).st_mode
        except OSError as error:
            raise CellRefused(f"descriptor {number} cannot be passed: {error.strerror}") from error
        if not stat.S_ISFIFO(mode):
            raise CellRefused(f"descriptor {number} is not a pipe; only pipes can be passed into a cell")
