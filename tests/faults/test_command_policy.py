"""Lines that policy allows, run by bash: no program runs that no allowing pattern names (GATE-14)."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from immutables import Map
from tests.faults.soak import in_soak

from turnd.rules.commands import Found
from turnd.rules.policy import Match, Policy, PolicyCall, PolicyRule
from turnd.rules.shell import understood
from turnd.v1 import common_pb2 as common

pytestmark = [pytest.mark.req("GATE-14"), pytest.mark.timeout(in_soak(1800, 240))]

ALLOWED = (
    "git status",
    "git log *",
    "ls *",
    "cat *",
    "echo *",
    "printf *",
    "cd *",
    "find *",
    "sort *",
    "say *x *",
)
NAMED = frozenset(("git", "ls", "cat", "say", "find", "sort", "echo"))
LOOKED_INTO = frozenset(("bash", "sh", "timeout", "nice", "nohup"))
"""They run only what is looked at in them."""
STUBS = ("git", "ls", "cat", "say", "rm", "evil", "echo", "xx", "eval", "exec", "test", "x")
REAL = (
    "find",
    "sort",
    "bash",
    "sh",
    "timeout",
    "nice",
    "nohup",
    "env",
    "xargs",
    "setsid",
    "stdbuf",
    "tee",
    "mkdir",
)

SEEDS = (
    "git status",
    "git log --oneline -5",
    "ls -la | cat",
    "cat a b && ls x* || echo 'no; rm y'",
    'say "a b"x y; git status',
    "bash -lc 'ls | cat'",
    'bash -c "git log"',
    "sh -c 'ls; cat x'",
    "timeout 5 ls x",
    "nice cat a 2>&1",
    "nohup ls >/dev/null",
    "cd sub && ls",
    "find . -name x",
    "sort a",
    "printf '%s\\n' x",
    "echo a\nls",
)
WORDS = (
    *("rm x", "evil", "r\\m x", "$(rm x)", "`rm x`", "${x:-rm}", "$'rm' x", "<(rm x)", ">(rm x)"),
    *("$((1))", "a[$(rm)]"),
    *("env", "A=1", "PATH=.", "xargs", "timeout", "nice", "nohup", "setsid", "stdbuf", "bash", "sh"),
    *("-c", "-lc", "eval"),
    *("exec", "command", "builtin", "source", ".", "alias", "trap", "hash", "set", "shopt", "declare"),
    "typeset",
    *("export", "local", "read", "unset", "test", "[", "[[", "]]", "time", "coproc", "!", "if"),
    *("then", "else", "fi"),
    *("for", "in", "do", "done", "while", "case", "esac", "function", "f()", "{", "}", "(", ")", "(("),
    *("))", "~", "*"),
    *("x*", "r?", "[r]m", "{rm,x}", "{1..2}", "#", "\\", "\\\n", "\n", "\r", "\t", "\x0b", "\u00a0"),
    *("\u2003", "é"),
    *("2>&1", "2>x", ">x", ">>x", ">|x", "<x", "<>x", "<<E", "<<<x", ">&x", "&>x", "&>/dev/null"),
    *(">/dev/null", "3>&1"),
    *("&", ";", "&&", "||", "|", "|&", ";;", "'", '"', "''", '""', "$", "`", "-exec", "rm", "{}", "+"),
    *("';'", "-delete"),
    *("-o", "-ox", "--output=x", "--out", "-fprint", "--compress-program=evil", "-S", "1", "-v", "%n"),
    *("PATH", "=", "%"),
    *("x=1", "x+=1", "declare -n", "printf -v", "printf %n PATH", "echo", "ls", "cat", "git", "say"),
    *("-", "--", "x"),
)
AROUND = (
    *("bash -c '{}'", "bash -lc '{}'", 'sh -c "{}"', "({})", "{{ {}; }}", "$({})", "`{}`"),
    *("eval '{}'", "! {}", "timeout 5 {}", "nohup {}", "x=1 {}", "env {}", "{} &", "f() {{ {}; }}; f"),
    *("cat <<E\n{}\nE", "{} # x", "if {}; then rm x; fi", "time {}", "exec {}", "'{}'", '"{}"'),
    *("{} | xargs rm", "command {}", "bash -c {}"),
)
SEPARATORS = ("", " ", " ", " ", "\t", "\n", ";", " && ", " | ")


@st.composite
def lines(draw: st.DrawFn) -> str:
    """A line that is mostly allowed, with some of the things that people have hidden commands in."""
    line = draw(st.sampled_from(SEPARATORS[5:])).join(
        draw(st.lists(st.sampled_from(SEEDS), min_size=1, max_size=2))
    )
    for _ in range(draw(st.integers(0, 3))):
        line = draw(st.sampled_from(CHANGES))(draw, line)
    return line


def _insert(draw: st.DrawFn, line: str) -> str:
    place = draw(st.integers(0, len(line)))
    before, after = (draw(st.sampled_from(SEPARATORS)) for _ in range(2))
    return line[:place] + before + draw(st.sampled_from(WORDS)) + after + line[place:]


def _between(draw: st.DrawFn, line: str) -> str:
    parts = line.split(" ")
    parts.insert(draw(st.integers(0, len(parts))), draw(st.sampled_from(WORDS)))
    return " ".join(parts)


def _remove(draw: st.DrawFn, line: str) -> str:
    place = draw(st.integers(0, len(line)))
    return line[:place] + line[place + draw(st.integers(1, 3)) :]


def _replace(draw: st.DrawFn, line: str) -> str:
    parts = line.split(" ")
    parts[draw(st.integers(0, len(parts) - 1))] = draw(st.sampled_from(WORDS))
    return " ".join(parts)


def _follow(draw: st.DrawFn, line: str) -> str:
    return (
        line
        + draw(st.sampled_from(SEPARATORS))
        + draw(st.sampled_from(WORDS))
        + " "
        + draw(st.sampled_from(WORDS))
    )


def _wrap(draw: st.DrawFn, line: str) -> str:
    return draw(st.sampled_from(AROUND)).format(line)


CHANGES = (_insert, _between, _remove, _replace, _follow, _wrap)


@dataclass(frozen=True, slots=True)
class Place:
    """A PATH of programs that write down that they ran, and a directory to run lines in."""

    programs: Path
    home: Path
    work: Path
    ran: Path

    def run(self, line: str) -> set[str]:
        """The programs that ran."""
        self.ran.write_text("")
        environment = {"PATH": str(self.programs), "HOME": str(self.home), "LANG": "C.UTF-8"}
        subprocess.run(
            [shutil.which("bash") or "/bin/bash", "-c", "--", line],
            env=environment,
            cwd=self.work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=30,
            check=False,
        )
        return set(self.ran.read_text().split())

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.work)) for path in self.work.rglob("*"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    base = tmp_path_factory.mktemp("commands")
    made = Place(base / "bin", base / "home", base / "work", base / "ran")
    for directory in (made.programs, made.home, made.work, made.work / "sub"):
        directory.mkdir()
    for name in ("x", "x1", "a", "0"):
        (made.work / name).write_text("")
    for name in STUBS:
        _program(made.programs / name, f"echo {name} >> {made.ran}")
    for name in REAL:
        found = shutil.which(name)
        assert found, f"{name} is needed"
        _program(made.programs / name, f'echo {name} >> {made.ran}; exec {found} "$@"')
    # A login shell gets its PATH from the system; here it gets this one.
    (made.home / ".bash_profile").write_text(f"PATH={made.programs}\n")
    return made


def _program(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)


def allowed(line: str, workspace: str) -> bool:
    """What policy says where every program is one of the system's."""
    found = {name: Found(f"/bin/{name}", writable=False) for name in understood(line).names}
    call = PolicyCall(
        "workspace",
        "run_command",
        common.TOOL_KIND_RESOURCE,
        common.RISK_HIGH,
        command=line,
        workspace=workspace,
        programs=Map(found),
    )
    rules = [PolicyRule("ours", "config.toml:1", Match.of(command=ALLOWED), common.POLICY_ACTION_ALLOW)]
    verdict = Policy(rules).evaluate(call)
    assert verdict.decided_by.kind != common.DECIDED_BY_KIND_FAILURE, verdict.reason
    return verdict.action == common.POLICY_ACTION_ALLOW


def check(line: str, place: Place) -> None:
    before = place.files()
    ran = place.run(line)
    assert ran <= NAMED | LOOKED_INTO, line
    assert place.files() == before, line


@settings(
    max_examples=in_soak(60_000, 600),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    report_multiple_bugs=False,
)
@given(line=lines())
def test_no_program_runs_that_no_pattern_names(place: Place, line: str) -> None:
    fine = "\0" not in line and allowed(line, str(place.work))
    event("allowed" if fine else "not allowed")
    if fine:
        check(line, place)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_lines_that_all_others_are_made_of_are_allowed_and_run(place: Place, seed: str) -> None:
    assert allowed(seed, str(place.work))
    check(seed, place)


def test_every_short_line_of_what_is_special(place: Place) -> None:
    """All lines of a program, one or two special words, and another program."""
    chosen = [word for word in WORDS if len(word) < 3 or word in ("2>&1", "&>/dev/null", ">/dev/null")]
    tried = 0
    for one, other in itertools.product(chosen, [*chosen, ""]):
        for line in (f"ls {one}{other} rm x", f"ls{one} {other}rm x"):
            if allowed(line, str(place.work)):
                tried += 1
                if tried % in_soak(1, 12) == 0:
                    check(line, place)
    assert tried > 100


def test_the_traps_of_this_test_work(place: Place) -> None:
    """What is not allowed would be seen."""
    for line in (
        "ls; rm x",
        "bash -lc 'evil'",
        "find . -name x -exec rm {} ;".replace(";", "';'"),
        "env rm x",
    ):
        assert not allowed(line, str(place.work))
        assert not place.run(line) <= NAMED | LOOKED_INTO, line
