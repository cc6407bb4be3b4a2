"""A session's events as text for people: styled on a terminal, plain everywhere else."""

from __future__ import annotations

import json
import textwrap
from typing import TextIO

from rich.console import Console
from rich.text import Text

from turnd.v1 import common_pb2, event_pb2, sessions_pb2
from turnd_client.content import fields, readable
from turnd_client.shapes import limit_text, reason_text, status_text
from turnd_client.text import one_line, visible
from turnd_client.units import usd_text

_LINES_OF_RESULT = 40
_SCOPES = {
    common_pb2.APPROVAL_SCOPE_SESSION: " for the session",
    common_pb2.APPROVAL_SCOPE_ALWAYS: " for always",
}
_WIDTH = 160
_NAME_WIDTH = 12
_LEAST_WIDTH = 40
_OF_STEPS = (common_pb2.REQUEST_PURPOSE_UNSPECIFIED, common_pb2.REQUEST_PURPOSE_STEP)
"""A request for a summary or a title begins no new answer."""
_DIFF_STYLES = (("+++", "bold"), ("---", "bold"), ("@@", "cyan"), ("+", "green"), ("-", "red"))


class Screen:
    """Draws events in the order of the log. All text from elsewhere is made visible first."""

    def __init__(self, out: TextIO) -> None:
        self._console = Console(
            file=out,
            highlight=False,
            markup=False,
            emoji=False,
            soft_wrap=True,
            # Never by an environment variable: what is not a terminal gets plain text.
            force_terminal=out.isatty(),
            no_color=not out.isatty(),
        )
        self._in_line = False
        self._prompting = False
        self._streamed = False
        self._calls: dict[str, event_pb2.ToolCall] = {}
        self._told: set[str] = set()
        self._history = ""

    @property
    def is_terminal(self) -> bool:
        return self._console.is_terminal

    def line(self, text: str = "", style: str = "") -> None:
        """One line, or several, of text that is safe already."""
        self._break()
        self._console.print(Text(text, style=style))

    def row(self, name: str, value: str) -> None:
        """A name and what it is, which is safe already; on a terminal broken between words to its width."""
        self.wrapped(f"{name:<{_NAME_WIDTH}} {value}", " " * (_NAME_WIDTH + 1))

    def wrapped(self, text: str, indent: str = "") -> None:
        """A long line of text that is safe already, broken between words where this is a terminal."""
        if not self.is_terminal:
            self.line(text)
            return
        parts = textwrap.wrap(
            text,
            max(self._console.width, _LEAST_WIDTH),
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        self.line("\n".join(parts))

    def prompt(self, text: str) -> None:
        """The beginning of a line that a person goes on with; whatever is drawn before `typed` starts a new one."""
        self._break()
        self._console.print(Text(text, style="bold yellow"), end="")
        self._console.file.flush()
        self._in_line = self._prompting = True

    @property
    def is_prompting(self) -> bool:
        """The prompt is what was drawn last."""
        return self._prompting

    def typed(self) -> None:
        """The person has ended the line of the prompt."""
        self._in_line = self._prompting = False

    def end_line(self) -> None:
        """Starts a new line where the last one has text: before something else is written below it."""
        self._break()

    def event(self, event: event_pb2.Event) -> None:
        """Draws one event; those that are nothing to look at draw nothing."""
        self._tell_history(event.imported.session)
        match event.WhichOneof("data"):
            case "user_message":
                self._user_message(event.user_message)
            case "agent_request" if event.agent_request.purpose in _OF_STEPS:
                self._streamed = False
            case "assistant_chunk":
                self._chunk(event.assistant_chunk)
            case "assistant_message":
                self._assistant_message(event.assistant_message)
            case "agent_retry":
                error = event.agent_retry.error
                self.line(f"! the model failed, asking again: {one_line(error.message, _WIDTH)}", "yellow")
            case "tool_call" | "tool_progress" | "tool_result" | "tool_retry":
                self._tool(event)
            case "approval_request" | "interactive_request" | "approval_decided" | "interactive_answered":
                self._request(event)
            case "child_attention":
                self._attention(event.child_attention)
            case "child_started":
                started = event.child_started
                self.line(
                    f"  sub-agent {started.child} works under profile {visible(started.profile)}", "dim"
                )
            case "child_ended":
                ended = event.child_ended
                cost = usd_text(ended.total_cost_nano_usd)
                self.line(f"  sub-agent {ended.child} {status_text(ended.status)}, cost {cost}", "dim")
            case "turn_stopping" | "turn_end" | "limit_reached" | "session_status" | "session_ended":
                self._life(event)
            case "hook_error" | "policy_warning" | "provider_status" | "note" | "context_compacted":
                self._remark(event)
            case _:
                pass

    def approval(self, request: event_pb2.ApprovalRequest, path: str = "") -> None:
        """A plan item that waits for a decision: what it would do, why it asks."""
        item = request.item
        risk = common_pb2.Risk.Name(item.risk).removeprefix("RISK_").lower()
        self.line(f"? approval {request.request_id}{path}: {item.provider}.{item.tool} (risk {risk})", "bold")
        if item.reason:
            self.line(f"  {one_line(item.reason, _WIDTH)}")
        if item.preview:
            self._diff(item.preview)
        else:
            self._indented(_pretty(item.input))
        if not item.bound_to_state:
            self.line("  (not bound to a state: it may meet other files than those there are now)", "dim")

    def question(self, request: event_pb2.InteractiveRequest, path: str = "") -> None:
        """A question that waits for an answer."""
        self.line(f"? question {request.request_id}{path}: {request.provider}.{request.tool}", "bold")
        head, body = readable(request.input)
        self._indented("\n".join(part for part in (body, head) if part))

    def open_request(self, request: sessions_pb2.OpenRequest) -> None:
        """A request as the session's state holds it."""
        path = f" of {' > '.join(request.path)}" if request.path else ""
        if request.HasField("approval"):
            self.approval(request.approval, path)
        else:
            self.question(request.interactive, path)

    def grant(self, rule: common_pb2.GrantRule, lead: str) -> None:
        """Exactly what a scope wider than once would remember."""
        narrowed = [*rule.command, *rule.path]
        what = f"{rule.provider}.{rule.tool}" + (
            f" with {', '.join(narrowed)}" if narrowed else ", any input"
        )
        self.line(f"  {lead}: {visible(what)}")

    # --- parts ------------------------------------------------------------------------------------------

    def _break(self) -> None:
        if self._in_line:
            self._console.print()
        self._in_line = self._prompting = False

    def _tell_history(self, source: str) -> None:
        """Where the events of another log begin and end, which the session was forked or imported from."""
        if source != self._history:
            text = (
                f"--- history of {visible(source)}"
                if source
                else "--- end of the history; from here on its own"
            )
            self.line(text, "dim")
        self._history = source

    def _user_message(self, message: event_pb2.UserMessage) -> None:
        text = "\n".join(block.text.text for block in message.blocks if block.HasField("text"))
        mark = ">" if message.message_id else "> (turnd)"
        self.line(f"{mark} {visible(text)}", "bold cyan")

    def _chunk(self, chunk: event_pb2.AssistantChunk) -> None:
        for delta in chunk.deltas:
            if delta.HasField("text") and delta.text:
                if self._prompting:
                    self._break()
                self._console.print(Text(visible(delta.text)), end="")
                self._in_line = not delta.text.endswith("\n")
                self._streamed = True
        self._console.file.flush()

    def _assistant_message(self, message: event_pb2.AssistantMessage) -> None:
        if not self._streamed:
            text = "".join(block.text.text for block in message.blocks if block.HasField("text"))
            if text:
                self.line(visible(text))
        self._break()
        if message.partial:
            self.line("! cut off here", "yellow")

    def _tool(self, event: event_pb2.Event) -> None:
        match event.WhichOneof("data"):
            case "tool_call":
                call = event.tool_call
                self._calls[call.call_id] = call
                given = fields(call.input) if call.input else call.raw_arguments
                self.line(f"* {call.provider}.{call.tool} {one_line(given, _WIDTH)}", "blue")
            case "tool_progress":
                if event.tool_progress.output:
                    self._told.add(event.tool_progress.call_id)
                    self._indented(event.tool_progress.output.rstrip("\n"))
                elif event.tool_progress.message:
                    self.line(f"  {one_line(event.tool_progress.message, _WIDTH)}", "dim")
            case "tool_retry":
                self.line(f"  again: {one_line(event.tool_retry.message, _WIDTH)}", "dim")
            case _:
                self._result(event.tool_result)

    def _result(self, result: event_pb2.ToolResult) -> None:
        call = self._calls.pop(result.call_id, event_pb2.ToolCall(call_id=result.call_id))
        name = call.tool or call.call_id
        head, body = readable(result.content)
        if result.input_corrected:
            head = f"with a corrected input; {head}"
        if result.is_error:
            category = common_pb2.ToolErrorCategory.Name(result.category)
            word = category.removeprefix("TOOL_ERROR_CATEGORY_").lower().replace("_", " ")
            self.line(f"  {name}: {word} {one_line(head, _WIDTH)}".rstrip(), "red")
        else:
            self.line(f"  {name}: {one_line(head, _WIDTH) or 'done'}", "dim")
        # Output that was shown as it came is not shown twice.
        if body and (result.is_error or result.call_id not in self._told):
            self._indented(body)
        self._told.discard(result.call_id)

    def _request(self, event: event_pb2.Event) -> None:
        match event.WhichOneof("data"):
            case "approval_request":
                self.approval(event.approval_request)
            case "interactive_request":
                self.question(event.interactive_request)
            case "approval_decided":
                self._decided(event.approval_decided)
            case _:
                self._answered(event.interactive_answered)

    def _decided(self, decided: event_pb2.ApprovalDecided) -> None:
        outcome = common_pb2.ApprovalOutcome.Name(decided.outcome).removeprefix("APPROVAL_OUTCOME_").lower()
        by = f" by {one_line(decided.client, 80)}" if decided.client else ""
        scope = _SCOPES.get(decided.scope, "")
        why = f": {one_line(decided.reason, _WIDTH)}" if decided.reason else ""
        approved = decided.outcome == common_pb2.APPROVAL_OUTCOME_APPROVED
        self.line(f"  {decided.request_id} {outcome}{scope}{by}{why}", "green" if approved else "yellow")
        if decided.corrected_input:
            head, body = readable(decided.corrected_input)
            self.line(f"  with another input: {one_line(head, _WIDTH)}", "dim")
            if body:
                self._indented(body)

    def _answered(self, answered: event_pb2.InteractiveAnswered) -> None:
        outcome = common_pb2.AnswerOutcome.Name(answered.outcome).removeprefix("ANSWER_OUTCOME_").lower()
        by = f" by {one_line(answered.client, 80)}" if answered.client else ""
        text = f": {one_line(' '.join(readable(answered.output)), _WIDTH)}" if answered.output else ""
        self.line(f"  {answered.request_id} {outcome}{by}{text}", "green")

    def _attention(self, attention: event_pb2.ChildAttention) -> None:
        path = f" of {' > '.join(attention.path)}"
        match attention.WhichOneof("settlement") or attention.WhichOneof("request"):
            case "decided":
                self._decided(attention.decided)
            case "answered":
                self._answered(attention.answered)
            case "approval":
                self.approval(attention.approval, path)
            case "interactive":
                self.question(attention.interactive, path)
            case _:
                pass

    def _life(self, event: event_pb2.Event) -> None:
        match event.WhichOneof("data"):
            case "limit_reached":
                for hit in event.limit_reached.hits:
                    self.line(f"! limit reached: {limit_text(hit)}", "yellow")
            case "turn_stopping" if event.turn_stopping.HasField("error"):
                error = event.turn_stopping.error
                said = ": ".join(part for part in (error.source, error.category) if part)
                self.line(f"! {said}", "red")
                self._indented(error.message)
            case "turn_stopping" if event.turn_stopping.HasField("cancel"):
                cancel = event.turn_stopping.cancel
                cause = common_pb2.CancelCause.Name(cancel.cause).removeprefix("CANCEL_CAUSE_").lower()
                by = f" by {one_line(cancel.client, 80)}" if cancel.client else ""
                self.line(f"! cancelled ({cause}){by}", "yellow")
            case "turn_end":
                reason = reason_text(event.turn_end.reason)
                self.line(f"= turn {event.turn_end.turn} {reason}", "bold")
            case "session_ended":
                self.line(f"= session {status_text(event.session_ended.status)}", "dim")
            case _:
                pass

    def _remark(self, event: event_pb2.Event) -> None:
        match event.WhichOneof("data"):
            case "hook_error":
                hook = event.hook_error
                self.line(
                    f"! hook {visible(hook.subscriber)} ({hook.failure}): {visible(hook.message)}", "yellow"
                )
            case "policy_warning":
                self.line(f"! policy: {one_line(event.policy_warning.message, _WIDTH)}", "yellow")
            case "provider_status" if event.provider_status.state not in ("starting", "ready", "stopped"):
                status = event.provider_status
                self.line(f"! provider {status.provider} is {status.state}", "yellow")
                self._indented(status.message)
            case "note":
                self.line(f"  {one_line(event.note.text, _WIDTH)}", "dim")
            case "context_compacted":
                compacted = event.context_compacted
                before, after = compacted.tokens_before, compacted.tokens_after
                self.line(f"  the history was compacted: {before} to {after} tokens", "dim")
                if compacted.stopped_because:
                    self.line(f"  {one_line(compacted.stopped_because, _WIDTH)}", "dim")
            case _:
                pass

    def _indented(self, text: str) -> None:
        lines = visible(text).splitlines()
        for line in lines[:_LINES_OF_RESULT]:
            self.line(f"  | {line}")
        if len(lines) > _LINES_OF_RESULT:
            self.line(f"  | ... {len(lines) - _LINES_OF_RESULT} lines more; `turn log` has them", "dim")

    def _diff(self, preview: str) -> None:
        # Whole: what is decided on must not be cut.
        for line in visible(preview).splitlines():
            style = next((style for start, style in _DIFF_STYLES if line.startswith(start)), "")
            self.line(f"  | {line}", style)


def _pretty(data: bytes) -> str:
    try:
        return json.dumps(json.loads(data), ensure_ascii=False, indent=2)
    except ValueError:
        return data.decode("utf-8", "replace")
