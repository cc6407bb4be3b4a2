"""Service `turnd.v1.Daemon`: which method answers which call."""

from __future__ import annotations

import grpc

from turnd.rpc.commands import DaemonCommands
from turnd.rpc.handlers import Handlers
from turnd.v1 import daemon_pb2

SERVICE_NAME = daemon_pb2.DESCRIPTOR.services_by_name["Daemon"].full_name


def daemon_service(handlers: Handlers, commands: DaemonCommands) -> grpc.GenericRpcHandler:
    """The service, with the calls that this daemon has."""
    return grpc.method_handlers_generic_handler(
        SERVICE_NAME,
        {
            "Status": handlers.unary(commands.status, daemon_pb2.StatusRequest),
            "Drain": handlers.unary(commands.drain, daemon_pb2.DrainRequest),
            "Reload": handlers.unary(commands.reload, daemon_pb2.ReloadRequest),
            "Cost": handlers.unary(commands.cost, daemon_pb2.CostRequest),
            "ListPolicy": handlers.unary(commands.list_policy, daemon_pb2.ListPolicyRequest),
            "ExplainPolicy": handlers.unary(commands.explain_policy, daemon_pb2.ExplainPolicyRequest),
            "RemovePolicy": handlers.unary(commands.remove_policy, daemon_pb2.RemovePolicyRequest),
            "Trust": handlers.unary(commands.trust, daemon_pb2.TrustRequest),
            "Gc": handlers.unary(commands.gc, daemon_pb2.GcRequest),
            "Doctor": handlers.unary(commands.doctor, daemon_pb2.DoctorRequest),
        },
    )
