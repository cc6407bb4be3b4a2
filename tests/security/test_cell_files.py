"""From inside a command's cell: files that it must not see, or must not change."""

from __future__ import annotations

import os
import pwd
import socket
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from tests.security.fort import ENV, READ, Fort, attacking

from turnd.cells import HOME, CellFailed, CellRefused


@pytest.fixture
def surroundings(fort: Fort) -> dict[str, Path]:
    """What lies beside a workspace: a home with keys, the daemon's state, its client socket and token."""
    paths = {
        "key": fort.base / "home" / ".ssh" / "id_ed25519",
        "state": fort.base / "state" / "turnd.db",
        "token": fort.base / "run" / "token",
    }
    for path in paths.values():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("secret")
    return paths


@pytest.mark.req("SBX-04")
async def test_keys_state_and_token_beside_the_workspace_are_not_there(
    fort: Fort, surroundings: dict[str, Path]
) -> None:
    found = await fort.attack(f"""
paths = {[str(path) for path in surroundings.values()]}
found["reads"] = {{path: attempt(open_file, path, os.O_RDONLY) for path in paths}}
found["beside"] = os.listdir({str(fort.base)!r})
found["own"] = attempt(open_file, {str(fort.workspace)!r} + "/mine", os.O_WRONLY | os.O_CREAT)
""")
    assert set(found["reads"].values()) == {"ENOENT"}
    assert found["beside"] == ["workspace"]
    assert found["own"] == "done"
    assert (fort.workspace / "mine").exists()


@pytest.mark.req("SBX-04")
async def test_the_client_socket_cannot_be_reached_from_a_command_or_a_provider(
    fort: Fort, short_path: Path
) -> None:
    path = short_path / "turnd.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        server.setblocking(False)
        code = f"""
path = {str(path)!r}
found["seen"] = os.path.exists(path)
found["socket"] = attempt(lambda: socket.socket(socket.AF_UNIX).connect(path))
"""
        for spec in (
            fort.command(attacking(code)),
            fort.inspect(attacking(code)),
            fort.provider(attacking(code)),
            fort.third_party(attacking(code), network=False),
        ):
            assert (await fort.run(spec)).found == {"seen": False, "socket": "EACCES"}
        networked = await fort.run(fort.third_party(attacking(code), network=True))
        assert networked.found == {"seen": False, "socket": "ENOENT"}
        with pytest.raises(BlockingIOError):
            server.accept()


async def test_the_users_home_holds_only_what_was_granted(fort: Fort) -> None:
    home = pwd.getpwuid(os.getuid()).pw_dir
    granted = {Path(path).relative_to(home).parts[0] for path in READ if Path(path).is_relative_to(home)}
    found = await fort.attack(f"""
home = {home!r}
found["names"] = sorted(os.listdir(home)) if os.path.exists(home) else []
found["HOME"] = os.environ["HOME"]
found["usable"] = attempt(open_file, os.environ["HOME"] + "/file", os.O_WRONLY | os.O_CREAT)
""")
    assert set(found["names"]) == granted
    assert found["HOME"] == HOME
    assert found["usable"] == "done"


@pytest.mark.req("SBX-03")
async def test_links_and_dots_do_not_lead_out_of_the_workspace(
    fort: Fort, surroundings: dict[str, Path]
) -> None:
    (fort.workspace / "link").symlink_to(surroundings["key"])
    (fort.workspace / "up").symlink_to("../..")
    found = await fort.attack(f"""
found["planted link"] = attempt(open_file, "link", os.O_RDONLY)
found["link upwards"] = attempt(open_file, "up/../" + {str(surroundings["token"])!r}, os.O_RDONLY)
found["dots"] = attempt(open_file, "../home/.ssh/id_ed25519", os.O_RDONLY)
found["own root"] = attempt(open_file, "/proc/self/root" + {str(surroundings["key"])!r}, os.O_RDONLY)
os.symlink({str(surroundings["token"])!r}, "mine")
found["own link"] = attempt(open_file, "mine", os.O_RDONLY)
""")
    assert set(found.values()) == {"ENOENT"}


@pytest.mark.req("SBX-03")
async def test_hard_links_do_not_carry_files_between_mounts(fort: Fort) -> None:
    (fort.workspace / ".git").mkdir()
    (fort.workspace / ".git" / "config").write_text("[core]\n")
    (fort.workspace / "plain").write_text("")
    found = await fort.attack("""
found["read-only"] = attempt(os.link, os.path.realpath("/usr/bin/env"), "program")
found["protected"] = attempt(os.link, ".git/config", "config")
found["onto"] = attempt(os.link, "plain", ".git/hooks/pre-commit")
found["tmp"] = attempt(os.link, "plain", "/tmp/plain")
found["within"] = attempt(os.link, "plain", "second")
""")
    assert found == {
        "read-only": "EXDEV",
        "protected": "EXDEV",
        "onto": "EROFS",
        "tmp": "EXDEV",
        "within": "done",
    }


@pytest.mark.req("SBX-03")
async def test_system_paths_are_read_only_and_so_are_the_modes_of_devices_and_proc(fort: Fort) -> None:
    found = await fort.attack("""
new = os.O_WRONLY | os.O_CREAT
for path in ("/usr/file", "/etc/file", "/file", "/dev/file"):
    found[path] = attempt(open_file, path, new)
for path in ("/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/proc/self/mem"):
    found[path] = attempt(open_file, path, os.O_WRONLY)
for path in ("/dev/null", "/proc/meminfo", "/usr/bin/env"):
    same = os.stat(path)
    found["mode of " + path] = attempt(os.chmod, path, same.st_mode & 0o777)
    found["times of " + path] = attempt(os.utime, path, ns=(same.st_atime_ns, same.st_mtime_ns))
open("/dev/null", "w").write("works")
""")
    if found["/proc/sysrq-trigger"] == "ENOENT":
        del found["/proc/sysrq-trigger"]
    refused = {"EROFS", "EPERM", "EACCES"}
    assert {name for name, error in found.items() if error not in refused} == set(), found


@pytest.mark.req("SBX-03")
async def test_nothing_in_proc_or_sys_can_be_written_or_is_for_root_only(fort: Fort) -> None:
    found = await fort.attack("""
found["writable"], found["secret"], found["looked at"] = [], [], 0
for directory, names, files in os.walk("/proc"):
    if directory == "/proc":
        names[:] = [name for name in names if not name.isdigit()]
    for name in files:
        path = os.path.join(directory, name)
        if os.path.islink(path):
            continue
        found["looked at"] += 1
        if attempt(open_file, path, os.O_WRONLY | os.O_NONBLOCK) == "done":
            found["writable"].append(path)
        if not path.startswith("/proc/sys/") and not os.stat(path).st_mode & 0o004:
            if attempt(open_file, path, os.O_RDONLY | os.O_NONBLOCK) == "done":
                found["secret"].append(path)
found["sys"] = os.path.exists("/sys")
""")
    assert found["looked at"] > 100
    assert found["writable"] == []
    assert found["secret"] == []
    assert found["sys"] is False


@pytest.mark.req("SBX-03")
async def test_set_uid_and_set_gid_bits_cannot_be_made_in_the_workspace(fort: Fort) -> None:
    found = await fort.attack("""
open("file", "w").close()
made = os.O_WRONLY | os.O_CREAT
for bits in (0o4755, 0o2755, 0o6755):
    name = oct(bits)
    found["chmod " + name] = attempt(os.chmod, "file", bits)
    descriptor = os.open("file", os.O_RDONLY)
    found["fchmod " + name] = attempt(os.fchmod, descriptor, bits)
    found["open " + name] = attempt(open_file, "made", made, bits)
    found["mknod " + name] = attempt(os.mknod, "node", bits | 0o100000)
path, how = ctypes.create_string_buffer(b"second"), (ctypes.c_uint64 * 3)(made, 0o4755, 0)
found["openat2"] = attempt(call, "openat2", -100, ctypes.addressof(path), ctypes.addressof(how), 24)
found["plain"] = attempt(os.chmod, "file", 0o755)
""")
    assert found.pop("openat2") == "ENOSYS"
    assert found.pop("plain") == "done"
    assert set(found.values()) == {"EPERM"}
    for path in fort.workspace.iterdir():
        assert not path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID)


@pytest.mark.req("SBX-07")
async def test_an_inspecting_command_reads_the_workspace_and_changes_nothing(fort: Fort) -> None:
    (fort.workspace / "file").write_text("content")
    code = """
found["read"] = open("file").read()
found["write"] = attempt(open_file, "file", os.O_WRONLY)
found["make"] = attempt(open_file, "new", os.O_WRONLY | os.O_CREAT)
found["remove"] = attempt(os.remove, "file")
found["mode"] = attempt(os.chmod, "file", 0o600)
found["tmp"] = attempt(open_file, "/tmp/new", os.O_WRONLY | os.O_CREAT)
"""
    found = (await fort.run(fort.inspect(attacking(code)))).found
    assert found == {
        "read": "content",
        "write": "EROFS",
        "make": "EROFS",
        "remove": "EROFS",
        "mode": "EROFS",
        "tmp": "done",
    }
    assert [path.name for path in fort.workspace.iterdir()] == ["file"]


@pytest.mark.req("GATE-14", "SBX-07")
async def test_an_inspecting_command_leaves_nothing_in_the_home_of_later_commands(fort: Fort) -> None:
    """What needs no approval must not decide what an allowed `git status` or `bash -lc` runs."""
    assert (await fort.shell("echo kept > ~/.profile")).end.code == 0
    script = "ls -A ~; echo planted > ~/.gitconfig && cat ~/.gitconfig; mv ~ /tmp/away || rmdir ~"
    seen = await fort.run(fort.inspect(["/bin/sh", "-c", script]))
    assert seen.out == "planted\n"
    assert (await fort.shell("ls -A ~; cat ~/.profile")).out == ".profile\nkept\n"


@pytest.mark.req("TOOL-12")
async def test_tmp_is_shared_by_the_commands_of_a_session_and_not_with_its_provider(fort: Fort) -> None:
    assert (await fort.shell("echo kept > /tmp/note")).end.code == 0
    assert (await fort.shell("cat /tmp/note")).out == "kept\n"
    seen = await fort.run(fort.provider(["/bin/sh", "-c", "ls /tmp; echo private > /tmp/mine"]))
    assert "note" not in seen.out
    assert not (fort.tmp / "mine").exists()


@pytest.mark.req("TOOL-11", "TOOL-12")
async def test_the_environment_is_the_one_that_was_given(fort: Fort, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_DAEMON", "secret")
    spec = fort.command(attacking('found["env"] = dict(os.environ)'))
    for env in (ENV, {"LANG": "C.UTF-8", "ONE": "1"}):
        seen = (await fort.run(replace(spec, env=env))).found["env"]
        expected = {**env, "HOME": HOME, "TMPDIR": "/tmp", "PWD": str(fort.workspace)}
        by_shells = {"OLDPWD", "SHLVL", "_"}
        assert {name: value for name, value in seen.items() if name not in by_shells} == expected


async def test_files_of_the_workspace_belong_to_the_program_and_on_the_host_to_the_user(fort: Fort) -> None:
    (fort.workspace / "file").write_text("content")
    (fort.workspace / "file").chmod(0o600)
    result = await fort.shell("id -u; stat -c %u file; cat file; : > made")
    assert result.out == "1000\n1000\ncontent"
    assert (fort.workspace / "made").stat().st_uid == os.getuid()


@pytest.mark.req("SBX-02", "SBX-03")
async def test_a_link_planted_where_the_workspace_is_mounted_makes_no_cell(fort: Fort) -> None:
    if not fort.workspace.is_relative_to("/tmp"):
        pytest.skip("the workspace is not below /tmp, where a session could plant a link in its way")
    first = fort.workspace.parts[2]
    (fort.tmp / first).symlink_to("/newroot/usr")
    with pytest.raises(CellFailed):
        await fort.shell("touch /tmp/ran")
    assert not (fort.tmp / "ran").exists()


@pytest.mark.req("SBX-02")
async def test_a_cell_whose_parts_are_missing_is_refused(fort: Fort) -> None:
    missing = fort.base / "missing"
    (fort.base / "link").symlink_to(fort.workspace)
    for field, value in (
        ("workspace", missing),
        ("workspace", fort.base / "link"),
        ("tmp", missing),
    ):
        arguments = {"workspace": str(fort.workspace), "tmp": str(fort.tmp)} | {field: str(value)}
        spec = type(fort.command(["true"])).command(["true"], cwd="/", env={}, **arguments)
        with pytest.raises(CellRefused, match=str(value)):
            await fort.cells.start(spec)
    with pytest.raises(CellFailed, match="no-such-directory"):
        await fort.cells.start(
            type(spec).command(
                ["true"], cwd="/no-such-directory", env={}, workspace=str(fort.workspace), tmp=str(fort.tmp)
            )
        )
