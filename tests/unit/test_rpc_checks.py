"""What holds for every request, whatever it asks."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf.message import Message

from turnd.rpc.checks import check
from turnd.rpc.refusals import BadRequest
from turnd.v1 import common_pb2 as common
from turnd.v1 import sessions_pb2 as pb

pytestmark = pytest.mark.req("RPC-05")

INVALID, TOO_MUCH = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED


def parsed(kind: type[Message], data: bytes) -> Message:
    return kind.FromString(data)


@pytest.mark.parametrize(
    ("request_", "field", "code"),
    [
        (parsed(pb.SendMessageRequest, b"\x28\x4d"), "delivery", INVALID),
        (parsed(pb.ListSessionsRequest, b"\x0a\x02\x01\x63"), "statuses[1]", INVALID),
        (parsed(pb.DecideRequest, b"\x30\x63"), "scope", INVALID),
        (parsed(pb.CreateSessionRequest, b"\x3a\x02\x20\x63"), "bounds.", INVALID),
        (pb.GetSessionRequest(session="a\0b"), "session", INVALID),
        (pb.ClearQueueRequest(message_ids=["m", "\0"]), "message_ids[1]", INVALID),
        (pb.CreateSessionRequest(environment={"A": "\0"}), "environment", INVALID),
        (pb.CreateSessionRequest(title="x" * 201), "title", INVALID),
        (pb.AttachRequest(client="x" * 101), "client", INVALID),
        (pb.SendMessageRequest(request_id="x" * 101), "request_id", INVALID),
        (pb.GetSessionRequest(session="x" * 201), "session", INVALID),
        (pb.ImportRequest(start=pb.ImportStart(client="x" * 101)), "start.client", INVALID),
        (pb.DecideRequest(reason="é" * 40_000), "reason", TOO_MUCH),
        (pb.AnswerRequest(output=b"x" * (2**20 + 1)), "output", TOO_MUCH),
    ],
    ids=lambda value: value.DESCRIPTOR.name if isinstance(value, Message) else None,
)
def test_a_field_that_is_wrong_is_named(request_: Message, field: str, code: grpc.StatusCode) -> None:
    with pytest.raises(BadRequest) as refused:
        check(request_)
    assert refused.value.field.startswith(field)
    assert refused.value.code is code


def test_what_is_right_passes() -> None:
    text = common.ContentBlock(text=common.TextBlock(text="\0" + "x" * 10_000))
    check(pb.SendMessageRequest(request_id="x" * 100, client="x" * 100, blocks=[text], delivery=1))
    check(pb.CreateSessionRequest(title="é" * 200, cwd="/" + "x" * 4000, environment={"A": "x" * 9000}))
    check(pb.VerifyRequest(lines=b"\0" * 2**20))
