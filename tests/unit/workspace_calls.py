"""Calls of the workspace's tools without a daemon: the functions themselves, on real files."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from turnd.v1 import common_pb2 as common
from turnd_provider import ToolError
from turnd_provider.context import BlockingContext, Call, Context
from turnd_provider.provider import Tool


class Workspace:
    """A workspace, and a directory in it that relative paths begin at."""

    def __init__(self, root: Path, cwd: Path | None = None) -> None:
        self.root = root
        self.cwd = cwd or root

    async def call(self, tool: Tool, preconditions: Mapping[str, str] | None = None, **arguments: Any) -> Any:
        context = self._context(preconditions)
        if not tool.blocking:
            return await tool.function(context, **arguments)
        blocking = BlockingContext(context, asyncio.get_running_loop(), threading.Event())
        return await asyncio.to_thread(tool.function, blocking, **arguments)

    async def preview(self, tool: Tool, **arguments: Any) -> Any:
        assert tool.previewer is not None
        return await tool.previewer(self._context(None), **arguments)

    async def failure(
        self, tool: Tool, preconditions: Mapping[str, str] | None = None, **arguments: Any
    ) -> ToolError:
        with pytest.raises(ToolError) as failed:
            await self.call(tool, preconditions, **arguments)
        return failed.value

    def _context(self, preconditions: Mapping[str, str] | None) -> Context:
        call = Call(
            session="s",
            turn=0,
            step=1,
            call_id="c",
            attempt=1,
            cwd=self.cwd,
            workspace=self.root,
            traceparent="",
            preconditions=preconditions or {},
        )
        return Context(call, config={}, secrets={}, kernel=None, send=None)


def category(error: ToolError) -> str:
    return common.ToolErrorCategory.Name(error.category).removeprefix("TOOL_ERROR_CATEGORY_").lower()
