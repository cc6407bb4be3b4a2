"""The adapter `openai-compatible`: streaming Chat Completions with tools, of any server that speaks them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from turnd.models.chat_connection import ChatConnection
from turnd.models.chat_request import chat_request
from turnd.models.chat_stream import ChatFormError, ChatStream
from turnd.ports import ModelFailure, ModelRequest, ModelSpec, Price, StreamEvent
from turnd.v1 import common_pb2 as common


class CompatibleModel:
    """One model of one server."""

    def __init__(self, model: str, connection: ChatConnection) -> None:
        self._model = model
        self._connection = connection
        self._spec = connection.endpoint.spec(model)

    @property
    def spec(self) -> ModelSpec:
        """As the server's configuration describes it."""
        return self._spec

    def price(self, at_us: int, tokens: common.TokenCounts) -> Price | None:
        """The configured price, at any time and size; None where none is configured."""
        return self._connection.endpoint.pricing

    def answers(self, purpose: common.RequestPurpose.ValueType, profile: str | None) -> bool:
        """Whatever it is asked."""
        return True

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamEvent, None]:
        """The completion as it arrives. One attempt: retries are the loop's. Raises ModelFailure."""
        body = chat_request(self._connection.endpoint, self._model, request)
        stream = ChatStream()
        async with aclosing(self._connection.chunks(body)) as chunks:
            try:
                async for chunk in chunks:
                    for event in stream.feed(chunk):
                        yield event
                    if stream.complete:
                        break
                for event in stream.end():
                    yield event
            except ChatFormError as wrong:
                raise ModelFailure(
                    common.ModelError(
                        category=common.MODEL_ERROR_CATEGORY_STREAM_BROKEN,
                        message=f"{self._connection.endpoint.name}: {wrong}",
                    )
                ) from None
