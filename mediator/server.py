"""The mediator as a process part: the mediator and the gRPC server around it."""

from __future__ import annotations

import logging
import threading
from functools import partial

from algebra.errors import LockstepError
from mediator import metrics
from mediator.config import MediatorConfig
from mediator.mediator import Mediator
from mediator.service import MediatorService
from protos.lockstep.v1 import mediator_pb2, mediator_pb2_grpc
from protos.metrics import Families, MetricsEndpoint
from protos.security.audit import AuditLog
from protos.security.principals import CONFIGURATION
from protos.security.settings import PLAIN
from protos.security.tls import check_exposed, check_reached, served_files
from protos.server import GrpcServer

log = logging.getLogger(__name__)


class MediatorServer:
    """Serves one mediator on one address. Its engine is warm when `start` returns."""

    def __init__(self, config: MediatorConfig) -> None:
        self._config = config
        self.mediator: Mediator | None = None
        self._server: GrpcServer | None = None
        self._metrics: MetricsEndpoint | None = None
        self._done = threading.Event()

    def start(self) -> str:
        """Begin to serve; the bound address."""
        check_exposed(self._config.listen, self._config.security)
        for source, address in self._config.sources.items():
            check_reached(address, self._config.connections.get(source, PLAIN))
        files = served_files(self._config.security.tls)
        if self._config.metrics:
            self._metrics = MetricsEndpoint(self._config.metrics, self._config.security, files, self._fill)
        # The engine may start a Java process, which must not happen while gRPC's threads run: it forks.
        self.mediator = Mediator(self._config)
        service = mediator_pb2.DESCRIPTOR.services_by_name["MediatorService"].full_name
        try:
            self._server = GrpcServer(self._config.listen, [service], self._config.security, files)
            mediator_pb2_grpc.add_MediatorServiceServicer_to_server(
                MediatorService(self.mediator), self._server.server
            )
            if self._metrics is not None:
                log.info("metrics at %s", self._metrics.start())
            address = self._server.start()
            self.mediator.on_storage(self._server.set_serving)
            self.mediator.on_failure(self._done.set)
            self.mediator.on_own_act(partial(_record, self._server.audit))
            self._server.set_serving(True)  # not later: from its start on, the mediator tells if that changes
            self.mediator.start()
        except BaseException:
            self.stop(0)
            raise
        return address

    def _fill(self, families: Families) -> None:
        if self.mediator is not None:
            metrics.fill(self.mediator, families)

    def stop(self, grace: float = 2.0) -> None:
        if self._metrics is not None:
            self._metrics.stop()
        if self.mediator is not None:
            self.mediator.begin_stop()
        if self._server is not None:
            self._server.stop(grace)
        if self.mediator is not None:
            self.mediator.stop()
        self._done.set()

    def wait(self) -> None:
        """Block until `stop` has been called, or it cannot go on."""
        self._done.wait()


def _record(audit: AuditLog, action: str, view: str, error: LockstepError | None) -> None:
    """Write down what the mediator did by itself."""
    outcome, detail = (error.reason, error.message) if error is not None else ("ok", "")
    audit.record(CONFIGURATION, "", action, view, outcome, detail)
