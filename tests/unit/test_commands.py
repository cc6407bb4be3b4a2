"""Patterns over commands, and the policy that they are part of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from immutables import Map

from turnd.rules.commands import Found, pattern_problem
from turnd.rules.policy import Layer, Match, Policy, PolicyCall, PolicyRule, Verdict
from turnd.rules.risky_options import SHIPPED, RiskyTable
from turnd.rules.shell import understood
from turnd.v1 import common_pb2 as common

ALLOW, ASK, DENY = common.POLICY_ACTION_ALLOW, common.POLICY_ACTION_ASK, common.POLICY_ACTION_DENY
RUN, LOOK = common.TOOL_KIND_RESOURCE, common.TOOL_KIND_DATA_SOURCE
SAID = {ALLOW: "allow", ASK: "ask", DENY: "deny"}
WORKSPACE = "/ws"


def rule(
    action: common.PolicyAction.ValueType, *command: str, layer: Layer = Layer.USER, tool: Sequence[str] = ()
) -> PolicyRule:
    name = f"{SAID[action]} {layer.value} {' '.join(command) or '*'}"
    return PolicyRule(name, "config.toml:1", Match.of(command=command, tool=tool), action, layer)


def verdict(
    line: str,
    *rules: PolicyRule,
    kind: common.ToolKind.ValueType = RUN,
    writable: Sequence[str] = (),
    risky: RiskyTable | None = None,
) -> Verdict:
    found = {
        name: Found(
            f"{WORKSPACE}/.venv/bin/{name}" if name in writable else f"/usr/bin/{name}", name in writable
        )
        for name in understood(line).names
        if name != "missing"
    }
    call = PolicyCall(
        "workspace",
        "run_command",
        kind,
        common.RISK_HIGH,
        command=line,
        workspace=WORKSPACE,
        programs=Map(found),
    )
    given = Policy(rules, risky).evaluate(call)
    assert given.decided_by.kind != common.DECIDED_BY_KIND_FAILURE, given.reason
    return given


def allowed(line: str, *patterns: str, writable: Sequence[str] = (), risky: RiskyTable | None = None) -> bool:
    return verdict(line, rule(ALLOW, *patterns), writable=writable, risky=risky).action == ALLOW


def cases() -> Iterator[tuple[str, str]]:
    for line in Path(__file__).with_name("commands.txt").read_text().splitlines():
        if not line.startswith("#"):
            expected, _, command = line.partition("\t")
            yield expected, command.replace("\\n", "\n")


@pytest.mark.req("GATE-14", "A10")
@pytest.mark.parametrize(("expected", "line"), list(cases()))
def test_the_lines_of_the_field_cases(expected: str, line: str) -> None:
    together = verdict(line, rule(ALLOW, "git status", "git log *", "ls *", "cat *"))
    assert SAID[together.action] == expected
    apart = [rule(ALLOW, pattern) for pattern in ("git status", "git log *", "ls *", "cat *")]
    assert SAID[verdict(line, *apart).action] == expected


@pytest.mark.req("A11")
@pytest.mark.parametrize(
    "line",
    [
        *("git log | cat", "ls -la; git status && cat x || ls", "bash -lc 'git status && ls x* | cat'"),
        *("bash -c 'git log --oneline -5 2>&1 | cat'", "timeout 5 ls", "nohup nice git status"),
        "sh -c 'ls | cat'",
        *("ls 2>/dev/null", "git status\ngit log\n", "/bin/bash -lc \"cat 'a b'\""),
    ],
)
def test_lists_pipelines_and_shells_of_allowed_parts_need_no_question(line: str) -> None:
    assert allowed(line, "git status", "git log *", "ls *", "cat *")
    asks_otherwise = PolicyRule("any", "config.toml:9", Match.of(tool=["run_command"]), ASK)
    assert (
        verdict(line, rule(ALLOW, "git status", "git log *", "ls *", "cat *"), asks_otherwise).action == ALLOW
    )


@pytest.mark.parametrize(
    ("pattern", "line", "matches"),
    [
        ("ls", "ls", True),
        ("ls", "ls x", False),
        ("ls *", "ls", True),
        ("ls *", "ls a b c", True),
        ("make test", "make test", True),
        ("make test", "make", False),
        ("make * x", "make y x", True),
        ("make * x", "make y z x", False),
        ("make t*t *", "make test a", True),
        ("make t*t", "make tesT", False),
        ("ls *.py", "ls a.py", True),
        ("ls *.py", "ls a.pyc", False),
        ("ls x*", "ls x*", False),
        ("ls *", "ls x*", True),
        ("cat a?", "cat 'a?'", True),
        ("cat a?", "cat a?", False),
        ("cat a?", "cat ab", False),
        ("git-* x", "git-foo x", True),
        ("./run.sh *", "./run.sh a", True),
        ("./run.sh *", "/ws/run.sh a", False),
        ("/usr/bin/git status", "git status", True),
        ("git status", "/usr/bin/git status", False),
        ("missing *", "missing x", False),
        ("echo *", "echo x", True),
        ("cd *", "cd sub/dir", True),
        ("cd *", "cd /ws/sub", True),
        ("cd *", "cd /ws", True),
        ("cd *", "cd /wsx", False),
        ("cd *", "cd ..", False),
        ("cd *", "cd a/../../x", False),
        ("cd *", "cd", False),
        ("cd *", "cd -", False),
        ("cd *", "cd /tmp", False),
        ("cd /tmp", "cd /tmp", True),
        ("cd", "cd", True),
    ],
)
def test_what_a_pattern_covers(pattern: str, line: str, matches: bool) -> None:
    assert allowed(line, pattern) is matches


@pytest.mark.req("GATE-14")
def test_a_program_that_tools_could_have_written_needs_a_pattern_with_its_path() -> None:
    assert not allowed("pytest -x", "pytest *", writable=["pytest"])
    assert allowed("pytest -x", "/ws/.venv/bin/pytest *", writable=["pytest"])
    assert allowed("pytest -x", ".venv/bin/pytest *", writable=["pytest"])
    assert not allowed("pytest -x", "/ws/other/pytest *", writable=["pytest"])
    assert not allowed("bash -c ls", "ls", writable=["bash"])
    assert not allowed("timeout 5 ls", "ls", writable=["timeout"])
    assert not allowed("nohup echo x", "echo *", writable=["echo"])
    assert allowed("echo x", "echo *", writable=["echo"])


@pytest.mark.req("GATE-14")
@pytest.mark.parametrize(
    ("risky", "harmless"),
    [
        ("git -c core.pager=x log", "git log -c"),
        ("git -ccore.pager=x log", "git log -S-c"),
        ("git --exec-path=/x log", "git log --exclude=x"),
        ("git --exec-p /x log", "git log -p"),
        ("git -C /tmp/x log", "git log -C"),
        ("git log --output=x", "git log --oneline"),
        ("git log --outpu x", "git log --output-indicator-new=x"),
        ("git diff --ext-diff", "git diff --no-ext-diff"),
        ("git grep -Oless x", "git grep -n x"),
        ("git grep -nO x", "git grep -e O"),
        ("git fetch --upload-pack=x", "git fetch origin"),
        ("git fetch ext::x", "git fetch origin main"),
        ("git merge -s x", "git merge -m 'x s'"),
        ("git config x y", "git rev-parse HEAD"),
        ("git unknown", "git --version"),
        ("git bisect run x", "git blame x"),
        ("git x*", "git log x*"),
        ("git log --help", "git log -h"),
        ("git log --show-signature", "git log --show-pulls"),
        ("git log --show-sig", "git log --no-show-signature"),
        ("git log --format=%GK", "git log --format=%an"),
        ("git log --pretty=%h%GS", "git log --pretty=oneline"),
        ("git log --format %+GG", "git log --format %+s"),
        ("git for-each-ref '--format=%(signature:key)'", "git for-each-ref --format=%h"),
        ("git branch --sort=-signature", "git branch --sort=-committerdate"),
        ("git verify-commit HEAD", "git show HEAD"),
        ("git commit -S -m x", "git commit -mS"),
        ("git commit -aSx", "git commit -am x"),
        ("git commit --gpg-sign=x", "git commit --no-verify"),
        ("git merge -Sx y", "git merge --squash y"),
        ("git tag -s x", "git tag x"),
        ("git tag -v x", "git tag -n5"),
        ("git push --signed", "git push origin"),
        ("git archive --format=x HEAD", "git archive HEAD"),
        ("kubectl --kubeconfig=x", "kubectl get"),
        ("kubectl exec x", "kubectl get x"),
        ("uv run x", "uv lock"),
        ("poetry run x", "poetry show"),
        ("bundle exec x", "bundle list"),
        ("pnpm dlx x", "pnpm list"),
        ("npm exec x", "npm test"),
        ("docker run x", "docker ps"),
        ("go vet -vettool=x", "go vet"),
        ("go build -toolexec x", "go build -v"),
        ("go run x", "go list"),
        ("cargo --config x", "cargo check"),
        ("rustc -Clinker=x y", "rustc y"),
        ("pip --python x list", "pip list"),
        ("gh pr view --web", "gh pr view"),
        ("pandoc -F x y", "pandoc y"),
        ("pylint --init-hook=x", "pylint x"),
        ("cmake -E env x", "cmake -S x"),
        ("coverage run x", "coverage report"),
        ("find . -exec rm x", "find . -name x"),
        ("find . -fprintf x y", "find . -print"),
        ("find . -delete", "find . -type f"),
        ("sort -o x", "sort -r"),
        ("sort -uo x", "sort -k 2 -u"),
        ("sort -ox", "sort -to"),
        ("sort --out x", "sort --reverse"),
        ("sort --compress-program=x", "sort --check"),
        ("tar cf x --to-command=y", "tar cf x y"),
        ("tar --checkpoint-action exec=y", "tar --check-links"),
        ("tar xIf y x", "tar xf y"),
        ("tar -xIy -f x", "tar -xfI"),
        ("rg --pre x y", "rg --pretty y"),
        ("rg -z x", "rg -ez"),
        ("fd -x rm", "fd -e x"),
        ("less -oX y", "less -N y"),
        ("less '+!x' y", "less -- y"),
        ("man -Px y", "man y"),
        ("man -H y", "man 3 y"),
        ("curl -so x y", "curl -s y"),
        ("curl -Kx", "curl -HK y"),
        ("uniq a b", "uniq -c a"),
        ("uniq a*", "uniq -f a b"),
        ("xxd a b", "xxd -l 5"),
        ("tree -o x", "tree -L o"),
    ],
)
def test_a_wildcard_never_stands_for_what_runs_or_writes(risky: str, harmless: str) -> None:
    program = risky.split()[0]
    assert not allowed(risky, f"{program} *")
    assert not allowed(risky, f"{program} * *")
    if "*" not in risky and "'" not in risky:
        assert allowed(risky, risky)
    assert harmless.startswith("uniq -f") or allowed(harmless, f"{program} *")


@pytest.mark.req("GATE-14")
@pytest.mark.parametrize(
    "program",
    [
        *("xargs", "env", "timeout", "nice", "nohup", "sudo", "doas", "su", "setsid", "stdbuf"),
        *("ionice", "chroot"),
        *("unshare", "nsenter", "parallel", "busybox", "flock", "watch", "strace", "ssh", "script"),
        *("at", "awk"),
        *("sed", "perl", "python", "python3", "python3.11", "/usr/bin/python3", "dc", "m4", "ed"),
        *("vim", "bash", "sh", "npx", "uvx", "ccache", "java", "convert"),
    ],
)
def test_wrappers_and_interpreters_are_never_matched_by_a_wildcard(program: str) -> None:
    assert not allowed(f"{program} -q x", f"{program} *")
    assert not allowed(f"{program} -q x", f"{program} -q *")
    assert not allowed(f"{program} -q x", "* -q x")
    assert allowed(f"{program} -q x", f"{program} -q x")


@pytest.mark.req("GATE-14")
def test_behind_a_word_that_runs_another_program_every_word_must_be_spelled_out() -> None:
    assert not allowed("uv run pytest -x", "uv run *")
    assert not allowed("uv run pytest -x", "uv * pytest -x")
    assert not allowed("uv r* pytest", "uv *")
    assert allowed("uv run pytest -x", "uv run pytest -x")
    assert allowed("docker logs -f x", "docker logs *")


def test_an_interpreter_may_take_any_arguments_for_a_script_that_is_spelled_out() -> None:
    assert allowed("python3 -m pytest -x", "python3 -m pytest *")
    assert allowed("python tools/x.py -c y", "python tools/x.py *")
    assert allowed("bash run.sh -c y", "bash run.sh *")
    assert not allowed("python3 -m pytest", "python3 -m *")
    assert not allowed("python3 -m pip x", "python3 -m p* *")
    assert not allowed("perl -m x -e y", "perl -m x *")
    assert not allowed("sed p -e y", "sed p *")


def test_the_configuration_adds_to_the_table() -> None:
    more = RiskyTable().also("mine", ["-r", "--run", "do:*"], spelled_out=False)
    for line in ("mine -r x", "mine -qr", "mine --run=x", "mine --ru x", "mine do:x"):
        assert allowed(line, "mine *")
        assert not allowed(line, "mine *", risky=more), line
        assert allowed(line, line, risky=more)
    assert allowed("mine -q x", "mine *", risky=more)
    assert not allowed("mine x", "mine *", risky=more.also("mine", [], spelled_out=True))
    assert not allowed("sort -o x", "sort *", risky=RiskyTable().also("sort", ["-q"], spelled_out=False))
    assert set(more.programs) == {*SHIPPED, "mine"}


@pytest.mark.req("GATE-05")
@pytest.mark.parametrize(
    "line",
    [
        *("git push", "git push -f", "git -C . push", "git --no-pager push x", "git 'pu'sh"),
        *("git pu*", "git p?sh x"),
        *("/usr/bin/git push", "git status; git push", "git status | git push", "bash -c 'git push'"),
        "sudo git push",
        *("timeout 5 git push", "git status $(git push)", "x=1 git push", "g\\it push"),
        *("'git' push > x", "(git push)"),
        *("bash -c 'git $x'", "{git,push}", "env git push", "/opt/g*t push &", "eval 'git push'"),
        "xargs git",
    ],
)
def test_a_denying_pattern_finds_its_program_however_it_is_written(line: str) -> None:
    rules = [rule(ALLOW, "git *"), rule(DENY, "git push *")]
    assert verdict(line, *rules).action == DENY
    assert verdict(line, *reversed(rules)).action == DENY
    assert verdict(line, rule(DENY, "git push *"), PolicyRule("all", "f:1", Match.of(), ALLOW)).action == DENY
    assert verdict(line, rule(ASK, "git push *"), PolicyRule("all", "f:1", Match.of(), ALLOW)).action == ASK


@pytest.mark.parametrize(
    "line",
    [
        *("bash -c 'git status'", "timeout 5 git log", "git config x push", "sudo ls"),
        *("git status", "git log push", "git log --grep=push", "legit push", "gitpush", "ls push"),
    ],
)
def test_a_denying_pattern_leaves_other_programs_alone(line: str) -> None:
    assert verdict(line, rule(ALLOW, "* *"), rule(DENY, "git push *")).action != DENY


@pytest.mark.req("GATE-05")
def test_each_program_is_evaluated_by_itself_and_the_strictest_answer_stands() -> None:
    rules = [rule(ALLOW, "ls *"), rule(ALLOW, "cat *"), rule(ASK, "cat secret"), rule(DENY, "rm *")]
    assert verdict("ls | cat x", *rules).action == ALLOW
    assert verdict("ls | cat secret", *rules).action == ASK
    denied = verdict("ls | cat secret; rm x", *rules)
    assert (denied.action, denied.decided_by.name) == (DENY, "deny user rm *")
    assert verdict("ls; unknown", *rules).decided_by.kind == common.DECIDED_BY_KIND_DEFAULT


@pytest.mark.req("GATE-05")
def test_an_allow_needs_every_program_within_its_own_layer() -> None:
    one, other = rule(ALLOW, "ls *"), rule(ALLOW, "cat *", layer=Layer.WORKSPACE)
    assert verdict("ls", one, other).action == ALLOW
    assert verdict("ls | cat", one, other).action == ASK
    assert verdict("ls | cat", rule(ALLOW, "ls *", "cat *"), other).action == ALLOW


@pytest.mark.req("GATE-05")
def test_a_rule_with_a_command_is_more_specific_than_one_without() -> None:
    general = PolicyRule("none", "f:1", Match.of(tool=["run_command"], provider=["workspace"]), DENY)
    assert verdict("ls", rule(ALLOW, "ls *"), general).action == ALLOW
    assert verdict("ls; rm", rule(ALLOW, "ls *"), general).action == DENY
    everything = PolicyRule("all", "f:1", Match.of(tool=["run_command"]), ALLOW)
    assert verdict("rm $(x)", everything).action == ALLOW


@pytest.mark.req("GATE-04")
def test_reads_without_a_rule_stay_allowed_and_ask_counts_as_deny() -> None:
    assert verdict("anything $(at all)", rule(ALLOW, "ls *"), kind=LOOK).action == ALLOW
    asked = verdict("cat x", rule(ASK, "cat *"), kind=LOOK)
    assert (asked.action, asked.downgraded) == (DENY, True)


def test_why_a_line_is_not_understood_is_said() -> None:
    assert "'$' is not on the list" in verdict("ls $x", rule(ALLOW, "ls *")).reason


@pytest.mark.parametrize("line", [None, ""])
def test_a_command_that_is_not_there_or_not_certain_is_not_allowed(line: str | None) -> None:
    call = PolicyCall("workspace", "run_command", RUN, common.RISK_HIGH, command=line)
    assert Policy([rule(ALLOW, "ls *", "*s")]).evaluate(call).action == ASK


@pytest.mark.parametrize(
    "pattern", ["", " ", "a 'b c'", "a; b", "a | b", "a $x", "a > b", "a\\ b", "a `b`", "(a)"]
)
def test_what_is_no_pattern_is_said(pattern: str) -> None:
    assert pattern_problem(pattern)


def test_long_words_and_many_wildcards_do_not_make_policy_fail() -> None:
    rules = [rule(ALLOW, "ls *"), rule(DENY, "git p*u*s*h *")]
    assert verdict("ls '" + "x" * 60_000 + "'", *rules).action == ALLOW
    assert verdict("ls " + "x " * 30_000, *rules).action == ALLOW
    assert verdict("git " + "x*" * 10_000, *rules).action == ASK
    assert verdict("git p" + "*u" * 10_000 + "*", *rules).action == DENY
