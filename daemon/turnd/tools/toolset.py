"""The tools of one session, whatever serves them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Protocol

from turnd.ports import Invocation, Preview, Tool, ToolFailure, ToolOutcome
from turnd.rules.raised import Raise, raised
from turnd.tools.invoke import check_input
from turnd.tools.registration import Registration
from turnd.v1 import common_pb2 as common


class Backend(Protocol):
    """What serves the tools of one provider to one session."""

    @property
    def registration(self) -> Registration:
        """The tools as the session was shown them."""

    async def preview(self, call: Invocation) -> Preview:
        """See ToolSet.preview."""

    async def invoke(self, call: Invocation) -> ToolOutcome | ToolFailure:
        """See ToolSet.invoke."""


class SessionTools:
    """See `ports.ToolSet`. The tools are those of the backends that one of the session's globs names, each with
    what is raised of it now: a change of the configuration holds from the next look at it.
    """

    def __init__(
        self,
        globs: Sequence[str],
        backends: Sequence[Backend],
        raises: Callable[[], Sequence[Raise]],
        on_close: Callable[[], Awaitable[None]],
    ) -> None:
        self._backends: Mapping[str, Backend] = {b.registration.name: b for b in backends}
        self._raises = raises
        self._on_close = on_close
        self._tools = {
            (registration.name, tool.spec.name): Tool(registration.name, registration.version, tool.spec)
            for registration in (backend.registration for backend in backends)
            for tool in registration.tools.values()
            if any(fnmatchcase(f"{registration.name}.{tool.spec.name}", glob) for glob in globs)
        }

    def offered(self) -> tuple[Tool, ...]:
        return tuple(self._raised(tool) for tool in self._tools.values())

    def find(self, provider: str, tool: str) -> Tool | None:
        found = self._tools.get((provider, tool))
        return None if found is None else self._raised(found)

    def _raised(self, tool: Tool) -> Tool:
        return replace(tool, spec=raised(tool.provider, tool.spec, self._raises()))

    def check_input(self, provider: str, tool: str, data: bytes) -> ToolFailure | None:
        return check_input(self._backends[provider].registration.tools[tool], data)

    async def preview(self, call: Invocation) -> Preview:
        if (call.provider, call.tool) not in self._tools:
            return Preview(failure=_unknown(call))
        return await self._backends[call.provider].preview(call)

    async def invoke(self, call: Invocation) -> ToolOutcome | ToolFailure:
        if (call.provider, call.tool) not in self._tools:
            return _unknown(call)
        return await self._backends[call.provider].invoke(call)

    async def close(self) -> None:
        await self._on_close()


def names_provider(glob: str, provider: str) -> bool:
    """Whether a glob over provider.tool can name a tool of a provider."""
    own, dot, _ = glob.partition(".")
    return fnmatchcase(provider, own) if dot else fnmatchcase(f"{provider}.", glob)


def _unknown(call: Invocation) -> ToolFailure:
    message = f"this session has no tool {call.provider}.{call.tool}"
    return ToolFailure(common.TOOL_ERROR_CATEGORY_NOT_FOUND, message)
