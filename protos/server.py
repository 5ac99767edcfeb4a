"""A gRPC server with health, reflection and a guard, as wrapper and mediator both run it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent import futures

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from algebra.errors import ConfigurationError
from protos.health import Health
from protos.security.audit import AuditLog
from protos.security.guard import Guard
from protos.security.settings import ServerSecurity
from protos.security.tls import bind, check_exposed
from protos.security.tls_files import TlsFiles
from protos.version import PROTOCOL_VERSION

_MILLISECONDS = 1000
_SERVER_KEEPALIVE_SECONDS = 10.0


def keepalive_options(seconds: float) -> Sequence[tuple[str, int]]:
    """Options of either end: after so long without a sign of life a ping, after as long again the end.

    So a connection whose other end is gone without a word is noticed within twice that time. 0: never.
    """
    if not seconds:
        return ()
    period = max(1, int(seconds * _MILLISECONDS))
    return (
        ("grpc.keepalive_time_ms", period),
        ("grpc.keepalive_timeout_ms", period),
        # Without it, an unanswered ping counts for a minute, whatever the timeout of keepalive is.
        ("grpc.http2.ping_timeout_ms", period),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    )


_WORKERS = 256
"""Threads for calls, made as they are needed. One caller has at most `CallLimits.calls` of them."""

_CONNECTIONS = 512
"""Connections at once; more are closed unread, so that the process has file descriptors left for its work."""
_HANDSHAKE_SECONDS = 20.0
"""How long a peer may take until it speaks HTTP/2, by TLS or not."""
_IDLE_SECONDS = 60.0
"""How long a connection is kept that has no call; callers connect again by themselves."""


def _server_options() -> Sequence[tuple[str, int]]:
    return (
        ("grpc.so_reuseport", 0),
        ("grpc.max_allowed_incoming_connections", _CONNECTIONS),
        ("grpc.server_handshake_timeout_ms", int(_HANDSHAKE_SECONDS * _MILLISECONDS)),
        ("grpc.max_connection_idle_ms", int(_IDLE_SECONDS * _MILLISECONDS)),
        # Calls that wait for a thread cost memory; beyond, one connection's calls wait at its own end.
        ("grpc.max_concurrent_streams", 1000),
        *keepalive_options(_SERVER_KEEPALIVE_SECONDS),
        # Clients choose how often they ask for a sign of life; by default a server ends what it finds too
        # often.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 200),
        ("grpc.http2.max_ping_strikes", 0),
    )


class GrpcServer:
    """A server on one address, with its health: not serving until, and unless, `set_serving` says so.

    `files` are those of `security.tls`, to be looked at for each connection. `source` is the one that a
    wrapper serves.
    """

    def __init__(
        self,
        listen: str,
        services: Sequence[str],
        security: ServerSecurity | None = None,
        files: TlsFiles | None = None,
        source: str = "",
    ) -> None:
        self._security = security or ServerSecurity()
        check_exposed(listen, self._security)
        name = f"wrapper {source}" if source else "mediator"
        self.audit = AuditLog(self._security.audit, name)
        self._guard = Guard(self._security, self.audit, PROTOCOL_VERSION, source)
        self.server = grpc.server(
            futures.ThreadPoolExecutor(_WORKERS, thread_name_prefix="grpc"),
            interceptors=[self._guard],
            options=[
                ("grpc.max_receive_message_length", self._security.max_request_bytes),
                ("grpc.max_send_message_length", -1),
                *_server_options(),
            ],
        )
        self._listen = listen
        self._files = files
        self._services = [*services, health.SERVICE_NAME, reflection.SERVICE_NAME]
        self._health = Health()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)
        reflection.enable_server_reflection(self._services, self.server)

    def start(self) -> str:
        """Listen and serve; the bound address as host:port."""
        port = bind(self.server, self._listen, self._files)
        if port == 0:
            raise ConfigurationError(f"cannot listen on {self._listen}: is the address in use?")
        self._guard.start()
        self.set_serving(False)
        self.server.start()
        host = self._listen.rsplit(":", 1)[0]
        return f"{host}:{port}"

    def set_serving(self, serving: bool) -> None:
        """Tell the process's health (""), and that of its own service, to whoever asks or watches.

        Health and reflection themselves serve whenever they answer.
        """
        up, down = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
        always = (health.SERVICE_NAME, reflection.SERVICE_NAME)
        self._health.set(
            {service: up if serving or service in always else down for service in ("", *self._services)}
        )

    def stop(self, grace: float) -> None:
        """Refuse new work at once, let running calls finish within `grace` seconds."""
        self._health.close()
        self.server.stop(grace).wait()
        self._guard.stop()
