"""The SDK: schemas from hints, and a provider served over a real socket."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import grpc
import jsonschema_rs
import pytest

from turnd.tools.registration import accept
from turnd.v1 import common_pb2 as common
from turnd.v1 import provider_pb2, provider_pb2_grpc
from turnd_provider import BlockingContext, Context, Outcome, PreviewText, Provider, ToolError
from turnd_provider.provider import DeclarationError, path_key
from turnd_provider.schema import Limits, Mismatch, SchemaError, schema_of, value_of
from turnd_provider.server import Servicer

Category = common.ToolErrorCategory


@dataclass(frozen=True)
class Point:
    x: int
    label: Annotated[str, "What it is called."] = "none"


HINTS: list[tuple[Any, list[Any], list[Any]]] = [
    (str, ["", "a"], [1, None]),
    (int, [1, 2**70], ["1", 1.5, True, None]),
    (float, [1.5, 2], ["1", True]),
    (bool, [True], [1, "true"]),
    (str | None, ["a", None], [1]),
    (list[int], [[], [1, 2]], [["a"], "a", {}]),
    (dict[str, list[bool]], [{}, {"a": [True]}], [{"a": [1]}, []]),
    (Literal["a", "b"], ["a"], ["c", 1]),
    (Annotated[int, "how many", Limits(minimum=1)], [1], ["x"]),
    (Point, [{"x": 1}, {"x": 1, "label": "l"}], [{}, {"x": "1"}, {"x": 1, "y": 2}]),
    (list[Point], [[{"x": 1}]], [[{"x": None}]]),
    (Any, [1, "a", None], []),
]


@pytest.mark.parametrize(("hint", "good", "bad"), HINTS)
def test_the_schema_and_the_conversion_of_a_hint_agree(hint: Any, good: list[Any], bad: list[Any]) -> None:
    validator = jsonschema_rs.validator_for(schema_of(hint))
    for value in good:
        assert validator.is_valid(value), value
        value_of(hint, value, "it")
    for value in bad:
        assert not validator.is_valid(value), value
        with pytest.raises(Mismatch, match="it"):
            value_of(hint, value, "it")


def test_a_whole_number_is_an_integer_however_it_is_written() -> None:
    value = value_of(int, json.loads("3.0"), "n")
    assert (value, type(value)) == (3, int)
    assert type(value_of(float, 3, "n")) is float
    assert value_of(Point, {"x": 1}, "p") == Point(1)


@pytest.mark.parametrize("hint", [object, set[int], dict[int, str], bytes, list])
def test_a_hint_that_json_schema_cannot_say_is_an_error(hint: Any) -> None:
    with pytest.raises(SchemaError, match="it"):
        schema_of(hint, "it")


def sample() -> Provider:
    """Tools that show what the SDK does."""
    provider = Provider("sample", "1", {"type": "object", "properties": {"root": {"type": "string"}}})

    @provider.tool(kind="data_source", risk="read_only")
    async def add(ctx: Context, a: Annotated[int, "One."], b: int = 2) -> int:
        """Adds two numbers."""
        return a + b

    @provider.tool(
        kind="resource", risk="low", safe=True, key_fields=[path_key("path")], group="g", path_field="path"
    )
    def touch(ctx: BlockingContext, path: str) -> Outcome[Point]:
        """Touches."""
        ctx.progress("touching", 0.5)
        ctx.output(b"\xff out", "stderr")
        ctx.exit_status(0)
        seen = ctx.call.preconditions.get(path, "none")
        return Outcome(Point(1, f"{seen} \ud800"), is_error=True, left_state={path: "touched"})

    @touch.preview
    async def show(ctx: Context, path: str) -> PreviewText:
        if path == "bad":
            raise ToolError.not_found("no such thing")
        return PreviewText(f"touch {path}", {path: "before"})

    @provider.tool(kind="resource", risk="high", runs_commands=True)
    async def run(ctx: Context, command: str) -> dict[str, Any]:
        ended = await ctx.run_command(command, access="read", timeout_s=1.5)
        await ctx.note("ran", {"code": ended.exit_code})
        return {"output": ended.output, "config": dict(ctx.config), "secrets": dict(ctx.secrets)}

    @provider.tool(kind="data_source", risk="read_only")
    async def wait(ctx: Context) -> None:
        await ctx.progress("waiting")
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("async cancelled")

    @provider.tool(kind="data_source", risk="read_only")
    def block(ctx: BlockingContext) -> None:
        ctx.progress("waiting")
        ctx.cancelled.wait(20)
        seen.append("thread cancelled")
        ended.set()

    @provider.tool(kind="data_source", risk="read_only")
    async def fail(ctx: Context) -> Any:
        raise KeyError("lost")

    @provider.tool(kind="data_source", risk="read_only")
    async def nonsense(ctx: Context) -> Any:
        return {"not": {"json"}}

    seen: list[str] = []
    ended = threading.Event()
    provider.seen, provider.ended = seen, ended  # type: ignore[attr-defined]
    return provider


class Daemon:
    """The other end of the socket."""

    def __init__(
        self, stub: provider_pb2_grpc.ToolProviderAsyncStub, provider: Any, servicer: Servicer
    ) -> None:
        self.stub = stub
        self.provider = provider
        self.servicer = servicer
        self.kernel = stub.Kernel()

    async def invoke(
        self, tool: str, timeout_s: float = 20, preconditions: dict[str, str] | None = None, **arguments: Any
    ) -> list[Any]:
        return [event async for event in self.call(tool, timeout_s, preconditions, **arguments)]

    def call(
        self, tool: str, timeout_s: float = 20, preconditions: dict[str, str] | None = None, **arguments: Any
    ) -> Any:
        context = provider_pb2.CallContext(call_id="c1", cwd="/w/sub", workspace="/w")
        context.deadline.FromNanoseconds(time.time_ns() + round(timeout_s * 1e9))
        states = [common.Precondition(target=t, state=s) for t, s in (preconditions or {}).items()]
        request = provider_pb2.InvokeRequest(
            tool=tool, input=json.dumps(arguments).encode(), context=context, preconditions=states
        )
        return self.stub.Invoke(request)

    async def asked(self) -> provider_pb2.KernelResponse:
        message = await self.kernel.read()
        assert isinstance(message, provider_pb2.KernelResponse)
        return message


@asynccontextmanager
async def served(directory: Path) -> AsyncIterator[Daemon]:
    provider = sample()
    servicer = Servicer(provider)
    server = grpc.aio.server()
    provider_pb2_grpc.add_ToolProviderServicer_to_server(servicer, server)
    server.add_insecure_port(f"unix:{directory}/s")
    await server.start()
    async with grpc.aio.insecure_channel(f"unix:{directory}/s") as channel:
        daemon = Daemon(provider_pb2_grpc.ToolProviderStub(channel), provider, servicer)
        assert (await daemon.asked()).register == provider.registration()
        registered = provider_pb2.Registered(config=b'{"root": "/r"}', secrets={"KEY": "k"})
        await daemon.kernel.write(provider_pb2.KernelRequest(registered=registered))
        yield daemon
        daemon.kernel.cancel()
    await server.stop(None)
    servicer.close()


@pytest.fixture
async def daemon(short_path: Path) -> AsyncIterator[Daemon]:
    async with asyncio.timeout(30), served(short_path) as made:
        yield made


def test_a_registration_says_what_the_functions_say() -> None:
    made = {spec.name: spec for spec in sample().registration().tools}
    add, touch, run = made["add"], made["touch"], made["run"]
    assert (add.kind, add.risk, add.description) == (
        common.TOOL_KIND_DATA_SOURCE,
        common.RISK_READ_ONLY,
        "Adds two numbers.",
    )
    assert json.loads(add.input_schema) == {
        "type": "object",
        "properties": {"a": {"type": "integer", "description": "One."}, "b": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert json.loads(add.output_schema) == {"type": "integer"}
    assert add.concurrency == common.ConcurrencySpec(safe=True)
    assert touch.concurrency == common.ConcurrencySpec(
        safe=True, group="g", key_fields=[common.KeyField(name="path", type=common.KEY_FIELD_TYPE_PATH)]
    )
    assert json.loads(touch.output_schema)["properties"]["label"]["description"] == "What it is called."
    assert not run.HasField("concurrency")
    assert (run.runs_commands, touch.path_field) == (True, "path")


def test_declarations_that_cannot_work_are_errors_at_once() -> None:
    provider = Provider("p", "1")
    declare = provider.tool(kind="data_source", risk="read_only")

    async def wrong_context(ctx: BlockingContext) -> None: ...

    async def no_hint(ctx: Context, a) -> None: ...  # type: ignore[no-untyped-def]

    async def star(ctx: Context, *a: int) -> None: ...

    async def fine(ctx: Context, a: int) -> None: ...

    with pytest.raises(DeclarationError, match="must be a Context"):
        declare(wrong_context)
    for function in (no_hint, star):
        with pytest.raises(SchemaError, match=function.__name__):
            declare(function)
    tool = declare(fine)
    with pytest.raises(DeclarationError, match="declared twice"):
        declare(fine)
    with pytest.raises(DeclarationError, match="the same arguments"):
        tool.preview(star_free)


async def star_free(ctx: Context) -> PreviewText:
    return PreviewText("")


@pytest.mark.req("TOOL-02")
async def test_a_call_ends_with_its_result(daemon: Daemon) -> None:
    (only,) = await daemon.invoke("add", a=40)
    assert only.result.content == b"42"
    assert not only.result.is_error


@pytest.mark.req("TOOL-02")
async def test_a_blocking_tool_streams_and_says_what_it_left(daemon: Daemon) -> None:
    progress, output, exited, end = await daemon.invoke("touch", path="p", preconditions={"p": "before"})
    assert (progress.progress.message, progress.progress.fraction) == ("touching", 0.5)
    assert (output.output.data, output.output.channel) == (b"\xff out", "stderr")
    assert exited.HasField("exit_status")
    assert json.loads(end.result.content) == {"x": 1, "label": "before ?"}
    assert end.result.is_error
    assert [(s.target, s.state) for s in end.result.left_state] == [("p", "touched")]


async def _error(daemon: Daemon, tool: str, **more: Any) -> tuple[str, str]:
    (*_, end) = await daemon.invoke(tool, **more)
    return Category.Name(end.error.category).removeprefix("TOOL_ERROR_CATEGORY_"), end.error.message


async def test_every_way_to_fail_is_an_error_with_a_category(daemon: Daemon) -> None:
    assert (await _error(daemon, "nothing"))[0] == "NOT_FOUND"
    assert await _error(daemon, "add") == ("INVALID_ARGUMENTS", "add: argument 'a' is missing")
    assert await _error(daemon, "add", a="x") == (
        "INVALID_ARGUMENTS",
        "add: a: expected integer, found a string",
    )
    assert await _error(daemon, "add", a=1, c=1) == (
        "INVALID_ARGUMENTS",
        "add: unknown argument 'c'; known are a, b",
    )
    assert await _error(daemon, "fail") == ("EXECUTION_FAILED", "fail failed: KeyError: 'lost'")
    assert (await _error(daemon, "nonsense"))[0] == "EXECUTION_FAILED"
    assert await _error(daemon, "wait", timeout_s=0.05) == ("TIMEOUT", "wait did not end before its deadline")
    assert daemon.provider.seen == ["async cancelled"]


async def test_cancelling_a_call_reaches_the_function(daemon: Daemon) -> None:
    for tool in ("wait", "block"):
        call = daemon.call(tool)
        assert (await call.read()).HasField("progress")
        call.cancel()
    await asyncio.to_thread(daemon.provider.ended.wait, 20)
    while len(daemon.provider.seen) < 2:
        await asyncio.sleep(0.01)
    assert sorted(daemon.provider.seen) == ["async cancelled", "thread cancelled"]


async def test_a_command_and_a_note_go_to_the_daemon(daemon: Daemon) -> None:
    running = asyncio.create_task(daemon.invoke("run", command="ls"))
    asked = await daemon.asked()
    assert asked.run_command == provider_pb2.RunCommand(
        call_id="c1", command="ls", access=provider_pb2.COMMAND_ACCESS_READ, timeout_ms=1500
    )
    finished = provider_pb2.CommandFinished(exit_code=3, output="said")
    await daemon.kernel.write(provider_pb2.KernelRequest(id=asked.id, command_finished=finished))
    noted = await daemon.asked()
    assert (noted.emit.call_id, noted.emit.text, noted.emit.data) == ("c1", "ran", b'{"code": 3}')
    await daemon.kernel.write(provider_pb2.KernelRequest(id=noted.id, noted=provider_pb2.Noted()))
    (end,) = await running
    assert json.loads(end.result.content) == {
        "output": "said",
        "config": {"root": "/r"},
        "secrets": {"KEY": "k"},
    }


async def test_a_refusal_of_the_daemons_is_the_calls_error(daemon: Daemon) -> None:
    running = asyncio.create_task(_error(daemon, "run", command="ls"))
    asked = await daemon.asked()
    error = provider_pb2.ToolError(category=common.TOOL_ERROR_CATEGORY_PERMISSION_DENIED, message="not you")
    refused = provider_pb2.Refused(error=error)
    await daemon.kernel.write(provider_pb2.KernelRequest(id=asked.id, refused=refused))
    assert await running == ("PERMISSION_DENIED", "not you")


async def test_cancelling_a_call_gives_up_its_command(daemon: Daemon) -> None:
    call = daemon.call("run", command="sleep 100")
    reading = asyncio.create_task(call.read())
    asked = await daemon.asked()
    call.cancel()
    assert (await daemon.asked()).cancel.id == asked.id
    await asyncio.gather(reading, return_exceptions=True)


async def test_the_end_of_the_stream_fails_what_waits_for_it_and_ends_the_provider(daemon: Daemon) -> None:
    running = asyncio.create_task(_error(daemon, "run", command="ls"))
    await daemon.asked()
    await daemon.kernel.done_writing()
    assert (await running)[1] == "the stream to the daemon has ended"
    await daemon.servicer.finished.wait()


async def test_there_is_one_kernel_stream(daemon: Daemon) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await daemon.stub.Kernel().read()
    assert refused.value.code() == grpc.StatusCode.ALREADY_EXISTS
    assert (await daemon.invoke("add", a=1))[0].result.content == b"3"


async def test_previews(daemon: Daemon) -> None:
    async def shown(tool: str, **arguments: Any) -> provider_pb2.PreviewResponse:
        made: provider_pb2.PreviewResponse = await daemon.stub.Preview(
            provider_pb2.PreviewRequest(tool=tool, input=json.dumps(arguments).encode())
        )
        return made

    touch = await shown("touch", path="p")
    assert (touch.preview, touch.preconditions[0].state) == ("touch p", "before")
    assert (await shown("touch", path="bad")).error.category == common.TOOL_ERROR_CATEGORY_NOT_FOUND
    assert (await shown("touch")).error.category == common.TOOL_ERROR_CATEGORY_INVALID_ARGUMENTS
    assert await shown("add", a=1) == provider_pb2.PreviewResponse()
    health = await daemon.stub.Health(provider_pb2.HealthRequest())
    assert health.serving


def test_the_example_of_the_documentation_is_a_sound_provider() -> None:
    guide = Path(__file__).parents[2] / "docs" / "providers.md"
    (code,) = re.findall(r"```python\n(.*?)```", guide.read_text(), re.DOTALL)
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(code, str(guide), "exec"), names)
    accepted = accept(names["provider"].registration(), expected_name="notes", config={})
    assert list(accepted.tools) == ["count_words", "append_note"]
