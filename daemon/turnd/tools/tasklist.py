"""Where a session's task list is after a restart: in its log."""

from __future__ import annotations

from turnd.ports import Log
from turnd.tools.coretools import NAME

UPDATE = "update_tasks"


async def last_tasks(log: Log, session: str) -> bytes | None:
    """The input of the last update_tasks that succeeded; None where there was none. Raises UnknownSession."""
    called: dict[str, bytes] = {}
    last = None
    async for page in log.read(session):
        for event in page:
            match event.WhichOneof("data"):
                case "tool_call" if (event.tool_call.provider, event.tool_call.tool) == (NAME, UPDATE):
                    called[event.tool_call.call_id] = event.tool_call.input
                case "tool_result" if event.tool_result.call_id in called:
                    asked = called.pop(event.tool_result.call_id)
                    last = last if event.tool_result.is_error else asked
                case _:
                    pass
    return last
