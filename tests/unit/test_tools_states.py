"""What a provider says of the state that a call is bound to, and of the state that it left, is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import jsonschema_rs
import pytest

from turnd.ports import Invocation, ToolOutcome
from turnd.tools.invoke import preview
from turnd.tools.registration import RegisteredTool
from turnd.tools.stream import MAX_STATE_BYTES, ContractBroken, Reader
from turnd.v1 import common_pb2 as common
from turnd.v1 import provider_pb2

pytestmark = pytest.mark.req("TOOL-04")

TOOL = RegisteredTool(provider_pb2.ToolSpec(name="t"), jsonschema_rs.validator_for({}), None)
CALL = Invocation("c", "p", "t", b"{}", 0, 1, 1, (), 10, "")
NOTHING: Any = None
SESSION: Any = SimpleNamespace(
    session="s", root="s", cwd="/", workspace="/", environment={}, unattended=False
)


def states(size: int) -> list[common.Precondition]:
    return [common.Precondition(target=f"{number}", state="x" * (size // 8)) for number in range(8)]


async def left(size: int) -> ToolOutcome:
    async def stream() -> AsyncIterator[provider_pb2.InvokeResponse]:
        result = provider_pb2.InvokeResult(content=b"1", left_state=states(size))
        yield provider_pb2.InvokeResponse(result=result)

    outcome = await Reader(TOOL, NOTHING).read(stream())
    assert isinstance(outcome, ToolOutcome)
    return outcome


async def test_a_call_that_says_too_much_of_what_it_left_breaks_the_contract() -> None:
    assert len((await left(MAX_STATE_BYTES // 2)).left_state) == 8
    with pytest.raises(ContractBroken, match=f"at most {MAX_STATE_BYTES}"):
        await left(MAX_STATE_BYTES + 1)


async def test_a_preview_that_binds_a_call_to_too_much_fails() -> None:
    async def shown(size: int) -> Any:
        async def answer(request: object, timeout: float) -> provider_pb2.PreviewResponse:
            await asyncio.sleep(0)
            return provider_pb2.PreviewResponse(preview="p", preconditions=states(size))

        instance: Any = SimpleNamespace(stub=SimpleNamespace(Preview=answer))
        return await preview(instance, SESSION, CALL)

    assert len((await shown(MAX_STATE_BYTES // 2)).preconditions) == 8
    failed = await shown(MAX_STATE_BYTES + 1)
    assert not failed.preconditions
    assert "at most" in failed.failure.message
