"""A session whose history was compacted, and whose daemon is killed later: nothing of it is lost (S08, MODEL-08)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from tests.harness import RunningDaemon, running_daemon
from tests.marks import NEEDS_CELLS

from turnd.rules.history import History
from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2

CONFIG = """
[profiles.default]
tools = ["workspace.list_dir"]
system_prompt = "Be short."
"""
MODEL = {"model": {"context_window": 4000, "max_output_tokens": 1000}}
SAID = {"stream": [{"text": "w" * 2000}]}
"""500 tokens; the budget is 2200."""
SUMMARY = {"purpose": "compaction", "stream": [{"text": "in short"}]}
LISTS = {"stream": [{"tool": "list_dir", "input": {"path": "."}}]}
CUT = {"stream": [{"text": "half of an ans"}], "hang_s": 600}
TURNS = 5


async def all_events(daemon: RunningDaemon, session: str) -> list[event_pb2.Event]:
    """Everything that is in the log, as a client that attaches now is shown it."""
    last = (await daemon.client.get_session(session)).as_of_seq
    return await daemon.events(session, lambda event: event.seq == last)


def told(events: Sequence[event_pb2.Event]) -> str:
    """The history in words, as the model is sent it."""
    history = History()
    for event in events:
        history.advance(event)
    return "\n".join(str(block) for message in history.messages() for block in message.blocks)


@NEEDS_CELLS
@pytest.mark.req("S08", "MODEL-08", "LOG-20", "LOG-13")
async def test_what_comes_after_a_compaction_is_all_there_after_a_kill() -> None:
    after: list[Mapping[str, object]] = [
        LISTS,
        {"stream": [{"text": "the files are listed"}]},
        {"stream": [{"text": "one more"}]},
        CUT,
    ]
    # The summary with one wish, its answer, one more Turn; then 4 of the Turn with the call, 2 and 2, and the last.
    expected = {"messages": 4 + 4 + 2 + 2 + 1, "last_contains": "go on"}
    last = {"stream": [{"text": "going on"}], "expect": expected}
    async with running_daemon(CONFIG) as daemon:
        model = daemon.replay(MODEL, *[SAID] * TURNS, SUMMARY, *after, last)
        session = (await daemon.client.create_session(str(daemon.workspace), model=model)).id
        for number in range(TURNS):
            await daemon.run(session, f"wish {number}")
        await daemon.run(session, "list them")
        whole = await all_events(daemon, session)
        (compacted,) = [event for event in whole if event.HasField("context_compacted")]
        assert compacted.context_compacted.replacement
        (listed,) = [event.tool_result for event in whole if event.HasField("tool_result")]
        assert not listed.is_error, listed.content
        await daemon.run(session, "and more")
        await daemon.client.send_message(session, "a long one")
        await daemon.events(
            session, lambda e: e.HasField("assistant_chunk") and "half of" in str(e), after_seq=whole[-1].seq
        )
        before = await all_events(daemon, session)
        assert len(before) - compacted.seq > 20
        await daemon.kill()
        await daemon.start()
        events = await all_events(daemon, session)
        assert [event.SerializeToString(deterministic=True) for event in events[: len(before)]] == [
            event.SerializeToString(deterministic=True) for event in before
        ]
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert all(event.synthetic for event in events[len(before) :])
        assert events[-2].turn_end.reason == common.TURN_END_REASON_INTERRUPTED
        assert not (await daemon.client.verify_session(session)).faults
        again = await daemon.run(session, "go on")
        stopping = [event.turn_stopping for event in again if event.HasField("turn_stopping")]
        assert again[-1].turn_end.reason == common.TURN_END_REASON_COMPLETED, stopping
        told_now = told(await all_events(daemon, session))
    words = (
        "in short",
        "list them",
        "the files are listed",
        "and more",
        "one more",
        "a long one",
        "half of an",
    )
    assert [word for word in words if word not in told_now] == []
    assert "wish 0" not in told_now
    said = [event.user_message.blocks[0].text.text for event in events if event.HasField("user_message")]
    assert said[0] == "wish 0", "compaction adds an event, it deletes nothing"
