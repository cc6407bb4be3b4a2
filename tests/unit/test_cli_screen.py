"""Events as text: plain where it is no terminal, safe everywhere."""

from __future__ import annotations

import io

import pytest

from turnd.v1 import common_pb2 as common
from turnd.v1 import event_pb2
from turnd_client.screen import Screen


class TerminalLike(io.StringIO):
    def isatty(self) -> bool:
        return True


def drawn(*events: event_pb2.Event, out: io.StringIO | None = None) -> str:
    out = out or io.StringIO()
    screen = Screen(out)
    for event in events:
        screen.event(event)
    return out.getvalue()


def chunk(text: str) -> event_pb2.Event:
    return event_pb2.Event(assistant_chunk=event_pb2.AssistantChunk(deltas=[event_pb2.Delta(text=text)]))


def message(text: str, *, partial: bool = False) -> event_pb2.Event:
    block = common.ContentBlock(text=common.TextBlock(text=text))
    return event_pb2.Event(assistant_message=event_pb2.AssistantMessage(blocks=[block], partial=partial))


APPROVAL = event_pb2.Event(
    approval_request=event_pb2.ApprovalRequest(
        request_id="r1",
        item=common.PlanItem(
            provider="workspace",
            tool="edit_file",
            risk=common.RISK_MODERATE,
            preview="--- a\n+++ b\n@@ -1 +1 @@\n-old\n+new\u202e\x1b[2J\n",
            bound_to_state=True,
        ),
    )
)


def test_streamed_text_is_drawn_once() -> None:
    request = event_pb2.Event(agent_request=event_pb2.AgentRequest())
    assert drawn(request, chunk("Hello "), chunk("there."), message("Hello there.")) == "Hello there.\n"
    assert drawn(request, message("Not streamed.")) == "Not streamed.\n"
    assert drawn(request, chunk("Hel"), message("Hel", partial=True)) == "Hel\n! cut off here\n"


def test_plain_without_a_terminal_and_styled_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    plain = drawn(APPROVAL)
    assert "\x1b" not in plain
    assert "\x1b[32m  | +new" in drawn(APPROVAL, out=TerminalLike())


def test_a_diff_is_whole_and_shows_what_hides_in_it() -> None:
    lines = drawn(APPROVAL).splitlines()
    assert lines[0] == "? approval r1: workspace.edit_file (risk moderate)"
    assert lines[-1] == "  | +new<U+202E><U+001B>[2J"
    long = event_pb2.Event()
    long.CopyFrom(APPROVAL)
    long.approval_request.item.preview = "".join(f"+{number}\n" for number in range(500))
    assert "  | +499" in drawn(long)


def test_an_approval_without_a_preview_shows_the_input_and_its_binding() -> None:
    event = event_pb2.Event()
    event.CopyFrom(APPROVAL)
    event.approval_request.item.preview = ""
    event.approval_request.item.input = b'{"command":"rm x"}'
    event.approval_request.item.bound_to_state = False
    text = drawn(event)
    assert '"command": "rm x"' in text
    assert "not bound to a state" in text


def test_output_that_was_shown_as_it_came_is_not_shown_twice() -> None:
    call = event_pb2.Event(
        tool_call=event_pb2.ToolCall(call_id="c", provider="workspace", tool="run_command")
    )
    progress = event_pb2.Event(tool_progress=event_pb2.ToolProgress(call_id="c", output="one\n"))
    result = event_pb2.Event(
        tool_result=event_pb2.ToolResult(call_id="c", content=b'{"exit_code": 0, "output": "one\\n"}')
    )
    assert drawn(call, progress, result).count("one") == 1
    assert drawn(call, result).count("one") == 1
    assert "exit_code: 0" in drawn(call, result)


def test_long_results_are_cut_and_say_so() -> None:
    content = b'"' + b"".join(b"line %d\\n" % number for number in range(100)) + b'"'
    text = drawn(event_pb2.Event(tool_result=event_pb2.ToolResult(call_id="c", content=content)))
    assert "line 39" in text
    assert "line 40" not in text
    assert "60 lines more" in text


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (
            event_pb2.Event(
                limit_reached=event_pb2.LimitReached(
                    hits=[
                        common.LimitHit(
                            dimension=common.LIMIT_DIMENSION_MAX_COST_USD,
                            limit=10**9,
                            value=1_200_000_000,
                            unit="nano_usd",
                        )
                    ]
                )
            ),
            "max_cost_usd is $1.0000, used $1.2000",
        ),
        (
            event_pb2.Event(
                turn_stopping=event_pb2.TurnStopping(
                    error=event_pb2.ErrorStop(source="sandbox", message="install bubblewrap")
                )
            ),
            "install bubblewrap",
        ),
        (event_pb2.Event(turn_end=event_pb2.TurnEnd(reason=common.TURN_END_REASON_MAX_TOKENS)), "max-tokens"),
        (
            event_pb2.Event(
                approval_decided=event_pb2.ApprovalDecided(
                    request_id="r1",
                    outcome=common.APPROVAL_OUTCOME_DENIED,
                    client="B\x1b[31m",
                    reason="no",
                )
            ),
            "r1 denied by B<U+001B>[31m: no",
        ),
        (
            event_pb2.Event(
                child_attention=event_pb2.ChildAttention(
                    path=["A", "B"], approval=APPROVAL.approval_request, state=event_pb2.ATTENTION_STATE_OPEN
                )
            ),
            "approval r1 of A > B",
        ),
        (
            event_pb2.Event(provider_status=event_pb2.ProviderStatus(provider="web", state="crashed")),
            "web is crashed",
        ),
    ],
)
def test_what_matters_is_said(event: event_pb2.Event, words: str) -> None:
    assert words in drawn(event)


def test_a_request_for_a_title_in_the_middle_of_an_answer_draws_nothing_twice() -> None:
    title = event_pb2.AgentRequest(purpose=common.REQUEST_PURPOSE_TITLE)
    assert drawn(chunk("hello"), event_pb2.Event(agent_request=title), message("hello")).count("hello") == 1
    step = event_pb2.AgentRequest(purpose=common.REQUEST_PURPOSE_STEP)
    assert drawn(chunk("hel"), event_pb2.Event(agent_request=step), message("hello")).count("hello") == 1


def test_a_compaction_says_what_it_did_and_why_it_stopped() -> None:
    compacted = event_pb2.ContextCompacted(tokens_before=9, tokens_after=5, stopped_because="no\x1bmore")
    said = drawn(event_pb2.Event(context_compacted=compacted))
    assert "compacted: 9 to 5 tokens" in said
    assert "more" in said
    assert "\x1b" not in said
