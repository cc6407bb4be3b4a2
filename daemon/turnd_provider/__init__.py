"""The Python SDK for tool providers, and the first-party providers.

A provider is a `Provider` with functions decorated by `Provider.tool`; `serve` runs it. See
docs/providers.md.
"""

from turnd_provider.before_grpc import FORK_SUPPORT
from turnd_provider.context import BlockingContext, CommandResult, Context, KernelRefused
from turnd_provider.errors import ToolError
from turnd_provider.provider import Outcome, PreviewText, Provider
from turnd_provider.server import serve

__all__ = [
    "FORK_SUPPORT",
    "BlockingContext",
    "CommandResult",
    "Context",
    "KernelRefused",
    "Outcome",
    "PreviewText",
    "Provider",
    "ToolError",
    "serve",
]
