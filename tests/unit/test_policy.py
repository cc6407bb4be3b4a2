"""Policy: which rule speaks, what stands, and what fails closed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from turnd.rules import policy
from turnd.rules.commands import Found
from turnd.rules.policy import Layer, Match, Policy, PolicyCall, PolicyConflict, PolicyError, PolicyRule
from turnd.v1 import common_pb2 as common
from turnd.v1 import provider_pb2

ALLOW, ASK, DENY = common.POLICY_ACTION_ALLOW, common.POLICY_ACTION_ASK, common.POLICY_ACTION_DENY
READ, WRITE, QUESTION = (
    common.TOOL_KIND_DATA_SOURCE,
    common.TOOL_KIND_RESOURCE,
    common.TOOL_KIND_INTERACTIVE,
)

WRITE_FILE = PolicyCall("workspace", "write_file", WRITE, common.RISK_MODERATE)
READ_FILE = PolicyCall("workspace", "read_file", READ, common.RISK_READ_ONLY)
ASK_USER = PolicyCall("core", "ask_user", QUESTION, common.RISK_READ_ONLY)


def rule(
    name: str, action: common.PolicyAction.ValueType, match: Match | None = None, layer: Layer = Layer.USER
) -> PolicyRule:
    return PolicyRule(name, f"config.toml:{name}", match or Match(), action, layer)


def decided(call: PolicyCall, *rules: PolicyRule) -> tuple[common.PolicyAction.ValueType, str]:
    verdict = Policy(rules).evaluate(call)
    assert verdict.decided_by.kind != common.DECIDED_BY_KIND_FAILURE
    return verdict.action, verdict.decided_by.name


@pytest.mark.req("GATE-06")
@pytest.mark.parametrize(
    ("call", "action"),
    [
        (READ_FILE, ALLOW),
        (ASK_USER, ALLOW),
        (WRITE_FILE, ASK),
        (PolicyCall("core", "update_tasks", WRITE, common.RISK_LOW), ALLOW),
        (PolicyCall("core", "spawn_agent", WRITE, common.RISK_CRITICAL), ASK),
        (PolicyCall("mine", "update_tasks", WRITE, common.RISK_LOW), ASK),
    ],
)
def test_defaults_without_a_rule(call: PolicyCall, action: common.PolicyAction.ValueType) -> None:
    verdict = Policy().evaluate(call)

    assert verdict.action == action
    assert verdict.decided_by == common.DecidedBy(kind=common.DECIDED_BY_KIND_DEFAULT)
    assert not verdict.downgraded


@pytest.mark.req("GATE-06")
def test_a_rule_that_matches_replaces_the_default_also_to_be_stricter() -> None:
    assert decided(READ_FILE, rule("none", DENY, Match.of(tool=["read_file"]))) == (DENY, "none")
    assert decided(WRITE_FILE, rule("some", ALLOW, Match.of(tool=["read_file"]))) == (ASK, "")


@pytest.mark.parametrize(
    ("match", "matches"),
    [
        (Match.of(), True),
        (Match.of(tool=["*"], provider=["*"]), True),
        (Match.of(tool=["write_file"]), True),
        (Match.of(tool=["write_*"]), True),
        (Match.of(tool=["read_file", "write_file"]), True),
        (Match.of(tool=["workspace.write_file"]), True),
        (Match.of(tool=["workspace.*"]), True),
        (Match.of(tool=["work?pace.write_[fx]ile"]), True),
        (Match.of(tool=["Write_file"]), False),
        (Match.of(tool=["write"]), False),
        (Match.of(tool=["mine.write_file"]), False),
        (Match.of(tool=["workspace"]), False),
        (Match.of(provider=["workspace"]), True),
        (Match.of(provider=["w*"]), True),
        (Match.of(provider=["W*"]), False),
        (Match.of(risk=[common.RISK_MODERATE]), True),
        (Match.of(risk=[common.RISK_LOW, common.RISK_HIGH]), False),
        (Match.of(kind=[WRITE]), True),
        (Match.of(kind=[READ, QUESTION]), False),
        (Match.of(tool=["write_file"], provider=["mine"]), False),
        (
            Match.of(tool=["write_file"], provider=["workspace"], risk=[common.RISK_MODERATE], kind=[WRITE]),
            True,
        ),
        (Match.of(tool=["write_file"], kind=[READ]), False),
    ],
)
def test_all_fields_must_match_and_one_alternative_of_each(match: Match, matches: bool) -> None:
    assert match.matches(WRITE_FILE) is matches


def test_a_name_with_a_dot_does_not_pass_for_another_providers_tool() -> None:
    disguised = PolicyCall("mine", "workspace.write_file", WRITE, common.RISK_MODERATE)

    assert not Match.of(tool=["workspace.write_file"]).matches(disguised)
    assert Match.of(tool=["mine.*"]).matches(disguised)


@pytest.mark.req("GATE-05")
@pytest.mark.parametrize(
    ("specific", "general"),
    [
        (Match.of(tool=["write_file"]), Match.of()),
        (
            Match.of(tool=["write_file"]),
            Match.of(provider=["workspace"], risk=[common.RISK_MODERATE], kind=[WRITE]),
        ),
        (
            Match.of(tool=["write_file"], provider=["workspace"]),
            Match.of(tool=["write_file"], risk=[common.RISK_MODERATE], kind=[WRITE]),
        ),
        (Match.of(provider=["workspace"]), Match.of(risk=[common.RISK_MODERATE], kind=[WRITE])),
        (Match.of(risk=[common.RISK_MODERATE]), Match.of(kind=[WRITE])),
        (Match.of(tool=["*", "write_file"], kind=[WRITE]), Match.of(tool=["*"], provider=["*"])),
        (Match.of(tool=["write_file"], kind=[WRITE]), Match.of(tool=["write_file"])),
    ],
)
@pytest.mark.parametrize("strict_is_general", [True, False])
def test_the_most_specific_rule_speaks_whatever_it_says(
    specific: Match, general: Match, strict_is_general: bool
) -> None:
    one, other = (ALLOW, DENY) if strict_is_general else (DENY, ALLOW)
    rules = [rule("specific", one, specific), rule("general", other, general)]

    assert decided(WRITE_FILE, *rules) == (one, "specific")
    assert decided(WRITE_FILE, *reversed(rules)) == (one, "specific")


@pytest.mark.req("GATE-05")
@given(st.permutations([ALLOW, ASK, DENY]))
def test_at_equal_specificity_the_strictest_stands(actions: list[common.PolicyAction.ValueType]) -> None:
    patterns = [["write_*"], ["*_file"], ["write_file"]]
    rules = [
        rule(f"r{action}", action, Match.of(tool=pattern))
        for action, pattern in zip(actions, patterns, strict=True)
    ]

    assert decided(WRITE_FILE, *rules) == (DENY, f"r{DENY}")
    without_deny = [each for each in rules if each.action != DENY]
    assert decided(WRITE_FILE, *without_deny) == (ASK, f"r{ASK}")


@pytest.mark.req("GATE-05")
@pytest.mark.parametrize("user", [ALLOW, ASK, DENY])
@pytest.mark.parametrize("workspace", [ALLOW, ASK, DENY])
def test_layers_are_apart_and_the_strictest_stands(
    user: common.PolicyAction.ValueType, workspace: common.PolicyAction.ValueType
) -> None:
    rules = (
        rule("user", user, Match.of(tool=["write_file"])),
        rule("workspace", workspace, Match(), Layer.WORKSPACE),
    )

    assert decided(WRITE_FILE, *rules)[0] == max(user, workspace)


@pytest.mark.req("GATE-05")
def test_a_layer_without_a_matching_rule_says_nothing() -> None:
    elsewhere = rule("elsewhere", DENY, Match.of(tool=["run_command"]), Layer.WORKSPACE)

    assert decided(WRITE_FILE, rule("user", ALLOW), elsewhere) == (ALLOW, "user")


@pytest.mark.req("GATE-05")
def test_equal_matches_that_disagree_are_refused_naming_both_with_their_places() -> None:
    one = PolicyRule("one", "config.toml:3", Match.of(tool=["a", "b"], provider=["*"]), ALLOW)
    two = PolicyRule("two", "config.toml:9", Match.of(tool=["b", "a", "b"]), DENY)

    with pytest.raises(PolicyConflict) as refused:
        Policy([one, two])
    for said in ("'one' (config.toml:3)", "'two' (config.toml:9)", "allow", "deny"):
        assert said in str(refused.value)


@pytest.mark.req("GATE-05")
def test_equal_matches_are_no_conflict_where_they_agree_or_are_of_two_layers() -> None:
    match = Match.of(tool=["a"])

    Policy([rule("one", DENY, match), rule("two", DENY, match)])
    Policy([rule("one", DENY, match), rule("two", ALLOW, match, Layer.WORKSPACE)])
    Policy([rule("one", DENY, match), rule("two", ALLOW, Match.of(tool=["a"], kind=[WRITE]))])


@pytest.mark.parametrize(
    ("field", "wrong", "why"),
    [
        ("command", "git log | cat", "a pattern is a list of plain words"),
        ("path", "../x", "canonical paths"),
        ("host", "https://example.org", "is no host"),
    ],
)
def test_a_pattern_that_cannot_be_meant_is_refused_with_name_and_place(
    field: str, wrong: str, why: str
) -> None:
    with pytest.raises(PolicyError, match=rf"policy rule 'r' \(config.toml:r\): match.{field}: .*{why}"):
        Policy([rule("r", ALLOW, Match.of(**{field: ["x", wrong]}))])
    Policy([rule("r", ALLOW, Match.of(**{field: ["x"]}))])
    Policy([rule("r", ALLOW, Match.of(**{field: ["*"]}))])


def test_an_empty_pattern_is_refused() -> None:
    with pytest.raises(
        PolicyError, match=r"policy rule 'r' \(config.toml:r\): match.tool has an empty pattern"
    ):
        Policy([rule("r", DENY, Match.of(tool=["", "a"]))])


def test_an_action_must_be_said() -> None:
    with pytest.raises(PolicyError, match="expected action allow, ask or deny"):
        Policy([rule("r", common.POLICY_ACTION_UNSPECIFIED)])


def test_an_empty_match_is_legal_and_can_be_told() -> None:
    assert Match.of(tool=["*"], path=["*", "src"]).empty
    assert not any(
        Match.of(**{field: ["a"]}).empty for field in ("tool", "provider", "command", "path", "host")
    )
    assert decided(READ_FILE, rule("all", DENY)) == (DENY, "all")


@pytest.mark.req("GATE-04")
@pytest.mark.parametrize("call", [READ_FILE, ASK_USER])
def test_ask_on_what_cannot_be_gated_is_a_deny_told_apart_from_a_plain_one(call: PolicyCall) -> None:
    asked = Policy([rule("asks", ASK)]).evaluate(call)
    denied = Policy([rule("denies", DENY)]).evaluate(call)

    assert (asked.action, asked.downgraded, asked.decided_by.name) == (DENY, True, "asks")
    assert "ask counts as deny" in asked.reason
    assert (denied.action, denied.downgraded, denied.decided_by.name) == (DENY, False, "denies")


@pytest.mark.req("GATE-09")
def test_a_grant_turns_ask_into_allow_and_lifts_no_deny() -> None:
    grant = policy.grant_for(WRITE_FILE)

    allowed = Policy().evaluate(WRITE_FILE, [grant])
    assert (allowed.action, allowed.decided_by.kind) == (ALLOW, common.DECIDED_BY_KIND_GRANT)
    assert Policy([rule("asks", ASK)]).evaluate(WRITE_FILE, [grant]).action == ALLOW
    assert Policy([rule("denies", DENY)]).evaluate(WRITE_FILE, [grant]).action == DENY
    workspace = rule("denies", DENY, Match(), Layer.WORKSPACE)
    assert Policy([rule("allows", ALLOW), workspace]).evaluate(WRITE_FILE, [grant]).action == DENY
    assert Policy([rule("asks", ASK)]).evaluate(READ_FILE, [policy.grant_for(READ_FILE)]).action == DENY


RUN = provider_pb2.ToolSpec(name="run_command", kind=WRITE, risk=common.RISK_HIGH, command_field="command")
EDIT = provider_pb2.ToolSpec(name="edit_file", kind=WRITE, risk=common.RISK_MODERATE, path_field="path")


@pytest.mark.req("GATE-09", "A09")
@pytest.mark.parametrize("spec", [RUN, EDIT], ids=lambda spec: spec.name)
def test_a_grant_is_for_the_very_command_or_path_that_was_shown(spec: provider_pb2.ToolSpec) -> None:
    field = spec.command_field or spec.path_field

    def call(data: str) -> PolicyCall:
        return PolicyCall.of("workspace", spec, data.encode())

    shown = call(f'{{"{field}": "make test"}}')
    grant = policy.grant_for(shown)

    assert [*grant.command, *grant.path] == ["make test"]
    assert policy.granted(grant, shown)
    assert policy.granted(grant, call(f'{{"{field}": "make \\u0074est", "timeout_s": 3}}'))
    for other in (
        f'{{"{field}": "make test; rm -rf ."}}',
        f'{{"{field}": "make  test"}}',
        f'{{"{field}": ["make test"]}}',
        f'{{"{field}": "make test", "{field}": "rm -rf ."}}',
        "{}",
        "not json",
    ):
        assert not policy.granted(grant, call(other)), other
    assert not policy.granted(grant, PolicyCall("mine", spec.name, WRITE, common.RISK_HIGH))


@pytest.mark.req("GATE-09")
@pytest.mark.parametrize(
    "data", [b"{}", b'{"command": ""}', b'{"command": "ls", "command": "rm"}', b'{"command": 1}', b"{"]
)
def test_a_command_that_is_not_certain_is_never_remembered(data: bytes) -> None:
    call = PolicyCall.of("workspace", RUN, data)
    grant = policy.grant_for(call)

    assert not policy.granted(grant, call)
    assert not policy.granted(grant, PolicyCall.of("workspace", RUN, b'{"command": "ls"}'))


@pytest.mark.req("GATE-09")
def test_a_request_is_answered_by_a_grant_that_covers_what_it_would_remember() -> None:
    def of(command: list[str], tool: str = "run_command") -> common.GrantRule:
        return common.GrantRule(provider="workspace", tool=tool, command=command)

    assert policy.covers(of(["ls"]), of(["ls"]))
    assert policy.covers(of(["ls", "make"]), of(["make"]))
    assert policy.covers(of([]), of(["make"]))
    assert not policy.covers(of(["ls"]), of(["make"]))
    assert not policy.covers(of(["ls"]), of(["ls", "make"]))
    assert not policy.covers(of(["ls"]), of([]))
    assert not policy.covers(of(["ls"]), of(["ls"], tool="inspect_command"))


@pytest.mark.req("GATE-13")
def test_policy_that_fails_denies_with_a_cause_of_its_own() -> None:
    def broken() -> Iterator[common.GrantRule]:
        raise RuntimeError("the store is gone")
        yield

    verdict = Policy().evaluate(WRITE_FILE, broken())
    assert (verdict.action, verdict.decided_by.kind) == (DENY, common.DECIDED_BY_KIND_FAILURE)
    assert "the store is gone" in verdict.reason

    for call in (
        PolicyCall("mine", "t", common.TOOL_KIND_UNSPECIFIED, common.RISK_LOW),
        PolicyCall("mine", "t", READ, common.RISK_UNSPECIFIED),
    ):
        verdict = Policy([rule("all", ALLOW)]).evaluate(call)
        assert (verdict.action, verdict.decided_by.kind) == (DENY, common.DECIDED_BY_KIND_FAILURE)


MATCHES = st.builds(
    Match.of,
    tool=st.sampled_from([[], ["write_file"], ["*_file"], ["workspace.*"], ["other"]]),
    provider=st.sampled_from([[], ["workspace"], ["mine"]]),
    risk=st.sampled_from([[], [common.RISK_MODERATE], [common.RISK_LOW]]),
    kind=st.sampled_from([[], [WRITE], [READ]]),
)
ORDER = ("command", "path", "host", "tool", "provider", "risk", "kind")


@pytest.mark.req("GATE-05")
@given(st.lists(st.tuples(MATCHES, st.sampled_from([ALLOW, ASK, DENY]), st.sampled_from(Layer)), max_size=6))
def test_policy_agrees_with_the_rules_of_the_design_read_literally(
    drawn: list[tuple[Match, common.PolicyAction.ValueType, Layer]],
) -> None:
    rules = [
        PolicyRule(f"r{i}", f"f:{i}", match, action, layer) for i, (match, action, layer) in enumerate(drawn)
    ]
    clash = any(
        a.match == b.match and a.layer == b.layer and a.action != b.action for a in rules for b in rules
    )
    if clash:
        with pytest.raises(PolicyConflict):
            Policy(rules)
        return

    def beats(one: PolicyRule, other: PolicyRule) -> bool:
        for field in ORDER:
            has, has_not = bool(getattr(one.match, field)), bool(getattr(other.match, field))
            if has != has_not:
                return has
        return one.action > other.action

    spoken = []
    for layer in Layer:
        matching = [each for each in rules if each.layer is layer and each.match.matches(WRITE_FILE)]
        best = [each for each in matching if not any(beats(other, each) for other in matching)]
        spoken += [each.action for each in best]
    assert Policy(rules).evaluate(WRITE_FILE).action == max(spoken, default=ASK)


@pytest.mark.req("GATE-14")
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("make x; make y", "PATH looks for make at /ws/bin/make, where tools of a session can put a program"),
        ("git status | make", "PATH looks for make at /ws/bin/make"),
        ("echo $(make)", "a line that is not understood"),
        ("git status", ""),
        ("echo x", ""),
    ],
)
def test_why_no_rule_covers_a_command_is_said(command: str, said: str) -> None:
    found = Map({"make": Found("/ws/bin/make", writable=True), "git": Found("/usr/bin/git", writable=False)})
    call = PolicyCall(
        provider="workspace",
        tool="run_command",
        kind=common.TOOL_KIND_RESOURCE,
        risk=common.RISK_HIGH,
        input=b"{}",
        command=command,
        programs=found,
    )
    rule = PolicyRule("make", "c:1", Match.of(command=["make *"]), common.POLICY_ACTION_ALLOW)
    reason = Policy([rule]).evaluate(call).reason
    assert said in reason
    assert reason.count("PATH looks for") == said.count("PATH looks for")
