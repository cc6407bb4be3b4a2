"""Each bound and the doom loop, as somebody at the command line meets them: exit code 4 and the status by name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from tests.harness import RunningDaemon, running_daemon
from tests.marks import NEEDS_CELLS

from turnd.v1 import common_pb2 as common
from turnd_client.errors import Refused

pytestmark = [NEEDS_CELLS, pytest.mark.timeout(120)]

MODEL = {"model": {"pricing": {"input_per_mtok": 3.0, "output_per_mtok": 15.0}}}
READ = {
    "stream": [{"tool": "list_dir", "input": {"path": "."}}],
    "usage": {"input_tokens": 1_000_000, "output_tokens": 1000},
    "delay_s": 0.3,
}
LAST = {"stream": [{"text": "What I have so far."}], "expect": {"tools": False}}


@pytest.mark.req("BOUND-01", "BOUND-02", "BOUND-03")
@pytest.mark.parametrize(
    ("flags", "status", "named"),
    [
        (["--max-turns", "1"], "error_max_turns", "max_turns"),
        (["--max-cost", "0.5"], "error_max_budget_usd", "max_cost_usd"),
        (["--max-time", "0.2"], "error_max_wall_clock", "max_wall_clock_s"),
    ],
)
async def test_a_bound_ends_with_one_step_without_tools_and_its_own_status(
    flags: list[str], status: str, named: str
) -> None:
    async with running_daemon() as daemon:
        done = await daemon.turn("run", "go", "--model", daemon.replay(MODEL, READ, LAST), "--json", *flags)
    assert done.code == 4, done.stderr
    *events, result = done.json_lines
    assert (result["type"], result["status"], result["reason"]) == ("result", status, "completed")
    assert result["steps"] == 2
    assert result["text"] == "What I have so far."
    reached = next(event for event in events if event["type"] == "limit/reached")
    assert [hit["dimension"] for hit in reached["data"]["hits"]] == [named]
    requests = [event for event in events if event["type"] == "agent/request"]
    assert [bool(request["data"].get("tools")) for request in requests] == [True, False]


BOUNDS = [
    (["--max-turns", "1"], "error_max_turns"),
    (["--max-cost", "0.5"], "error_max_budget_usd"),
    (["--max-time", "0.2"], "error_max_wall_clock"),
]
SOFT = """
default_profile = "soft"

[profiles.soft]
tools = ["workspace.*"]
limit_mode = "soft"
"""


async def steered_without_calls(
    daemon: RunningDaemon, flags: list[str], *lines: Mapping[str, object]
) -> tuple[int | None, dict[str, Any]]:
    """A run whose first Step has no calls and does not end its Turn: another client's words wait for the next."""
    slow = {"stream": [{"text": "hm"}, {"text": "..."}], "usage": READ["usage"], "delay_s": 1.0}
    run = await daemon.start_turn(
        "run", "go", "--model", daemon.replay(MODEL, slow, *lines), "--json", *flags
    )
    assert run.stdout is not None
    session = str(json.loads(await run.stdout.readline())["session"])
    steered = await daemon.turn("send", session, "go on", "--now")
    assert steered.code == 0, steered.stderr
    stdout, _ = await asyncio.wait_for(run.communicate(), 60)
    return run.returncode, json.loads(stdout.splitlines()[-1])


@pytest.mark.req("BOUND-01", "BOUND-02", "BOUND-03")
@pytest.mark.parametrize(("flags", "status"), BOUNDS)
async def test_a_bound_ends_a_turn_without_calls_the_same_way(flags: list[str], status: str) -> None:
    async with running_daemon() as daemon:
        code, result = await steered_without_calls(daemon, flags, LAST)
    assert (code, result["status"], result["reason"]) == (4, status, "completed")
    assert (result["steps"], result["text"]) == (2, "What I have so far.")


@pytest.mark.req("BOUND-01", "BOUND-04")
@pytest.mark.parametrize("with_calls", [True, False], ids=["with calls", "without calls"])
@pytest.mark.parametrize(("flags", "status"), BOUNDS)
async def test_a_soft_bound_pauses_and_continue_goes_on(
    flags: list[str], status: str, with_calls: bool
) -> None:
    more = {"stream": [{"text": "went on"}], "expect": {"tools": True}, "repeat": True}
    allowance = {"--max-turns": "9", "--max-cost": "90", "--max-time": "9m"}[flags[0]]
    async with running_daemon(SOFT) as daemon:
        code: int | None
        if with_calls:
            done = await daemon.turn(
                "run", "go", "--model", daemon.replay(MODEL, READ, more), "--json", *flags
            )
            code, result = done.code, done.json_lines[-1]
        else:
            code, result = await steered_without_calls(daemon, flags, more)
        assert (code, result["status"], result["reason"]) == (4, "paused", "interrupted")
        assert result["steps"] == 1
        session = str(result["session"])
        again = await daemon.turn("continue", session, flags[0], allowance)
        assert again.code == 0, again.stderr
        await daemon.events(session, lambda e: e.HasField("turn_end") and e.turn == 1)
        shown = json.loads((await daemon.turn("show", session, "--json")).stdout)
    # What the other client said still waits when the first Step is done, and gets one of its own.
    steps = 2 if with_calls else 3
    assert (shown["status"], shown["steps"], shown["last_reason"]) == ("idle", steps, "completed")


@pytest.mark.req("BOUND-04", "BOUND-10")
async def test_a_soft_doom_loop_pauses_with_the_exit_code_of_a_limit() -> None:
    async with running_daemon(SOFT) as daemon:
        done = await daemon.turn("run", "go", "--model", daemon.replay(READ | {"repeat": True}), "--json")
    assert (done.code, done.json_lines[-1]["status"]) == (4, "paused")
    assert done.json_lines[-1]["steps"] == 3


@pytest.mark.req("BOUND-01", "BOUND-02")
async def test_a_bound_of_zero_lets_only_the_final_step_run() -> None:
    async with running_daemon() as daemon:
        done = await daemon.turn("run", "go", "--model", daemon.replay(LAST), "--json", "--max-turns", "0")
    assert done.code == 4, done.stderr
    assert done.json_lines[-1]["status"] == "error_max_turns"
    assert done.json_lines[-1]["steps"] == 1


@pytest.mark.req("BOUND-09", "BOUND-10")
async def test_a_doom_loop_has_a_status_of_its_own() -> None:
    async with running_daemon() as daemon:
        spellings = ['{"path": "."}', '{ "path":"." }', '{"\\u0070ath": "."}']
        lines = [{"stream": [{"tool": "list_dir", "arguments": text}]} for text in spellings]
        done = await daemon.turn("run", "go", "--model", daemon.replay(*lines, LAST), "--json")
    assert done.code == 4, done.stderr
    assert done.json_lines[-1]["status"] == "error_doom_loop"
    assert done.json_lines[-1]["steps"] == 4


@pytest.mark.req("BOUND-13")
@pytest.mark.parametrize(
    "flags", [["--max-turns", "-1"], ["--max-cost", "nan"], ["--max-time", "soon"], ["--max-cost", "inf"]]
)
async def test_a_bound_that_means_nothing_is_a_usage_error(flags: list[str]) -> None:
    async with running_daemon() as daemon:
        done = await daemon.turn("run", "go", "--model", daemon.replay(LAST), *flags)
    assert done.code == 2
    assert flags[0] in done.stderr


@pytest.mark.req("LOOP-14", "RPC-05")
async def test_a_session_takes_only_what_its_status_allows() -> None:
    async with running_daemon() as daemon:
        ended = await daemon.turn("run", "go", "--model", daemon.replay(LAST), "--json", "--max-turns", "0")
        bound_ended = str(ended.json_lines[-1]["session"])
        idle = await daemon.client.create_session(str(daemon.workspace), model=daemon.replay(LAST))
        for refused in (
            daemon.client.send_message(bound_ended, "more"),
            daemon.client.close_session(bound_ended),
            daemon.client.cancel(bound_ended),
            daemon.client.cancel(idle.id),
        ):
            with pytest.raises(Refused) as caught:
                await refused
            assert "a session must be" in str(caught.value)
        assert (await daemon.client.close_session(idle.id)).status == common.SESSION_STATUS_COMPLETED
        with pytest.raises(Refused):
            await daemon.client.close_session(idle.id)


@pytest.mark.req("LOOP-03")
async def test_what_was_reported_is_the_answer() -> None:
    async with running_daemon() as daemon:
        report = {"tool": "report_result", "input": {"summary": "All done.", "success": True}}
        done = await daemon.turn("run", "go", "--model", daemon.replay({"stream": [report]}), "--json")
    assert done.code == 0, done.stderr
    assert done.json_lines[-1]["text"] == "All done."
    assert done.json_lines[-1]["reason"] == "completed"
