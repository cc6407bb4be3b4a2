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


@NEEDS_CELLS
@pytest.mark.timeout(150)
@pytest.mark.req("M05", "BOUND-08", "BOUND-05", "BOUND-12")
async def test_a_server_without_a_price_is_marked_then_priced_by_a_reload(llmock_server: Llmock) -> None:
    llmock_server.scenario(*({"type": "reply", "text": "Done."} for _ in range(2)))
    name = "openai-compatible/mock/m"
    config = f"""
profiles.default.model = "{name}"
models.mock = {{ kind = "openai-compatible", base_url = "{llmock_server.base_url}" }}
"""
    async with running_daemon(config) as daemon:
        capped = await daemon.turn("run", "go", "--max-cost", "1", "--json")
        assert capped.code == 1
        assert f"no price is known for {name}" in capped.json_lines[-1]["cause"]
        assert f'[prices."{name}"]' in capped.json_lines[-1]["cause"]
        assert llmock_server.requests() == [], "it is refused before anything is sent"

        done = await daemon.turn("run", "go")
        assert done.code == 0, done.stderr
        assert "$0+;" in done.stderr
        assert "no price is known for some of the models of this session" in done.stderr
        first = (await daemon.turn("ls", "--json")).json_lines[0]
        assert (first["unpriced"], first["cost_usd"]) == (True, 0)
        assert first["weighted_tokens"] > 0
        assert "$0+\n" in (await daemon.turn("cost", first["id"])).stdout
        assert "for some of it no price is known" in (await daemon.turn("show", first["id"])).stdout

        daemon.configure(f'{config}[prices."{name}"]\ninput_per_mtok = 1000\noutput_per_mtok = 1000\n')
        reloaded = await daemon.turn("reload", "--json")
        assert reloaded.json_lines[0]["changed"] == ["prices"]
        priced = (await daemon.turn("run", "go", "--max-cost", "1", "--json")).json_lines[-1]
        assert (priced["unpriced"], priced["text"]) == (False, "Done.")
        assert priced["cost_usd"] > 0
        again = (await daemon.turn("show", first["id"], "--json")).json_lines[0]
        assert (again["unpriced"], again["cost_usd"]) == (True, 0), "what was booked stays as it is"
        log = daemon.log_text()
    assert log.count("no price is known for the model") == 1
