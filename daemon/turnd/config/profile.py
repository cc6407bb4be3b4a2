"""Profiles: what a session runs under."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from importlib import resources

from turnd.config.kinds import Choice, Flag, Fraction, Many, Number, Record, Scaled, Text, Whole, key
from turnd.config.models import ModelName
from turnd.v1 import common_pb2 as common

NANO_USD = 10**9
MILLISECONDS = 10**3

LIMIT_MODES = {"hard": common.LIMIT_MODE_HARD, "soft": common.LIMIT_MODE_SOFT}
TOOL_CHOICES = {"auto": "auto", "required": "required", "none": "none"}


@dataclass(frozen=True, slots=True)
class DoomLoop:
    """When equal calls in a row end a Turn (BOUND-09)."""

    threshold: int = key(Whole(2), "equal calls in a row that fire", default=3)
    window_size: int = key(
        Whole(2), "calls that the second tier looks at; at least the threshold", default=10
    )
    second_tier: bool = key(Flag(), "look for cycles and repeated errors too", default=False)
    polling: tuple[str, ...] = key(
        Many(Text()), "tools, as provider.tool, for which a changed result is progress", default=()
    )


def _check_doom_loop(doom_loop: DoomLoop) -> Mapping[str, str]:
    if doom_loop.window_size >= doom_loop.threshold:
        return {}
    return {
        "window_size": f"expected {doom_loop.threshold} (threshold) or more, found {doom_loop.window_size}"
    }


@dataclass(frozen=True, slots=True)
class Profile:
    """A named set of model, tools, bounds and instructions. None is no bound, 0 is a bound (BOUND-13)."""

    model: str | None = key(ModelName(), "the model; without one a session must name it", default=None)
    fallback: tuple[str, ...] = key(
        Many(ModelName()), "models to try when the model's retries are spent", default=()
    )
    system_prompt: str | None = key(
        Text(), "opens every request; without one the shipped prompt", default=None
    )
    instructions: tuple[str, ...] = key(
        Many(Text()), "instruction files, looked for from the workspace upwards", default=("AGENTS.md",)
    )
    tools: tuple[str, ...] = key(Many(Text()), "globs over provider.tool; omitted: none", default=())
    max_turns: int | None = key(Whole(0), "Steps in the session; omitted: no bound", default=None)
    max_cost_nano_usd: int | None = key(
        Scaled(Number(unit="USD"), NANO_USD),
        "spend of the session with its descendants; omitted: no bound",
        default=None,
        name="max_cost_usd",
    )
    max_wall_clock_ms: int | None = key(
        Scaled(Number(unit="seconds"), MILLISECONDS),
        "active time of the session; omitted: no bound",
        default=None,
        name="max_wall_clock_s",
    )
    limit_mode: common.LimitMode.ValueType = key(
        Choice(LIMIT_MODES),
        "hard: a bound leads to one last Step; soft: it pauses the session",
        default=common.LIMIT_MODE_HARD,
    )
    max_depth: int | None = key(
        Whole(0), "levels of sub-agents; omitted: 2, or what is left of the parent's", default=None
    )
    max_concurrent_subagents: int = key(Whole(1), "children of one parent that run at once", default=4)
    max_subagents_total: int = key(Whole(0), "sub-agents of a whole session tree", default=32)
    may_spawn: tuple[str, ...] = key(
        Many(Text()), "profiles that sub-agents may run under; omitted: none", default=()
    )
    temperature: float | None = key(
        Fraction(Number(most=Decimal(2))), "parameter for the model", default=None
    )
    max_output_tokens: int | None = key(Whole(1, "tokens"), "parameter for the model", default=None)
    thinking: int | None = key(Whole(0, "tokens"), "budget for the model's thinking; 0: off", default=None)
    tool_choice: str | None = key(Choice(TOOL_CHOICES), "parameter for the model", default=None)
    doom_loop: DoomLoop = key(
        Record(DoomLoop, "a table", _check_doom_loop), "equal calls in a row", default=DoomLoop()
    )

    def snapshot(self, name: str) -> common.ProfileSnapshot:
        """This profile as a session's log records it; parameters that are not set are left out."""
        parameters = {
            "temperature": self.temperature,
            "max_output_tokens": self.max_output_tokens,
            "thinking": self.thinking,
            "tool_choice": self.tool_choice,
        }
        return common.ProfileSnapshot(
            name=name,
            model=self.model or "",
            fallback=self.fallback,
            system_prompt=self.system_prompt if self.system_prompt is not None else shipped_system_prompt(),
            instructions=self.instructions,
            tools=self.tools,
            bounds=common.Bounds(
                max_turns=self.max_turns,
                max_cost_nano_usd=self.max_cost_nano_usd,
                max_wall_clock_ms=self.max_wall_clock_ms,
                limit_mode=self.limit_mode,
            ),
            doom_loop=common.DoomLoop(
                threshold=self.doom_loop.threshold,
                window_size=self.doom_loop.window_size,
                second_tier=self.doom_loop.second_tier,
                polling=self.doom_loop.polling,
            ),
            max_depth=self.max_depth,
            max_concurrent_subagents=self.max_concurrent_subagents,
            max_subagents_total=self.max_subagents_total,
            may_spawn=self.may_spawn,
            parameters=json.dumps(
                {name: value for name, value in parameters.items() if value is not None}
            ).encode(),
        )


SHIPPED_PROFILE = Profile(
    tools=("workspace.*", "core.*", "web.*"),
    max_turns=200,
    max_cost_nano_usd=5 * NANO_USD,
    max_wall_clock_ms=3600 * MILLISECONDS,
    max_depth=2,
    may_spawn=("default",),
)
"""The profile `default` where the configuration has none of that name."""


def shipped_system_prompt() -> str:
    """The system prompt of profiles that set none."""
    return resources.files("turnd.config").joinpath("system_prompt.md").read_text(encoding="utf-8").strip()
