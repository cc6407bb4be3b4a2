"""From the configuration to what the parts take: a pure mapping, and what this version does not act on yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from turnd.config import Config, ConfigError
from turnd.config.load import config_error
from turnd.config.models import ModelServer
from turnd.config.prices import Pricing
from turnd.config.problems import Problem
from turnd.config.secrets import Secret
from turnd.hooks.command import CommandSubscriber
from turnd.loop.settings import LoopSettings
from turnd.models.endpoint import DEFAULT_CONTEXT_WINDOW, CompatibleEndpoint
from turnd.models.keys import EnvironmentKey, FileKey
from turnd.rules import policy
from turnd.rules.backoff import RetryPolicy
from turnd.rules.raised import Raise
from turnd.rules.risky_options import RiskyTable
from turnd.v1 import common_pb2 as common


def refuse_unsupported(config: Config) -> None:
    """A section that would be ignored is an error: a veto that nobody asks allows everything. Raises ConfigError."""
    problems = [
        Problem(
            ("hooks", index, "provider"),
            "this version starts no other providers than its own, and those take no hooks; use command",
        )
        for index, hook in enumerate(config.hooks)
        if hook.provider is not None
    ]
    problems += [
        Problem(("providers", name), "this version starts no other providers than its own; remove it")
        for name in config.providers
    ]
    problems += [
        Problem(
            ("profiles", name, "fallback"),
            "this version tries no other model than that of the profile; remove it",
        )
        for name, profile in config.profiles.items()
        if profile.fallback
    ]
    if problems:
        raise config_error(config.source, problems)


def hook_subscribers(config: Config, home: str) -> list[CommandSubscriber]:
    """The subscribers of the configuration, in the order of their declaration."""
    return [
        CommandSubscriber(
            name=f"hooks[{index}] {hook.command[0]}",
            point=hook.point,
            mode=hook.mode,
            timeout_s=(hook.timeout_ms or config.limits.default_hook_timeout_ms) / 1000,
            command=hook.command,
            home=home,
        )
        for index, hook in enumerate(config.hooks)
        if hook.command is not None
    ]


def loop_settings(config: Config, jitter: Callable[[], float]) -> LoopSettings:
    """Limits and policy of the loop. Raises ConfigError for rules that this version cannot evaluate."""
    limits = config.limits
    return LoopSettings(
        policy=_policy(config),
        retry=RetryPolicy(
            base_delay_ms=limits.retry.base_delay_ms,
            backoff_factor=limits.retry.backoff_factor,
            max_retries=limits.retry.max_retries,
        ),
        jitter=jitter,
        tool_timeout_s=limits.tool_timeout_s,
        approval_timeout_s=limits.approval_timeout_s,
        calls_in_flight=limits.calls_in_flight,
        max_consecutive_denials=limits.max_consecutive_denials,
        retries_per_session=limits.retry.per_session,
        context_share=limits.context_share,
        sampling_token_weight=limits.sampling_token_weight,
        prefill_token_weight=limits.prefill_token_weight,
        idle_s=limits.provider_idle_s,
    )


def raises(config: Config) -> list[Raise]:
    """What the configuration takes more seriously than providers do."""
    return [
        Raise(tools, mutates=raised.kind is not None, risk=raised.risk or common.RISK_UNSPECIFIED)
        for tools, raised in config.tools.items()
    ]


def changes(before: Config, after: Config) -> list[str]:
    """The sections in which two configurations differ; those that need a restart say so."""
    changed = [
        name
        for name in (
            "default_profile",
            "profiles",
            "workspaces",
            "limits",
            "policy",
            "commands",
            "tools",
            "hooks",
            "models",
            "prices",
        )
        if getattr(before, name) != getattr(after, name)
    ]
    changed += [
        f"{name} (needs a restart)"
        for name in ("telemetry", "storage")
        if getattr(before, name) != getattr(after, name)
    ]
    return changed


def named_workspaces(config: Config, home: str) -> list[str]:
    """What the configuration names as workspaces, with the home directory in the place of ~."""
    return [home + name[1:] if name.startswith("~") else name for name in config.workspaces]


def profiles(config: Config) -> tuple[str, Mapping[str, common.ProfileSnapshot]]:
    """The default profile's name, and every profile as sessions record it."""
    return config.default_profile, {name: profile.snapshot(name) for name, profile in config.profiles.items()}


def endpoints(config: Config) -> list[CompatibleEndpoint]:
    """The model servers that this version can talk to. Raises ConfigError for the others."""
    made, problems = [], []
    for name, server in config.models.items():
        if server.kind != "openai-compatible":
            text = f"this version talks to openai-compatible servers, not {server.kind}"
            problems.append(Problem(("models", name, "kind"), text))
        elif server.api_key is not None and server.api_key.keyring is not None:
            text = "this version reads env and file, not the keyring"
            problems.append(Problem(("models", name, "api_key"), text))
        else:
            try:
                made.append(_endpoint(name, server, config.prices))
            except ValueError as wrong:
                problems.append(Problem(("models", name), str(wrong)))
    if problems:
        raise config_error(config.source, problems)
    return made


def _endpoint(name: str, server: ModelServer, prices: Mapping[str, Pricing]) -> CompatibleEndpoint:
    prefix = f"openai-compatible/{name}/"
    return CompatibleEndpoint(
        name=name,
        base_url=server.base_url or "",
        pricing=None if server.pricing is None else server.pricing.pricing(),
        prices={
            model.removeprefix(prefix): pricing.pricing()
            for model, pricing in prices.items()
            if model.startswith(prefix)
        },
        api_key=_key_source(server.api_key),
        max_output_tokens=server.max_output_tokens,
        tool_use=server.tool_use,
        parallel_tool_calls=server.parallel_tool_calls,
        vision=server.vision,
        context_window=server.context_window or DEFAULT_CONTEXT_WINDOW,
    )


def _key_source(secret: Secret | None) -> EnvironmentKey | FileKey | None:
    if secret is None:
        return None
    return EnvironmentKey(secret.env) if secret.env else FileKey(secret.file or "")


def _policy(config: Config) -> policy.Policy:
    risky = RiskyTable()
    for program, more in sorted(config.commands.items()):
        risky = risky.also(program, more.options, spelled_out=more.spelled_out)
    try:
        return policy.Policy(config.policy, risky)
    except policy.PolicyError as wrong:
        raise ConfigError([str(wrong)]) from wrong
