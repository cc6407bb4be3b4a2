"""The configuration file, and the directories."""

from __future__ import annotations

import dataclasses
import json
import os
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnd.config import Config, ConfigError, PathError, Unconfined, load, prepare
from turnd.config.source import key_lines
from turnd.configured import endpoints, refuse_unsupported
from turnd.rules.policy import Match
from turnd.v1 import common_pb2 as common
from turnd.v1.paths import (
    MAX_SOCKET_PATH_BYTES,
    SocketPathTooLong,
    UnsafePath,
    candidates,
    check_private_directory,
    check_private_file,
    make_private_directory,
    resolve,
)

EVERYTHING = """\
default_profile = "careful"

[profiles.careful]
model = "openai-compatible/local/qwen"
fallback = ["anthropic/claude-sonnet-5", "replay:session.jsonl"]
system_prompt = "Be careful."
instructions = ["AGENTS.md", "HOUSE.md"]
tools = ["workspace.*", "mine.*"]
max_turns = 200
max_cost_usd = 5.000000001
max_wall_clock_s = 3600.5
limit_mode = "soft"
max_depth = 2
max_concurrent_subagents = 4
max_subagents_total = 32
may_spawn = ["default", "careful"]
temperature = 0.2
doom_loop = { threshold = 3, window_size = 10, second_tier = false, polling = ["mine.job_status"] }

[limits]
approval_timeout_s = 86400
default_hook_timeout_ms = 5000
tool_timeout_s = 120
calls_in_flight = 16
max_consecutive_denials = 3
provider_idle_s = 600
retry = { base_delay_ms = 500, backoff_factor = 2, max_retries = 5, per_session = 50 }
context_share = 0.8
sampling_token_weight = 2.5
prefill_token_weight = 0

[[policy]]
name = "formatters may run"
match = { tool = "run_command", command = ["ruff *", "gofmt *"] }
action = "allow"

[[policy]]
action = "deny"
[policy.match]
risk = "critical"
kind = ["resource", "interactive"]

[[hooks]]
point = "plan-ready"
mode = "veto"
command = ["/usr/local/bin/my-gate"]
timeout_ms = 2000

[providers.mine]
command = ["python", "-m", "mine"]
config = { root = ".", depth = 3, ratio = 0.5, list = [1, { a = true }] }
secrets = { API_TOKEN = { env = "MINE_TOKEN" } }
sandbox = { workspace = "ro", network = false, memory_mb = 512, read = ["~/.cache/mine"] }
share = "session"

[providers.github]
mcp = { command = ["github-mcp-server", "stdio"] }
trust_hints = false

[providers.web]
sandbox = "none"

[models.local]
kind = "openai-compatible"
base_url = "http://127.0.0.1:8080/v1"
pricing = { free = true }

[models.paid]
kind = "openai-compatible"
base_url = "https://models.example/v1"
api_key = { file = "~/.keys/paid" }
pricing = { input_per_mtok = 3.0, output_per_mtok = 15 }

[[prices."openai-compatible/paid/small".tiers]]
name = "old"
input_per_mtok = 2
output_per_mtok = 8
until = 2026-01-01T00:00:00Z

[[prices."openai-compatible/paid/small".tiers]]
input_per_mtok = 1.5
output_per_mtok = 6
cache_read_per_mtok = 0.15
from = 2026-01-01T01:00:00+01:00
until_tokens = 200_000

[[prices."openai-compatible/paid/small".tiers]]
free = true
from = 2026-01-01T00:00:00Z
from_tokens = 200_000

[telemetry]
endpoint = "http://127.0.0.1:4317"
content = false
"""


def read(tmp_path: Path, text: str) -> Config:
    file = tmp_path / "config.toml"
    file.write_text(text, encoding="utf-8")
    return load(file)


def refusal(tmp_path: Path, text: str) -> list[str]:
    """The lines of the refusal, without the directory."""
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    return [line.replace(f"{tmp_path}/", "") for line in caught.value.lines]


class TestDefaults:
    def test_without_a_file(self, tmp_path: Path) -> None:
        config = load(tmp_path / "none.toml")
        assert config.default_profile == "default"
        assert config.limits.approval_timeout_s == 86400
        assert config.telemetry.endpoint is None
        snapshot = config.profiles["default"].snapshot("default")
        assert snapshot.model == ""
        assert list(snapshot.tools) == ["workspace.*", "core.*", "web.*"]
        assert list(snapshot.instructions) == ["AGENTS.md"]
        assert snapshot.bounds == common.Bounds(
            max_turns=200,
            max_cost_nano_usd=5_000_000_000,
            max_wall_clock_ms=3_600_000,
            limit_mode=common.LIMIT_MODE_HARD,
        )
        assert snapshot.doom_loop == common.DoomLoop(threshold=3, window_size=10)
        assert (snapshot.max_depth, snapshot.max_concurrent_subagents, snapshot.max_subagents_total) == (
            2,
            4,
            32,
        )
        assert list(snapshot.may_spawn) == ["default"]
        assert snapshot.system_prompt
        assert snapshot.parameters == b"{}"

    def test_a_profile_of_the_users_has_no_tools_and_no_bounds_but_those_it_names(
        self, tmp_path: Path
    ) -> None:
        profile = read(tmp_path, '[profiles.default]\nmodel = "openai/gpt-5"\n').profiles["default"]
        snapshot = profile.snapshot("default")
        assert list(snapshot.tools) == []
        assert not snapshot.bounds.HasField("max_turns")
        assert not snapshot.bounds.HasField("max_cost_nano_usd")
        assert not snapshot.bounds.HasField("max_wall_clock_ms")

    def test_the_shipped_profile_stays_beside_the_users(self, tmp_path: Path) -> None:
        config = read(tmp_path, "[profiles.quick]\nmax_turns = 5\n")
        assert set(config.profiles) == {"default", "quick"}


class TestWholeFile:
    def test_profile(self, tmp_path: Path) -> None:
        config = read(tmp_path, EVERYTHING)
        snapshot = config.profiles[config.default_profile].snapshot("careful")
        assert snapshot.model == "openai-compatible/local/qwen"
        assert snapshot.bounds.max_cost_nano_usd == 5_000_000_001
        assert snapshot.bounds.max_wall_clock_ms == 3_600_500
        assert snapshot.bounds.limit_mode == common.LIMIT_MODE_SOFT
        assert list(snapshot.doom_loop.polling) == ["mine.job_status"]
        assert snapshot.parameters == b'{"temperature": 0.2}'

    def test_commands_add_to_what_a_wildcard_never_stands_for(self, tmp_path: Path) -> None:
        mine = read(tmp_path, '[commands.mine]\noptions = ["-x", "--run"]\nspelled_out = true\n').commands[
            "mine"
        ]
        assert (mine.options, mine.spelled_out) == (("-x", "--run"), True)
        assert not read(tmp_path, "[commands.mine]\n").commands["mine"].spelled_out
        with pytest.raises(ConfigError, match=r"config.toml:2: commands.mine.options: expected"):
            read(tmp_path, "[commands.mine]\noptions = 3\n")

    def test_policy_keeps_file_and_line(self, tmp_path: Path) -> None:
        formatters, critical = read(tmp_path, EVERYTHING).policy
        assert formatters.name == "formatters may run"
        assert formatters.action == common.POLICY_ACTION_ALLOW
        assert formatters.match == Match.of(tool=["run_command"], command=["ruff *", "gofmt *"])
        assert formatters.source == f"{tmp_path}/config.toml:32"
        assert critical.name == "config.toml:37"
        assert critical.match == Match.of(
            risk=[common.RISK_CRITICAL], kind=[common.TOOL_KIND_RESOURCE, common.TOOL_KIND_INTERACTIVE]
        )

    def test_extensions(self, tmp_path: Path) -> None:
        config = read(tmp_path, EVERYTHING)
        assert config.hooks[0].point == common.HOOK_POINT_PLAN_READY
        assert config.hooks[0].timeout_ms == 2000
        mine = config.providers["mine"]
        assert json.loads(mine.config) == {"root": ".", "depth": 3, "ratio": 0.5, "list": [1, {"a": True}]}
        assert mine.secrets["API_TOKEN"].env == "MINE_TOKEN"
        assert config.providers["web"].sandbox == Unconfined()
        paid = config.models["paid"].pricing
        assert paid is not None
        assert (paid.input, paid.output) == (3_000_000_000, 15_000_000_000)
        small = config.prices["openai-compatible/paid/small"].pricing()
        assert [(tier.name, tier.input, tier.free) for tier in small.tiers] == [
            ("old", 2_000_000_000, False),
            ("tiers[1]", 1_500_000_000, False),
            ("tiers[2]", 0, True),
        ]
        assert small.tiers[0].until_us == small.tiers[1].from_us == 1_767_225_600_000_000
        assert small.tiers[1].until_tokens == small.tiers[2].from_tokens == 200_000
        assert (small.tiers[1].cache_read, small.tiers[1].cache_write) == (150_000_000, 1_500_000_000)
        assert (config.limits.sampling_token_weight, config.limits.prefill_token_weight) == (
            Decimal("2.5"),
            Decimal(0),
        )

    def test_nothing_in_it_can_be_changed(self, tmp_path: Path) -> None:
        config = read(tmp_path, EVERYTHING)
        with pytest.raises(dataclasses.FrozenInstanceError):
            config.default_profile = "other"  # type: ignore[misc]
        with pytest.raises(TypeError):
            config.profiles["x"] = config.profiles["careful"]  # type: ignore[index]


@pytest.mark.req("OPS-03")
class TestRefusals:
    @pytest.mark.parametrize(
        ("text", "line"),
        [
            (
                "[profiles.default]\nmax_turn = 3\n",
                "config.toml:2: profiles.default.max_turn: unknown key; did you mean max_turns?",
            ),
            (
                "a = 1\n[limts]\n",
                "config.toml:1: a: unknown key; known: commands, default_profile, hooks, limits",
            ),
            (
                "[limits]\n\nretry = { base_delay_ms = 1, max_retrys = 2 }\n",
                "config.toml:3: limits.retry.max_retrys: unknown key; did you mean max_retries?",
            ),
            (
                'default_profile = "defualt"\n',
                'config.toml:1: default_profile: there is no profile named "defualt"; did you mean default?',
            ),
            (
                '[profiles.a]\nmodel = "openai-compatible/locl/m"\n[models.local]\nkind = "openai"\n',
                'config.toml:2: profiles.a.model: there is no server in [models] named "locl"; did you mean',
            ),
            ('[profiles.a]\nmodel = "antropic/x"\n', "did you mean anthropic?"),
            (
                '[profiles.a]\nmay_spawn = [\n  "default",\n  "nobody",\n]\n',
                'config.toml:4: profiles.a.may_spawn[1]: there is no profile named "nobody"',
            ),
            (
                '[profiles.a]\nlimit_mode = "sof"\n',
                'config.toml:2: profiles.a.limit_mode: expected one of "hard", "soft", found',
            ),
            (
                '[[policy]]\naction = "allow"\n[[policy]]\nmatch = { risk = "hihg" }\naction = "ask"\n',
                "config.toml:4: policy[1].match.risk: expected",
            ),
            (
                "[[policy]]\nmatch = {}\n",
                'config.toml:1: policy[0].action: missing; expected one of "allow", "ask", "deny"',
            ),
            (
                '[[hooks]]\npoint = "post-apply"\nmode = "veto"\nprovider = "m"\n',
                "config.toml:3: hooks[0].mode: veto means nothing at post-apply; it is for pre-tool-call",
            ),
            (
                '[[hooks]]\npoint = "post-apply"\nmode = "observe"\ncommand = ["gate"]\n',
                'config.toml:4: hooks[0].command: expected an absolute path, found "gate"',
            ),
            (
                '[providers.mine]\nshare = "daemon"\n',
                "config.toml:1: providers.mine: expected either command or mcp",
            ),
            (
                '[providers.workspace]\ncommand = ["x"]\n',
                "config.toml:1: providers.workspace: workspace is turnd's own; give yours another name",
            ),
            (
                '[providers.mine]\ncommand = ["x"]\nsandbox = "off"\n',
                'config.toml:3: providers.mine.sandbox: expected "none", or a table, found the text "off"',
            ),
            (
                '[models.m]\nkind = "openai-compatible"\n',
                "config.toml:1: models.m.base_url: missing; expected a URL",
            ),
            (
                '[models.m]\nkind = "openai"\npricing = { input_per_mtok = 1 }\n',
                "config.toml:3: models.m.pricing.output_per_mtok: missing",
            ),
            (
                '[models.m]\nkind = "openai"\npricing = { free = true, input_per_mtok = 1 }\n',
                "config.toml:3: models.m.pricing.input_per_mtok: the model is free",
            ),
            (
                '[models.m]\nkind = "openai"\npricing = { input_per_mtok = 0, output_per_mtok = 0 }\n',
                "config.toml:3: models.m.pricing.input_per_mtok: nothing costs anything; say free = true",
            ),
            (
                '[models.m]\nkind = "openai"\n[models.m.pricing]\ntiers = [\n  { free = true, name = "a" },\n'
                '  { free = true, name = "b" },\n]\n',
                "config.toml:4: models.m.pricing.tiers: price tiers 'a' and 'b' overlap: both hold at",
            ),
            (
                '[models.m]\nkind = "openai"\npricing.tiers = [{ free = true, until_tokens = 5 }]\n',
                "config.toml:3: models.m.pricing.tiers: gap after price tier 'tiers[0]': no price tier holds at",
            ),
            (
                '[models.m]\nkind = "openai"\npricing.tiers = []\n',
                "config.toml:3: models.m.pricing.tiers: expected an array of a table with at least 1",
            ),
            (
                '[models.m]\nkind = "openai"\n[models.m.pricing]\nfree = true\ntiers = [{ free = true }]\n',
                "config.toml:4: models.m.pricing.free: stands beside tiers, and each tier has its own",
            ),
            (
                '[models.m]\nkind = "openai"\npricing.tiers = [\n  { free = true, until = 2026-01-01 },\n]\n',
                "config.toml:4: models.m.pricing.tiers[0].until: expected a time with its offset such as",
            ),
            (
                '[models.m]\nkind = "openai"\npricing.tiers = [\n  { free = true, from = 2026-01-01T00:00:00Z, '
                "until = 2026-01-01T00:00:00Z },\n]\n",
                "config.toml:4: models.m.pricing.tiers[0].until: expected a time after from",
            ),
            (
                '[models.m]\nkind = "openai"\npricing.tiers = [\n  { free = true, from_tokens = 5, '
                "until_tokens = 5 },\n]\n",
                "config.toml:4: models.m.pricing.tiers[0].until_tokens: expected more than from_tokens",
            ),
            (
                '[models.m]\nkind = "openai"\npricing.tiers = [\n  { output_per_mtok = 5 },\n]\n',
                "config.toml:4: models.m.pricing.tiers[0].input_per_mtok: missing; expected",
            ),
            (
                '[prices."antropic/x"]\nfree = true\n',
                "config.toml:1: prices.antropic/x: expected a model: anthropic/MODEL",
            ),
            (
                '[prices."openai-compatible/none/x"]\nfree = true\n',
                'config.toml:1: prices.openai-compatible/none/x: there is no server in [models] named "none"',
            ),
            (
                '[prices."replay:/a"]\nfree = true\n',
                "config.toml:1: prices.replay:/a: a transcript states its prices itself",
            ),
            (
                "[limits]\nsampling_token_weight = 1001\n",
                "config.toml:2: limits.sampling_token_weight: expected a number, 0 or more and at most 1000",
            ),
            (
                '[telemetry]\nendpoint = "127.0.0.1:4317"\n',
                "config.toml:2: telemetry.endpoint: expected a URL",
            ),
            ("x = 1\ny = = 2\n", "config.toml:2: not valid TOML: invalid value"),
            ("x = 'abc", "config.toml:1: not valid TOML"),
            ("a = 1\na = 2\n", "config.toml:2: not valid TOML: cannot overwrite a value"),
        ],
    )
    def test_names_file_line_and_key_and_says_what_was_meant(
        self, tmp_path: Path, text: str, line: str
    ) -> None:
        assert any(line in found for found in refusal(tmp_path, text)), refusal(tmp_path, text)

    def test_names_everything_that_is_wrong_at_once(self, tmp_path: Path) -> None:
        lines = refusal(
            tmp_path, "[limits]\ncalls_in_flight = 0\ntool_timeout_s = true\n[telemetry]\ncontent = 1\n"
        )
        assert [line.split(": ")[:2] for line in lines] == [
            ["config.toml:2", "limits.calls_in_flight"],
            ["config.toml:3", "limits.tool_timeout_s"],
            ["config.toml:5", "telemetry.content"],
        ]

    def test_bytes_that_are_no_text(self, tmp_path: Path) -> None:
        file = tmp_path / "config.toml"
        file.write_bytes(b'a = 1\nb = "\xff"\n')
        with pytest.raises(ConfigError, match=r"config\.toml:2: expected UTF-8, found the byte 0xff"):
            load(file)

    def test_a_literal_secret_is_refused_and_not_repeated(self, tmp_path: Path) -> None:
        text = '[providers.mine]\ncommand = ["x"]\nsecrets = { TOKEN = "hunter2" }\n'
        (line,) = refusal(tmp_path, text)
        assert line.startswith("config.toml:3: providers.mine.secrets.TOKEN: a secret is not written into")
        assert "hunter2" not in line

    def test_an_empty_match_is_legal_and_warned_about(self, tmp_path: Path) -> None:
        (warning,) = read(tmp_path, '[[policy]]\nname = "all"\naction = "ask"\n').warnings
        assert warning.endswith(
            'config.toml:1: policy: the rule "all" has an empty match: it matches every call'
        )


BOUNDS = ("max_turns", "max_cost_usd", "max_wall_clock_s", "max_depth", "max_subagents_total")
NO_BOUND = ("-1", "nan", "inf", "-inf", "true", '"5"', '"unlimited"', "[]", "9223372036854775808", "-0.1")


@pytest.mark.req("BOUND-13")
class TestBounds:
    @pytest.mark.parametrize("bound", BOUNDS)
    @pytest.mark.parametrize("value", NO_BOUND)
    def test_what_is_no_bound_is_refused(self, tmp_path: Path, bound: str, value: str) -> None:
        (line,) = refusal(tmp_path, f"[profiles.default]\n{bound} = {value}\n")
        assert line.startswith(f"config.toml:2: profiles.default.{bound}: expected a ")

    @pytest.mark.parametrize("bound", BOUNDS)
    def test_zero_is_a_bound(self, tmp_path: Path, bound: str) -> None:
        profile = read(tmp_path, f"[profiles.default]\n{bound} = 0\n").profiles["default"]
        snapshot = profile.snapshot("default")
        found = {
            "max_turns": snapshot.bounds.HasField("max_turns") and snapshot.bounds.max_turns == 0,
            "max_cost_usd": snapshot.bounds.HasField("max_cost_nano_usd")
            and snapshot.bounds.max_cost_nano_usd == 0,
            "max_wall_clock_s": snapshot.bounds.HasField("max_wall_clock_ms")
            and snapshot.bounds.max_wall_clock_ms == 0,
            "max_depth": snapshot.HasField("max_depth") and snapshot.max_depth == 0,
            "max_subagents_total": snapshot.max_subagents_total == 0,
        }
        assert found[bound]

    @given(st.integers(min_value=0, max_value=9_000_000_000_000_000_000))
    def test_money_is_exact(self, tmp_path_factory: pytest.TempPathFactory, nano_usd: int) -> None:
        text = f"{nano_usd // 10**9}.{nano_usd % 10**9:09d}"
        config = read(tmp_path_factory.mktemp("money"), f"[profiles.default]\nmax_cost_usd = {text}\n")
        assert config.profiles["default"].max_cost_nano_usd == nano_usd

    def test_less_than_a_nano_dollar_is_refused(self, tmp_path: Path) -> None:
        (line,) = refusal(tmp_path, "[profiles.default]\nmax_cost_usd = 0.0000000001\n")
        assert "in steps of 0.000000001" in line

    @pytest.mark.parametrize(
        ("text", "line"),
        [
            (
                "[limits]\ncalls_in_flight = 0\n",
                "limits.calls_in_flight: expected a whole number, 1 or more, found 0",
            ),
            (
                "[limits]\ntool_timeout_s = 0\n",
                "limits.tool_timeout_s: expected a number of seconds, more than 0",
            ),
            (
                "[limits]\ncontext_share = 1.5\n",
                "limits.context_share: expected a number, more than 0 and at most 1",
            ),
            (
                "[limits]\nmax_consecutive_denials = 0\n",
                "limits.max_consecutive_denials: expected a whole number, 1",
            ),
        ],
    )
    def test_limits_that_would_stop_everything_are_refused(
        self, tmp_path: Path, text: str, line: str
    ) -> None:
        assert line in refusal(tmp_path, text)[0]


@pytest.mark.req("BOUND-09", "BOUND-13")
@pytest.mark.parametrize(
    ("doom_loop", "line"),
    [
        ("threshold = 1", "profiles.p.doom_loop.threshold: expected a whole number, 2 or more, found 1"),
        ("threshold = 2.5", "profiles.p.doom_loop.threshold: expected a whole number, 2 or more, found 2.5"),
        (
            "threshold = 5, window_size = 4",
            "profiles.p.doom_loop.window_size: expected 5 (threshold) or more",
        ),
        ("threshold = 11", "profiles.p.doom_loop.window_size: expected 11 (threshold) or more, found 10"),
    ],
)
def test_a_doom_loop_that_cannot_be_is_refused(tmp_path: Path, doom_loop: str, line: str) -> None:
    assert line in refusal(tmp_path, f"[profiles.p]\ndoom_loop = {{ {doom_loop} }}\n")[0]


def test_lines_of_every_way_to_write_a_key() -> None:
    text = (
        'a.b = 1\n"q \\u0041"."x.y" = 2\n[t.u]\nk = """\n[no]\n"""\n# c\nl = [\n  # c\n  1,\n'
        "  { z = 2, w.v = 3 },\n]\n"
        "[[p]]\nn = 1\n[[p.q]]\nn = 2\n[[p.q]]\nn = 3\n[p.q.r]\nn = 4\n[[p]]\nn = 5\n[p.m]\n"
    )
    lines = key_lines(text.encode())
    assert {
        ("a", "b"): 1,
        ("q A", "x.y"): 2,
        ("t", "u"): 3,
        ("t", "u", "k"): 4,
        ("t", "u", "l"): 8,
        ("t", "u", "l", 0): 10,
        ("t", "u", "l", 1, "z"): 11,
        ("t", "u", "l", 1, "w", "v"): 11,
        ("p", 0): 13,
        ("p", 0, "q", 0, "n"): 16,
        ("p", 0, "q", 1, "n"): 18,
        ("p", 0, "q", 1, "r", "n"): 20,
        ("p", 1, "n"): 22,
        ("p", 1, "m"): 23,
    }.items() <= lines.items()
    assert ("no",) not in lines


class TestPaths:
    def test_home_of_its_own(self) -> None:
        paths = resolve({"TURND_HOME": "/t", "XDG_RUNTIME_DIR": "/run/user/7", "HOME": "/h"})
        assert paths.config_file == Path("/t/config/config.toml")
        assert paths.database == Path("/t/state/turnd.db")
        assert paths.socket == Path("/t/run/turnd.sock")

    def test_xdg(self) -> None:
        environ = {"HOME": "/h", "XDG_CONFIG_HOME": "/c", "XDG_STATE_HOME": "/s", "XDG_RUNTIME_DIR": "/r"}
        paths = resolve(environ)
        assert (paths.config, paths.state, paths.runtime) == (
            Path("/c/turnd"),
            Path("/s/turnd"),
            Path("/r/turnd"),
        )

    def test_defaults_below_home_and_relative_paths_ignored(self) -> None:
        paths = resolve({"HOME": "/h", "XDG_CONFIG_HOME": "relative", "XDG_RUNTIME_DIR": ""})
        assert paths.config == Path("/h/.config/turnd")
        assert paths.runtime == Path("/h/.local/state/turnd/run")

    def test_no_home_is_said(self) -> None:
        with pytest.raises(PathError, match="set HOME or TURND_HOME"):
            resolve({})

    def test_a_client_with_another_environment_finds_the_daemon(self) -> None:
        daemon = resolve({"HOME": "/h", "XDG_RUNTIME_DIR": "/run/user/1000"})
        assert daemon.socket in [paths.socket for paths in candidates({"HOME": "/h"}, 1000)]
        daemon = resolve({"HOME": "/h"})
        client = candidates({"HOME": "/h", "XDG_RUNTIME_DIR": "/run/user/1000"}, 1000)
        assert daemon.socket in [paths.socket for paths in client]
        assert len(candidates({"TURND_HOME": "/t"}, 1000)) == 1


@pytest.mark.req("V04")
class TestSocketPath:
    def home_for(self, short_path: Path, socket_bytes: int, filler: str) -> Path:
        room = socket_bytes - len(os.fsencode(short_path)) - len("/") - len("/run/turnd.sock")
        width = len(filler.encode())
        return short_path / (filler * (room // width) + "x" * (room % width))

    @pytest.mark.parametrize("filler", ["a", "é", "日"])
    def test_107_bytes_are_the_most(self, short_path: Path, filler: str) -> None:
        home = self.home_for(short_path, MAX_SOCKET_PATH_BYTES, filler)
        assert len(os.fsencode(prepare({"TURND_HOME": str(home)}).socket)) == MAX_SOCKET_PATH_BYTES

    @pytest.mark.parametrize("filler", ["a", "é", "日"])
    def test_108_bytes_are_explained_and_nothing_is_made(self, short_path: Path, filler: str) -> None:
        home = self.home_for(short_path, MAX_SOCKET_PATH_BYTES + 1, filler)
        with pytest.raises(
            SocketPathTooLong, match=r"has 108 bytes.*set XDG_RUNTIME_DIR or TURND_HOME to a shorter"
        ):
            prepare({"TURND_HOME": str(home)})
        assert not home.exists()


@pytest.mark.req("V11")
class TestPrivateDirectories:
    @pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
    def test_made_for_this_user_alone_whatever_the_umask(self, short_path: Path, umask: int) -> None:
        before = os.umask(umask)
        try:
            paths = prepare({"HOME": str(short_path)})
        finally:
            os.umask(before)
        for path in (short_path / ".local", short_path / ".local" / "state", paths.state, paths.runtime):
            assert path.stat().st_mode & 0o777 == 0o700, path

    @pytest.mark.parametrize("name", ["state", "run"])
    @pytest.mark.parametrize("mode", [0o750, 0o705, 0o777])
    def test_one_that_others_can_reach_is_refused(self, short_path: Path, name: str, mode: int) -> None:
        (short_path / name).mkdir()
        (short_path / name).chmod(mode)
        with pytest.raises(UnsafePath, match=f"has mode {mode:o}.*chmod 700 {short_path / name}"):
            prepare({"TURND_HOME": str(short_path)})
        assert (short_path / name).stat().st_mode & 0o777 == mode

    def test_a_runtime_directory_that_is_missing_is_said_and_nothing_takes_its_place(
        self, short_path: Path
    ) -> None:
        environ = {"HOME": str(short_path), "XDG_RUNTIME_DIR": str(short_path / "gone")}
        with pytest.raises(PathError, match=r"XDG_RUNTIME_DIR is .*gone, which cannot be used: No such file"):
            prepare(environ)
        assert list(short_path.iterdir()) == []

    def test_a_runtime_directory_that_others_can_write_is_refused(self, short_path: Path) -> None:
        (short_path / "r").mkdir()
        (short_path / "r").chmod(0o777)
        with pytest.raises(UnsafePath, match="XDG_RUNTIME_DIR"):
            prepare({"HOME": str(short_path), "XDG_RUNTIME_DIR": str(short_path / "r")})

    def test_what_belongs_to_someone_else_is_refused(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        directory = tmp_path / "d"
        make_private_directory(directory)
        owner = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
        with pytest.raises(UnsafePath, match=f"belongs to user {owner}, expected {owner + 1}"):
            check_private_directory(directory)

    def test_a_file_in_its_place_is_refused(self, short_path: Path) -> None:
        (short_path / "state").touch(mode=0o600)
        with pytest.raises(PathError, match="expected a directory"):
            prepare({"TURND_HOME": str(short_path)})

    def test_a_configuration_that_others_can_write_is_refused(self, short_path: Path) -> None:
        config = short_path / "config"
        config.mkdir()
        (config / "config.toml").touch()
        (config / "config.toml").chmod(0o666)
        with pytest.raises(UnsafePath, match="chmod go-w"):
            prepare({"TURND_HOME": str(short_path)})

    def test_a_token_that_others_can_read_is_refused(self, short_path: Path) -> None:
        token = short_path / "token"
        token.touch()
        token.chmod(0o600)
        check_private_file(token)
        token.chmod(0o640)
        with pytest.raises(UnsafePath, match="expected 600"):
            check_private_file(token)


@pytest.mark.req("OPS-03")
def test_what_this_version_does_not_act_on_is_refused_at_its_place(tmp_path: Path) -> None:
    """Ignored, a veto would allow everything, and a fallback would promise what nobody does."""
    config = read(
        tmp_path,
        "[providers.mine]\n"
        'command = ["/opt/mine"]\n'
        "[[hooks]]\n"
        'point = "plan-ready"\n'
        'mode = "veto"\n'
        'provider = "mine"\n'
        "[models.local]\n"
        'kind = "openai-compatible"\n'
        'base_url = "http://127.0.0.1:1/v1"\n'
        "[profiles.default]\n"
        'model = "openai-compatible/local/a"\n'
        'fallback = ["openai-compatible/local/b"]\n'
        "[models.other]\n"
        'kind = "anthropic"\n',
    )
    with pytest.raises(ConfigError) as refused:
        refuse_unsupported(config)
    lines = refused.value.lines
    assert [line.split(": ")[:2] for line in lines] == [
        [f"{tmp_path}/config.toml:{line}", key]
        for line, key in ((1, "providers.mine"), (6, "hooks[0].provider"), (12, "profiles.default.fallback"))
    ]
    with pytest.raises(ConfigError, match=r"config.toml:14: models.other.kind: this version talks to"):
        endpoints(config)
