"""Another input in the place of the proposed one: everything that an input goes through is done again (GATE-08)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.sim.world import Sim, SimTool, spec, transcript

from turnd.hooks.subscriber import Observed, Verdict
from turnd.loop.session import LiveSession
from turnd.ports import At, Invocation, Preview, ToolFailure, ToolOutcome
from turnd.rules import canon
from turnd.rules.policy import Match, Policy, PolicyRule
from turnd.sessions.approvals import Approvals
from turnd.sessions.presence import Presence
from turnd.sessions.refusal import CommandRefused
from turnd.sessions.requests import Answering
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2, sessions_pb2

RESOURCE = common.TOOL_KIND_RESOURCE
DONE = {"stream": [{"text": "done"}], "usage": {"input_tokens": 10, "output_tokens": 2}}
KEYED = common.ConcurrencySpec(
    safe=True, key_fields=[common.KeyField(name="key", type=common.KEY_FIELD_TYPE_VALUE)], group="g"
)
APPROVED = common.APPROVAL_OUTCOME_APPROVED


def calls(*named: tuple[str, dict[str, object]]) -> dict[str, object]:
    return {"stream": [{"tool": tool, "input": data} for tool, data in named]}


def bound(call: Invocation) -> Preview:
    """What shows the input, and is bound to the file that it names."""
    name = json.loads(call.input)["name"]
    return Preview(f"writes {name}", (common.Precondition(target=name, state=f"state of {name}"),))


class Denies:
    """A veto that denies whatever has a word in it, and notes what it was shown."""

    name, mode, timeout_s = "denies", common.HOOK_MODE_VETO, 1.0

    def __init__(self, point: common.HookPoint.ValueType, word: str) -> None:
        self.point = point
        self._word = word
        self.seen: list[str] = []

    async def answer(self, at: At, payload: Mapping[str, object]) -> Verdict:
        self.seen.append(json.dumps(payload))
        return Verdict(self._word not in self.seen[-1], f"no {self._word}")


class Watches:
    """Notes what it is shown of a call that ran."""

    name, mode, timeout_s = "watches", common.HOOK_MODE_OBSERVE, 1.0
    point = common.HOOK_POINT_POST_TOOL_CALL

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def answer(self, at: At, payload: Mapping[str, object]) -> Observed:
        self.seen.append(json.dumps(payload))
        return Observed()


@asynccontextmanager
async def asking(sim: Sim) -> AsyncIterator[Approvals]:
    """People who decide as clients do."""
    approvals = Approvals(sim.log, sim.clock, Presence())
    sim.log.subscribers.append(approvals.committed)
    sim.world = replace(sim.world, people=approvals)
    sim.settings = replace(sim.settings, approval_timeout_s=1e9)
    sim.clock.sleep = lambda _: asyncio.Event().wait()  # type: ignore[method-assign, assignment, return-value]
    sim.live = sim.make_live()
    yield approvals
    await approvals.close()


async def asked(sim: Sim, live: LiveSession, count: int = 1) -> event_pb2.ApprovalRequest:
    """The request number `count`, once it is there."""
    async with asyncio.timeout(10):
        while len(sim.of(live, "approval/request")) < count:
            await asyncio.sleep(0)
    request = sim.of(live, "approval/request")[count - 1]
    assert isinstance(request, event_pb2.ApprovalRequest)
    return request


async def decide(
    approvals: Approvals,
    live: LiveSession,
    request: event_pb2.ApprovalRequest,
    data: object = None,
    **more: object,
) -> event_pb2.ApprovalDecided:
    given = b"" if data is None else data if isinstance(data, bytes) else json.dumps(data).encode()
    asked_for = sessions_pb2.DecideRequest(
        session=live.session, approval=request.request_id, approve=True, client="me", corrected_input=given
    )
    asked_for.MergeFrom(sessions_pb2.DecideRequest(**more))  # type: ignore[arg-type]
    return await approvals.decide(asked_for, Answering("", "Decide", b""))


@pytest.mark.req("GATE-08", "GATE-16", "A14")
async def test_what_runs_is_the_effective_input_and_all_of_it_is_in_the_log(tmp_path: Path) -> None:
    write = SimTool(spec("write", RESOURCE), preview=bound)
    hook = Watches()
    sim = Sim([write], subscribers=[hook])
    async with asking(sim) as approvals:
        told = DONE | {"expect": {"last_contains": "changed the input"}}
        live = await sim.session(transcript(tmp_path, calls(("write", {"name": "w"})), told))
        await sim.send(live, "go")
        request = await asked(sim, live)
        decided = await decide(approvals, live, request, {"name": "other"})
        await asyncio.wait_for(live.idle(), 10)
    assert sim.tools.started == ["other"]
    proposed, effective = (ready.items[0] for ready in sim.of(live, "plan/ready"))
    assert (json.loads(proposed.input), proposed.preview) == ({"name": "w"}, "writes w")
    assert (json.loads(effective.input), effective.preview) == ({"name": "other"}, "writes other")
    (logged,) = sim.of(live, "approval/decided")
    assert logged == decided
    states = [common.Precondition(target="other", state="state of other")]
    assert logged.digest == canon.digest("sim", "write", b'{"name": "other"}', states) != request.digest
    assert json.loads(logged.corrected_input) == {"name": "other"}
    assert json.loads(sim.of(live, "tool/call")[0].input) == {"name": "w"}
    (started,) = sim.of(live, "tool/started")
    assert (json.loads(started.input), list(started.preconditions)) == ({"name": "other"}, states)
    assert sim.of(live, "tool/result")[0].input_corrected
    assert sim.of(live, "turn/end")[-1].reason == common.TURN_END_REASON_COMPLETED
    assert '"other"' in hook.seen[0]


@pytest.mark.req("GATE-08", "A14")
async def test_a_bad_input_is_refused_and_the_request_stays_open(tmp_path: Path) -> None:
    rules = Policy([PolicyRule("secret", "c:1", Match.of(path=["/etc/**"]), common.POLICY_ACTION_DENY)])
    write = SimTool(spec("write", RESOURCE, path_field="name"), preview=bound)
    before = Denies(common.HOOK_POINT_PRE_TOOL_CALL, "early")
    ready = Denies(common.HOOK_POINT_PLAN_READY, "late")
    sim = Sim([write], policy=rules, subscribers=[before, ready])
    async with asking(sim) as approvals:
        live = await sim.session(transcript(tmp_path, calls(("write", {"name": "w"})), DONE))
        await sim.send(live, "go")
        request = await asked(sim, live)
        refused = {
            b"[1]": "not an object",
            b'{"name": "/etc/passwd"}': "Policy rule 'secret' says deny",
            b'{"name": "early"}': "Denied by hook 'denies': no early",
            b'{"name": "late"}': "Denied by hook 'denies': no late",
        }
        for data, why in refused.items():
            with pytest.raises(CommandRefused, match=why) as wrong:
                await decide(approvals, live, request, data)
            assert wrong.value.field_name == "corrected_input"
            assert request.request_id in sim.log.view(live.session).open_requests
        denial = sessions_pb2.DecideRequest(
            session=live.session, approval=request.request_id, corrected_input=b'{"name": "x"}'
        )
        with pytest.raises(CommandRefused, match="a denial runs nothing"):
            await approvals.decide(denial, Answering("", "Decide", b""))
        with pytest.raises(CommandRefused, match=r"would be remembered is: sim\.write with x"):
            await decide(approvals, live, request, {"name": "x"}, scope=common.APPROVAL_SCOPE_SESSION)
        assert sim.tools.started == []
        # What says the same in other words is no other input.
        decided = await decide(approvals, live, request, b' {"name":  "w"} ')
        await asyncio.wait_for(live.idle(), 10)
    assert not decided.corrected_input
    assert sim.tools.started == ["w"]
    assert not sim.of(live, "tool/result")[0].input_corrected


@pytest.mark.req("GATE-08", "GATE-09", "A09")
async def test_with_another_input_the_rule_that_is_remembered_is_the_one_named(tmp_path: Path) -> None:
    write = SimTool(spec("write", RESOURCE, path_field="name"))
    sim = Sim([write])
    async with asking(sim) as approvals:
        first, second = calls(("write", {"name": "w"})), calls(("write", {"name": "x"}))
        live = await sim.session(transcript(tmp_path, first, second, DONE))
        await sim.send(live, "go")
        rule = common.GrantRule(provider="sim", tool="write", path=["x"])
        request = await asked(sim, live)
        await decide(approvals, live, request, {"name": "x"}, scope=common.APPROVAL_SCOPE_SESSION, grant=rule)
        await asyncio.wait_for(live.idle(), 10)
    assert len(sim.of(live, "approval/request")) == 1
    assert list(sim.log.view(live.session).grants) == [rule]
    assert sim.tools.started == ["x", "x"]


@pytest.mark.req("GATE-08", "SCHED-02")
async def test_another_input_has_the_key_of_what_it_touches(tmp_path: Path) -> None:
    rules = Policy([PolicyRule("free", "c:1", Match.of(tool=["free"]), common.POLICY_ACTION_ALLOW)])
    free = SimTool(spec("free", RESOURCE, concurrency=KEYED), hold=True)
    sim = Sim([free, SimTool(spec("asks", RESOURCE, concurrency=KEYED))], policy=rules)
    async with asking(sim) as approvals:
        proposed = calls(("free", {"name": "1", "key": 1}), ("asks", {"name": "2", "key": 2}))
        live = await sim.session(transcript(tmp_path, proposed, DONE))
        await sim.send(live, "go")
        request = await asked(sim, live)
        await sim.tools.until_running(1)
        await decide(approvals, live, request, {"name": "2", "key": 1})
        for _ in range(20):
            await asyncio.sleep(0)
        assert sim.tools.started == ["1"], "it waits for the call that has its key"
        sim.tools.release("1")
        await asyncio.wait_for(live.idle(), 10)
    assert sim.tools.started == ["1", "2"]
    assert frozenset(("1", "2")) not in sim.tools.overlaps


@pytest.mark.req("GATE-08", "GATE-16")
async def test_drift_of_the_effective_input_asks_about_it_again(tmp_path: Path) -> None:
    answers = iter(
        [ToolFailure(common.TOOL_ERROR_CATEGORY_PRECONDITION_FAILED, "changed"), ToolOutcome(b'"ok"')]
    )
    sim = Sim([SimTool(spec("write", RESOURCE), answer=lambda call: next(answers), preview=bound)])
    async with asking(sim) as approvals:
        live = await sim.session(transcript(tmp_path, calls(("write", {"name": "w"})), DONE))
        await sim.send(live, "go")
        await decide(approvals, live, await asked(sim, live), {"name": "other"})
        again = await asked(sim, live, 2)
        assert json.loads(again.item.input) == {"name": "other"}
        decided = await decide(approvals, live, again)
        await asyncio.wait_for(live.idle(), 10)
    assert not decided.corrected_input
    assert sim.tools.started == ["other", "other"]
    assert sim.of(live, "tool/result")[0].input_corrected
    (applied,) = sim.of(live, "plan/applied")[0].items
    assert (applied.outcome, applied.decided_by.name) == (common.ITEM_OUTCOME_APPLIED, "me")


@pytest.mark.req("GATE-07", "GATE-08")
async def test_of_two_corrections_at_the_same_time_one_runs(tmp_path: Path) -> None:
    sim = Sim([SimTool(spec("write", RESOURCE))])
    async with asking(sim) as approvals:
        live = await sim.session(transcript(tmp_path, calls(("write", {"name": "w"})), DONE))
        await sim.send(live, "go")
        request = await asked(sim, live)
        both = await asyncio.gather(
            *(decide(approvals, live, request, {"name": name}) for name in "ab"), return_exceptions=True
        )
        await asyncio.wait_for(live.idle(), 10)
    (lost,) = [each for each in both if isinstance(each, CommandRefused)]
    (won,) = [each for each in both if isinstance(each, event_pb2.ApprovalDecided)]
    assert lost.details["decided_by"] == "me"
    assert won.outcome == APPROVED
    assert sim.tools.started == [json.loads(won.corrected_input)["name"]]
