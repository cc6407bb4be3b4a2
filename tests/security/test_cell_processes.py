"""From inside a command's cell: other processes, the daemon's environment, descriptors, and the kernel's back
doors.
"""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import pytest
from tests.security.fort import Fort, attacking

from turnd.cells import CellRefused


@pytest.mark.req("SBX-03")
async def test_other_processes_are_neither_seen_nor_signalled(fort: Fort) -> None:
    found = await fort.attack(f"""
found["pids"] = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
found["own"], found["parent"] = os.getpid(), os.getppid()
found["daemon"] = attempt(os.kill, {os.getpid()}, 0)
""")
    assert set(found["pids"]) == {1, found["parent"], found["own"]}
    assert max(found["pids"]) < 100
    assert found["daemon"] == "ESRCH"


@pytest.mark.req("SBX-03")
async def test_every_namespace_is_the_cells_own_but_the_network_where_it_was_given(fort: Fort) -> None:
    kinds = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
    ours = {
        kind: Path("/proc/self/ns", kind).readlink() for kind in kinds if Path("/proc/self/ns", kind).exists()
    }
    code = attacking("""
for kind in os.listdir("/proc/self/ns"):
    found[kind] = os.readlink("/proc/self/ns/" + kind)
""")
    confined = (
        fort.command(code),
        fort.inspect(code),
        fort.provider(code),
        fort.third_party(code, network=False),
    )
    for spec in confined:
        found = (await fort.run(spec)).found
        assert [kind for kind, name in ours.items() if found[kind] == str(name)] == []
    found = (await fort.run(fort.third_party(code, network=True))).found
    assert [kind for kind, name in ours.items() if found[kind] == str(name)] == ["net"]


@pytest.mark.req("SBX-03", "SBX-04")
async def test_the_daemons_environment_is_nowhere_to_be_read(fort: Fort) -> None:
    secret = f"secret-{os.getpid()}-{fort.base.name}"
    os.environ["SECRET_OF_THE_DAEMON"] = secret
    try:
        found = await fort.attack(f"""
found["read"], found["leaks"] = 0, []
for name in os.listdir("/proc"):
    for file in ("environ", "cmdline"):
        try:
            text = open(f"/proc/{{name}}/{{file}}", "rb").read()
        except OSError:
            continue
        found["read"] += 1
        if {secret[:-3]!r}.encode() in text.replace(open("/proc/self/cmdline", "rb").read(), b""):
            found["leaks"].append(name)
found["init"] = os.listdir("/proc/1")
""")
    finally:
        del os.environ["SECRET_OF_THE_DAEMON"]
    assert found["read"] > 0
    assert found["init"] == []
    shell_with_this_program_as_its_argument = 1
    assert len(found["leaks"]) <= shell_with_this_program_as_its_argument


@pytest.mark.req("SBX-03")
async def test_memory_of_other_processes_is_out_of_reach(fort: Fort) -> None:
    found = await fort.attack("""
parent = os.getppid()
found["init memory"] = attempt(open_file, "/proc/1/mem", os.O_RDWR)
found["init root"] = attempt(os.listdir, "/proc/1/root")
found["parent memory"] = attempt(open_file, f"/proc/{parent}/mem", os.O_WRONLY)
found["attach"] = attempt(call, "ptrace", 16, parent, 0, 0)
found["trace me"] = attempt(call, "ptrace", 0, 0, 0, 0)
found["read"] = attempt(call, "process_vm_readv", parent, 0, 0, 0, 0, 0)
found["write"] = attempt(call, "process_vm_writev", parent, 0, 0, 0, 0, 0)
found["descriptor"] = attempt(call, "pidfd_getfd", os.pidfd_open(parent), 0, 0)
found["compare"] = attempt(call, "kcmp", parent, os.getpid(), 0, 0, 0)
""")
    assert found == {
        "init memory": "ENOENT",
        "init root": "ENOENT",
        "parent memory": "EROFS",
        "attach": "EPERM",
        "trace me": "EPERM",
        "read": "EPERM",
        "write": "EPERM",
        "descriptor": "EPERM",
        "compare": "EPERM",
    }


@pytest.mark.req("SBX-03")
async def test_namespaces_mounts_and_other_back_doors_are_closed(fort: Fort) -> None:
    found = await fort.attack("""
namespaces = {"user": 0x10000000, "mount": 0x20000, "net": 0x40000000, "pid": 0x20000000, "time": 0x80}
for name, flag in namespaces.items():
    found["unshare " + name] = attempt(call, "unshare", flag)
found["clone user"] = attempt(call, "clone", 0x10000011, 0, 0, 0, 0)
found["clone3"] = attempt(call, "clone3", 0, 0)
found["setns"] = attempt(call, "setns", os.open("/proc/self/ns/user", os.O_RDONLY), 0)
found["mount"] = attempt(call, "mount", 0, 0, 0, 0, 0)
found["umount"] = attempt(call, "umount2", 0, 0)
found["chroot"] = attempt(os.chroot, "/")
found["open_tree"] = attempt(call, "open_tree", -100, 0, 0)
for name in ("bpf", "keyctl", "userfaultfd", "io_uring_setup", "perf_event_open", "init_module"):
    found[name] = attempt(call, name, 0, 0, 0, 0, 0)
found["memfd"] = attempt(os.memfd_create, "memory")
found["personality"] = attempt(call, "personality", 0x0400000)
status = open("/proc/self/status").read().splitlines()
found["capabilities"] = [line.split()[1] for line in status if line.startswith("Cap")]
found["hostname"] = os.uname().nodename
""")
    assert {found.pop("clone3"), found.pop("memfd")} == {"ENOSYS"}
    assert set(found.pop("capabilities")) == {"0" * 16}
    assert found.pop("hostname") != os.uname().nodename
    assert set(found.values()) == {"EPERM"}, found


@pytest.mark.req("SBX-03")
async def test_input_cannot_be_pushed_into_a_terminal(fort: Fort) -> None:
    found = await fort.attack("""
import fcntl, termios
master, slave = os.openpty()
for name, request in (("TIOCSTI", 0x5412), ("TIOCSTI with upper bits", 0x1_0000_5412), ("TIOCLINUX", 0x541C)):
    byte = ctypes.create_string_buffer(b"x")
    found[name] = attempt(call, "ioctl", slave, request, ctypes.addressof(byte))
found["terminal"] = attempt(termios.tcgetattr, slave)
found["controlling"] = attempt(open_file, "/dev/tty", os.O_RDWR)
""")
    assert found == {
        "TIOCSTI": "EPERM",
        "TIOCSTI with upper bits": "EPERM",
        "TIOCLINUX": "EPERM",
        "terminal": "done",
        "controlling": "ENXIO",
    }


@pytest.mark.req("SBX-03")
async def test_no_descriptor_of_the_daemons_is_inherited_but_the_given_pipes(fort: Fort) -> None:
    reader, writer = os.pipe()
    leak = os.open(fort.base, os.O_RDONLY)
    os.set_inheritable(leak, True)
    try:
        code = f"""
listed = os.open("/proc/self/fd", os.O_RDONLY)
found["open"] = sorted(int(name) for name in os.listdir("/proc/self/fd") if name != str(listed))
found["links"] = [os.readlink(f"/proc/self/fd/{{number}}").split(":")[0] for number in (0, 1, 2, {writer})]
os.write({writer}, b"given")
"""
        result = await fort.run(fort.provider(attacking(code), pass_fds=(writer,)))
        opened = set(result.found["open"])
        listing = opened - {0, 1, 2, writer}
        assert len(listing) <= 1, "only the listing's own descriptor may be there beside the given ones"
        assert leak not in opened
        assert result.found["links"] == ["/dev/null", "pipe", "pipe", "pipe"]
        assert os.read(reader, 10) == b"given"
    finally:
        for descriptor in (reader, writer, leak):
            os.close(descriptor)


@pytest.mark.req("SBX-02", "SBX-03")
async def test_only_pipes_can_be_passed(fort: Fort) -> None:
    with tempfile.TemporaryFile() as file, socket.socket() as connection:
        directory = os.open("/", os.O_RDONLY)
        try:
            for number in (file.fileno(), connection.fileno(), directory):
                with pytest.raises(CellRefused, match="not a pipe"):
                    await fort.cells.start(fort.provider(["true"], pass_fds=(number,)))
        finally:
            os.close(directory)


async def test_ordinary_tools_run_in_a_command_cell(fort: Fort) -> None:
    (fort.workspace / "job.py").write_text(
        "import asyncio, multiprocessing, subprocess, tempfile, threading\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.Pool(2) as pool:\n"
        "        print(pool.map(abs, [-1, -2]))\n"
        "    print(asyncio.run(asyncio.sleep(0, 'loop')))\n"
        "    print(subprocess.check_output(['echo', 'child'], text=True).strip())\n"
        "    thread = threading.Thread(target=print, args=('thread',))\n"
        "    thread.start(); thread.join()\n"
        "    tempfile.TemporaryFile().close()\n"
    )
    python = attacking("")[0]
    result = await fort.run(fort.command([python, "job.py"]))
    assert (result.out, result.end.code) == ("[1, 2]\nloop\nchild\nthread\n", 0), result.err


async def test_a_program_that_is_not_there_ends_as_in_a_shell(fort: Fort) -> None:
    result = await fort.run(fort.command(["no-such-program"]))
    assert result.end.code == 127
    assert "no-such-program" in result.err


def test_the_tests_themselves_see_more_than_a_cell_does() -> None:
    """Else they would show nothing: here are other processes, and a /proc that is not a cell's."""
    assert len([path for path in Path("/proc").iterdir() if path.name.isdigit()]) > 3
    assert list(Path("/proc/1").iterdir())
