"""Reading a session asks no model, however long its log is (S14)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.harness import running_daemon
from tests.marks import NEEDS_CELLS
from tests.unit.going_on import file_of
from tests.unit.session_log import SessionLog

from turnd.v1 import common_pb2 as common

pytestmark = [NEEDS_CELLS, pytest.mark.timeout(120)]

WINDOW = 1000
"""Tokens of the model's context window."""


def three_windows() -> SessionLog:
    """A log of three windows of text, at less than four characters for a token."""
    log = SessionLog()
    for number in range(12):
        log.turn(f"{number} " + "why " * WINDOW).answer("so " * WINDOW).end_turn()
    return log


@pytest.mark.req("S14", "RPC-01")
async def test_attach_and_read_of_a_log_of_three_windows_call_no_model(tmp_path: Path) -> None:
    file = tmp_path / "long.jsonl"
    file.write_bytes(file_of(three_windows().events))
    assert len(file.read_bytes()) > 3 * 4 * WINDOW
    async with running_daemon() as daemon:
        # No message of the session says this: any request of this model ends its Turn with an error.
        never = {"stream": [{"text": "x"}], "expect": {"last_contains": "what nobody has said"}}
        sizes = {"model": {"context_window": WINDOW, "max_output_tokens": 100}}
        model = daemon.replay(sizes, never)
        made = await daemon.turn("import", str(file), "--model", model)
        assert made.code == 0, made.stderr
        session = made.stdout.strip()

        async def read_everything() -> int:
            """All ways to read; the seq of the last event."""
            last = (await daemon.client.get_session(session)).as_of_seq
            events = await daemon.events(session, lambda event: event.seq == last)
            assert [event.seq for event in events] == list(range(1, last + 1))
            assert not [e for e in events if e.HasField("agent_request") and not e.HasField("imported")]
            assert b"".join([part async for part in daemon.client.export(session)]).count(b"\n") == last
            assert not (await daemon.client.verify_session(session)).faults
            async for batch in daemon.client.attach_all():
                if batch.caught_up:
                    break
            shown = await daemon.client.get_session(session)
            assert shown.session.status == common.SESSION_STATUS_IDLE
            assert (shown.session.cost_nano_usd, shown.session.steps) == (0, 0)
            return shown.as_of_seq

        before = await read_everything()
        assert (await daemon.turn("log", session)).code == 0
        assert await read_everything() == before, "reading writes nothing"
        await daemon.stop()
        await daemon.start()
        assert await read_everything() == before

        # It would have been seen: this model fails at its first request.
        events = await daemon.run(session, "go on")
        assert events[-1].turn_end.reason == common.TURN_END_REASON_ERROR
