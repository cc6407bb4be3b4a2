"""What an upload sends, with the errors of reading it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Feed(Generic[_T]):
    """Requests that are made while they are sent, once.

    Of an iterator that raises gRPC makes a cancelled call and drops the exception: it is kept here.
    """

    def __init__(self, requests: Iterable[_T]) -> None:
        self._requests = requests
        self._failure: Exception | None = None

    def __iter__(self) -> Iterator[_T]:
        try:
            yield from self._requests
        except Exception as error:
            self._failure = error
            raise

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Around the call: raises what making the requests raised."""
        try:
            yield
        except BaseException:
            if self._failure is not None:
                raise self._failure from None
            raise
