"""The typed error with which a tool says that its call failed."""

from __future__ import annotations

import json
from collections.abc import Mapping

from turnd.v1 import common_pb2 as common
from turnd.v1 import provider_pb2


class ToolError(Exception):
    """The call failed, and this is how: raise it from a tool or its preview.

    `category` decides what the daemon does (docs/providers.md has the table). `retryable` says that the same
    call may succeed later; the daemon tries again only where the tool is a data_source or idempotent.
    `details` is any JSON.
    """

    def __init__(
        self,
        category: common.ToolErrorCategory.ValueType,
        message: str,
        *,
        retryable: bool = False,
        details: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.category = category
        self.message = message
        self.retryable = retryable
        self.details = details

    @classmethod
    def invalid_arguments(cls, message: str) -> ToolError:
        """The arguments cannot be used as they are; the message tells the model what would be right."""
        return cls(common.TOOL_ERROR_CATEGORY_INVALID_ARGUMENTS, message)

    @classmethod
    def not_found(cls, message: str) -> ToolError:
        """What the call names does not exist."""
        return cls(common.TOOL_ERROR_CATEGORY_NOT_FOUND, message)

    @classmethod
    def failed(cls, message: str) -> ToolError:
        """The work was tried and failed."""
        return cls(common.TOOL_ERROR_CATEGORY_EXECUTION_FAILED, message)

    @classmethod
    def permission_denied(cls, message: str) -> ToolError:
        """The provider may not do this; the daemon never tries again with more rights."""
        return cls(common.TOOL_ERROR_CATEGORY_PERMISSION_DENIED, message)

    @classmethod
    def timeout(cls, message: str) -> ToolError:
        """The call's deadline passed."""
        return cls(common.TOOL_ERROR_CATEGORY_TIMEOUT, message)

    @classmethod
    def precondition_failed(cls, message: str) -> ToolError:
        """The state that was shown at plan time no longer holds; nothing was changed."""
        return cls(common.TOOL_ERROR_CATEGORY_PRECONDITION_FAILED, message)

    def to_message(self) -> provider_pb2.ToolError:
        """The error as it goes to the daemon."""
        return provider_pb2.ToolError(
            category=self.category,
            message=self.message.encode("utf-8", "replace").decode(),
            retryable=self.retryable,
            details=b"" if self.details is None else json.dumps(self.details).encode(),
        )
