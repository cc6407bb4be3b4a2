"""What the Python client does about a connection that is lost in the middle of a command."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.rpc_fakes import SESSION, ScriptedCommands, served

from turnd.sessions.refusal import Code, CommandRefused
from turnd.v1 import sessions_pb2
from turnd_client.errors import ConnectionLost

pytestmark = pytest.mark.req("RPC-04")


async def test_a_command_whose_connection_is_lost_is_sent_once_more_with_the_same_id(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids: list[str] = []
    lost = 1

    async def send_message(
        self: ScriptedCommands, request: sessions_pb2.SendMessageRequest
    ) -> sessions_pb2.SendMessageResponse:
        ids.append(request.request_id)
        if len(ids) <= lost:
            raise CommandRefused(Code.UNAVAILABLE, "going away")
        return sessions_pb2.SendMessageResponse(message_id="m", seq=7)

    monkeypatch.setattr(ScriptedCommands, "send_message", send_message)
    async with served(short_path) as it, it.client() as client:
        assert (await client.send_message(SESSION, "hello")).seq == 7
        assert len(ids) == 2
        assert ids[0] == ids[1] != ""
        await client.send_message(SESSION, "hello")
        assert ids[2] != ids[0], "each command has an id of its own"
        ids.clear()
        lost = 9
        with pytest.raises(ConnectionLost, match="went away"):
            await client.send_message(SESSION, "hello", request_id="mine")
        assert ids == ["mine", "mine"]
