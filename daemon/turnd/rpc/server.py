"""The gRPC server on the Unix socket: made in one loop, stopped only when its handlers are (G03, G07)."""

from __future__ import annotations

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from turnd.rpc import daemon_service, sessions_service
from turnd.rpc.access import Access
from turnd.rpc.attach import Attach, Tail
from turnd.rpc.calls import RunningCalls
from turnd.rpc.commands import DaemonCommands, Presence, SessionCommands
from turnd.rpc.endpoint import address, prepare_runtime, private_umask, remove_token
from turnd.rpc.handlers import Handlers
from turnd.rpc.limits import CLEANUP_S, HEARTBEAT_S, SERVER_OPTIONS, STUCK_CLIENT_S
from turnd.v1 import paths
from turnd.v1.paths import Paths

_log = structlog.get_logger(__name__)


class BindFailed(Exception):
    """The socket could not be bound; the message says why and what to do."""


class RpcServer:
    """The public API. The lock must be held before `start`, and until `stop` has returned (V03).

    `heartbeat_s` and `stuck_client_s` are seconds; see `limits`.
    """

    def __init__(
        self,
        place: Paths,
        version: str,
        sessions: SessionCommands,
        daemon: DaemonCommands,
        tail: Tail,
        presence: Presence,
        *,
        heartbeat_s: float = HEARTBEAT_S,
        stuck_client_s: float = STUCK_CLIENT_S,
    ) -> None:
        self._place = place
        self._version = version
        self._calls = RunningCalls()
        self._health = HealthServicer()
        handlers = Handlers(self._calls, stuck_client_s)
        attach = Attach(sessions, tail, presence, self._calls, heartbeat_s)
        self._services = (
            sessions_service.sessions_service(handlers, sessions, attach),
            daemon_service.daemon_service(handlers, daemon),
        )
        # Held here: a server without a reference is closed by the collector (G09).
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Writes the token, binds the socket and serves. Raises PathError, OSError and BindFailed."""
        token = prepare_runtime(self._place)
        server = grpc.aio.server(interceptors=(Access(token, self._version),), options=SERVER_OPTIONS)
        server.add_generic_rpc_handlers(self._services)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (sessions_service.SERVICE_NAME, daemon_service.SERVICE_NAME, health.SERVICE_NAME)
        reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), server)
        try:
            with private_umask():
                server.add_insecure_port(address(self._place))
        except RuntimeError as error:
            raise BindFailed(
                f"cannot listen at {self._place.socket}: {error}; "
                "is its directory on a file system that can hold sockets?"
            ) from error
        paths.check_private_file(self._place.socket)
        await server.start()
        self._server = server
        await self._serving(health_pb2.HealthCheckResponse.SERVING)

    async def stop(self, grace_s: float) -> None:
        """Ends the streams, gives other calls the grace time (seconds), and waits for what handlers clean up.

        When this returns no handler uses the log any more, but for those that are named in the daemon's log.
        """
        server, self._server = self._server, None
        if server is None:
            return
        await self._serving(health_pb2.HealthCheckResponse.NOT_SERVING)
        self._calls.stopping.set()
        remove_token(self._place)
        await server.stop(grace_s)
        if not await self._calls.ended(CLEANUP_S):
            _log.error("calls did not end", waited_s=CLEANUP_S)

    async def _serving(self, status: int) -> None:
        for name in ("", sessions_service.SERVICE_NAME, daemon_service.SERVICE_NAME):
            await self._health.set(name, status)
