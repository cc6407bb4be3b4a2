"""The failure of a request that its model cannot take."""

from __future__ import annotations

from turnd.ports import ModelFailure
from turnd.v1 import common_pb2 as common


def invalid_request(message: str) -> ModelFailure:
    """A failure that is never retried, and that no other model is tried for."""
    return ModelFailure(
        common.ModelError(category=common.MODEL_ERROR_CATEGORY_INVALID_REQUEST, message=message)
    )
