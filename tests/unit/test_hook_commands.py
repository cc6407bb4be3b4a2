"""Commands as subscribers: each mode against each way to fail, through the real chain with real programs (A12)."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import uvloop

from turnd.hooks.chain import Chain
from turnd.hooks.command import CommandSubscriber
from turnd.ports import At, Dispatched
from turnd.telemetry import NoTrace
from turnd.v1 import common_pb2 as common

OBSERVE, TRANSFORM, VETO = common.HOOK_MODE_OBSERVE, common.HOOK_MODE_TRANSFORM, common.HOOK_MODE_VETO
POINT_OF = {
    OBSERVE: common.HOOK_POINT_SESSION_START,
    TRANSFORM: common.HOOK_POINT_PRE_MODEL_CALL,
    VETO: common.HOOK_POINT_PLAN_READY,
}
USER = {"role": "user", "blocks": [{"text": {"text": "hello"}}]}
PAYLOADS: dict[int, dict[str, Any]] = {
    OBSERVE: {"session": "S"},
    TRANSFORM: {"model": "m", "messages": [USER], "tools": [], "parameters": {}},
    VETO: {"items": [{"call_id": "c1"}, {"call_id": "c2"}]},
}
FINE = {
    OBSERVE: "echo whatever",
    TRANSFORM: """printf '{"payload": {"messages": [{"role": "user", "blocks": [{"text": {"text": "changed"}}]}]}}'""",
    VETO: """printf '{"allow": true}'""",
}
LATE_S = 0.3


LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
"""The daemon's loop is uvloop, and each ends processes in a way of its own."""


def script(directory: Path, text: str, name: str = "hook") -> Path:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def subscriber(
    program: Path, mode: common.HookMode.ValueType, timeout_s: float = 10.0, name: str = ""
) -> CommandSubscriber:
    return CommandSubscriber(
        name=name or program.name,
        point=POINT_OF[mode],
        mode=mode,
        timeout_s=timeout_s,
        command=(str(program),),
        home="/nowhere",
    )


async def dispatched(
    *subscribers: CommandSubscriber, payload: Mapping[str, object] | None = None
) -> Dispatched:
    mode = subscribers[0].mode
    told = PAYLOADS[mode] if payload is None else payload
    return await Chain(subscribers, NoTrace()).dispatch(POINT_OF[mode], At("S", 0, 1), lambda: told)


def program_that_fails(directory: Path, kind: str) -> tuple[Path, float, str]:
    """A program, the time that it is given, and the failure that it comes to."""
    match kind:
        case "error":
            return script(directory, "echo no luck >&2; exit 1"), 10.0, "error"
        case "exit 139":
            return script(directory, "exit 139"), 10.0, "error"
        case "crash":
            return script(directory, "kill -SEGV $$"), 10.0, "crash"
        case "time-out":
            return script(directory, "sleep 60"), LATE_S, "timeout"
        case "time-out with closed pipes":
            return script(directory, "exec <&- >&- 2>&-; sleep 60"), LATE_S, "timeout"
        case "missing":
            return directory / "nothing", 10.0, "missing"
        case "not executable":
            path = script(directory, "true")
            path.chmod(0o644)
            return path, 10.0, "missing"
        case "no program":
            path = script(directory, "")
            path.write_text("#!/no/such/interpreter\n")
            return path, 10.0, "missing"
        case "nonsense":
            return script(directory, "echo this is no JSON"), 10.0, "nonsense"
        case "nothing":
            return script(directory, "exec 0<&-"), 10.0, "nonsense"
        case "wrong shape":
            return script(directory, """printf '{"allow": "yes", "payload": 7}'"""), 10.0, "nonsense"
        case "a list":
            return script(directory, "printf '[1]'"), 10.0, "nonsense"
        case "not a number":
            return (
                script(directory, """printf '{"allow": true, "x": NaN, "payload": {}}'"""),
                10.0,
                "nonsense",
            )
        case "invalid UTF-8":
            return script(directory, r"""printf '{"allow": true, "reason": "\377"}'"""), 10.0, "nonsense"
        case "without end":
            return script(directory, "head -c 20000000 /dev/zero"), 30.0, "nonsense"
        case _:
            raise AssertionError(kind)


KINDS = [
    "error",
    "exit 139",
    "crash",
    "time-out",
    "time-out with closed pipes",
    "missing",
    "not executable",
    "no program",
    "nonsense",
    "nothing",
    "wrong shape",
    "a list",
    "not a number",
    "invalid UTF-8",
    "without end",
]


@pytest.mark.req("HOOK-03", "HOOK-04", "HOOK-05", "HOOK-06", "GATE-13", "A12")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", [OBSERVE, TRANSFORM, VETO], ids=["observe", "transform", "veto"])
@LOOPS
def test_each_mode_against_each_failure(
    tmp_path: Path, mode: common.HookMode.ValueType, kind: str, run: Callable[[Any], Dispatched]
) -> None:
    program, timeout_s, failure = program_that_fails(tmp_path, kind)
    after = subscriber(script(tmp_path, FINE[mode], "after"), mode)
    done = run(dispatched(subscriber(program, mode, timeout_s), after))
    if mode == OBSERVE and failure == "nonsense":
        assert done == Dispatched(), "whatever an observer says is thrown away"
        return
    (error,) = done.errors
    assert (error.subscriber, error.failure, error.mode) == (program.name, failure, mode)
    assert error.message
    match mode:
        case common.HOOK_MODE_VETO:
            (veto,) = done.vetoes
            assert veto.failed
            assert not veto.call_ids, "all of the plan"
            assert failure in veto.reason
        case common.HOOK_MODE_TRANSFORM:
            assert done.changed is None, "the chain stops, and nothing of it is used"
            assert done.transform_failed is not None
        case _:
            assert not done.vetoes


@pytest.mark.req("HOOK-02", "HOOK-07")
async def test_a_transform_changes_the_messages_and_the_next_one_sees_them(tmp_path: Path) -> None:
    told = tmp_path / "told"
    first = subscriber(script(tmp_path, FINE[TRANSFORM], "first"), TRANSFORM)
    second = subscriber(script(tmp_path, f"tee {told} >/dev/null\n{FINE[TRANSFORM]}", "second"), TRANSFORM)
    done = await dispatched(first, second)
    assert done.errors == ()
    assert done.changed is not None
    assert done.changed["messages"] == [{"role": "user", "blocks": [{"text": {"text": "changed"}}]}]
    assert done.changed["model"] == "m"
    said = json.loads(told.read_text())
    assert said["payload"]["messages"] == done.changed["messages"]
    assert (said["point"], said["mode"]) == ("pre-model-call", "transform")
    assert (said["session"], said["turn"], said["step"]) == ("S", 0, 1)


@pytest.mark.req("HOOK-07")
@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ({"messages": [USER], "model": "other"}, "changed model"),
        ({"messages": [USER], "new": 1}, "changed new"),
        ({"messages": [USER], "tools": ["more"]}, "changed tools"),
        ({"messages": []}, "no message"),
        ({"messages": [USER, USER]}, "role"),
        ({"messages": [{"role": "assistant", "blocks": [{"text": {"text": "hi"}}]}]}, "role"),
        ({"messages": [{"role": "user", "blocks": []}]}, "empty"),
        ({"messages": [{"role": "user"}]}, "no list of messages"),
        ({"messages": ["text"]}, "no list of messages"),
        (
            {
                "messages": [
                    USER,
                    {"role": "assistant", "blocks": [{"tool_use": {"call_id": "c1", "input": {}}}]},
                    USER,
                ]
            },
            "results for no calls, expected c1",
        ),
        ({"messages": [{"role": "user", "blocks": [{"tool_result": {"call_id": "c9"}}]}]}, "results for c9"),
    ],
)
async def test_what_no_model_takes_never_gets_to_one(tmp_path: Path, payload: object, why: str) -> None:
    answer = tmp_path / "answer.json"
    answer.write_text(json.dumps({"payload": payload}))
    done = await dispatched(subscriber(script(tmp_path, f"cat {answer}"), TRANSFORM))
    assert done.changed is None
    (error,) = done.errors
    assert error.failure == "nonsense"
    assert why in error.message


@pytest.mark.req("HOOK-05", "HOOK-02")
async def test_vetoes_are_asked_one_after_another_and_deny_what_they_name(tmp_path: Path) -> None:
    one = script(
        tmp_path, """printf '{"allow": false, "reason": "not this", "denied_call_ids": ["c2"]}'""", "one"
    )
    two = script(tmp_path, """printf '{"allow": false}'""", "two")
    done = await dispatched(subscriber(one, VETO), subscriber(two, VETO))
    assert [(v.subscriber, v.reason, v.call_ids, v.failed) for v in done.vetoes] == [
        ("one", "not this", ("c2",), False),
        ("two", "", (), False),
    ]
    assert done.errors == ()


@pytest.mark.req("HOOK-03")
async def test_neighbouring_observers_run_side_by_side_and_their_errors_stay_in_order(tmp_path: Path) -> None:
    """Each waits until the other is there, so that one after another would never end."""
    observers = []
    for own, other in (("a", "b"), ("b", "a")):
        waits = f"touch {tmp_path}/{own}; while [ ! -e {tmp_path}/{other} ]; do sleep 0.01; done; exit 3"
        observers.append(subscriber(script(tmp_path, waits, f"hook {own}"), OBSERVE))
    done = await dispatched(*observers)
    assert [error.subscriber for error in done.errors] == ["hook a", "hook b"]


@pytest.mark.req("HOOK-06")
@pytest.mark.parametrize("ends", ["by itself", "by its time-out", "by a cancel"])
@LOOPS
def test_nothing_of_its_process_group_is_left(tmp_path: Path, ends: str, run: Callable[[Any], None]) -> None:
    run(leaves_nothing(tmp_path, ends))


async def leaves_nothing(tmp_path: Path, ends: str) -> None:
    pids = tmp_path / "pids"
    tail = "exit 0" if ends == "by itself" else "wait"
    program = script(
        tmp_path, f"sleep 300 & echo $! > {pids}.new; echo $$ >> {pids}.new; mv {pids}.new {pids}; {tail}"
    )
    limit_s = 1.0 if ends == "by its time-out" else 60.0
    work = asyncio.create_task(dispatched(subscriber(program, OBSERVE, limit_s)))
    async with asyncio.timeout(30):
        while not pids.exists():
            await asyncio.sleep(0.01)
        if ends == "by a cancel":
            work.cancel()
        await asyncio.wait({work})
        for pid in map(int, pids.read_text().split()):
            await gone(pid)


@pytest.mark.req("HOOK-06")
@LOOPS
def test_nothing_is_left_of_what_was_cancelled_while_it_started(
    tmp_path: Path, run: Callable[[Any], None]
) -> None:
    run(cancelled_at_every_moment(tmp_path))


async def cancelled_at_every_moment(tmp_path: Path) -> None:
    """From before the command is there to when it has started a process of its own."""
    pids = tmp_path / "pids"
    program = script(tmp_path, f"sleep 300 & echo $! >> {pids}; wait")
    for moment in range(40):
        work = asyncio.create_task(dispatched(subscriber(program, OBSERVE, 60.0)))
        await asyncio.sleep(moment * 0.0005)
        work.cancel()
        await asyncio.wait({work})
    # Whatever is left would say so until then.
    await dispatched(subscriber(script(tmp_path, "sleep 0.2", "last"), OBSERVE, 60.0))
    async with asyncio.timeout(30):
        for pid in map(int, pids.read_text().split() if pids.exists() else []):
            await gone(pid)


async def gone(pid: int) -> None:
    """Returns when the process has ended, reaped or not; what is killed may take a moment."""
    while True:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return
        if state in "ZX":
            return
        await asyncio.sleep(0.01)


@pytest.mark.req("HOOK-01", "MODEL-10")
async def test_a_command_sees_a_stated_environment_and_nothing_of_the_daemons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURND_CANARY", "do not show")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    seen = tmp_path / "seen"
    await dispatched(subscriber(script(tmp_path, f"env > {seen}; pwd >> {seen}"), OBSERVE))
    lines = seen.read_text().splitlines()
    assert lines[-1] == "/"
    names = {line.partition("=")[0] for line in lines[:-1]}
    assert names <= {"PATH", "HOME", "LANG", "PWD", "OLDPWD", "SHLVL", "_"}
    assert "PATH=/usr/local/bin:/usr/bin:/bin" in lines


@pytest.mark.req("HOOK-02")
async def test_a_large_payload_is_told_whole_and_may_be_ignored(tmp_path: Path) -> None:
    size = tmp_path / "size"
    large = PAYLOADS[VETO] | {"text": "x" * 3_000_000}
    counts = script(tmp_path, f"wc -c > {size}; printf '{{\"allow\": true}}'", "counts")
    ignores = script(tmp_path, """exec <&-; printf '{"allow": true}'""", "ignores")
    done = await dispatched(subscriber(counts, VETO), subscriber(ignores, VETO), payload=large)
    assert done == Dispatched()
    assert int(size.read_text()) > 3_000_000
