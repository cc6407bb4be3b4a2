"""The adapter `openai-compatible`: streaming Chat Completions with tools, of any server that speaks them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from turnd.models.chat_connection import ChatConnection
from turnd.models.chat_request import chat_request
from turnd.models.chat_stream import ChatFormError, ChatStream
from turnd.models.price_table import pricing_at
from turnd.ports import ModelFailure, ModelRequest, ModelSpec, StreamEvent
from turnd.rules.price import PriceTier, Pricing
from turnd.v1 import common_pb2 as common


class CompatibleModel:
    """One model of one server."""

    def __init__(self, model: str, connection: ChatConnection) -> None:
        self._model = model
        self._connection = connection
        self._spec = connection.endpoint.spec(model)
        # The mutable state: its prices, once somebody asked for them.
        self._priced: tuple[Pricing | None] | None = None

    @property
    def spec(self) -> ModelSpec:
        """As the server's configuration describes it."""
        return self._spec

    async def prepare(self) -> None:
        """Looks its prices up, which loads the table where the configuration states none."""
        # In a thread: importing the table takes longer than a loop may.
        self._priced = (await asyncio.to_thread(self._look_up),)

    def price(self, at_us: int, tokens: common.TokenCounts) -> PriceTier | None:
        """The tier for this time and size; None where neither the configuration nor the table knows the model."""
        if self._priced is None:
            self._priced = (self._look_up(),)
        (pricing,) = self._priced
        return None if pricing is None else pricing.match(at_us, tokens)

    def _look_up(self) -> Pricing | None:
        endpoint = self._connection.endpoint
        return endpoint.pricing_of(self._model) or pricing_at(endpoint.base_url, self._model)

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
