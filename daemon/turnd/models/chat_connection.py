"""One server for all models and sessions that use it; the SDK is loaded with the first request to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING

from turnd.models.endpoint import CompatibleEndpoint
from turnd.models.keys import Keys, KeyUnavailable
from turnd.ports import Clock, ModelFailure
from turnd.v1 import common_pb2 as common

if TYPE_CHECKING:
    from turnd.models.chat_http import ChatHttp


class ChatConnection:
    """A server, and the key for it."""

    def __init__(self, endpoint: CompatibleEndpoint, clock: Clock, keys: Keys) -> None:
        self.endpoint = endpoint
        self._clock = clock
        self._keys = keys
        # The mutable state: the HTTP side, once somebody needed it.
        self._http: ChatHttp | None = None
        self._opening = asyncio.Lock()

    async def chunks(self, body: Mapping[str, object]) -> AsyncGenerator[object, None]:
        """The chunks of a streamed completion. Raises ModelFailure; closing it closes the response."""
        key = self._key()
        http = await self._opened()
        async with aclosing(http.chunks(body, key)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def close(self) -> None:
        """Closes all connections; a later request opens them again."""
        async with self._opening:
            http, self._http = self._http, None
        if http is not None:
            await http.close()

    def _key(self) -> str | None:
        source = self.endpoint.api_key
        if source is None:
            return None
        try:
            return self._keys.read(source)
        except KeyUnavailable as missing:
            raise ModelFailure(
                common.ModelError(
                    category=common.MODEL_ERROR_CATEGORY_AUTH_ERROR,
                    message=f"there is no key for models.{self.endpoint.name}: {missing}",
                )
            ) from None

    async def _opened(self) -> ChatHttp:
        async with self._opening:
            if self._http is None:
                # In a thread: importing the SDK and reading certificates takes longer than a loop may.
                self._http = await asyncio.to_thread(self._open)
            return self._http

    def _open(self) -> ChatHttp:
        from turnd.models.chat_http import ChatHttp

        return ChatHttp(self.endpoint, self._clock, self._keys.redact)
