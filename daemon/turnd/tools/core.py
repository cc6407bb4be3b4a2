"""`core`: the first-party tools that only need the daemon itself, behind the same port as every provider."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from turnd.ports import (
    ChildRefused,
    ChildRequest,
    Invocation,
    Preview,
    Spawn,
    ToolFailure,
    ToolOutcome,
    ToolSession,
)
from turnd.tools import coretools
from turnd.tools.harmless import harmless
from turnd.tools.invoke import check_input
from turnd.tools.registration import Registration, accept
from turnd.tools.spool import NoSpool, Spool
from turnd.v1 import common_pb2 as common
from turnd.v1.jsonform import enum_text

LastTasks = Callable[[str], Awaitable[bytes | None]]
"""The input of the last update_tasks that was applied in a session, from its log; None: there was none."""

MAX_READ_BYTES: Final = 64 * 1024
NANO_USD: Final = 10**9


class Core:
    """Serves the core tools. The mutable state is the task list of each session that asked for one.

    A list is what the last applied update_tasks says, so the log has it; after a restart it is asked for
    once.
    """

    def __init__(self, version: str, spool: Spool, last_tasks: LastTasks) -> None:
        self.registration: Registration = accept(
            coretools.registration(version), expected_name=coretools.NAME, config={}
        )
        self._spool = spool
        self._last_tasks = last_tasks
        self._tasks: dict[str, Any] = {}

    def of(self, session: ToolSession, spawn: Spawn) -> CoreTools:
        """The tools for one session."""
        return CoreTools(self, session.session, spawn)

    def forget(self, session: str) -> None:
        """The session was unloaded; its list is in its log."""
        self._tasks.pop(session, None)

    def update_tasks(self, session: str, tasks: Any) -> object:
        """Puts a new list in the place of the old one."""
        self._tasks[session] = tasks
        return {"tasks": len(tasks)}

    async def tasks(self, session: str) -> object:
        """The list as it is."""
        if session not in self._tasks:
            last = await self._last_tasks(session)
            self._tasks[session] = [] if last is None else json.loads(last)["tasks"]
        return {"tasks": self._tasks[session]}

    def read_output(self, session: str, call_id: str, offset: int, limit: int) -> object:
        """A piece of spooled output of the session's own. Raises NoSpool."""
        page = self._spool.read(session, call_id, offset, limit)
        return {
            "text": harmless(page.data),
            "offset": page.offset,
            "next_offset": page.offset + len(page.data),
            "spooled_bytes": page.spooled_bytes,
            "total_bytes": page.total_bytes,
        }


class CoreTools:
    """The core tools for one session."""

    def __init__(self, core: Core, session: str, spawn: Spawn) -> None:
        self._core = core
        self._session = session
        self._spawn = spawn
        self.registration = core.registration

    async def preview(self, call: Invocation) -> Preview:
        """None of them needs one: what they do is their input."""
        return Preview(failure=check_input(self.registration.tools[call.tool], call.input))

    async def invoke(self, call: Invocation) -> ToolOutcome | ToolFailure:
        """Does it at once, but for spawn_agent, which lasts as long as its sub-agent."""
        if (failure := check_input(self.registration.tools[call.tool], call.input)) is not None:
            return failure
        arguments: Mapping[str, Any] = json.loads(call.input or b"{}")
        match call.tool:
            case "spawn_agent":
                return await self._spawn_agent(call.call_id, arguments)
            case "report_result":
                content: object = {"reported": True}
            case "update_tasks":
                content = self._core.update_tasks(self._session, arguments["tasks"])
            case "list_tasks":
                content = await self._core.tasks(self._session)
            case "read_output":
                try:
                    content = self._core.read_output(
                        self._session,
                        arguments["call_id"],
                        int(arguments.get("offset", 0)),
                        int(arguments.get("limit", MAX_READ_BYTES)),
                    )
                except NoSpool as error:
                    return ToolFailure(common.TOOL_ERROR_CATEGORY_NOT_FOUND, str(error))
            case interactive:
                message = f"{interactive} is answered by a person, it is not run"
                return ToolFailure(common.TOOL_ERROR_CATEGORY_EXECUTION_FAILED, message)
        return ToolOutcome(json.dumps(content, ensure_ascii=False).encode())

    async def _spawn_agent(self, call_id: str, arguments: Mapping[str, Any]) -> ToolOutcome | ToolFailure:
        narrowed = arguments.get("tools")
        request = ChildRequest(
            call_id=call_id,
            profile=arguments.get("profile", ""),
            prompt=arguments["prompt"],
            tools=None if narrowed is None else tuple(narrowed),
        )
        try:
            result = await self._spawn(request)
        except ChildRefused as refused:
            return ToolFailure(common.TOOL_ERROR_CATEGORY_PERMISSION_DENIED, str(refused))
        content = {
            "session_id": result.session,
            "status": enum_text(common.SessionStatus, result.status),
            "result": result.text,
            "total_cost_usd": result.total_cost_nano_usd / NANO_USD,
            "total_input_tokens": result.total_input_tokens,
            "total_output_tokens": result.total_output_tokens,
        }
        return ToolOutcome(
            json.dumps(content, ensure_ascii=False).encode(),
            is_error=result.status != common.SESSION_STATUS_COMPLETED,
        )
