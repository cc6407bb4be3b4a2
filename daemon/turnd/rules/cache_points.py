"""Where a request's prompt cache may be cut: prefixes that stay the same from Step to Step."""

from __future__ import annotations

from collections.abc import Sequence

from turnd.rules.history import HistoryMessage


def cache_points(
    messages: Sequence[HistoryMessage], before_turn: Sequence[HistoryMessage]
) -> tuple[int, ...]:
    """Prefixes of a request, each as the number of its messages, in rising order, without repeats.

    0 is the system prompt with the tools; then the history before the open Turn, if it opens the request as it is;
    then everything. All but the last stay where they are for the whole Turn.
    """
    points = {0, len(messages)}
    if len(before_turn) <= len(messages) and all(
        sent.digest == finished.digest for sent, finished in zip(messages, before_turn, strict=False)
    ):
        points.add(len(before_turn))
    return tuple(sorted(points))
