"""What Prometheus is told: every number moves with what it counts, and the lag while news are missing."""

from __future__ import annotations

import errno
import os
import random
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

import protos.metrics
from integration_tests.site import VIEW, Site, inside, wait_for
from lab.soak.proxy import FAIR, Weather
from mediator import metrics
from mediator.server import MediatorServer
from protos.metrics import Families, MetricsEndpoint
from protos.security.settings import ServerSecurity


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(stack, tmp_path)


Samples = dict[tuple[str, ...], float]


def samples(families: Families) -> Samples:
    """Every sample by its name and its labels' values."""
    found = (sample for family in families.all() for sample in family.samples)
    return {(s.name, *(value for _, value in sorted(s.labels.items()))): s.value for s in found}


def told(server: MediatorServer) -> Samples:
    families = Families()
    metrics.fill(inside(server), families)
    families.process()
    return samples(families)


def told_by(site: Site, source: str) -> Samples:
    families = Families()
    site.wrappers[source]._fill(families)
    return samples(families)


def lags(server: MediatorServer) -> tuple[float, float]:
    shown = told(server)
    first, second = (shown["lockstep_view_source_lag_seconds", name, "v"] for name in ("one", "two"))
    return first, second


def test_every_number_counts_what_it_says(site: Site) -> None:
    server, client = site.mediator()
    client.create_view("v", VIEW)
    with inside(server).views["v"].installing:
        for k in range(3, 8):
            site.writers["one"].commit(f"INSERT INTO r VALUES ({k}, 1), ({k + 100}, 1)")
        wait_for(server, lambda mediator: len(mediator.views["v"].queue) == 5)
        waiting = told(server)
        assert waiting["lockstep_view_pending_transactions", "v"] == 5
        assert waiting["lockstep_view_pending_rows", "v"] == 10
        assert waiting["lockstep_waiting_rows",] == waiting["lockstep_source_owed_rows", "one"] == 15
        assert waiting["lockstep_view_source_lag_seconds", "one", "v"] > 0
        assert waiting["lockstep_view_source_lag_seconds", "two", "v"] == 0
        assert waiting["lockstep_view_version", "v"] == 0
    client.wait_for_version("v", 5)
    wait_for(server, lambda mediator: mediator.channels["one"].owed == 0)
    shown = told(server)
    counted = {
        "view_version": 5, "view_transactions_total": 5, "view_rows_total": 10, "view_batches_total": 1,
        "view_queries_total": 1, "view_batch_transactions_count": 1, "view_batch_transactions_sum": 5,
        "view_pending_transactions": 0, "view_pending_rows": 0, "view_maintained": 1,
    }  # fmt: skip
    assert {name: shown[f"lockstep_{name}", "v"] for name in counted} == counted
    assert shown["lockstep_view_lag_seconds", "v"] >= lags(server)[0] == 0
    assert shown["lockstep_view_lag_p99_seconds", "v"] > 0
    assert shown["lockstep_commit_seconds_count",] == 1
    assert shown["lockstep_commit_seconds_sum",] > 0
    assert shown["lockstep_source_transactions_total", "one"] == 5
    assert shown["lockstep_source_queries_total", "two"] == 1
    for counter in ("received", "sent"):
        assert shown[f"lockstep_source_{counter}_bytes_total", "one"] > 0
    assert 0 < shown["lockstep_memory_bytes",] <= shown["lockstep_memory_peak_bytes",]
    wrapper = told_by(site, "one")
    assert wrapper["lockstep_wrapper_transactions_total", "one"] == 5
    assert wrapper["lockstep_wrapper_rows_total", "one"] == 10
    assert wrapper["lockstep_wrapper_run_transactions_sum", "one"] == 5
    assert wrapper["lockstep_wrapper_sent_bytes_total", "one"] > 0
    assert told_by(site, "two")["lockstep_wrapper_queries_total", "two"] == 1
    assert told_by(site, "two")["lockstep_wrapper_answer_seconds_count", "two"] == 1


def test_answers_that_show_too_much_are_counted_as_compensated(site: Site) -> None:
    server, client = site.mediator()
    client.create_view("v", VIEW)
    with inside(server).views["v"].installing:
        site.writers["one"].commit("INSERT INTO r VALUES (3, 1)")
        site.writers["two"].commit("INSERT INTO s VALUES (1, 11)")
        wait_for(server, lambda mediator: len(mediator.views["v"].queue) == 2)
    client.wait_for_version("v", 2)
    wait_for(server, lambda _: told(server)["lockstep_view_compensations_total", "v"] >= 1)


def test_the_lag_grows_while_a_source_is_away_and_while_a_view_is_parked_or_paused(site: Site) -> None:
    server, client = site.mediator(umq_rows=40)
    client.create_view("v", VIEW)
    assert lags(server) == (0, 0)
    site.proxies["two"].weather = Weather(closed=True)
    site.proxies["two"].cut()
    wait_for(server, lambda mediator: not mediator.channels["two"].connected)
    assert lags(server)[1] > 0, "whatever happens there now is not shown"
    for k in range(10, 40):
        site.writers["one"].commit(f"INSERT INTO r VALUES ({k}, 1)")
    wait_for(server, lambda mediator: mediator.views["v"].parked)
    parked = lags(server)
    assert min(parked) > 0
    wait_for(server, lambda _: all(now > then for now, then in zip(lags(server), parked, strict=True)))
    site.proxies["two"].weather = FAIR
    client.wait_for_version("v", 30)
    wait_for(server, lambda _: lags(server) == (0, 0))
    site.writers["one"].commit("ALTER TABLE r ADD COLUMN z INTEGER")
    site.writers["one"].commit("INSERT INTO r VALUES (50, 1, 1)")
    wait_for(server, lambda mediator: bool(mediator.views["v"].problem))
    wait_for(server, lambda _: min(lags(server)) > 0)
    assert told(server)["lockstep_view_maintained", "v"] == 0


def test_a_view_that_could_not_be_taken_up_is_not_maintained(site: Site) -> None:
    server, client = site.mediator()
    client.create_view("v", VIEW)
    server.stop(0)
    site.proxies["two"].weather = Weather(closed=True)
    server, client = site.mediator()
    assert told(server)["lockstep_view_maintained", "v"] == 0
    site.proxies["two"].weather = FAIR
    wait_for(server, lambda _: told(server)["lockstep_view_maintained", "v"] == 1)


def test_a_warehouse_that_cannot_be_written_is_told(site: Site) -> None:
    server, client = site.mediator()
    client.create_view("v", VIEW)
    assert told(server)["lockstep_warehouse_writable",] == 1
    full = True

    def fault(name: str) -> None:
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    inside(server).warehouse._store.steps._fault = fault
    site.writers["one"].commit("INSERT INTO r VALUES (3, 1)")
    wait_for(server, lambda _: told(server)["lockstep_warehouse_writable",] == 0)
    full = False
    client.wait_for_version("v", 1)
    wait_for(server, lambda _: told(server)["lockstep_warehouse_writable",] == 1)


def test_nonsense_at_the_endpoint_leaves_no_trace(capfd: pytest.CaptureFixture[str]) -> None:
    endpoint = MetricsEndpoint("127.0.0.1:0", ServerSecurity(), None, lambda _: None)
    host, _, port = endpoint.start().removeprefix("http://").removesuffix("/metrics").rpartition(":")
    numbers = random.Random(3)
    for nonsense in (numbers.randbytes(3000), b"GET /metrics HTTP/1.1\r\n\r\n" * 50, b"X" * 70_000):
        with socket.create_connection((host, int(port)), 10) as peer:
            # Left with a reset, while the answer is being written.
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.sendall(nonsense)
    with socket.create_connection((host, int(port)), 10) as peer:
        peer.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert b"lockstep_memory_bytes" in peer.makefile("rb").read()
    endpoint.stop()
    assert capfd.readouterr().err == ""


def test_connections_to_the_endpoint_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those beyond the bound are closed at once, and others come in when there are places again."""
    monkeypatch.setattr(protos.metrics, "_CONNECTIONS", 4)
    endpoint = MetricsEndpoint("127.0.0.1:0", ServerSecurity(), None, lambda _: None)
    host, _, port = endpoint.start().removeprefix("http://").removesuffix("/metrics").rpartition(":")
    before = threading.active_count()
    with ExitStack() as stack:
        stack.callback(endpoint.stop)
        silent = [stack.enter_context(socket.create_connection((host, int(port)), 60)) for _ in range(4)]
        for _ in range(20):
            with socket.create_connection((host, int(port)), 60) as beyond:
                assert beyond.recv(1) == b""
        assert threading.active_count() <= before + len(silent)
        for peer in silent:
            peer.shutdown(socket.SHUT_WR)
            assert peer.recv(1) == b""
        answers = (scraped(host, int(port)) for _ in range(1000))  # a place may not be free yet
        assert any(b"lockstep_memory_bytes" in answer for answer in answers)


def scraped(host: str, port: int) -> bytes:
    """What the endpoint says; nothing if it has no place."""
    with suppress(ConnectionError), socket.create_connection((host, port), 60) as peer:
        peer.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        return peer.makefile("rb").read()
    return b""
