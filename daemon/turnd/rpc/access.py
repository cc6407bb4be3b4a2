"""Who may call: whoever has the token, and anybody who asks whether the daemon is well."""

from __future__ import annotations

import hmac
from typing import Any, NoReturn, TypeAlias

import grpc
from grpc_health.v1 import health

_OPEN_PREFIX = f"/{health.SERVICE_NAME}/"
_KEY = "authorization"
_SCHEME = "Bearer "

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class Access(grpc.aio.ServerInterceptor):
    """Refuses calls without the token, before their request is read (RPC-06), and calls of unknown methods."""

    def __init__(self, token: str, version: str) -> None:
        self._token = token.encode()
        self._version = version

    async def intercept_service(
        self, continuation: Any, handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        method = str(handler_call_details.method)
        if not method.startswith(_OPEN_PREFIX):
            refusal = self._refusal(dict(handler_call_details.invocation_metadata or ()).get(_KEY))
            if refusal:
                return _refuse(grpc.StatusCode.UNAUTHENTICATED, refusal)
        handler = await continuation(handler_call_details)
        if handler is None:
            text = f"this daemon (version {self._version}) does not have {method.rpartition('/')[2]}"
            return _refuse(grpc.StatusCode.UNIMPLEMENTED, text)
        return handler

    def _refusal(self, given: object) -> str:
        where = "the token is in the file `token` beside the socket"
        if given is None:
            return f"expected metadata `authorization: Bearer TOKEN`, found none; {where}"
        text = given if isinstance(given, str) else ""
        if not text.startswith(_SCHEME):
            return f"expected metadata `authorization: Bearer TOKEN`, found another form; {where}"
        # In constant time, so that how long a refusal takes tells nothing of the token.
        if not hmac.compare_digest(text.removeprefix(_SCHEME).encode("utf-8", "replace"), self._token):
            return f"the token is not this daemon's, perhaps it was started anew: read it again; {where}"
        return ""


def _refuse(code: grpc.StatusCode, text: str) -> _Handler:
    async def refuse(requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> NoReturn:
        await context.abort(code, text)

    # Right for every kind of method: the requests are not looked at.
    return grpc.stream_stream_rpc_method_handler(refuse)
