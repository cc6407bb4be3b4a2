"""Whether the probe tells the truth, and what it says where a layer is missing (SBX-02)."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.security.fort import Fort

from turnd.cells import Bubblewrap, SandboxUnavailable, probe
from turnd.cells.bubblewrap import Programs
from turnd.cells.probe import explain


@pytest.mark.req("SBX-02")
async def test_the_probe_runs_a_real_cell(fort: Fort) -> None:
    found = await probe(fort.cells)
    assert found.mode == "bubblewrap"
    assert found.version.split(".")[0].isdecimal()
    assert found.unenforced == fort.cells.unenforced()
    assert any("RLIMIT_NPROC" in sentence for sentence in found.unenforced) == (os.getuid() == 0)


@pytest.mark.req("SBX-02")
def test_without_bubblewrap_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxUnavailable, match="apt-get install bubblewrap"):
        Bubblewrap.find()


@pytest.mark.req("SBX-02")
async def test_a_launcher_that_makes_no_cell_is_an_error_with_its_words_and_runs_nothing(
    fort: Fort, tmp_path: Path
) -> None:
    launcher = tmp_path / "bwrap"
    launcher.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo bubblewrap 0.9.0; exit; fi\n'
        "echo 'bwrap: setting up uid map: Permission denied' >&2; exit 1\n"
    )
    launcher.chmod(0o755)
    cells = Bubblewrap(replace(Programs.find(), bwrap=str(launcher)))
    with pytest.raises(SandboxUnavailable, match=r"(?s)setting up uid map.*AppArmor"):
        await probe(cells)


@pytest.mark.req("SBX-02")
async def test_an_old_launcher_is_named(fort: Fort, tmp_path: Path) -> None:
    launcher = tmp_path / "bwrap"
    launcher.write_text("#!/bin/sh\necho bubblewrap 0.6.2\n")
    launcher.chmod(0o755)
    with pytest.raises(SandboxUnavailable, match=r"0\.6\.2 is too old"):
        await probe(Bubblewrap(replace(Programs.find(), bwrap=str(launcher))))


@pytest.mark.parametrize(
    ("complaint", "setting", "advice"),
    [
        (
            "bwrap: No permissions to create new namespace",
            ("kernel/unprivileged_userns_clone", "0"),
            "userns_clone=1",
        ),
        (
            "bwrap: Creating new namespace failed",
            ("user/max_user_namespaces", "0"),
            "max_user_namespaces=15000",
        ),
        (
            "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted",
            ("kernel/apparmor_restrict_unprivileged_userns", "1"),
            "AppArmor lets only programs with a profile",
        ),
        (
            "bwrap: Can't mount proc on /newroot/proc: Operation not permitted",
            None,
            "container that may not mount",
        ),
    ],
)
def test_each_layer_is_told_with_what_allows_it(
    tmp_path: Path, complaint: str, setting: tuple[str, str] | None, advice: str
) -> None:
    if setting is not None:
        path = tmp_path / "proc/sys" / setting[0]
        path.parent.mkdir(parents=True)
        path.write_text(f"{setting[1]}\n")
    lines = explain(complaint, tmp_path).splitlines()
    assert lines[0] == complaint
    assert any(advice in line for line in lines[1:])


def test_a_container_is_recognised(tmp_path: Path) -> None:
    (tmp_path / ".dockerenv").touch()
    assert "This is a container" in explain("bwrap: pivot_root: Operation not permitted", tmp_path)
    assert "This is a container" not in explain(
        "bwrap: pivot_root: Operation not permitted", tmp_path / "other"
    )
