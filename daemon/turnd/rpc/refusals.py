"""Errors as gRPC statuses with google.rpc details (RPC-05)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from turnd.ports import EventTooLarge, LogFailed, UnknownSession, UnreadableSession
from turnd.rpc.limits import MAX_ERROR_DETAILS_BYTES, MAX_ERROR_TEXT_BYTES, MAX_MESSAGE_BYTES
from turnd.rules.state import Violation
from turnd.sessions.refusal import Code, CommandRefused

_DETAILS_KEY = "grpc-status-details-bin"
_DESCRIPTION = 512


@dataclass(frozen=True, slots=True)
class Refusal:
    """What the client is told."""

    code: grpc.StatusCode
    text: str
    details: Sequence[Message] = ()


class BadRequest(Exception):
    """A request that no command could be made of; `field` is the one at fault."""

    def __init__(
        self, field: str, text: str, code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT
    ) -> None:
        super().__init__(text)
        self.field = field
        self.code = code


class ResponseTooLarge(Exception):
    """An answer that no message of the transport can carry, of `size` bytes."""

    def __init__(self, kind: str, size: int) -> None:
        super().__init__(
            f"the answer to {kind} has {size} bytes, and one message takes {MAX_MESSAGE_BYTES}; "
            "what was asked for was done"
        )


def refusal_of(error: BaseException) -> Refusal | None:
    """The refusal that an error means; None where it is a fault of the daemon's own."""
    match error:
        case CommandRefused():
            return _command_refused(error)
        case BadRequest():
            return Refusal(error.code, str(error), _field_violation(error.field, str(error)))
        case UnknownSession():
            return Refusal(
                grpc.StatusCode.NOT_FOUND, str(error), _resource("turnd.v1.Session", "", str(error))
            )
        case UnreadableSession():
            return Refusal(grpc.StatusCode.DATA_LOSS, str(error))
        case LogFailed():
            # The error says itself that the log could not be written.
            text = f"nothing was done: {error}"
            return Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        case EventTooLarge():
            text = f"nothing was done: {error}; send less at once"
            return Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        case ResponseTooLarge():
            return Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        case Violation():
            text = f"the session cannot do this now: {error.text}"
            return Refusal(grpc.StatusCode.FAILED_PRECONDITION, text, _precondition(error.text, {}))
        case _:
            return None


def _command_refused(error: CommandRefused) -> Refusal:
    return Refusal(grpc.StatusCode[error.code.name], error.text, _command_details(error))


def _command_details(error: CommandRefused) -> list[Message]:
    match error.code:
        case Code.INVALID_ARGUMENT | Code.OUT_OF_RANGE:
            return _field_violation(error.field_name, error.text)
        case Code.NOT_FOUND:
            kind, name = (error.details.get(key, "") for key in ("resource_type", "resource_name"))
            return _resource(kind, name, error.text)
        case Code.FAILED_PRECONDITION:
            return _precondition(error.text, error.details)
        case Code.RESOURCE_EXHAUSTED | Code.UNAVAILABLE:
            return []


def _field_violation(field: str, text: str) -> list[Message]:
    violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=_cut(text, _DESCRIPTION))
    return [error_details_pb2.BadRequest(field_violations=[violation])]


def _resource(kind: str, name: str, text: str) -> list[Message]:
    description = _cut(text, _DESCRIPTION)
    return [
        error_details_pb2.ResourceInfo(
            resource_type=kind, resource_name=_cut(name, _DESCRIPTION), description=description
        )
    ]


def _precondition(text: str, facts: Mapping[str, str]) -> list[Message]:
    violation = error_details_pb2.PreconditionFailure.Violation(
        type="SESSION", subject=facts.get("session", ""), description=_cut(text, _DESCRIPTION)
    )
    # The facts (who decided, and when) as a map beside it, for programs.
    return [
        error_details_pb2.PreconditionFailure(violations=[violation]),
        error_details_pb2.ErrorInfo(reason="FAILED_PRECONDITION", domain="turnd", metadata=dict(facts)),
    ]


async def abort(context: grpc.aio.ServicerContext[Any, Any], refusal: Refusal) -> NoReturn:
    """Ends the call with a refusal, cut to what clients in any language can take (G05)."""
    text = _cut(refusal.text, MAX_ERROR_TEXT_BYTES)
    details = _packed(refusal.details)
    status = status_pb2.Status(code=refusal.code.value[0], message=text, details=details)
    metadata = ((_DETAILS_KEY, status.SerializeToString()),) if details else ()
    await context.abort(refusal.code, text, metadata)


def _cut(text: str, limit: int) -> str:
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= limit:
        return encoded.decode()
    return encoded[:limit].decode("utf-8", "ignore") + " ..."


def _packed(details: Sequence[Message]) -> list[AnyMessage]:
    packed: list[AnyMessage] = []
    left = MAX_ERROR_DETAILS_BYTES
    for detail in details:
        left -= detail.ByteSize()
        if left < 0:
            break
        item = AnyMessage()
        item.Pack(detail)
        packed.append(item)
    return packed
