"""The wrapper as a process part: the query processor's thread and the gRPC server around it."""

from __future__ import annotations

import logging
import threading

from adapters.spi import Adapter
from protos.lockstep.v1 import wrapper_pb2, wrapper_pb2_grpc
from protos.metrics import Families, MetricsEndpoint
from protos.security.settings import WRAPPER_REQUEST_BYTES, ServerSecurity
from protos.security.tls import served_files
from protos.server import GrpcServer
from wrapper.allow_list import Policies
from wrapper.limits import WrapperLimits
from wrapper.metrics import fill
from wrapper.query_processor import QueryProcessor
from wrapper.service import WrapperService

log = logging.getLogger(__name__)

WATCH_SECONDS = 1.0


class WrapperServer:
    """Serves one source on one address."""

    def __init__(
        self,
        adapter: Adapter,
        listen: str,
        security: ServerSecurity | None = None,
        policies: Policies | None = None,
        metrics: str | None = None,
        limits: WrapperLimits | None = None,
    ) -> None:
        self._adapter = adapter
        self._processor = QueryProcessor(adapter, self._set_reachable, limits)
        self._thread = threading.Thread(target=self._process, name="query-processor", daemon=True)
        service = wrapper_pb2.DESCRIPTOR.services_by_name["WrapperService"].full_name
        security = security or ServerSecurity(max_request_bytes=WRAPPER_REQUEST_BYTES)
        files = served_files(security.tls)
        self._server = GrpcServer(listen, [service], security, files, adapter.config.name)
        wrapper_pb2_grpc.add_WrapperServiceServicer_to_server(
            WrapperService(self._processor, self._new_adapter, self._server.audit, policies),
            self._server.server,
        )
        self._metrics = MetricsEndpoint(metrics, security, files, self._fill) if metrics else None
        self._done = threading.Event()
        self._watchdog = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def _process(self) -> None:
        """Run the query processor; should it end by an error, so does the server: it could serve nothing."""
        try:
            self._processor.run()
        except BaseException:
            log.critical("the wrapper ends, start it again: its query processor has ended", exc_info=True)
            self._done.set()

    def _fill(self, families: Families) -> None:
        processor = self._processor
        waiting = len(processor.messages)
        fill(families, processor.source, processor.counters, waiting, processor.attached, processor.reachable)

    def _set_reachable(self, reachable: bool) -> None:
        self._server.set_serving(reachable)

    def _watch(self) -> None:
        """Have health tell the truth also while the query processor waits for a source that says nothing."""
        overdue = False
        while not self._done.wait(WATCH_SECONDS):
            if self._processor.is_overdue != overdue:
                overdue = not overdue
                if overdue:
                    log.warning("source %s has not answered for long", self._processor.source)
                self._server.set_serving(self._processor.reachable)

    def _new_adapter(self) -> Adapter:
        return type(self._adapter)(self._adapter.config)

    def start(self) -> str:
        """Begin to serve; the bound address. Fails at once if the source cannot be described."""
        probe = self._new_adapter()
        try:
            probe.catalog()
        finally:
            probe.close()
        if self._metrics is not None:
            log.info("metrics at %s", self._metrics.start())
        address = self._server.start()
        self._thread.start()
        self._watchdog.start()
        return address

    def stop(self, grace: float = 2.0) -> None:
        self._processor.stop()
        if self._thread.is_alive():
            self._thread.join(timeout=grace + 5)
        self._server.stop(grace)
        if self._metrics is not None:
            self._metrics.stop()
        self._done.set()

    def wait(self) -> None:
        """Block until `stop` has been called, or it cannot go on."""
        self._done.wait()
