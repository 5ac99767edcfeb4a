"""Metrics for Prometheus: an HTTP endpoint with a registry of its own.

What is measured is counted where it happens, as plain numbers; a collector turns them into metrics when
somebody asks. So an endpoint that nobody scrapes costs nothing.
"""

from __future__ import annotations

import logging
import socket
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

from algebra.errors import ConfigurationError
from protos.process_memory import peak_bytes, resident_bytes
from protos.security.loopback import is_loopback
from protos.security.settings import ServerSecurity
from protos.security.tls_files import TlsFiles

log = logging.getLogger(__name__)

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SIZES = (1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0, 10000.0)

Family = TypeVar("Family", CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily)

_REQUEST_SECONDS = 30.0
_CONNECTIONS = 64
"""Connections at once; more are closed unread, so that the process has threads and file descriptors left for
its work."""


@dataclass
class Distribution:
    """How often values fell below each bound. One thread adds; any may read."""

    bounds: Sequence[float]
    total: float = 0.0
    counts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """The counts as Prometheus has them: each with all smaller values, by its upper bound."""
        found, sum_so_far = [], 0
        for bound, count in zip([*map(str, self.bounds), "+Inf"], list(self.counts), strict=True):
            sum_so_far += count
            found.append((bound, float(sum_so_far)))
        return found


class Families:
    """Metric families in the making; each is declared where it is filled."""

    def __init__(self) -> None:
        self._made: dict[str, Metric] = {}

    def counter(self, name: str, text: str, value: float, **labels: str) -> None:
        self._family(CounterMetricFamily, name, text, labels).add_metric(list(labels.values()), value)

    def gauge(self, name: str, text: str, value: float, **labels: str) -> None:
        self._family(GaugeMetricFamily, name, text, labels).add_metric(list(labels.values()), value)

    def histogram(self, name: str, text: str, value: Distribution, **labels: str) -> None:
        family = self._family(HistogramMetricFamily, name, text, labels)
        family.add_metric(list(labels.values()), value.buckets(), value.total)

    def _family(self, kind: type[Family], name: str, text: str, labels: dict[str, str]) -> Family:
        if name not in self._made:
            self._made[name] = kind(f"lockstep_{name}", text, labels=list(labels))
        found = self._made[name]
        assert isinstance(found, kind)
        return found

    def process(self) -> None:
        """What every process tells of itself."""
        self.gauge("memory_bytes", "Resident memory of the process.", resident_bytes())
        self.gauge("memory_peak_bytes", "The most resident memory it had.", peak_bytes())

    def all(self) -> list[Metric]:
        """Every family that was filled."""
        return list(self._made.values())


class _Collector(Collector):
    def __init__(self, fill: Callable[[Families], None], files: TlsFiles | None) -> None:
        self._fill = fill
        self._files = files

    def collect(self) -> Iterable[Metric]:
        families = Families()
        self._fill(families)
        families.process()
        if self._files is not None:
            self._files.current()
            text = (
                "1 if the files of `tls` are in use as they are, 0 if older ones are because they are broken."
            )
            families.gauge("tls_files_usable", text, not self._files.problem)
        return families.all()


class _SilentHandler(WSGIRequestHandler):
    """A handler that does not log requests, and does not wait forever for one."""

    timeout = _REQUEST_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _HttpServer(ThreadingWSGIServer):
    """An HTTP server, by TLS if there are files for it: read for each connection, in its own thread.

    So a peer that connects and says nothing holds up nobody but itself.
    """

    files: TlsFiles | None = None

    def __init__(self, *arguments: Any) -> None:
        self._places = threading.BoundedSemaphore(_CONNECTIONS)
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self.files is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(_REQUEST_SECONDS)
        with (
            suppress(OSError),  # who does not speak TLS, or shows no certificate, is not served
            self.files.current().context.wrap_socket(request, server_side=True) as encrypted,
        ):
            super().finish_request(encrypted, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A peer that left in the middle, or spoke nonsense, is no event; a trace on stderr would be one."""
        log.debug("metrics: the request of %s failed", client_address, exc_info=True)


class _HttpServer6(_HttpServer):
    address_family = socket.AF_INET6


class MetricsEndpoint:
    """Serves `/metrics` on an address; with the certificate of the server beside it, if that has one.

    `files` are those of `security.tls`. Metrics name views and sources. On an address that other machines
    reach they are shown to holders of a client certificate only, unless `insecure` allows more.
    """

    def __init__(
        self,
        listen: str,
        security: ServerSecurity,
        files: TlsFiles | None,
        fill: Callable[[Families], None],
    ) -> None:
        tls = security.tls
        if not is_loopback(listen) and not security.insecure and (tls is None or tls.client_ca is None):
            raise ConfigurationError(
                f"other machines reach {listen}: metrics need `tls.client_ca` there, or `insecure: true`"
            )
        self._listen = listen
        self._files = files
        self._registry = CollectorRegistry()
        self._registry.register(_Collector(fill, files))
        self._stop: Callable[[], None] = lambda: None

    def start(self) -> str:
        """Begin to serve; the URL."""
        host, _, port = self._listen.rpartition(":")
        bare = host.strip("[]")
        kind = _HttpServer6 if ":" in bare else _HttpServer
        try:
            server = make_server(
                bare, int(port), make_wsgi_app(self._registry), kind, handler_class=_SilentHandler
            )
        except OSError as error:
            raise ConfigurationError(f"cannot serve metrics on {self._listen}: {error.strerror}") from None
        server.files = self._files
        thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
        thread.start()

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join(5)

        self._stop = stop
        return f"{'https' if self._files else 'http'}://{host}:{server.server_port}/metrics"

    def stop(self) -> None:
        self._stop()
        self._stop = lambda: None
