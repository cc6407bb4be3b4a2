"""What can go wrong between a client and its daemon, as the caller can act on it."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from turnd_client.wire import MAX_MESSAGE_BYTES

_OWN_WORDS = "the daemon "
_MESSAGE_TOO_LARGE = "message larger than max"
_DETAILS_KEY = "grpc-status-details-bin"
_DETAIL_TYPES: tuple[type[Message], ...] = (
    error_details_pb2.BadRequest,
    error_details_pb2.PreconditionFailure,
    error_details_pb2.ResourceInfo,
    error_details_pb2.QuotaFailure,
    error_details_pb2.ErrorInfo,
)


class ClientError(Exception):
    """The base of everything here; the text is for people and says what to do.

    `detail` is what gRPC said, for those who look for a fault; empty where it said nothing more.
    """

    def __init__(self, text: str, detail: str = "") -> None:
        super().__init__(text)
        self.detail = detail


class UnsafeEndpoint(ClientError):
    """The runtime directory, the socket or the token is not the user's own, or others can open it (V11)."""


class NoDaemon(ClientError):
    """No daemon answers on the socket."""


class StartFailed(ClientError):
    """A daemon was started and did not become ready."""


class StopFailed(ClientError):
    """A daemon was asked to stop and lives on."""


class OtherProtocol(ClientError):
    """The daemon speaks another major version of `turnd.v1`; only status and stop work (V08)."""


class ConnectionLost(ClientError):
    """The daemon went away during a call; what the call did is in the log."""


class StayedAway(ConnectionLost):
    """The daemon went away, and did not come back while it was waited for."""


class CallTimedOut(ClientError):
    """The daemon did not answer within the call's deadline."""


class Refused(ClientError):
    """The daemon refused a command."""

    def __init__(
        self, code: grpc.StatusCode, text: str, details: Sequence[Message] = (), detail: str = ""
    ) -> None:
        super().__init__(text, detail)
        self.code = code
        self.details = tuple(details)

    @property
    def field(self) -> str:
        """The field of the request that was wrong; empty where the refusal is not about one."""
        for detail in self.details:
            if isinstance(detail, error_details_pb2.BadRequest) and detail.field_violations:
                return str(detail.field_violations[0].field)
        return ""

    @property
    def resource(self) -> str:
        """What was not found, as the request named it; empty where the refusal is not about that."""
        for detail in self.details:
            if isinstance(detail, error_details_pb2.ResourceInfo):
                return str(detail.resource_name)
        return ""

    @property
    def facts(self) -> dict[str, str]:
        """What programs may want to know: who decided, and when."""
        for detail in self.details:
            if isinstance(detail, error_details_pb2.ErrorInfo):
                return dict(detail.metadata)
        return {}


def from_rpc(error: grpc.aio.AioRpcError) -> ClientError:
    """The exception for a failed call."""
    said = error.details() or ""
    detail = f"{error.code().name}: {said}"
    match error.code():
        case grpc.StatusCode.UNAVAILABLE:
            # The daemon's own words where it could still say some; else they are of the transport.
            text = said if said.startswith(_OWN_WORDS) else "the daemon went away"
            return ConnectionLost(text, detail)
        case grpc.StatusCode.CANCELLED:
            return ConnectionLost("the connection to the daemon was ended", detail)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return CallTimedOut(
                "the daemon did not answer in time; its log may say why: see `turn status`", detail
            )
        case grpc.StatusCode.UNIMPLEMENTED:
            text = (
                "the daemon that runs cannot do this: it is of another version; "
                "after `turn stop` this version's is started"
            )
            return Refused(error.code(), text, detail=detail)
        case grpc.StatusCode.RESOURCE_EXHAUSTED if _MESSAGE_TOO_LARGE in said:
            text = f"this is too large to be sent: at most {MAX_MESSAGE_BYTES // 2**20} MiB go into one call"
            return Refused(error.code(), text, detail=detail)
        case code:
            return Refused(code, said or f"the daemon refused this ({code.name})", _details(error), detail)


def _details(error: grpc.aio.AioRpcError) -> list[Message]:
    packed = dict(error.trailing_metadata() or ()).get(_DETAILS_KEY)
    status = status_pb2.Status()
    if isinstance(packed, bytes):
        try:
            status.ParseFromString(packed)
        except DecodeError:
            # The code and the text stand by themselves; details only add to them.
            return []
    found: list[Message] = []
    for item in status.details:
        for kind in _DETAIL_TYPES:
            if item.Is(kind.DESCRIPTOR):
                detail = kind()
                item.Unpack(detail)
                found.append(detail)
    return found
