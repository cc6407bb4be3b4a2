"""Names of models as a person gives them."""

from __future__ import annotations

from pathlib import Path

_REPLAY = "replay:"


def absolute_model(model: str) -> str:
    """The name with the whole path where it has one: the daemon has another working directory."""
    if model.startswith(_REPLAY):
        return _REPLAY + str(Path(model.removeprefix(_REPLAY)).absolute())
    return model
