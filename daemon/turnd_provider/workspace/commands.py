"""run_command and inspect_command: the daemon runs them in fresh cells, this process runs nothing."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Final

from turnd.v1 import common_pb2 as common
from turnd_provider.context import MAX_TIMEOUT_S, Access, CommandResult, Context
from turnd_provider.errors import ToolError
from turnd_provider.provider import Outcome, PreviewText
from turnd_provider.schema import Limits
from turnd_provider.workspace.places import locate
from turnd_provider.workspace.provider import provider

CALL_TIMEOUT_S: Final = 600.0
_SHOWN_ON_TIMEOUT: Final = 4096

_Command = Annotated[str, "A command line for bash.", Limits(min_length=1)]
_Cwd = Annotated[str, "The directory it runs in; the working directory if empty."]
_Timeout = Annotated[
    float,
    "Seconds after which it is ended; 0: only by the call's own time-out.",
    Limits(minimum=0, maximum=MAX_TIMEOUT_S),
]


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """How a command has ended."""

    exit_code: Annotated[int, "128 + N where signal N ended it."]
    output: Annotated[str, "Standard output and error as they came; of long output the head and the tail."]
    omitted_bytes: Annotated[int, "Bytes left out in the middle; core.read_output has the whole."]
    total_bytes: int
    timed_out: Annotated[bool, "It was ended after timeout_s."]
    left_behind: Annotated[bool, "It left processes in the background, which were ended with it."]
    duration_ms: int
    limit: Annotated[str, "The limit that it was ended for passing; empty: none."]
    ended_from_outside: Annotated[
        bool, "Its sandbox was killed from outside before it had ended; exit_code says nothing of it."
    ]


@provider.tool(
    kind="resource",
    risk="high",
    runs_commands=True,
    streaming=True,
    command_field="command",
    timeout_s=CALL_TIMEOUT_S,
)
async def run_command(
    ctx: Context, command: _Command, cwd: _Cwd = "", timeout_s: _Timeout = 0
) -> Outcome[CommandOutput]:
    """Runs a command line that may change files of the workspace, without network. Nothing stays behind in
    the background: a server that a test needs is started and ended within one command.
    """
    return await _run(ctx, command, cwd, timeout_s, "write")


@run_command.preview
async def preview_run(
    ctx: Context, command: _Command, cwd: _Cwd = "", timeout_s: _Timeout = 0
) -> PreviewText:
    """The command line, and where it would run."""
    place = locate(ctx, cwd or ".")
    return PreviewText(command if place.shown == "." else f"{command}\n(in {place.shown})")


@provider.tool(
    kind="data_source",
    risk="read_only",
    runs_commands=True,
    streaming=True,
    command_field="command",
    timeout_s=CALL_TIMEOUT_S,
)
async def inspect_command(
    ctx: Context, command: _Command, cwd: _Cwd = "", timeout_s: _Timeout = 0
) -> Outcome[CommandOutput]:
    """Runs any command line that only looks: the workspace is read-only for it, and there is no network.
    Needs no approval, and several may run at once. /tmp may be written.
    """
    return await _run(ctx, command, cwd, timeout_s, "read")


async def _run(
    ctx: Context, command: str, cwd: str, timeout_s: float, access: Access
) -> Outcome[CommandOutput]:
    directory = locate(ctx, cwd or ".")
    ended = await ctx.run_command(command, access=access, cwd=str(directory.path), timeout_s=timeout_s)
    if ended.timed_out and (timeout_s == 0 or ended.duration_ms < timeout_s * 1000):
        raise _call_timed_out(ended)
    await ctx.exit_status(ended.exit_code)
    output = CommandOutput(**dataclasses.asdict(ended))
    return Outcome(output, is_error=ended.timed_out or ended.limit != "" or ended.ended_from_outside)


def _call_timed_out(ended: CommandResult) -> ToolError:
    seconds = ended.duration_ms / 1000
    message = f"the command did not end before the call's time-out and was ended after {seconds:.1f} s"
    if ended.output:
        message += f"; the end of its output:\n{ended.output[-_SHOWN_ON_TIMEOUT:]}"
    return ToolError(common.TOOL_ERROR_CATEGORY_TIMEOUT, message, details=dataclasses.asdict(ended))
