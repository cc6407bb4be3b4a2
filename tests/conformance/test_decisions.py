"""What a decision can say beside yes and no, over a real daemon: another input (GATE-08), and a rule (GATE-09)."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from tests.harness import RunningDaemon, running_daemon
from tests.marks import NEEDS_CELLS

from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2
from turnd_client.client import Client
from turnd_client.errors import ClientError, Refused

pytestmark = [NEEDS_CELLS, pytest.mark.timeout(120)]

DONE = {"stream": [{"text": "done"}]}
RULES = """
[[policy]]
name = "not the lock"
match = { path = "*.lock" }
action = "deny"

[[policy]]
name = "no push"
match = { command = "git push *" }
action = "deny"
"""


def writes(path: str) -> dict[str, object]:
    return {"stream": [{"tool": "write_file", "input": {"path": path, "content": "hello\n"}}]}


def runs(command: str) -> dict[str, object]:
    return {"stream": [{"tool": "run_command", "input": {"command": command}}]}


async def asked(daemon: RunningDaemon, *lines: dict[str, object]) -> tuple[str, event_pb2.ApprovalRequest]:
    """A session that waits for a decision, and what it asks."""
    made = await daemon.client.create_session(str(daemon.workspace), model=daemon.replay(*lines))
    await daemon.client.send_message(made.id, "go")
    events = await daemon.events(made.id, lambda e: e.HasField("approval_request"))
    return made.id, events[-1].approval_request


async def ended(daemon: RunningDaemon, session: str) -> list[event_pb2.Event]:
    return await daemon.events(session, lambda e: e.HasField("turn_end"))


@pytest.mark.req("GATE-08", "GATE-16", "CLI-01")
async def test_another_input_runs_in_the_place_of_the_proposed_one() -> None:
    told = DONE | {"expect": {"last_contains": "changed the input"}}
    async with running_daemon(RULES) as daemon:
        session, request = await asked(daemon, writes("a.txt"), told)
        refused = {
            "[1]": "expected a JSON object",
            '{"path": 1}': "do not fit its schema",
            '{"path": "uv.lock", "content": ""}': "Policy rule 'not the lock' says deny",
        }
        for given, why in refused.items():
            said = await daemon.turn("approve", session, "--input", given)
            assert said.code in (1, 2), said
            assert why in said.stderr
            (still,) = (await daemon.client.get_session(session)).session.open_requests
            assert still.approval == request
        assert (await daemon.turn("approve", session, "--input", "{}", "--scope", "session")).code == 2
        better = {"path": "b.txt", "content": "better\n"}
        (daemon.workspace / "in.json").write_text(json.dumps(better))
        done = await daemon.turn("approve", session, "--input", "@in.json")
        assert (done.code, done.stdout) == (0, f"approved {request.request_id} with another input\n")
        events = await ended(daemon, session)
        assert events[-1].turn_end.reason == common.TURN_END_REASON_COMPLETED
        assert not (daemon.workspace / "a.txt").exists()
        assert (daemon.workspace / "b.txt").read_text() == "better\n"
        (called,) = [e.tool_call for e in events if e.HasField("tool_call")]
        (decided,) = [e.approval_decided for e in events if e.HasField("approval_decided")]
        (started,) = [e.tool_started for e in events if e.HasField("tool_started")]
        assert json.loads(called.input)["path"] == "a.txt"
        assert json.loads(decided.corrected_input) == json.loads(started.input) == better
        effective = [e.plan_ready.items[0] for e in events if e.HasField("plan_ready")][-1]
        assert "+better" in effective.preview
        assert effective.preconditions == started.preconditions
        assert decided.digest
        assert not (await daemon.client.verify_session(session)).faults


@pytest.mark.req("GATE-08", "GATE-14")
async def test_another_command_is_matched_like_any() -> None:
    async with running_daemon(RULES) as daemon:
        session, request = await asked(daemon, runs("touch a"), DONE)
        for command in ("git push", "ls; git -C . 'pu'sh"):
            data = json.dumps({"command": command}).encode()
            with pytest.raises(Refused, match="Policy rule 'no push' says deny"):
                await daemon.client.decide(session, request.request_id, approve=True, corrected_input=data)
        data = json.dumps({"command": "touch b"}).encode()
        await daemon.client.decide(session, request.request_id, approve=True, corrected_input=data)
        await ended(daemon, session)
        assert [each.name for each in daemon.workspace.iterdir()] == ["b"]


@pytest.mark.req("GATE-08", "CLI-01")
async def test_the_proposed_input_can_be_edited() -> None:
    async with running_daemon() as daemon:
        editor = daemon.base / "editor"
        editor.write_text("#!/bin/sh\nsed -i 's/hello/edited/' \"$1\"\n")
        editor.chmod(0o700)
        session, _ = await asked(daemon, writes("a.txt"), DONE)
        daemon.environment["VISUAL"] = "true"
        unchanged = await daemon.turn("approve", session, "--edit")
        assert unchanged.code == 2
        assert "left as it was" in unchanged.stderr
        daemon.environment["VISUAL"] = str(editor)
        done = await daemon.turn("approve", session, "--edit")
        assert done.code == 0, done.stderr
        await ended(daemon, session)
        assert (daemon.workspace / "a.txt").read_text() == "edited\n"


# --- rules for always ---------------------------------------------------------------------------------------


AGENTS = """
[[policy]]
name = "agents"
match = { tool = "spawn_agent" }
action = "allow"

[profiles.other]
tools = ["*"]
"""


async def decisions(daemon: RunningDaemon, session: str) -> list[event_pb2.ApprovalDecided]:
    events = await ended(daemon, session)
    assert events[-1].turn_end.reason == common.TURN_END_REASON_COMPLETED
    return [e.approval_decided for e in events if e.HasField("approval_decided")]


async def runs_unasked(daemon: RunningDaemon, line: dict[str, object], **where: str) -> bool:
    """Whether a new session does what the line says without asking; where it asks, it is denied."""
    directory = where.pop("cwd", str(daemon.workspace))
    made = await daemon.client.create_session(directory, model=daemon.replay(line, DONE), **where)
    await daemon.client.send_message(made.id, "go")
    events = await daemon.events(made.id, lambda e: e.HasField("approval_request") or e.HasField("turn_end"))
    if events[-1].HasField("turn_end"):
        return True
    await daemon.client.decide(made.id, events[-1].approval_request.request_id, approve=False)
    await ended(daemon, made.id)
    return False


@pytest.mark.req("GATE-09", "A09", "CLI-01")
async def test_a_rule_for_always_is_shown_stored_listed_and_removed() -> None:
    async with running_daemon(AGENTS) as daemon:
        session, request = await asked(daemon, runs("touch made"), DONE)
        assert (request.grant.command, request.grant.path) == (["touch made"], [])
        shown = await daemon.turn("show", session)
        assert (
            "--scope session or always would remember: workspace.run_command with touch made" in shown.stdout
        )
        done = await daemon.turn("approve", session, "--scope", "always")
        assert done.code == 0, done.stderr
        assert (
            "remembered for this workspace, directory and profile: workspace.run_command with touch made"
            in (done.stderr)
        )
        (decided,) = await decisions(daemon, session)
        name = decided.stored.name
        assert done.stdout == f"approved {request.request_id}\nstored {name}\n"
        assert decided.grant == request.grant
        assert (decided.stored.workspace, decided.stored.profile) == (str(daemon.workspace), "default")
        listed = [rule for rule in (await daemon.turn("policy", "--json")).json_lines if rule["name"] == name]
        assert [(rule["action"], rule["layer"]) for rule in listed] == [("allow", "stored")]
        assert listed[0]["match"]["command"] == ["touch made"]
        assert f"in session {session}" in listed[0]["source"]
        explained = await daemon.turn(
            "policy", "explain", "run_command", '{"command": "touch made"}', "--json"
        )
        assert explained.json_lines[0]["decision"] == "allow"
        assert explained.json_lines[0]["rule"] == name

        assert await runs_unasked(daemon, runs("touch made"))
        assert not await runs_unasked(daemon, runs("touch other"))
        assert not await runs_unasked(daemon, runs("touch made"), profile="other")
        below = daemon.workspace / "below"
        below.mkdir()
        assert not await runs_unasked(daemon, runs("touch made"), cwd=str(below))
        await daemon.kill()
        await daemon.start()
        assert await runs_unasked(daemon, runs("touch made")), "it is in the log's file"

        assert (await daemon.turn("policy", "remove", "agents")).code == 1
        removed = await daemon.turn("policy", "remove", name)
        assert (removed.code, removed.stdout) == (0, f"removed {name}\n")
        again = await daemon.turn("policy", "remove", name)
        assert again.code == 1
        assert f"no decision has stored a rule '{name}'" in again.stderr
        assert not await runs_unasked(daemon, runs("touch made"))
        assert name not in (await daemon.turn("policy")).stdout


@pytest.mark.req("GATE-09")
async def test_a_rule_for_always_never_lifts_a_deny() -> None:
    async with running_daemon() as daemon:
        session, request = await asked(daemon, runs("git push"), DONE)
        await daemon.client.decide(
            session, request.request_id, approve=True, scope=common.APPROVAL_SCOPE_ALWAYS
        )
        await decisions(daemon, session)
        daemon.configure(RULES)
        await daemon.client.reload()
        made = await daemon.client.create_session(
            str(daemon.workspace), model=daemon.replay(runs("git push"), DONE)
        )
        events = await daemon.run(made.id, "go")
        (result,) = [e.tool_result for e in events if e.HasField("tool_result")]
        assert result.category == common.TOOL_ERROR_CATEGORY_DENIED
        assert b"no push" in result.content


@pytest.mark.req("GATE-09")
async def test_equal_requests_resolve_with_a_rule_for_always_and_others_do_not() -> None:
    async with running_daemon(AGENTS) as daemon:
        first, request = await asked(daemon, runs("touch a"), DONE)
        equal, same = await asked(daemon, runs("touch a"), DONE)
        other, different = await asked(daemon, runs("touch b"), DONE)
        await daemon.client.decide(
            first, request.request_id, approve=True, scope=common.APPROVAL_SCOPE_ALWAYS
        )
        (copy,) = await decisions(daemon, equal)
        assert (copy.request_id, copy.outcome) == (same.request_id, common.APPROVAL_OUTCOME_APPROVED)
        assert not copy.HasField("stored")
        (still,) = (await daemon.client.get_session(other)).session.open_requests
        assert still.approval.request_id == different.request_id
        assert len((await daemon.client.list_policy()).rules) == 2


@pytest.mark.req("GATE-09")
async def test_what_cannot_be_remembered_as_it_was_shown_is_refused_and_not_narrowed() -> None:
    async with running_daemon() as daemon:
        session, request = await asked(daemon, runs("touch a"), DONE)
        always = common.APPROVAL_SCOPE_ALWAYS
        wide = common.GrantRule(provider="workspace", tool="run_command")
        decide = daemon.client.decide
        with pytest.raises(Refused, match="a denial is for this item alone"):
            await decide(session, request.request_id, approve=False, scope=always)
        with pytest.raises(Refused, match=r"the rule that would be remembered is: .* with touch a"):
            await decide(session, request.request_id, approve=True, scope=always, grant=wide)
        with sqlite3.connect(daemon.database) as connection:
            connection.execute(
                "CREATE TRIGGER full BEFORE INSERT ON policy_rules BEGIN SELECT RAISE(ABORT, 'no room'); END"
            )
        with pytest.raises(ClientError, match="no room"):
            await decide(session, request.request_id, approve=True, scope=always)
        assert [r.approval for r in (await daemon.client.get_session(session)).session.open_requests] == [
            request
        ]
        with sqlite3.connect(daemon.database) as connection:
            connection.execute("DROP TRIGGER full")
        await decide(session, request.request_id, approve=True, scope=always, grant=request.grant)
        await decisions(daemon, session)
        assert len((await daemon.client.list_policy()).rules) == 1


@pytest.mark.req("GATE-09")
async def test_a_decision_for_the_session_holds_below_it_until_it_ends_and_nowhere_else() -> None:
    spawn = {"stream": [{"tool": "spawn_agent", "input": {"prompt": "go on"}}]}
    child = [{"profile": "default"} | line for line in (runs("touch a"), {"stream": [{"text": "made"}]})]
    async with running_daemon(AGENTS) as daemon:
        session, request = await asked(daemon, runs("touch a"), spawn, DONE, *child)
        await daemon.client.decide(
            session, request.request_id, approve=True, scope=common.APPROVAL_SCOPE_SESSION
        )
        assert len(await decisions(daemon, session)) == 1, "its sub-agent asks nobody"
        (below,) = [each async for each in daemon.client.list_sessions(parent=session)]
        events = await daemon.events(below.id, lambda e: e.HasField("session_ended"))
        assert any(e.HasField("tool_started") for e in events)
        assert not any(e.HasField("approval_request") for e in events)
        assert not await runs_unasked(daemon, runs("touch a"))
        assert not (await daemon.client.list_policy()).rules[1:]


@pytest.mark.req("GATE-09")
async def test_what_a_sub_agent_was_allowed_for_its_session_is_not_its_parents() -> None:
    spawn = {"stream": [{"tool": "spawn_agent", "input": {"prompt": "go on"}}]}
    child = [{"profile": "default"} | line for line in (runs("touch a"), {"stream": [{"text": "made"}]})]
    async with running_daemon(AGENTS) as daemon:
        model = daemon.replay(spawn, runs("touch a"), DONE, *child)
        made = await daemon.client.create_session(str(daemon.workspace), model=model)
        await daemon.client.send_message(made.id, "go")
        events = await daemon.events(made.id, lambda e: e.HasField("child_attention"))
        asked_below = events[-1].child_attention.request_id
        await daemon.client.decide(made.id, asked_below, approve=True, scope=common.APPROVAL_SCOPE_SESSION)
        events = await daemon.events(made.id, lambda e: e.HasField("approval_request"))
        await daemon.client.decide(made.id, events[-1].approval_request.request_id, approve=False)
        await decisions(daemon, made.id)


# --- who was first ------------------------------------------------------------------------------------------

ROUNDS, AT_ONCE = 1000, 50


@dataclass(frozen=True)
class Round:
    """What two clients were told, who had decided on the same request at the same moment."""

    request: str
    path: str
    winner: str
    decided: event_pb2.ApprovalDecided


async def both_decide(session: str, request: event_pb2.ApprovalRequest, clients: Sequence[Client]) -> Round:
    """One says always, the other one no; which of them begins is not always the same."""
    answers = await asyncio.gather(
        *(
            client.decide(
                session,
                request.request_id,
                approve=client.name == "always",
                scope=common.APPROVAL_SCOPE_ALWAYS if client.name == "always" else common.APPROVAL_SCOPE_ONCE,
            )
            for client in clients
        ),
        return_exceptions=True,
    )
    (won,) = [index for index, answer in enumerate(answers) if not isinstance(answer, BaseException)]
    decided, refused = answers[won], answers[1 - won]
    assert isinstance(decided, event_pb2.ApprovalDecided)
    assert isinstance(refused, Refused), refused
    winner = clients[won].name
    outcome = "approved" if winner == "always" else "denied"
    assert (refused.facts["decided_by"], refused.facts["outcome"]) == (winner, outcome)
    assert f"settled before: {outcome} by {winner} at {refused.facts['decided_at']}" in str(refused)
    return Round(request.request_id, request.grant.path[0], winner, decided)


@pytest.mark.req("GATE-07", "GATE-09")
@pytest.mark.timeout(300)
async def test_of_two_decisions_at_the_same_moment_one_wins_and_the_other_leaves_nothing() -> None:
    steps = [
        {"stream": [writes(f"{step}-{index}.txt")["stream"][0] for index in range(AT_ONCE)]}  # type: ignore[index]
        for step in range(ROUNDS // AT_ONCE)
    ]
    rounds: list[Round] = []
    async with (
        running_daemon() as daemon,
        await daemon.connect("always") as one,
        await daemon.connect("no") as two,
    ):
        made = await daemon.client.create_session(str(daemon.workspace), model=daemon.replay(*steps, DONE))
        await daemon.client.send_message(made.id, "go")
        seen = 0
        while len(rounds) < ROUNDS:
            requests: list[event_pb2.ApprovalRequest] = []

            def complete(event: event_pb2.Event, into: list[event_pb2.ApprovalRequest] = requests) -> bool:
                if event.HasField("approval_request"):
                    into.append(event.approval_request)
                return len(into) == AT_ONCE or event.HasField("turn_end")

            seen = (await daemon.events(made.id, complete, after_seq=seen))[-1].seq
            assert len(requests) == AT_ONCE
            orders = [(one, two), (two, one)]
            rounds += await asyncio.gather(
                *(both_decide(made.id, request, orders[n % 2]) for n, request in enumerate(requests))
            )
        decided = {each.request_id: each for each in await decisions(daemon, made.id)}
        assert decided == {each.request: each.decided for each in rounds}
        approved = [each for each in rounds if each.winner == "always"]
        assert 0 < len(approved) < ROUNDS, "each of them is first now and then"
        rules = {
            rule.name: json.loads(rule.match)["path"] for rule in (await daemon.client.list_policy()).rules
        }
        assert rules == {each.decided.stored.name: [each.path] for each in approved}
        assert {path.name for path in daemon.workspace.iterdir()} == {each.path for each in approved}
        assert not (await daemon.client.verify_session(made.id)).faults
