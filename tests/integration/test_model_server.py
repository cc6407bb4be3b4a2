"""A whole Turn, with a tool call, driven by a third party's OpenAI-compatible server over HTTP."""

from __future__ import annotations

import pytest
from tests.harness import running_daemon
from tests.marks import NEEDS_CELLS
from tests.third_party import Llmock


@NEEDS_CELLS
@pytest.mark.timeout(150)
@pytest.mark.req("LOOP-01", "LOOP-02", "MODEL-02")
async def test_a_turn_with_a_tool_call_over_http(llmock_server: Llmock) -> None:
    llmock_server.scenario(
        {"type": "reply", "tool_calls": [{"name": "read_file", "arguments": {"path": "a.txt"}}]},
        {"type": "reply", "text": "It says hello."},
    )
    config = f"""
[models.mock]
kind = "openai-compatible"
base_url = "{llmock_server.base_url}"
pricing = {{ free = true }}
"""
    async with running_daemon(config) as daemon:
        (daemon.workspace / "a.txt").write_text("hello\n")
        done = await daemon.turn(
            "run", "what does a.txt say?", "--model", "openai-compatible/mock/m", "--json"
        )
    assert done.code == 0, done.stderr
    *events, result = done.json_lines
    assert result["text"] == "It says hello."
    assert result["steps"] == 2
    results = [event["data"] for event in events if event["type"] == "tool/result"]
    assert [(r["is_error"], r["content"]["text"]) for r in results] == [(False, "hello\n")]  # type: ignore[index]
    asked = llmock_server.requests()
    assert len(asked) == 2
    assert [message["role"] for message in asked[1]["body"]["messages"]][-2:] == ["assistant", "tool"]
