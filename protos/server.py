"""A gRPC server with health and reflection, as wrapper and mediator both run it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent import futures

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from algebra.errors import ConfigurationError

MESSAGE_OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)
"""Sizes are bounded by chunking and credit, not by gRPC's default of 4 MiB."""


class GrpcServer:
    """A server on one address; tells its health as long as it serves."""

    def __init__(self, listen: str, services: Sequence[str], workers: int = 32) -> None:
        self.server = grpc.server(
            futures.ThreadPoolExecutor(workers, thread_name_prefix="grpc"),
            options=[*MESSAGE_OPTIONS, ("grpc.so_reuseport", 0)],
        )
        self._listen = listen
        self._services = [*services, health.SERVICE_NAME, reflection.SERVICE_NAME]
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)
        reflection.enable_server_reflection(self._services, self.server)

    def start(self) -> str:
        """Listen and serve; the bound address as host:port."""
        try:
            port = self.server.add_insecure_port(self._listen)
        except RuntimeError:
            port = 0
        if port == 0:
            raise ConfigurationError(f"cannot listen on {self._listen}: is the address in use?")
        self.server.start()
        for service in ("", *self._services):
            self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        host = self._listen.rsplit(":", 1)[0]
        return f"{host}:{port}"

    def stop(self, grace: float) -> None:
        """Refuse new work at once, let running calls finish within `grace` seconds."""
        self._health.enter_graceful_shutdown()
        self.server.stop(grace).wait()
