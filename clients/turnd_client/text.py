"""Text of models, tools and files, made harmless for whoever reads it on a terminal (gate.md, Requests)."""

from __future__ import annotations

from turnd.v1.unseen import visible, without_unseen

__all__ = ["one_line", "visible", "without_unseen"]


def one_line(text: str, width: int) -> str:
    """The visible text on one line of at most `width` characters."""
    line = visible(" ".join(text.split()))
    return line if len(line) <= width else line[: width - 3] + "..."
