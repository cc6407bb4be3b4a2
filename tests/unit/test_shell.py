"""What a command line would run, where that is certain."""

from __future__ import annotations

import pytest

from turnd.rules.shell import EVALUATING, MAX_DEPTH, MAX_LINE_BYTES, MAX_PROGRAMS, RESERVED, every, understood


def programs(line: str) -> list[list[str]] | None:
    found = understood(line)
    assert bool(found.programs) != bool(found.problem)
    return [[word.text for word in program.words] for program in found.programs] or None


@pytest.mark.req("GATE-14")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("git status", [["git", "status"]]),
        ("  ls\t-la  ", [["ls", "-la"]]),
        ("a | b && c || d; e\nf\n", [["a"], ["b"], ["c"], ["d"], ["e"], ["f"]]),
        ("a |\n\n b &&\nc", [["a"], ["b"], ["c"]]),
        ("a;", [["a"]]),
        ("\n\na\n\n\nb\n", [["a"], ["b"]]),
        ("a 'x y' \"z's\" b\"c\"'d' ''", [["a", "x y", "z's", "bcd", ""]]),
        ("g'i't status", [["git", "status"]]),
        ("a 'line\nline\ttab' \"é\u202f\"", [["a", "line\nline\ttab", "é\u202f"]]),
        ("git log --format=%s -S';rm x'", [["git", "log", "--format=%s", "-S;rm x"]]),
        ("a HEAD^ x@y +z 5 a,b k=v", [["a", "HEAD^", "x@y", "+z", "5", "a,b", "k=v"]]),
        ("a 2>&1 | b 2>/dev/null >> /dev/null", [["a"], ["b"]]),
        ("a &>/dev/null; b < /dev/null; c >&2", [["a"], ["b"], ["c"]]),
        ("x2>&1", [["x2"]]),
        ("a 'x$y`z\\'", [["a", "x$y`z\\"]]),
        ("ls x*.py ./[ab]?", [["ls", "x*.py", "./[ab]?"]]),
    ],
)
def test_plain_lines_are_taken_apart(line: str, expected: list[list[str]]) -> None:
    assert programs(line) == expected


@pytest.mark.req("GATE-14")
@pytest.mark.parametrize(
    "line",
    [
        *("", " \n ", "a &", "a & b", "a |& b", "! a", "a # b", "#a", "(a)", "{ a; }", "a $x"),
        *('a "$x"', "a `b`"),
        *('a "`b`"', "a $(b)", "a <(b)", "a >(b)", "a ${x}", "a $((1))", "a $'b'", 'a $"b"', "a \\b"),
        'a "\\b"',
        *("a {b,c}", "a b{1..3}", "a ~", "a ~/b", "a x~", "a > b", "a >> b", "a < b", "a <> b"),
        *("a >| b", "a <<E\nE"),
        *("a <<< b", "a > /dev/nullx", "a 3>&1", "a >&-", "a > /dev/null/../x", "12>/dev/null a"),
        "a 12>/dev/null",
        *(">/dev/null", "x=1", "x=1 a", "x+=1 a", "a[1]=b", "f() { a; }", "function f { a; }"),
        "if a; then b; fi",
        *("for x in a; do b; done", "while a; do b; done", "case a in b) c;; esac", "[[ a ]]"),
        *("((1))", "time a"),
        *("coproc a", "a;;b", "; a", "a && && b", "a &&", "a |", "| a", "a\n; b", "a 'b", 'a "b'),
        *("a\r", "a\x0cb"),
        *("a\x00", "a\x1b[0m", "a 'b\x7f'", "a '\x85'", "a\u00a0b", "é", "a é", "a\u2003b"),
        *("a '\ud800'", "*", "a *"),
        *("a ?x", "a [b]", "a -*", "a '-'*", "a ''*", "a*", "x*/bin/a", "%1", "-a", "'x=1' b", "''"),
        "a\\\nb",
        *("printf -v x y", "printf %n PATH", "printf '%5ln' PATH", "printf -- %n PATH", "printf x*"),
        *(f"{name} x" for name in sorted(EVALUATING | RESERVED)),
        *(f"a; '{name}' x" for name in ("eval", "source", ".", "[")),
        "a " + "x" * MAX_LINE_BYTES,
        ";".join("a" for _ in range(MAX_PROGRAMS + 1)),
    ],
)
def test_whatever_is_not_on_the_list_is_not_understood(line: str) -> None:
    assert programs(line) is None


@pytest.mark.req("A11")
@pytest.mark.parametrize(
    ("line", "within"),
    [
        ("bash -c 'a | b'", ["a", "b"]),
        ('bash -lc "a && b"', ["a", "b"]),
        ("/bin/bash -lc 'a'", ["a"]),
        ("sh -c 'a 2>&1'", ["a"]),
        ("timeout 5 a x", ["a"]),
        ("timeout 1.5m nice nohup a", ["nice", "nohup", "a"]),
        ("bash -c 'bash -c a'", ["bash", "a"]),
    ],
)
def test_shells_and_wrappers_are_looked_into(line: str, within: list[str]) -> None:
    (program,) = understood(line).programs
    assert [each.name for each in every(program.inner or ())] == within


@pytest.mark.req("GATE-14")
@pytest.mark.parametrize(
    "line",
    [
        *("bash -c a b", "bash -c", "bash -cl a", "bash -x -c a", "bash -c 'a $x'", "bash -c ''"),
        *("bash a", "bash"),
        *("sh -lc a", "sh -c 'a &>/dev/null'", "sh -c 'a >&/dev/null'", "/ws/bash -c a", "bash -c x*"),
        "zsh -c a",
        *("timeout -k 1 5 a", "timeout x a", "timeout 5", "timeout 5 -x", "nice -n 5 a", "nohup", "nohup -x"),
        *("timeout 5 eval a", "timeout 5 if", "timeout x* a", "env a", "xargs a", "sudo a"),
    ],
)
def test_what_could_be_more_than_it_seems_is_not_looked_into(line: str) -> None:
    (program,) = understood(line).programs
    assert program.inner is None


def test_nesting_is_bounded() -> None:
    (program,) = understood("nice " * 50 + "a").programs
    assert len(list(every([program]))) <= MAX_DEPTH + 2


def test_names_are_those_that_path_is_searched_for() -> None:
    assert understood("cd x && echo a | ./b | bash -lc 'c; pwd' && nohup echo x").names == {
        "bash",
        "c",
        "nohup",
        "echo",
    }


def test_deep_and_long_lines_take_no_time_that_matters() -> None:
    assert programs("a && " * 12_000 + "a") is None
    assert programs("a '" + "(" * 60_000 + "'") is not None
    assert programs("a " + '"' * 60_000) is not None
