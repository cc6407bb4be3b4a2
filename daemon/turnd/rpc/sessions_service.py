"""Service `turnd.v1.Sessions`: which method answers which call."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import grpc

from turnd.rpc.attach import Attach
from turnd.rpc.commands import SessionCommands
from turnd.rpc.handlers import Handlers
from turnd.v1 import sessions_pb2

SERVICE_NAME = sessions_pb2.DESCRIPTOR.services_by_name["Sessions"].full_name


def sessions_service(handlers: Handlers, commands: SessionCommands, attach: Attach) -> grpc.GenericRpcHandler:
    """The service, with the calls that this daemon has."""

    async def export(
        request: sessions_pb2.ExportRequest,
    ) -> AsyncGenerator[sessions_pb2.ExportResponse, None]:
        async for lines in commands.export(request):
            yield sessions_pb2.ExportResponse(lines=lines)

    unary, stream, upload = handlers.unary, handlers.stream, handlers.upload
    return grpc.method_handlers_generic_handler(
        SERVICE_NAME,
        {
            "CreateSession": unary(commands.create_session, sessions_pb2.CreateSessionRequest),
            "ListSessions": unary(commands.list_sessions, sessions_pb2.ListSessionsRequest),
            "GetSession": unary(commands.get_session, sessions_pb2.GetSessionRequest),
            "SendMessage": unary(commands.send_message, sessions_pb2.SendMessageRequest),
            "ClearQueue": unary(commands.clear_queue, sessions_pb2.ClearQueueRequest),
            "Attach": stream(attach.follow, sessions_pb2.AttachRequest),
            "Decide": unary(commands.decide, sessions_pb2.DecideRequest),
            "Answer": unary(commands.answer, sessions_pb2.AnswerRequest),
            "Cancel": unary(commands.cancel, sessions_pb2.CancelRequest),
            "Continue": unary(commands.continue_session, sessions_pb2.ContinueRequest),
            "Resume": unary(commands.resume, sessions_pb2.ResumeRequest),
            "UpdateSession": unary(commands.update_session, sessions_pb2.UpdateSessionRequest),
            "CloseSession": unary(commands.close_session, sessions_pb2.CloseSessionRequest),
            "ReadOutput": stream(commands.read_output, sessions_pb2.ReadOutputRequest),
            "Export": stream(export, sessions_pb2.ExportRequest),
            "Verify": upload(commands.verify, sessions_pb2.VerifyRequest),
            "Import": upload(commands.import_session, sessions_pb2.ImportRequest),
            "Fork": unary(commands.fork, sessions_pb2.ForkRequest),
        },
    )
