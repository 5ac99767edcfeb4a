"""The health service of wrapper and mediator.

Problem. Who watches a server's health must not be able to hold it up. The servicer that comes with gRPC
sends to its watchers from the thread that sets the status, under a lock that every ending watch needs too:
a watcher that leaves at that moment, or that does not read what it is sent, stops the thread that looks
after the source, for ever.

Chosen way. A status is set by noting it. Each watch has a thread of its own, which sends what is noted when
it can: a watcher that reads slowly misses what lay in between, and learns the newest. The guard bounds
watches by address; the number of all of them is bounded here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from algebra.errors import LimitExceededError
from protos.status import abort

MOST_WATCHES = 64
"""Of all addresses together: a watch keeps a thread of the server."""


class Health(health_pb2_grpc.HealthServicer):
    """Tells the status of each service, "" being the whole process, to whoever asks or watches."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._statuses: dict[str, int] = {}
        self._closed = False
        self._watches = 0

    def set(self, statuses: Mapping[str, int]) -> None:
        """Set the status of services; without effect after `close`. Never waits for a watcher."""
        with self._changed:
            if not self._closed:
                self._statuses.update(statuses)
                self._changed.notify_all()

    def close(self) -> None:
        """Say for good that nothing is served; watches end after they have told so."""
        with self._changed:
            self._statuses = dict.fromkeys(self._statuses, health_pb2.HealthCheckResponse.NOT_SERVING)
            self._closed = True
            self._changed.notify_all()

    def Check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        with self._changed:
            status = self._statuses.get(request.service)
        if status is None:
            context.abort(grpc.StatusCode.NOT_FOUND, "no service of that name")
        return health_pb2.HealthCheckResponse(status=status)

    def List(self, request: Any, context: grpc.ServicerContext) -> Any:
        with self._changed:
            statuses = dict(self._statuses)
        answers = {
            service: health_pb2.HealthCheckResponse(status=status) for service, status in statuses.items()
        }
        return health_pb2.HealthListResponse(statuses=answers)  # type: ignore[attr-defined]

    def Watch(
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> Iterator[health_pb2.HealthCheckResponse]:
        self._enter(context)
        try:
            told: int | None = None
            while (status := self._next(request.service, told, context)) is not None:
                yield health_pb2.HealthCheckResponse(status=status)
                told = status
        finally:
            with self._changed:
                self._watches -= 1

    def _enter(self, context: grpc.ServicerContext) -> None:
        with self._changed:
            full = self._watches >= MOST_WATCHES
            self._watches += not full
        if full:
            abort(context, LimitExceededError(f"{MOST_WATCHES} watch the health of this server already"))
        context.add_callback(self._wake)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _next(self, service: str, told: int | None, context: grpc.ServicerContext) -> int | None:
        """The status once it is another than `told`; None if there is nobody to be told, or nothing more."""
        with self._changed:
            while context.is_active():
                status = self._statuses.get(service, health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
                if status != told:
                    return status
                if self._closed:
                    return None
                self._changed.wait()
        return None
