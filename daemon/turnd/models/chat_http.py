"""Chat Completions over HTTP, through the official SDK.

This module imports the SDK, which takes a second: import it when it is needed, outside of the event loop.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

import httpx
import openai
from openai import AsyncOpenAI, AsyncStream, DefaultAsyncHttpxClient, Omit

from turnd.models.chat_errors import vendor_error
from turnd.models.endpoint import CompatibleEndpoint
from turnd.models.retry_after import retry_after_ms
from turnd.ports import Clock, ModelFailure
from turnd.v1 import common_pb2 as common

CONNECT_TIMEOUT_S = 10.0
WRITE_TIMEOUT_S = 60.0
LONGEST_MESSAGE = 1000
"""Characters of a vendor's error text that are kept."""


class ChatHttp:
    """The HTTP side of one server: connections, headers, and errors put into categories."""

    def __init__(self, endpoint: CompatibleEndpoint, clock: Clock, redact: Callable[[str], str]) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._redact = redact
        timeout = httpx.Timeout(
            endpoint.idle_timeout_s, connect=CONNECT_TIMEOUT_S, write=WRITE_TIMEOUT_S, pool=CONNECT_TIMEOUT_S
        )
        self._client = AsyncOpenAI(
            # Each request brings its own, so that a changed key counts at once. Without one the SDK would
            # take its vendor's key from the environment, which no other server should see.
            api_key="none",
            base_url=endpoint.base_url,
            max_retries=0,
            timeout=timeout,
            # A proxy of the environment cannot reach this machine's own servers.
            http_client=DefaultAsyncHttpxClient(
                trust_env=not _is_loopback(endpoint.base_url), timeout=timeout
            ),
        )

    async def chunks(self, body: Mapping[str, object], key: str | None) -> AsyncGenerator[object, None]:
        """The chunks of a streamed completion, as decoded JSON, up to the server's end of the stream.

        Raises ModelFailure. Closing the iterator closes the response.
        """
        headers: dict[str, str | Omit] = {
            "Authorization": Omit() if key is None else f"Bearer {key}",
            "OpenAI-Organization": Omit(),
            "OpenAI-Project": Omit(),
        }
        try:
            stream = await self._client.post(
                "/chat/completions",
                body=body,
                cast_to=object,
                options={"headers": headers},
                stream=True,
                stream_cls=AsyncStream[object],
            )
            async with stream:
                async for chunk in stream:
                    yield chunk
        except (
            openai.OpenAIError,
            httpx.HTTPError,
            httpx.StreamError,
            UnicodeDecodeError,
            json.JSONDecodeError,
        ) as e:
            # Without its cause, which may hold what is redacted here.
            raise ModelFailure(self._model_error(e)) from None

    async def close(self) -> None:
        """Closes all connections."""
        await self._client.close()

    def _model_error(self, error: Exception) -> common.ModelError:
        server = f"{self._endpoint.name} ({self._endpoint.base_url})"
        silent = f"{server}: nothing came for {self._endpoint.idle_timeout_s:g} s"
        broken = common.MODEL_ERROR_CATEGORY_STREAM_BROKEN
        match error:
            case openai.APIStatusError():
                return self._of_status(error, server)
            case openai.APIConnectionError():
                cause = error.__cause__
                if isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
                    why = str(cause) or type(cause).__name__
                    return self._error(
                        common.MODEL_ERROR_CATEGORY_OVERLOADED, f"{server} cannot be reached: {why}"
                    )
                if isinstance(cause, httpx.TimeoutException):
                    return self._error(broken, silent)
                return self._error(
                    broken, f"{server}: the connection ended before an answer: {cause or error}"
                )
            case openai.APIError():
                said = vendor_error(None, error.body)
                return self._error(said.category, f"{server}: in the stream: {said.message}", said.code)
            case httpx.TimeoutException():
                return self._error(broken, silent)
            case json.JSONDecodeError() | UnicodeDecodeError():
                return self._error(broken, f"{server}: the stream holds what is not valid JSON")
            case _:
                return self._error(broken, f"{server}: the connection broke: {error}")

    def _of_status(self, error: openai.APIStatusError, server: str) -> common.ModelError:
        said = vendor_error(error.status_code, error.body)
        message = f"{server}: {said.message}"
        if said.category == common.MODEL_ERROR_CATEGORY_AUTH_ERROR:
            message = f"{message}; {self._about_key()}"
        failure = self._error(said.category, message, said.code)
        wait_ms = retry_after_ms(error.response.headers, self._clock.now_us())
        if wait_ms is not None:
            failure.retry_after_ms = wait_ms
        return failure

    def _about_key(self) -> str:
        if self._endpoint.api_key is None:
            return f"no key was sent: models.{self._endpoint.name} has no api_key"
        return f"the key that was sent comes from {self._endpoint.api_key}"

    def _error(
        self, category: common.ModelErrorCategory.ValueType, message: str, code: str = ""
    ) -> common.ModelError:
        # Redacted first: what a cut leaves of a key would not be found.
        return common.ModelError(
            category=category,
            message=_cut(self._redact(message)),
            vendor_code=_cut(self._redact(code)),
        )


def _cut(text: str) -> str:
    clean = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return clean if len(clean) <= LONGEST_MESSAGE else f"{clean[:LONGEST_MESSAGE]}..."


def _is_loopback(base_url: str) -> bool:
    host = urlsplit(base_url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
